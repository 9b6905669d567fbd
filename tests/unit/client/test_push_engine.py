"""Checks: push consumers on virtual time: what they consume, commit, give back and give up; how they begin and end."""

from __future__ import annotations

import asyncio
import functools
import itertools
import pickle
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pytest

from cometmq.client import push_engine, push_pulls
from cometmq.client.hooks import Interceptor
from cometmq.client.listeners import Outcome
from cometmq.client.push_engine import ListenerSpec, PushEngine
from cometmq.client.rebalance import Rebalance
from cometmq.client.service_state import ServiceState
from cometmq.client.settings import PushSettings
from cometmq.errors import BrokerError, ClientStateError, GroupTaken, InvalidArgument
from cometmq.remoting.bodies.heartbeat import ConsumeFromWhere, MessageModel
from cometmq.remoting.bodies.message_queue import MessageQueue
from cometmq.remoting.bodies.running_info import ConsumeResult
from cometmq.remoting.codes import RequestCode
from support.fake_cluster import FakeCluster
from support.virtual_loop import VirtualLoop, run_virtual

Listener = Callable[[Any], Awaitable[Any]]


def on_cluster(test: Callable[[FakeCluster], Awaitable[None]]) -> Callable[[], None]:
    """Run a test on virtual time with a cluster of one broker that has topic T with two queues."""

    def run() -> None:
        def main(loop: VirtualLoop) -> Any:
            cluster = FakeCluster(loop)
            cluster.brokers[0].create("T", 2)
            return test(cluster)

        run_virtual(main)

    run.__name__ = test.__name__
    run.__doc__ = test.__doc__
    return run


def consumer(
    cluster: FakeCluster,
    listener: Listener,
    *,
    batch: bool = False,
    orderly: bool = False,
    auto_commit: bool = True,
    topics: dict[str, tuple[str | None, str]] | None = None,
    more: dict[str, Any] | None = None,
    **settings: Any,
) -> PushEngine:
    chosen: dict[str, Any] = {
        "name_servers": ("ns:9876",),
        "client_ip": "10.0.0.9",
        "group": "g",
        "consume_from_where": ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET,
    }
    return PushEngine(
        PushSettings(**(chosen | settings)),
        ListenerSpec(function=listener, batch=batch, orderly=orderly, auto_commit=auto_commit),
        expressions={"T": (None, "TAG")} if topics is None else topics,
        network_factory=cluster.factory,
        **{"now_ms": cluster.loop.now_ms, **(more or {})},
    )


def fill(cluster: FakeCluster, count: int, *, queues: int = 2, **properties: str) -> None:
    for number in range(count):
        cluster.brokers[0].append("T", number % queues, b"%d" % number, dict(properties))


class Seen:
    """A listener that keeps what it saw, and does with it what a test says."""

    def __init__(self, answer: Callable[[Any], Any] = lambda _: None) -> None:
        self.bodies: list[bytes] = []
        self.messages: list[Any] = []
        self.answer = answer

    async def __call__(self, message: Any) -> Any:
        self.bodies.append(message.body_bytes)
        self.messages.append(message)
        return self.answer(message)

    def numbers(self) -> list[int]:
        return [int(body) for body in self.bodies]


async def until(condition: Callable[[], bool], *, limit_s: float = 600) -> None:
    """Let virtual time pass until something is so."""
    loop = asyncio.get_running_loop()
    end = loop.time() + limit_s
    while not condition():
        assert loop.time() < end, "it never came"
        await asyncio.sleep(0.01)


def committed(cluster: FakeCluster, topic: str = "T", group: str = "g") -> dict[int, int]:
    offsets = cluster.brokers[0].offsets
    return {queue: offset for (of, name, queue), offset in offsets.items() if (of, name) == (group, topic)}


@on_cluster
async def test_everything_is_consumed_once_and_committed(cluster: FakeCluster) -> None:
    """Promises 2, 4, 13, 37, 71: from the first offset, by the listener, to the offset that the broker keeps."""
    fill(cluster, 500)
    seen = Seen()
    engine = consumer(cluster, seen)
    await engine.start()
    await until(lambda: len(seen.bodies) == 500)
    await engine.close()
    assert sorted(seen.numbers()) == list(range(500))
    assert committed(cluster) == {0: 250, 1: 250}
    assert engine.state is ServiceState.SHUTDOWN_ALREADY
    assert cluster.brokers[0].groups.get("g", {}) == {}


@on_cluster
async def test_a_listener_does_not_see_the_namespace(cluster: FakeCluster) -> None:
    broker = cluster.brokers[0]
    broker.create("ns%T", 1)
    broker.append("ns%T", 0, b"0")
    seen = Seen(lambda message: Outcome.RETRY if not message.reconsume_times else None)
    engine = consumer(cluster, seen, namespace="ns")
    await engine.start()
    await until(lambda: len(seen.messages) == 2)
    await engine.close()
    assert [message.topic for message in seen.messages] == ["T", "T"]
    assert [message.stored_topic for message in seen.messages] == ["ns%T", "%RETRY%ns%g"]
    assert pickle.loads(pickle.dumps(seen.messages[1])).topic == "T"


@on_cluster
async def test_where_a_new_group_begins_and_an_old_one_goes_on(cluster: FakeCluster) -> None:
    """Promise 1: a new group begins at the end, and an old one where it was."""
    fill(cluster, 10)
    seen = Seen()
    engine = consumer(cluster, seen, consume_from_where=ConsumeFromWhere.CONSUME_FROM_LAST_OFFSET)
    await engine.start()
    await until(lambda: len(engine.queues) >= 2)
    await asyncio.sleep(1)
    cluster.brokers[0].append("T", 0, b"100")
    await until(lambda: len(seen.bodies) == 1)
    await engine.close()
    cluster.brokers[0].append("T", 0, b"101")
    again = Seen()
    engine = consumer(cluster, again, consume_from_where=ConsumeFromWhere.CONSUME_FROM_LAST_OFFSET)
    await engine.start()
    await until(lambda: len(again.bodies) == 1)
    await engine.close()
    assert (seen.numbers(), again.numbers()) == ([100], [101])


@on_cluster
async def test_a_new_group_may_begin_at_a_time(cluster: FakeCluster) -> None:
    """Promise 3: by default half an hour before the consumer was made."""
    fill(cluster, 4)
    await asyncio.sleep(3600)
    cluster.brokers[0].append("T", 1, b"7")
    seen = Seen()
    engine = consumer(cluster, seen, consume_from_where=ConsumeFromWhere.CONSUME_FROM_TIMESTAMP)
    await engine.start()
    await until(lambda: len(seen.bodies) == 1)
    await engine.close()
    assert seen.numbers() == [7]


@on_cluster
async def test_batches(cluster: FakeCluster) -> None:
    """Promise 69: the listener gets at most so many at a time."""
    fill(cluster, 100)
    sizes: list[int] = []

    async def listener(messages: list[Any]) -> None:
        sizes.append(len(messages))

    engine = consumer(cluster, listener, batch=True, consume_message_batch_max_size=10)
    await engine.start()
    await until(lambda: sum(sizes) == 100)
    await engine.close()
    assert max(sizes) == 10
    assert committed(cluster) == {0: 50, 1: 50}


@on_cluster
async def test_tags_are_compared_by_their_text(cluster: FakeCluster) -> None:
    """Promise 8: ``Aa`` and ``BB`` have one hash code; the broker lets both through."""
    for tag in ("Aa", "BB", "C", "Aa"):
        cluster.brokers[0].append("T", 0, tag.encode(), {"TAGS": tag})
    seen = Seen()
    engine = consumer(cluster, seen, topics={"T": ("Aa || D", "TAG")})
    await engine.start()
    await until(lambda: len(seen.bodies) == 2)
    await until(lambda: engine.offsets("T").get(_queue(0)) == 4)
    await engine.close()
    assert seen.bodies == [b"Aa", b"Aa"]


def _queue(queue_id: int) -> MessageQueue:
    return MessageQueue(topic="T", broker_name="b0", queue_id=queue_id)


@on_cluster
async def test_a_tag_that_never_matches_moves_the_offset(cluster: FakeCluster) -> None:
    """Promise 40: NO_MATCHED_MSG corrects the offset."""
    fill(cluster, 10, TAGS="other")
    engine = consumer(cluster, Seen(), topics={"T": ("wanted", "TAG")})
    await engine.start()
    await until(lambda: engine.offsets("T") == {_queue(0): 5, _queue(1): 5})
    await engine.close()


@on_cluster
async def test_what_fails_comes_again_by_way_of_the_broker(cluster: FakeCluster) -> None:
    """Promises 9, 10, 72: after 10 s, under its own topic, with the count of its tries and its first id."""
    fill(cluster, 3)
    times: list[float] = []

    def answer(message: Any) -> None:
        if message.body_bytes == b"1":
            times.append(cluster.loop.time())
            if message.reconsume_times < 2:
                raise ValueError("not yet")

    seen = Seen(answer)
    engine = consumer(cluster, seen)
    await engine.start()
    await until(lambda: len(times) == 3)
    await asyncio.sleep(1)
    tries = [message for message in seen.messages if message.body_bytes == b"1"]
    assert [message.reconsume_times for message in tries] == [0, 1, 2]
    assert {message.topic for message in tries} == {"T"}
    assert [message.stored_topic for message in tries] == ["T", "%RETRY%g", "%RETRY%g"]
    assert len({message.original_message_id for message in tries}) == 1
    assert 10 <= times[1] - times[0] <= 35
    assert 30 <= times[2] - times[1] <= 31
    await engine.close()
    assert committed(cluster) == {0: 2, 1: 1}


@on_cluster
async def test_after_the_last_try_it_is_a_dead_letter(cluster: FakeCluster) -> None:
    """Promise 9: dead letters go to ``%DLQ%group``; Outcome.DEAD_LETTER at once."""
    fill(cluster, 2)
    seen = Seen(lambda message: Outcome.DEAD_LETTER if message.body_bytes == b"1" else Outcome.RETRY)
    engine = consumer(cluster, seen, max_reconsume_times=1)
    await engine.start()
    await until(lambda: len(cluster.brokers[0].topics.get("%DLQ%g", [[]])[0]) == 2)
    await engine.close()
    assert seen.bodies.count(b"0") == 2
    assert seen.bodies.count(b"1") == 1


@on_cluster
async def test_outcomes_of_each_message_send_back_only_what_failed(cluster: FakeCluster) -> None:
    """Promise 70: of a list, what the listener did not take goes back."""
    fill(cluster, 4, queues=1)
    calls: list[list[bytes]] = []

    async def listener(messages: list[Any]) -> list[Outcome | None]:
        calls.append([message.body_bytes for message in messages])
        is_first = messages[0].reconsume_times == 0
        return [Outcome.retry(delay_level=1) if is_first and m.body_bytes in b"13" else None for m in messages]

    engine = consumer(cluster, listener, batch=True, consume_message_batch_max_size=4)
    await engine.start()
    await until(lambda: sum(map(len, calls)) == 6)
    await engine.close()
    assert calls[0] == [b"0", b"1", b"2", b"3"]
    assert sorted(body for call in calls[1:] for body in call) == [b"1", b"3"]


@on_cluster
async def test_what_no_broker_takes_back_is_tried_again_here(
    cluster: FakeCluster,
) -> None:
    """Promise 72: 5 seconds later, and the offset waits for it."""
    fill(cluster, 3, queues=1)
    broker = cluster.brokers[0]
    times: list[float] = []
    tries: list[int] = []

    def answer(message: Any) -> Outcome | None:
        if message.body_bytes == b"0":
            times.append(cluster.loop.time())
            tries.append(message.reconsume_times)
            return Outcome.RETRY if len(times) < 3 else None
        return None

    seen = Seen(answer)
    engine = consumer(cluster, seen)
    await engine.start()
    await until(lambda: len(engine.queues) >= 2)

    def refuse(client: Any, command: Any) -> Any:
        return command.response(1, remark="not now")

    put_back = type(broker)._HANDLERS
    broker._HANDLERS = {**put_back, RequestCode.CONSUMER_SEND_MSG_BACK: lambda *args: refuse(*args[1:])}  # type: ignore[misc]

    async def fail(*_: Any, **__: Any) -> None:
        raise BrokerError("not now", code=1)

    engine._instance.send_inner = fail  # type: ignore[method-assign]
    await until(lambda: len(times) == 2)
    assert engine.offsets("T")[_queue(0)] == 0
    await until(lambda: len(times) == 3)
    assert tries == [0, 1, 2]
    assert [round(later - earlier, 1) for earlier, later in itertools.pairwise(times)] == [5.0, 5.0]
    await until(lambda: engine.offsets("T")[_queue(0)] == 3)
    await engine.close()


@on_cluster
async def test_what_the_broker_refuses_is_sent_again(cluster: FakeCluster) -> None:
    """Promise 72: a send to the retry topic takes the place of the send-back."""
    fill(cluster, 1, queues=1, KEYS="k")
    broker = cluster.brokers[0]
    broker.create("%RETRY%g", 1)
    put_back = type(broker)._HANDLERS
    broker._HANDLERS = {  # type: ignore[misc]
        **put_back,
        RequestCode.CONSUMER_SEND_MSG_BACK: lambda _self, _client, command: command.response(1, remark="no"),
    }
    seen = Seen(lambda message: None if message.reconsume_times else Outcome.RETRY)
    engine = consumer(cluster, seen)
    await engine.start()
    await until(lambda: len(seen.bodies) == 2)
    again = seen.messages[1]
    assert (again.topic, again.stored_topic, again.reconsume_times) == ("T", "%RETRY%g", 1)
    assert again.original_message_id == seen.messages[0].message_id
    assert again.keys == ("k",)
    await engine.close()


def test_broadcasting_gives_each_member_all_and_tries_none_again(tmp_path: Path) -> None:
    """Promise 7: each member has its own progress, in a file."""

    async def body(cluster: FakeCluster) -> None:
        fill(cluster, 20)
        members = []
        for name in ("one", "two"):
            seen = Seen(lambda message: Outcome.RETRY if message.body_bytes == b"3" else None)
            engine = consumer(
                cluster,
                seen,
                message_model=MessageModel.BROADCASTING,
                instance_name=name,
                offset_folder=tmp_path,
            )
            await engine.start()
            members.append((seen, engine))
        await until(lambda: all(len(seen.bodies) == 20 for seen, _ in members))
        for seen, engine in members:
            await engine.close()
            assert sorted(seen.numbers()) == list(range(20))
        assert "%RETRY%g" not in cluster.brokers[0].topics

    run_on_threads(body)
    assert len(list(tmp_path.rglob("offsets.json"))) == 2


def run_on_threads(test: Callable[[FakeCluster], Awaitable[None]]) -> None:
    """Run a test on virtual time whose file work is done at once instead of in threads."""

    def main(loop: VirtualLoop) -> Any:
        def at_once(_: Any, function: Callable[..., Any], *args: Any) -> asyncio.Future[Any]:
            future: asyncio.Future[Any] = loop.create_future()
            future.set_result(function(*args))
            return future

        loop.run_in_executor = at_once  # type: ignore[assignment]
        cluster = FakeCluster(loop)
        cluster.brokers[0].create("T", 2)
        return test(cluster)

    run_virtual(main)


@on_cluster
async def test_members_of_a_group_share_the_messages(cluster: FakeCluster) -> None:
    """Promises 6, 61, 64, 82: a second member takes half of the queues; nothing is lost, progress moves with them."""
    cluster.brokers[0].create("T", 4)
    first, second = Seen(), Seen()
    one, two = consumer(cluster, first), consumer(cluster, second)
    await one.start()
    fill(cluster, 40, queues=4)
    await until(lambda: len(first.bodies) == 40)
    await two.start()
    await until(lambda: len([q for q in one.queues if q.topic == "T"]) == 2 and len(two.queues) >= 2)
    await asyncio.sleep(1)
    fill(cluster, 40, queues=4)
    await until(lambda: len(first.bodies) + len(second.bodies) >= 80)
    await asyncio.sleep(5)
    assert len(first.bodies) == 60
    assert len(second.bodies) == 20
    await one.close()
    await until(lambda: len([q for q in two.queues if q.topic == "T"]) == 4)
    await two.close()
    assert committed(cluster) == {0: 20, 1: 20, 2: 20, 3: 20}


@on_cluster
async def test_an_orderly_listener_sees_each_queue_in_order_and_waits_for_what_fails(cluster: FakeCluster) -> None:
    """Promise 92: a failure stops its queue alone; tries are counted; nothing overtakes."""
    fill(cluster, 100)
    at_work: set[int] = set()
    order: dict[int, list[int]] = {0: [], 1: []}
    tries: list[int] = []

    async def listener(message: Any) -> Outcome | None:
        number = int(message.body_bytes)
        assert message.queue_id not in at_work
        at_work.add(message.queue_id)
        await asyncio.sleep(0.001)
        at_work.discard(message.queue_id)
        if number == 40 and len(tries) < 3:
            tries.append(message.reconsume_times)
            return Outcome.suspend(suspend_ms=100)
        order[message.queue_id].append(number)
        return None

    engine = consumer(cluster, listener, orderly=True)
    await engine.start()
    await until(lambda: sum(map(len, order.values())) == 100)
    await engine.close()
    assert order == {0: list(range(0, 100, 2)), 1: list(range(1, 100, 2))}
    assert tries == [0, 1, 2]
    assert committed(cluster) == {0: 50, 1: 50}
    assert cluster.brokers[0].locks == {}


@on_cluster
async def test_orderly_queues_change_hands_without_overlap(cluster: FakeCluster) -> None:
    """Promises 30, 92: the next owner begins when the listener of the last one has ended and its lock is given back."""
    at_work: dict[int, str] = {}
    seen: list[int] = []

    async def work(who: str, message: Any) -> None:
        assert message.queue_id not in at_work, f"{who} overlaps {at_work}"
        at_work[message.queue_id] = who
        await asyncio.sleep(0.2)
        del at_work[message.queue_id]
        seen.append(int(message.body_bytes))

    one = consumer(cluster, functools.partial(work, "one"), orderly=True)
    two = consumer(cluster, functools.partial(work, "two"), orderly=True)
    await one.start()
    fill(cluster, 400)
    await until(lambda: len(seen) > 40)
    await two.start()
    await until(lambda: len([queue for queue in two.queues if queue.topic == "T"]) == 1)
    await until(lambda: len(seen) > 120)
    await one.close()
    await until(lambda: len(set(seen)) == 400)
    await two.close()
    # What a listener had when its queue went may come twice: at least once.
    assert len(seen) <= 402


@on_cluster
async def test_orderly_commits_by_hand(cluster: FakeCluster) -> None:
    fill(cluster, 6, queues=1)
    seen: list[int] = []

    async def listener(message: Any) -> Outcome | None:
        number = int(message.body_bytes)
        seen.append(number)
        if number == 2:
            return Outcome.COMMIT
        if number == 4 and seen.count(4) == 1:
            return Outcome.ROLLBACK
        return Outcome.COMMIT if number == 5 else None

    engine = consumer(cluster, listener, orderly=True, auto_commit=False, suspend_current_queue_time_ms=10)
    await engine.start()
    await until(lambda: 5 in seen)
    await engine.close()
    assert seen == [0, 1, 2, 3, 4, 3, 4, 5]
    assert committed(cluster)[0] == 6


@on_cluster
async def test_an_orderly_message_that_was_tried_often_enough_is_sent_away(cluster: FakeCluster) -> None:
    fill(cluster, 2, queues=1)
    cluster.brokers[0].create("%RETRY%g", 1)
    seen = Seen(lambda message: Outcome.RETRY if message.body_bytes == b"0" and message.topic == "T" else None)
    engine = consumer(cluster, seen, orderly=True, max_reconsume_times=2, suspend_current_queue_time_ms=10)
    await engine.start()
    await until(lambda: b"1" in seen.bodies)
    assert seen.bodies[:4] == [b"0", b"0", b"0", b"1"]
    sent = cluster.asked(RequestCode.SEND_MESSAGE_V2)
    assert [one.fields["topic"] for one in sent] == ["%RETRY%g"]
    await engine.close()


@on_cluster
async def test_suspended_consumers_pull_nothing(cluster: FakeCluster) -> None:
    """Promise 26: a pull looks again after a second."""
    seen = Seen()
    engine = consumer(cluster, seen)
    await engine.start()
    await until(lambda: len(engine.queues) >= 2)
    engine.suspend()
    await asyncio.sleep(20)
    fill(cluster, 10)
    await asyncio.sleep(20)
    held = len(seen.bodies)
    await engine.resume()
    await until(lambda: len(seen.bodies) == 10)
    assert held == 0
    assert not engine.is_suspended
    await engine.close()


@on_cluster
async def test_the_pull_offset_runs_ahead_of_the_committed_one(cluster: FakeCluster) -> None:
    """Promise 83: a queue is (topic, broker, number); pulls go on while the group's progress waits for its listener."""
    fill(cluster, 64, queues=1)
    go_on = asyncio.Event()

    async def listener(message: Any) -> None:
        if message.queue_offset == 3:
            await go_on.wait()

    engine = consumer(cluster, listener)
    await engine.start()
    await until(lambda: engine.offsets("T").get(_queue(0)) == 3)
    info = engine.running_info().queues[_queue(0)]
    assert (info.commit_offset, info.cached_msg_min_offset) == (3, 3)
    pulls = (asked.fields for asked in cluster.asked(RequestCode.PULL_MESSAGE))
    assert max(int(fields["queueOffset"]) for fields in pulls if fields["topic"] == "T") == 64
    go_on.set()
    await until(lambda: engine.offsets("T").get(_queue(0)) == 64)
    await engine.close()


@on_cluster
async def test_a_next_offset_that_goes_back_is_warned_of(cluster: FakeCluster) -> None:
    """Promise 39: the broker is followed, and the log says that something is odd."""
    fill(cluster, 8, queues=1)
    seen = Seen()
    found = push_pulls.PushPulls._found
    odd = iter([5])

    def goes_back(pulls: push_pulls.PushPulls, pull: Any, next_offset: int, messages: Any, *, is_all: bool) -> None:
        found(pulls, pull, next(odd, 9) if next_offset == 9 else next_offset, messages, is_all=is_all)

    engine = consumer(cluster, seen)
    with patch.object(push_pulls.PushPulls, "_found", goes_back), patch.object(push_pulls._log, "warning") as warning:
        await engine.start()
        await until(lambda: len(seen.bodies) == 8)
        fill(cluster, 1, queues=1)
        await until(lambda: committed(cluster).get(0) == 9)
        await engine.close()
    assert set(seen.numbers()) == set(range(8))
    text, *values = warning.call_args.args
    assert "asked from offset 8 and answered from 8 to 5" in text % tuple(values)


@pytest.mark.parametrize(("listener_s", "pulled_after_s"), [(0.0005, 0.0005), (0.3, 0.001)])
def test_what_came_is_on_its_way_before_the_next_pull(listener_s: float, pulled_after_s: float) -> None:
    """Where nothing else waits at the broker the next pull goes out when the listener is done, or 1 ms later."""

    @on_cluster
    async def body(cluster: FakeCluster) -> None:
        begun, sent = [], []
        send = push_pulls.PushPulls._send

        async def listener(_: Any) -> None:
            begun.append(cluster.loop.time())
            await asyncio.sleep(listener_s)

        def note(pulls: push_pulls.PushPulls, pull: Any) -> None:
            if pull.held.queue == _queue(0):
                sent.append((cluster.loop.time(), pull.next_offset))
            send(pulls, pull)

        engine = consumer(cluster, listener)
        with patch.object(push_pulls.PushPulls, "_send", note):
            await engine.start()
            await until(lambda: bool(sent))
            fill(cluster, 1, queues=1)
            await until(lambda: len(sent) == 2)
            await until(lambda: committed(cluster).get(0) == 1)
            await engine.close()
        assert len(begun) == 1
        when, offset = sent[1]
        assert offset == 1
        assert when - begun[0] == pytest.approx(pulled_after_s)

    body()


@on_cluster
async def test_a_slow_listener_stops_the_pulls_and_the_counters_show_it(cluster: FakeCluster) -> None:
    """Promises 27 and 29: thresholds hold, and a person can see how often."""
    fill(cluster, 400, queues=1)
    go_on = asyncio.Event()

    async def listener(message: Any) -> None:
        if int(message.body_bytes) == 7 or int(message.body_bytes) > 40:
            await go_on.wait()

    engine = consumer(cluster, listener, consume_concurrently_max_span=50, pull_threshold_for_queue=100)
    await engine.start()
    await until(lambda: engine.flow_counters.by_span > 3)
    info = engine.running_info().queues[_queue(0)]
    assert info.cached_msg_min_offset == 7
    assert 50 < info.cached_msg_max_offset - 7 <= 50 + 32
    go_on.set()
    await until(lambda: engine.offsets("T").get(_queue(0)) == 400)
    await engine.close()


@on_cluster
async def test_the_limits_of_a_topic_are_shared_among_queues(cluster: FakeCluster) -> None:
    """Promise 49: ``pull_threshold_for_topic`` becomes each queue's."""
    fill(cluster, 300)
    go_on = asyncio.Event()

    async def listener(_: Any) -> None:
        await go_on.wait()

    engine = consumer(cluster, listener, pull_threshold_for_topic=60, pull_batch_size=1)
    await engine.start()
    await until(lambda: engine.flow_counters.by_count > 3)
    info = engine.running_info()
    assert {held.cached_msg_count for queue, held in info.queues.items() if queue.topic == "T"} <= {21, 31}
    go_on.set()
    await engine.close(timeout_ms=0)


@on_cluster
async def test_what_hangs_is_sent_back(cluster: FakeCluster) -> None:
    """Promise 49: after ``consume_timeout_minutes``; the offset goes on, the message comes again."""
    fill(cluster, 5, queues=1)
    never = asyncio.Event()

    async def listener(message: Any) -> None:
        if message.body_bytes == b"0" and message.reconsume_times == 0:
            await never.wait()
        else:
            seen.append(message.body_bytes)

    seen: list[bytes] = []
    engine = consumer(cluster, listener, consume_timeout_minutes=1)
    await engine.start()
    await until(lambda: len(seen) == 4)
    assert engine.offsets("T").get(_queue(0)) == 0
    await until(lambda: len(seen) == 5)
    assert cluster.loop.time() > 60
    assert engine.offsets("T")[_queue(0)] == 5
    await engine.close(timeout_ms=10)


@on_cluster
async def test_an_illegal_offset_is_left_for_the_one_the_broker_names(cluster: FakeCluster) -> None:
    """Promise 41: the queue rests 10 s, its offset is stored, and the next rebalance begins it anew."""
    fill(cluster, 10, queues=1)
    cluster.brokers[0].offsets["g", "T", 0] = 99
    seen = Seen()
    engine = consumer(cluster, seen)
    await engine.start()
    await until(lambda: committed(cluster).get(0) == 10)
    assert 10 <= cluster.loop.time() <= 13
    await until(lambda: _queue(0) in engine.queues)
    cluster.brokers[0].append("T", 0, b"77")
    await until(lambda: seen.bodies == [b"77"])
    await engine.close()


@on_cluster
async def test_offsets_are_reset_when_the_broker_says_so(cluster: FakeCluster) -> None:
    fill(cluster, 10, queues=1)
    seen = Seen()
    engine = consumer(cluster, seen)
    await engine.start()
    await until(lambda: len(seen.bodies) == 10)
    await engine.reset_offsets("T", {_queue(0): 5})
    await until(lambda: len(seen.bodies) == 15)
    await engine.close()
    assert seen.numbers()[10:] == [5, 6, 7, 8, 9]


@on_cluster
async def test_what_an_administrator_sees(cluster: FakeCluster) -> None:
    fill(cluster, 10)
    seen = Seen(lambda message: Outcome.RETRY if message.body_bytes == b"3" and not message.reconsume_times else None)
    engine = consumer(cluster, seen)
    await engine.start()
    await until(lambda: len(seen.bodies) == 10)
    await asyncio.sleep(0.1)
    info = engine.running_info()
    assert info.properties["consumerGroup"] == "g"
    assert info.properties["PROP_CONSUMEORDERLY"] == "false"
    assert {one.topic for one in info.subscriptions} == {"T", "%RETRY%g"}
    assert info.queues[_queue(0)].commit_offset == 5
    assert info.statuses["T"].consume_failed_messages == 1
    assert info.statuses["T"].pull_tps > 0
    assert info.statuses["T"].pull_rt_ms > 0
    assert "queues=" in repr(engine)
    await engine.close()


@pytest.mark.parametrize(
    ("answer", "result"),
    [
        (lambda _: None, ConsumeResult.CR_SUCCESS),
        (lambda _: Outcome.RETRY, ConsumeResult.CR_LATER),
        (lambda _: Outcome.COMMIT, ConsumeResult.CR_COMMIT),
        (lambda _: Outcome.ROLLBACK, ConsumeResult.CR_ROLLBACK),
        (lambda _: 17, ConsumeResult.CR_RETURN_NULL),
        (lambda _: 1 // 0, ConsumeResult.CR_THROW_EXCEPTION),
    ],
)
def test_one_message_is_consumed_directly(answer: Callable[[Any], Any], result: ConsumeResult) -> None:
    """Promise 73."""

    async def body(cluster: FakeCluster) -> None:
        fill(cluster, 1, queues=1)
        seen = Seen()
        engine = consumer(cluster, seen)
        await engine.start()
        await until(lambda: len(seen.bodies) == 1)
        offsets = dict(engine.offsets("T"))
        seen.answer = answer
        told = await engine.consume_directly(seen.messages[0], "b0")
        assert told.consume_result is result
        assert (told.remark is None) is (result.value < 4)
        assert engine.offsets("T") == offsets
        await engine.close()

    on_cluster(body)()


@on_cluster
async def test_interceptors_see_messages_before_and_after(cluster: FakeCluster) -> None:
    fill(cluster, 2, queues=1)
    contexts: list[Any] = []
    befores: list[Any] = []
    seen = Seen(lambda message: Outcome.RETRY if message.body_bytes == b"1" else None)
    interceptor = Interceptor(before_consume=befores.append, after_consume=contexts.append)
    engine = consumer(cluster, seen, more={"interceptors": [interceptor]}, max_reconsume_times=0)
    await engine.start()
    await until(lambda: len(contexts) == 2)
    assert befores == contexts
    assert [(c.group, c.queue, c.is_success, c.return_type) for c in contexts] == [
        ("g", _queue(0), True, 0),
        ("g", _queue(0), False, 4),
    ]
    await engine.close()


@on_cluster
async def test_the_user_hears_of_other_queues(cluster: FakeCluster) -> None:
    told: list[tuple[str, int, int]] = []

    def listener(topic: str, all_queues: Any, mine: Any) -> None:
        told.append((topic, len(all_queues), len(mine)))
        raise ValueError("changes nothing")

    engine = consumer(cluster, Seen(), more={"queue_listener": listener})
    await engine.start()
    await until(lambda: ("T", 2, 2) in told)
    await engine.close()


@on_cluster
async def test_states(cluster: FakeCluster) -> None:
    """Promises 16 and 17: started once; closing twice, or before a start, does nothing."""
    engine = consumer(cluster, Seen())
    await engine.close()
    with pytest.raises(ClientStateError, match="not started"):
        engine.flow_counters  # noqa: B018 - the property raises
    await engine.start()
    with pytest.raises(ClientStateError, match="running"):
        await engine.start()
    await engine.close()
    await engine.close()
    with pytest.raises(ClientStateError, match="closed"):
        await engine.start()


@on_cluster
async def test_a_setting_that_is_wrong_fails_the_start(cluster: FakeCluster) -> None:
    """Promises 17 and 50."""
    engine = consumer(cluster, Seen(), consume_thread_max=0)
    with pytest.raises(InvalidArgument, match="consume_thread_max"):
        await engine.start()
    assert engine.state is ServiceState.START_FAILED


@on_cluster
async def test_a_group_runs_once_on_an_instance(cluster: FakeCluster) -> None:
    """Promises 17 and 19: the second one is refused and can start when the first is gone."""
    one = consumer(cluster, Seen(), instance_name="same")
    two = consumer(cluster, Seen(), instance_name="same")
    await one.start()
    with pytest.raises(GroupTaken):
        await two.start()
    assert two.state is ServiceState.CREATE_JUST
    await one.close()
    await two.start()
    await two.close()


@on_cluster
async def test_closing_waits_for_listeners_and_commits_what_they_did(cluster: FakeCluster) -> None:
    fill(cluster, 40, queues=1)
    begun: list[int] = []
    ended: list[int] = []

    async def listener(message: Any) -> None:
        begun.append(int(message.body_bytes))
        await asyncio.sleep(2)
        ended.append(int(message.body_bytes))

    engine = consumer(cluster, listener, consume_thread_min=5, consume_thread_max=5)
    await engine.start()
    await until(lambda: len(begun) == 5)
    await engine.close()
    assert sorted(ended) == sorted(begun) == [0, 1, 2, 3, 4]
    assert committed(cluster) == {0: 5}


@on_cluster
async def test_topics_come_and_go_while_it_runs(cluster: FakeCluster) -> None:
    cluster.brokers[0].create("U", 1)
    cluster.brokers[0].append("U", 0, b"5")
    seen = Seen()
    engine = consumer(cluster, seen)
    await engine.start()
    await engine.subscribe("U", "*")
    await until(lambda: seen.bodies == [b"5"])
    engine.unsubscribe("T")
    await until(lambda: {queue.topic for queue in engine.queues} <= {"U", "%RETRY%g"})
    await engine.close()


@on_cluster
async def test_a_broker_that_is_gone_and_back_is_pulled_again(cluster: FakeCluster) -> None:
    """Promise 42: a pull that fails waits and comes again."""
    fill(cluster, 4)
    seen = Seen()
    engine = consumer(cluster, seen)
    await engine.start()
    await until(lambda: len(seen.bodies) == 4)
    address = cluster.brokers[0].address
    broker = cluster.stop(address)
    await asyncio.sleep(60)
    cluster.servers[address] = broker
    fill(cluster, 4)
    await until(lambda: len(seen.bodies) == 8)
    await engine.close()


@pytest.mark.parametrize("jump_ms", [-3_600_000, 3_600_000])
@pytest.mark.parametrize("orderly", [False, True])
def test_a_clock_that_jumps(jump_ms: int, orderly: bool) -> None:
    """The wall clock is set by an hour, there and back: nothing is lost, pulls go on, queues stay where they are."""

    @on_cluster
    async def run(cluster: FakeCluster) -> None:
        shift = [0]
        seen = Seen()
        engine = consumer(cluster, seen, orderly=orderly, more={"now_ms": lambda: cluster.loop.now_ms() + shift[0]})
        await engine.start()
        for number, shift[0] in enumerate((0, jump_ms, 0), start=1):
            fill(cluster, 20)
            await until(lambda count=20 * number: len(seen.bodies) >= count)  # type: ignore[misc]
            await asyncio.sleep(150)  # two rounds of locks and of whatever looks for what hangs
            assert len(engine.queues) >= 2
        await engine.close()
        assert sorted(seen.numbers()) == sorted([*range(20)] * 3)
        assert committed(cluster) == {0: 30, 1: 30}

    run()


@on_cluster
async def test_a_consumer_without_a_topic_says_so(cluster: FakeCluster) -> None:
    engine = consumer(cluster, Seen(), topics={})
    with patch.object(push_engine._log, "warning") as warning:
        await engine.start()
    assert "subscribe" in warning.call_args.args[0]
    await engine.close()


@on_cluster
async def test_an_own_offset_store(cluster: FakeCluster) -> None:
    fill(cluster, 6, queues=1)
    saved: dict[MessageQueue, int] = {_queue(0): 4}

    class Store:
        def load(self, queue: MessageQueue) -> int | None:
            return saved.get(queue)

        async def save(self, offsets: Any) -> None:
            saved.update(offsets)

    seen = Seen()
    engine = consumer(cluster, seen, more={"offset_store": Store()})
    await engine.start()
    await until(lambda: len(seen.bodies) == 2)
    await engine.close()
    assert seen.numbers() == [4, 5]
    assert saved[_queue(0)] == 6


@on_cluster
async def test_a_round_that_fails_in_any_way_is_not_the_last(cluster: FakeCluster) -> None:
    fill(cluster, 2)
    seen = Seen()
    engine = consumer(cluster, seen, orderly=True)
    rounds: list[None] = []

    async def lock_all(_: Rebalance) -> None:
        rounds.append(None)
        raise ZeroDivisionError if len(rounds) == 1 else BrokerError("no", code=1)

    with patch.object(Rebalance, "lock_all", lock_all):
        await engine.start()
        await until(lambda: len(rounds) >= 3)
        await engine.close()
