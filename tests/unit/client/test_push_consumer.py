"""Checks: the blocking and the asyncio push consumer, one suite for both, over real connections to our broker."""

from __future__ import annotations

import asyncio
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import pytest

from cometmq.client.instance.background import background
from cometmq.client.instance.service_state import ServiceState
from cometmq.client.producer import Producer
from cometmq.client.push.listeners import Outcome
from cometmq.client.push_consumer import PushConsumer
from cometmq.errors import ClientStateError, GroupTaken, InvalidArgument
from cometmq.testing import Cluster, cluster
from support.push_surfaces import SURFACES, maker

LIMIT_S = 60
# Routes of new topics and shares of new members come within a test, too.
QUICK: Any = {
    "poll_name_server_interval_ms": 100,
    "rebalance_min_interval_ms": 50,
    "rebalance_wait_interval_ms": 200,
}
FIRST: Any = {"consume_from_where": "CONSUME_FROM_FIRST_OFFSET", **QUICK}


Maker = Callable[..., Any]


@pytest.fixture(scope="module", params=SURFACES)
def surface(request: pytest.FixtureRequest) -> str:
    """The suite runs for each."""
    return str(request.param)


@pytest.fixture
def make(surface: str) -> Iterator[Maker]:
    with maker(surface) as making:
        yield making


@pytest.fixture(scope="module")
def servers(surface: str) -> Iterator[Cluster]:
    # One second each, so that retries come within a test.
    with cluster(settings={"messageDelayLevel": " ".join(["1s"] * 18)}) as running:
        yield running


@pytest.fixture(scope="module")
def blocking_servers() -> Iterator[Cluster]:
    """For what the blocking surface has alone."""
    with cluster() as running:
        yield running


@pytest.fixture(scope="module")
def blocking_producer(blocking_servers: Cluster) -> Iterator[Producer]:
    with Producer("makers", name_servers=blocking_servers.name_server_address) as running:
        yield running


@pytest.fixture(scope="module")
def producer(servers: Cluster) -> Iterator[Producer]:
    with Producer("makers", name_servers=servers.name_server_address) as running:
        yield running


def send(producer: Producer, topic: str, count: int, *, first: int = 0) -> None:
    for number in range(first, first + count):
        producer.send(topic, b"%d" % number)


class Seen:
    """A listener that keeps bodies and lets a test wait for so many different ones."""

    def __init__(self, answer: Callable[[Any], Any] = lambda _: None, *, beside: Seen | None = None) -> None:
        """``beside``: another whose tests wait for what comes here, too."""
        self.bodies: list[bytes] = []
        self.times: list[int] = []
        self.threads: set[str] = set()
        self._answer = answer
        self._changed = threading.Condition() if beside is None else beside._changed

    def __call__(self, message: Any) -> Any:
        with self._changed:
            self.bodies.append(message.body_bytes)
            self.times.append(message.reconsume_times)
            self.threads.add(threading.current_thread().name)
            self._changed.notify_all()
        return self._answer(message)

    async def on_loop(self, message: Any) -> Any:
        return self(message)

    def batch(self, messages: list[Any]) -> None:
        for message in messages:
            self(message)

    def wait(self, condition: Callable[[Seen], bool]) -> None:
        with self._changed:
            assert self._changed.wait_for(lambda: condition(self), LIMIT_S), self.bodies

    def wait_for(self, count: int) -> None:
        self.wait(lambda seen: len(set(seen.bodies)) >= count)


def numbers(count: int) -> list[bytes]:
    return [b"%d" % number for number in range(count)]


def test_where_a_member_is(servers: Cluster, make: Maker, producer: Producer) -> None:
    """Finished messages are known at once; they need not be committed yet."""
    send(producer, "Progress", 20)
    seen = Seen()
    consumer = make("g-progress", name_servers=servers.name_server_address, listener=seen, **FIRST)
    with pytest.raises(ClientStateError):
        consumer.progress("Progress")
    with consumer.subscribe("Progress"):
        seen.wait_for(20)
        end = time.monotonic() + LIMIT_S
        while sum(consumer.progress("Progress").values()) < 20:  # the last listener's end may be on its way
            assert time.monotonic() < end
        assert {queue.topic for queue in consumer.progress("Progress")} == {"Progress"}
        assert set(consumer.progress("Progress")) <= set(consumer.queues)
        assert consumer.progress("Other") == {}


@pytest.mark.parametrize("form", ["listener", "batch_listener", "async"])
def test_listeners_of_each_form(servers: Cluster, make: Maker, producer: Producer, surface: str, form: str) -> None:
    """Promises 13, 22: messages are pushed to the listener, in threads or on the loop."""
    topic = f"Forms-{form}"
    send(producer, topic, 100)
    seen = Seen()
    given: dict[str, Any] = {
        "listener": {"listener": seen},
        "batch_listener": {"batch_listener": seen.batch, "consume_message_batch_max_size": 16},
        "async": {"listener": seen.on_loop},
    }[form]
    consumer = make(f"g-{form}", name_servers=servers.name_server_address, **given, **FIRST)
    with consumer.subscribe(topic):
        seen.wait_for(100)
        assert {queue.topic for queue in consumer.queues} >= {topic}
        consumer.unsubscribe(topic)
    assert sorted(seen.bodies, key=int) == numbers(100)
    loop_thread = "cometmq-client" if surface == "client" else "aio-loop"
    expected = loop_thread if form == "async" else f"cometmq-consume_g-{form}"
    assert all(name.startswith(expected) for name in seen.threads)
    assert "closed" in repr(consumer)


def test_decorators_and_progress_that_survives(servers: Cluster, make: Maker, producer: Producer) -> None:
    """Promise 4: a second consumer of the group goes on where the first one stopped."""
    send(producer, "Progress", 20)
    everything: list[list[bytes]] = []
    for round_ in range(2):
        seen = Seen()
        consumer = make("g-progress", name_servers=servers.name_server_address, **FIRST)
        consumer.listener(seen)
        with pytest.raises(InvalidArgument, match="a listener already"):
            consumer.batch_listener(seen.batch)
        consumer.subscribe("Progress")
        with consumer:
            seen.wait_for(20)
        everything.append(seen.bodies)
        send(producer, "Progress", 20, first=20 * (round_ + 1))
    assert sorted(everything[0], key=int) == numbers(20)
    assert sorted(everything[1], key=int) == [b"%d" % number for number in range(20, 40)]


def test_failed_message_is_retried_then_a_dead_letter(servers: Cluster, make: Maker, producer: Producer) -> None:
    """Promises 9, 10, 72: raising, returning nonsense and Outcome.RETRY are all failures."""
    send(producer, "Failing", 4)

    def answer(message: Any) -> Any:
        if message.body_bytes == b"1" and message.reconsume_times < 2:
            raise ValueError("not yet")
        if message.body_bytes == b"2" and message.reconsume_times == 0:
            return "nonsense"
        return Outcome.RETRY if message.body_bytes == b"3" else None

    seen, dead = Seen(answer), Seen()
    servers_at = servers.name_server_address
    consumer = make("g-failing", name_servers=servers_at, listener=seen, max_reconsume_times=2, **FIRST)
    with consumer.subscribe("Failing"):
        seen.wait(lambda seen: len(seen.bodies) == 1 + 3 + 2 + 3)
        with make("g-dead", name_servers=servers_at, listener=dead, **FIRST).subscribe("%DLQ%g-failing"):
            dead.wait_for(1)
    assert sorted(seen.bodies) == [b"0", b"1", b"1", b"1", b"2", b"2", b"3", b"3", b"3"]
    assert sorted(seen.times) == [0, 0, 0, 0, 1, 1, 1, 2, 2]
    assert dead.bodies == [b"3"]


def test_two_members_share_a_group(servers: Cluster, make: Maker, producer: Producer) -> None:
    """Promises 6, 62: both get queues, and every message is consumed."""
    first = Seen()
    second = Seen(beside=first)
    at = servers.name_server_address
    send(producer, "Shared", 8)
    shared = [threading.Event(), threading.Event()]

    def member(number: int, listener: Seen) -> Any:
        def queues_changed(topic: str, _: Any, mine: Any) -> None:
            if topic == "Shared" and len(mine) == 2:
                shared[number].set()

        return make("g-shared", name_servers=at, listener=listener, queue_listener=queues_changed, **FIRST)

    one, two = member(0, first).subscribe("Shared"), member(1, second)
    with one:
        first.wait_for(8)
        with two.subscribe("Shared"):
            # Until the first has let go of two queues, it may consume what is in them.
            assert all(event.wait(LIMIT_S) for event in shared)
            send(producer, "Shared", 80, first=8)
            background().run(_until(lambda: len(set(first.bodies) | set(second.bodies)) == 88))
            assert second.bodies


def test_an_orderly_group(servers: Cluster, make: Maker, producer: Producer) -> None:
    """Promise 92: each queue in order, with a failure in between."""
    for number in range(60):
        producer.send("Ordered", b"%d" % number, sharding_key=str(number % 3))
    failed: list[bytes] = []

    def answer(message: Any) -> Any:
        if message.body_bytes == b"30" and len(failed) < 2:
            failed.append(message.body_bytes)
            return Outcome.suspend(suspend_ms=10)
        return None

    seen = Seen(answer)
    consumer = make(
        "g-ordered", name_servers=servers.name_server_address, listener=seen, orderly=True, **FIRST
    ).subscribe("Ordered")
    with consumer:
        seen.wait_for(60)
    for shard in range(3):
        mine = [int(body) for body in seen.bodies if int(body) % 3 == shard]
        assert list(dict.fromkeys(mine)) == list(range(shard, 60, 3))
    assert seen.bodies.count(b"30") == 3


def test_broadcasting(servers: Cluster, make: Maker, producer: Producer, tmp_path: Path) -> None:
    """Promise 7: each member gets all."""
    send(producer, "Everyone", 10)
    members = [Seen(), Seen()]
    consumers = [
        make(
            "g-everyone",
            name_servers=servers.name_server_address,
            listener=seen,
            message_model="BROADCASTING",
            instance_name=f"m{index}",
            offset_folder=tmp_path,
            **FIRST,
        ).subscribe("Everyone")
        for index, seen in enumerate(members)
    ]
    with consumers[0], consumers[1]:
        for seen in members:
            seen.wait_for(10)
    assert len(list(tmp_path.rglob("offsets.json"))) == 2


def double(message: Any) -> Outcome | None:
    """The main function of a process of the pool."""
    if int(message.body_bytes) * 2 == 6 and message.reconsume_times == 0:
        return Outcome.RETRY
    if message.topic != "Pool" or message.keys != ("k",):
        raise AssertionError(message)
    return None


def test_a_process_pool(servers: Cluster, make: Maker, producer: Producer) -> None:
    """Messages and outcomes travel by pickle; failures there are retried."""
    for number in range(20):
        producer.send("Pool", b"%d" % number, keys="k")
    with ProcessPoolExecutor(1, mp_context=get_context("spawn")) as executor:
        consumer = make(
            "g-pool", name_servers=servers.name_server_address, listener=double, executor=executor, **FIRST
        ).subscribe("Pool")
        with consumer:
            engine = consumer._running()

            def retried() -> bool:
                counts = engine._pipeline.counts
                return counts.consumed("Pool") == 19 and counts.consumed("%RETRY%g-pool") == 1

            background().run(_until(retried))


async def _until(condition: Callable[[], bool]) -> None:
    loop = asyncio.get_running_loop()
    end = loop.time() + LIMIT_S
    while not condition():
        assert loop.time() < end
        await asyncio.sleep(0.01)


def test_suspend_and_resume(servers: Cluster, make: Maker, producer: Producer) -> None:
    """A suspended consumer gets no messages while another group does; it gets them when it resumes."""
    at = servers.name_server_address
    producer.send("Paused", b"first")
    others = Seen()
    seen = Seen(beside=others)
    consumer = make("g-paused", name_servers=at, listener=seen, **FIRST)
    other = make("g-not-paused", name_servers=at, listener=others, **FIRST)
    with other.subscribe("Paused"), consumer.subscribe("Paused"):
        seen.wait_for(1)
        queues = [queue for queue in consumer.queues if queue.topic == "Paused"]
        consumer.suspend()
        # The pull that the broker holds for each queue brings one message more.
        for number, queue in enumerate(queues):
            producer.send("Paused", b"held %d" % number, queue=queue)
            seen.wait_for(2 + number)
        for number in range(40):
            producer.send("Paused", b"%d" % number, queue=queues[number % len(queues)])
            others.wait_for(2 + len(queues) + number)
        assert len(seen.bodies) == 1 + len(queues)
        consumer.resume()
        seen.wait_for(1 + len(queues) + 40)
    assert sorted(seen.bodies) == sorted(others.bodies)


def test_states_of_the_surface(servers: Cluster, make: Maker) -> None:
    """Promises 16, 17, 19."""
    at = servers.name_server_address
    consumer = make("g-states", name_servers=at, listener=print, instance_name="one")
    with pytest.raises(ClientStateError, match="not started"):
        consumer.suspend()
    consumer.close()
    with consumer:
        other = make("g-states", name_servers=at, listener=print, instance_name="one")
        with pytest.raises(GroupTaken):
            other.start()
        assert other.state is ServiceState.CREATE_JUST
        with pytest.raises(ClientStateError, match="running"):
            consumer.start()
        assert consumer.flow_counters.by_count == 0
    with pytest.raises(ClientStateError, match="closed"):
        consumer.start()
    other.start()
    other.close()
    other.close()


def test_impossible_arguments_are_reported_at_once() -> None:
    with pytest.raises(InvalidArgument, match="consume_thread_max"):
        PushConsumer("g", name_servers="h:1", consume_tread_max=3)  # type: ignore[call-arg]
    with pytest.raises(InvalidArgument, match="more than one listener"):
        PushConsumer("g", name_servers="h:1", listener=print, batch_listener=print)
    with pytest.raises(InvalidArgument, match="names no tag"):
        PushConsumer("g", name_servers="h:1", listener=print).subscribe("T", "||")
    with pytest.raises(InvalidArgument, match="no listener"):
        PushConsumer("g", name_servers="h:1").start()


def test_run_ends_when_it_is_closed(blocking_servers: Cluster) -> None:
    consumer = PushConsumer("g-run", name_servers=blocking_servers.name_server_address, listener=print)
    thread = threading.Thread(target=consumer.run)
    thread.start()
    background().run(_until(lambda: consumer.state is ServiceState.RUNNING))
    consumer.close()
    thread.join(LIMIT_S)
    assert not thread.is_alive()


SERVICE = """
import sys
from cometmq.client import PushConsumer

def handle(message):
    print(message.body_bytes.decode(), flush=True)

PushConsumer(
    "g-service", name_servers=sys.argv[1], listener=handle, consume_from_where="CONSUME_FROM_FIRST_OFFSET"
).subscribe("Service").run()
print("closed", flush=True)
"""


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_service_that_is_ended_commits_and_leaves(
    blocking_servers: Cluster, blocking_producer: Producer, number: int
) -> None:
    """Messages consumed before the signal are not redelivered after it."""
    body = str(int(number))
    blocking_producer.send("Service", body.encode())
    process = subprocess.Popen(
        [sys.executable, "-c", SERVICE, blocking_servers.name_server_address], stdout=subprocess.PIPE, text=True
    )
    with process:
        try:
            assert process.stdout is not None
            assert process.stdout.readline() == f"{body}\n"
            process.send_signal(number)
            rest, _ = process.communicate(timeout=LIMIT_S)
        finally:
            process.kill()
    assert (rest, process.returncode) == ("closed\n", 0)


FORKING = """
import multiprocessing, os, subprocess, sys, threading
from cometmq.client import Producer, PushConsumer
from cometmq.errors import ForkedClient

def child():
    for attempt in (consumer.suspend, consumer.resume, consumer.close):
        try:
            attempt()
        except ForkedClient:
            continue
        os._exit(1)
    os._exit(7)

done = threading.Event()
bodies = []

def handle(message):
    assert subprocess.run(["true"]).returncode == 0
    process = multiprocessing.get_context("fork").Process(target=child)
    process.start()
    process.join(60)
    if message.body_bytes != b"after":
        bodies.append((message.body_bytes, process.exitcode))
    if len(bodies) == 8:
        done.set()

consumer = PushConsumer(
    "g-forking", name_servers=sys.argv[1], listener=handle, consume_from_where="CONSUME_FROM_FIRST_OFFSET"
)
with Producer("p-forking", name_servers=sys.argv[1]) as producer:
    for number in range(8):
        producer.send("Forking", str(number).encode())
    with consumer.subscribe("Forking"):
        assert done.wait(60), bodies
        producer.send("Forking", b"after")
assert sorted(bodies) == [(str(number).encode(), 7) for number in range(8)], bodies
"""


def test_a_listener_may_fork(blocking_servers: Cluster) -> None:
    """The child gets the error that the client is not its own; the parent's goes on."""
    ran = subprocess.run(
        [sys.executable, "-W", "ignore::DeprecationWarning", "-c", FORKING, blocking_servers.name_server_address],
        timeout=2 * LIMIT_S,
        check=False,
        capture_output=True,
    )
    assert ran.returncode == 0, ran.stderr.decode()


def test_fewer_threads_are_one_number() -> None:
    settings = PushConsumer("g", name_servers="127.0.0.1:9876", listener=Seen(), consume_thread_max=2).settings
    settings.check(listeners=(print,))
    assert (settings.consume_thread_min, settings.consume_thread_max) == (2, 2)
    given = PushConsumer("g", name_servers="127.0.0.1:9876", consume_thread_max=8, consume_thread_min=3).settings
    assert given.consume_thread_min == 3
