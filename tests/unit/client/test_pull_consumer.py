"""Checks: the blocking pull consumer against a name server and brokers in this process."""

from __future__ import annotations

import math
import os
import signal
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from types import FrameType
from typing import Any

import pytest

from cometmq.client.instance.background import _Waiting
from cometmq.client.instance.hooks import ConsumeContext, Interceptor
from cometmq.client.instance.service_state import ServiceState
from cometmq.client.producer import Producer
from cometmq.client.pull.pull_ahead import Batch
from cometmq.client.pull.pull_policy import PullStatus
from cometmq.client.pull_consumer import PullConsumer
from cometmq.client.send.outgoing import OutgoingMessage
from cometmq.errors import (
    BrokerError,
    ClientStateError,
    Error,
    ForkedClient,
    GroupTaken,
    InvalidArgument,
    InvalidTopic,
    NotFound,
    OffsetOutOfRange,
    RouteNotFound,
)
from cometmq.remoting.bodies.message_queue import MessageQueue
from cometmq.testing.clusters import Cluster, cluster

_LIMIT_S = 30


@pytest.fixture(scope="module")
def running() -> Iterator[Cluster]:
    with cluster() as started:
        yield started


def _queue(topic: str, number: int) -> MessageQueue:
    return MessageQueue(topic=topic, broker_name="broker-a", queue_id=number)


def _publish(running: Cluster, topic: str, count: int, *, queue_id: int = 0, tags: str | None = None) -> None:
    """Put numbered messages into one queue; the topic gets four queues with its first message."""
    with Producer("p", name_servers=running.name_server_address) as producer:
        if topic not in {config.topic_name for config in running.broker.topics()}:
            producer.send(topic, b"first", tags="other")
        for number in range(count):
            producer.send(OutgoingMessage(b"%d" % number, topic=topic, tags=tags), queue=_queue(topic, queue_id))


def _consumer(running: Cluster, group: str, **options: Any) -> PullConsumer:
    quick = {"rebalance_min_interval_ms": 10, "consume_from_where": "CONSUME_FROM_FIRST_OFFSET", "auto_commit": False}
    return PullConsumer(group, name_servers=running.name_server_address, **{**quick, **options})


def _stored(running: Cluster, group: str, queue: MessageQueue) -> int | None:
    """Return the broker's offsets of a group."""
    with _consumer(running, group) as probe:
        return probe.committed(queue)


def _poll_until(consumer: PullConsumer, count: int) -> list[bytes]:
    bodies: list[bytes] = []
    end_s = time.monotonic() + _LIMIT_S
    while len(bodies) < count:
        assert time.monotonic() < end_s, f"{len(bodies)} of {count} came"
        bodies += [bytes(message.body) for message in consumer.poll(500)]
    return bodies


def _until(what: Callable[[], bool], consumer: PullConsumer) -> None:
    """Wait for a condition, in steps of a poll."""
    end_s = time.monotonic() + _LIMIT_S
    while not what():
        assert time.monotonic() < end_s
        consumer.poll(20)


def _numbers(*numbers: int) -> list[bytes]:
    return [b"%d" % number for number in numbers]


def test_subscribed_topic_is_polled_and_committed(running: Cluster) -> None:
    """Promises 2, 4: a new group begins at 0, and goes on where it was."""
    _publish(running, "polled", 25, queue_id=1, tags="t")
    with _consumer(running, "g_polled") as consumer:
        consumer.subscribe("polled", "t || u")
        assert _poll_until(consumer, 25) == _numbers(*range(25))
        queue = _queue("polled", 1)
        end = consumer.max_offset(queue)
        assert consumer.position(queue) == end
        assert not consumer.committed(queue), "a young queue has none, or 0"
        consumer.commit()
        assert consumer.committed(queue) == end
        assert len(consumer.assignment()) == 4
        assert "g_polled running queues=4" in repr(consumer)
    assert _stored(running, "g_polled", _queue("polled", 1)) == end
    _publish(running, "polled", 2, queue_id=1, tags="u")
    with _consumer(running, "g_polled") as consumer:
        consumer.subscribe("polled", "t || u")
        assert _poll_until(consumer, 2) == _numbers(0, 1)


def test_members_of_a_group_share_the_queues(running: Cluster) -> None:
    """Promises 59, 62."""
    _publish(running, "shared", 1)
    with _consumer(running, "g_shared") as one:
        one.subscribe("shared")
        _until(lambda: len(one.assignment()) == 4, one)
        with _consumer(running, "g_shared") as two:
            two.subscribe("shared")
            _until(lambda: len(one.assignment()) == len(two.assignment()) == 2, two)
            assert not set(one.assignment()) & set(two.assignment())
        _until(lambda: len(one.assignment()) == 4, one)


def test_assigned_queues(running: Cluster) -> None:
    _publish(running, "byhand", 3, queue_id=1)
    _publish(running, "byhand", 2, queue_id=2)
    with _consumer(running, "g_byhand") as consumer:
        assert {queue.queue_id for queue in consumer.queues("byhand")} == {0, 1, 2, 3}
        consumer.assign([_queue("byhand", 1)])
        consumer.seek_to_begin(_queue("byhand", 1))
        got = _poll_until(consumer, 3)
        assert got[-3:] == _numbers(0, 1, 2)
        consumer.commit()
        consumer.assign([_queue("byhand", 2)])
        assert _poll_until(consumer, 2)[-2:] == _numbers(0, 1)
        with pytest.raises(NotFound, match="not assigned"):
            consumer.seek(_queue("byhand", 1), 0)
        with pytest.raises(ClientStateError, match="either subscribes or is assigned"):
            consumer.subscribe("byhand")


def test_queues_may_be_assigned_before_the_start(running: Cluster) -> None:
    _publish(running, "early", 2, queue_id=1)
    consumer = _consumer(running, "g_early")
    consumer.assign([_queue("early", 1)])
    with consumer:
        assert _poll_until(consumer, 2)[-2:] == _numbers(0, 1)


def test_seeks(running: Cluster) -> None:
    _publish(running, "sought", 30, queue_id=1)
    queue = _queue("sought", 1)
    with _consumer(running, "g_sought") as consumer:
        consumer.assign([queue])
        begin, end = consumer.min_offset(queue), consumer.max_offset(queue)
        _poll_until(consumer, 5)
        consumer.seek(queue, end - 3)
        assert _poll_until(consumer, 3) == _numbers(27, 28, 29)
        consumer.seek_to_begin(queue)
        assert len(_poll_until(consumer, end - begin)) == end - begin
        consumer.seek_to_end(queue)
        assert consumer.poll(50) == []
        assert consumer.position(queue) == end
        consumer.seek_to_time(queue, 0)
        assert len(_poll_until(consumer, end - begin)) == end - begin
        for outside in (begin - 1, end + 1):
            with pytest.raises(OffsetOutOfRange):
                consumer.seek(queue, outside)


def test_a_paused_queue_rests(running: Cluster) -> None:
    _publish(running, "paused", 1, queue_id=1)
    queue = _queue("paused", 1)
    with _consumer(running, "g_paused", broker_suspend_max_time_ms=100) as consumer:
        consumer.assign([queue])
        consumer.pause([queue])
        consumer.seek_to_begin(queue)
        assert consumer.poll(300) == []
        consumer.resume([queue])
        assert _poll_until(consumer, 1)[-1:] == _numbers(0)


def test_loop_counts_its_messages(running: Cluster) -> None:
    """At least once: a commit in the loop covers no message that the loop was not given yet."""
    _publish(running, "looped", 10, queue_id=1, tags="t")
    queue = _queue("looped", 1)
    with _consumer(running, "g_looped", pull_batch_size=32) as consumer:
        consumer.subscribe("looped", "t")
        begin = consumer.max_offset(queue) - 10
        seen = []
        for message in consumer:
            seen.append(bytes(message.body))
            if len(seen) == 4:
                consumer.commit()
                assert consumer.committed(queue) == begin + 4
            if len(seen) == 6:
                break
        assert _poll_until(consumer, 4) == _numbers(6, 7, 8, 9)
        assert seen == _numbers(*range(6))


def test_a_seek_within_a_loop_goes_on_there(running: Cluster) -> None:
    _publish(running, "inloop", 5, queue_id=2, tags="t")
    queue = _queue("inloop", 2)
    with _consumer(running, "g_inloop") as consumer:
        consumer.assign([queue], "t")
        consumer.seek_to_begin(queue)
        seen: list[bytes] = []
        for message in consumer:
            seen.append(message.body_bytes)
            assert consumer.position(queue) == message.queue_offset + 1
            if len(seen) == 2:
                consumer.seek_to_begin(queue)
            if len(seen) == 7:
                break
    assert seen == _numbers(0, 1, 0, 1, 2, 3, 4)


def test_leaving_a_loop_commits_its_messages(running: Cluster) -> None:
    _publish(running, "left", 10, queue_id=1, tags="t")
    queue = _queue("left", 1)
    with _consumer(running, "g_left", auto_commit=True) as consumer:
        consumer.subscribe("left", "t")
        end = consumer.max_offset(queue)
        for number, _ in enumerate(consumer, start=1):
            if number == 7:
                break
    assert _stored(running, "g_left", _queue("left", 1)) == end - 3


def test_an_error_commits_nothing(running: Cluster) -> None:
    _publish(running, "failed", 3, queue_id=1, tags="t")

    def fail() -> None:
        with _consumer(running, "g_failed", auto_commit=True) as consumer:
            consumer.subscribe("failed", "t")
            next(iter(consumer))
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        fail()
    assert not _stored(running, "g_failed", _queue("failed", 1))


def test_auto_commit(running: Cluster) -> None:
    _publish(running, "auto", 3, queue_id=1, tags="t")
    queue = _queue("auto", 1)
    options = {"auto_commit": True, "auto_commit_interval_ms": 1_000, "persist_consumer_offset_interval_ms": 10}
    with _consumer(running, "g_auto", **options) as consumer:
        consumer.subscribe("auto", "t")
        _poll_until(consumer, 3)
        end = consumer.max_offset(queue)
        _until(lambda: consumer.committed(queue) == end, consumer)


def test_filtered_messages_do_not_hold_back_commits(running: Cluster) -> None:
    _publish(running, "matched", 1, queue_id=1, tags="t")
    queue = _queue("matched", 1)
    with _consumer(running, "g_matched", broker_suspend_max_time_ms=100) as consumer:
        consumer.subscribe("matched", "t")
        _poll_until(consumer, 1)
        _publish(running, "matched", 5, queue_id=1, tags="u")
        end = consumer.max_offset(queue)
        _until(lambda: consumer.position(queue) == end, consumer)


def test_commits_of_given_offsets(running: Cluster) -> None:
    _publish(running, "given", 3, queue_id=1)
    queue = _queue("given", 1)
    with _consumer(running, "g_given") as consumer:
        consumer.assign([queue])
        consumer.commit({queue: 1})
        assert _stored(running, "g_given", _queue("given", 1)) == 1
        consumer.commit_async({queue: 2})
        assert consumer.committed(queue) == 2
        with pytest.raises(NotFound):
            consumer.commit({_queue("given", 2): 1})
        with pytest.raises(OffsetOutOfRange):
            consumer.commit({queue: -1})


def test_a_single_pull_leaves_the_offset_to_its_caller(running: Cluster) -> None:
    """Promise 91: the low-level pull."""
    _publish(running, "single", 5, queue_id=1, tags="t")
    queue = _queue("single", 1)
    with _consumer(running, "g_single", broker_suspend_max_time_ms=200) as consumer:
        end = consumer.max_offset(queue)
        found = consumer.pull(queue, end - 5, max_messages=3)
        assert [bytes(message.body) for message in found.messages] == _numbers(0, 1, 2)
        assert (found.status, found.next_begin_offset, found.max_offset) == (PullStatus.FOUND, end - 2, end)
        assert consumer.pull(queue, end - 5, expression="u").status is PullStatus.NO_MATCHED_MESSAGE
        assert consumer.pull(queue, end).status is PullStatus.NO_NEW_MESSAGE
        began_s = time.monotonic()
        assert consumer.pull(queue, end, block=True).status is PullStatus.NO_NEW_MESSAGE
        assert time.monotonic() - began_s > 0.15, "the broker held it"
        assert consumer.pull(queue, end + 9).status is PullStatus.OFFSET_ILLEGAL
        assert not consumer.committed(queue), "a young queue has none, or 0"
        for bad in ({"offset": -1}, {"max_messages": 0}, {"timeout_ms": 0}):
            with pytest.raises(InvalidArgument):
                consumer.pull(queue, **{"offset": 0, **bad})
        with pytest.raises(BrokerError):
            consumer.pull(_queue("single", 77), 0)


def test_a_held_pull_brings_the_message_as_it_comes(running: Cluster) -> None:
    """Promise 22."""
    _publish(running, "held", 1, queue_id=1)
    queue = _queue("held", 1)
    with _consumer(running, "g_held") as consumer:
        end = consumer.max_offset(queue)
        publisher = threading.Thread(target=_publish, args=(running, "held", 1), kwargs={"queue_id": 1})
        publisher.start()
        found = consumer.pull(queue, end, block=True)
        publisher.join()
        if not found.messages:  # the broker answers a waking pull by sending it back
            found = consumer.pull(queue, end, block=True)
        assert [bytes(message.body) for message in found.messages] == _numbers(0)


def test_broadcasting_members_keep_their_progress_themselves(running: Cluster, tmp_path: Path) -> None:
    """Promises 7, 14, 93."""
    _publish(running, "toall", 3, queue_id=1, tags="t")
    options = {"message_model": "BROADCASTING", "offset_folder": tmp_path, "client_ip": "192.0.2.1"}
    with _consumer(running, "g_toall", **options) as consumer:
        consumer.subscribe("toall", "t")
        _poll_until(consumer, 3)
        consumer.commit()
    files = list(tmp_path.rglob("offsets.json"))
    assert [file.relative_to(tmp_path).parts[1] for file in files] == ["g_toall"]
    with _consumer(running, "g_toall", **options) as consumer:
        consumer.subscribe("toall", "t")
        _until(lambda: len(consumer.assignment()) == 4, consumer)
        assert consumer.committed(_queue("toall", 1)) == consumer.max_offset(_queue("toall", 1))


class _Table:
    """A store of the user's own."""

    def __init__(self) -> None:
        self.rows: dict[MessageQueue, int] = {}

    def load(self, queue: MessageQueue) -> int | None:
        return self.rows.get(queue)

    def save(self, offsets: Mapping[MessageQueue, int]) -> None:
        self.rows.update(offsets)


def test_progress_in_a_store_of_the_users_own(running: Cluster) -> None:
    """Promise 14."""
    _publish(running, "owned", 4, queue_id=1, tags="t")
    queue, table = _queue("owned", 1), _Table()
    with _consumer(running, "g_owned", offset_store=table) as consumer:
        consumer.subscribe("owned", "t")
        _poll_until(consumer, 4)
        consumer.commit()
        end = consumer.max_offset(queue)
        assert table.rows[queue] == end
        table.rows[queue] = end - 1
    with _consumer(running, "g_owned", offset_store=table) as consumer:
        table.rows[queue] = end - 1
        consumer.subscribe("owned", "t")
        assert _poll_until(consumer, 1) == _numbers(3)


def test_interceptors_see_polled_messages(running: Cluster) -> None:
    _publish(running, "seen", 2, queue_id=1, tags="t")
    seen: list[ConsumeContext] = []
    with _consumer(running, "g_seen", interceptors=[Interceptor(after_consume=seen.append)]) as consumer:
        consumer.subscribe("seen", "t")
        _poll_until(consumer, 2)
    assert [bytes(message.body) for context in seen for message in context.messages] == _numbers(0, 1)
    assert all(context.is_success and context.group == "g_seen" for context in seen)


def test_filtered_messages_are_not_polled(running: Cluster) -> None:
    _publish(running, "filtered", 4, queue_id=1)
    odd = Interceptor(keep_message=lambda message: message.body_bytes in _numbers(1, 3))
    with _consumer(running, "g_filtered", interceptors=[odd]) as consumer:
        consumer.subscribe("filtered")
        assert _poll_until(consumer, 2) == _numbers(1, 3)


def test_an_end_of_a_subscription(running: Cluster) -> None:
    _publish(running, "ended", 1, queue_id=1)
    with _consumer(running, "g_ended") as consumer:
        consumer.subscribe("ended")
        _until(lambda: len(consumer.assignment()) == 4, consumer)
        consumer.unsubscribe("ended")
        assert consumer.assignment() == []
        consumer.subscribe("ended")
        _until(lambda: len(consumer.assignment()) == 4, consumer)
        with pytest.raises(ClientStateError, match="either subscribes or is assigned"):
            consumer.assign([_queue("ended", 0)])


def test_another_thread_may_close(running: Cluster) -> None:
    consumer = _consumer(running, "g_closed").start()
    got: list[object] = []
    loop = threading.Thread(target=lambda: got.extend(consumer))
    loop.start()
    consumer.close()
    loop.join(_LIMIT_S)
    assert not loop.is_alive()
    assert got == []


def test_states(running: Cluster) -> None:
    """Promises 16, 17, 19."""
    consumer = _consumer(running, "g_states", instance_name="same")
    consumer.close()
    assert consumer.state is ServiceState.CREATE_JUST
    for call in (consumer.poll, consumer.commit, lambda: consumer.queues("polled")):
        with pytest.raises(ClientStateError, match="not started"):
            call()
    with consumer:
        with pytest.raises(ClientStateError):
            consumer.start()
        second = _consumer(running, "g_states", instance_name="same")
        with pytest.raises(GroupTaken):
            second.start()
        assert second.state is ServiceState.CREATE_JUST
        with pytest.raises(InvalidArgument):
            consumer.poll(-1)
        with pytest.raises(RouteNotFound, match="nowhere"):
            consumer.queues("nowhere")
    with second:
        assert second.state is ServiceState.RUNNING
    for call in (consumer.start, consumer.poll):
        with pytest.raises(ClientStateError, match="closed"):
            call()
    consumer.close()


def test_wrong_settings_and_names(running: Cluster) -> None:
    wrong = _consumer(running, "g_wrong", pull_batch_size=0)
    with pytest.raises(InvalidArgument, match="pull_batch_size"):
        wrong.start()
    assert wrong.state is ServiceState.START_FAILED
    with pytest.raises(ClientStateError, match="start failed"):
        wrong.start()
    with pytest.raises(InvalidArgument, match="did you mean"):
        PullConsumer("g", pull_batch_sise=1)  # type: ignore[call-arg]
    consumer = _consumer(running, "g_wrong")
    with pytest.raises(InvalidTopic):
        consumer.subscribe("a b")
    unusable: Any
    for unusable in (["orders"], None, 5):
        with pytest.raises(InvalidArgument, match=r"assign\(\) was given"):
            consumer.assign(unusable)
    for unusable in (None, 5, ["a"]):
        with pytest.raises(InvalidTopic, match="a topic is text"):
            consumer.subscribe(unusable)
    with pytest.raises(InvalidArgument, match="write 'TAG' or 'SQL92'"):
        consumer.subscribe("orders", "a", expression_type="sql")
    queue: Any = _queue("orders", 0)
    with consumer:
        wrong_calls: list[Callable[[], object]] = [
            lambda: consumer.pause(queue),
            lambda: consumer.resume(5),  # type: ignore[arg-type]
            lambda: consumer.commit(5),  # type: ignore[arg-type]
            lambda: consumer.send_back(None),  # type: ignore[arg-type]
            lambda: consumer.watch_queues("orders", 5),  # type: ignore[arg-type]
            *(partial(consumer.pull, queue, 0, max_messages=value) for value in (0, 1.5, "1")),
            *(partial(consumer.pull, queue, 0, timeout_ms=value) for value in (0, math.nan, "1")),
        ]
        for call in wrong_calls:
            with pytest.raises(InvalidArgument):
                call()


@pytest.mark.parametrize("wrong", ["1", 1.5, None, True])
def test_places_are_whole_numbers(running: Cluster, wrong: Any) -> None:
    _publish(running, "places", 1, queue_id=1)
    queue = _queue("places", 1)
    with _consumer(running, "g_places") as consumer:
        consumer.assign([queue])
        calls: list[Callable[[], object]] = [
            lambda: consumer.seek(queue, wrong),
            lambda: consumer.seek_to_time(queue, wrong),
            lambda: consumer.search_offset(queue, wrong),
            lambda: consumer.commit({queue: wrong}),
            lambda: consumer.pull(queue, wrong),
        ]
        for call in calls:
            with pytest.raises(InvalidArgument, match="it must be a whole number"):
                call()
        with pytest.raises(InvalidArgument, match="must not be below 0"):
            consumer.seek_to_time(queue, -1)


def test_a_forked_child_gets_an_error(running: Cluster) -> None:
    with _consumer(running, "g_forked") as consumer:
        reader, writer = os.pipe()
        child = os.fork()
        if child == 0:
            try:
                consumer.poll(0)
            except ForkedClient:
                os.write(writer, b"forked")
            except Error as error:
                os.write(writer, repr(error).encode())
            finally:
                os._exit(0)
        os.close(writer)
        with os.fdopen(reader, "rb") as answer:
            assert answer.read() == b"forked"
        os.waitpid(child, 0)
        assert consumer.poll(0) == []


class _Interrupted(Exception):
    """The exception of a signal handler."""


@contextmanager
def _signals(period_s: float) -> Iterator[None]:
    """Raise in whatever this thread does, over and over, but in the tests of this file themselves."""

    def handler(number: int, frame: FrameType | None) -> None:
        if frame is not None and frame.f_code.co_filename != __file__:
            raise _Interrupted

    before = signal.signal(signal.SIGALRM, handler)
    signal.setitimer(signal.ITIMER_REAL, period_s, period_s)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


def test_messages_of_an_interrupted_poll_come_with_the_next(running: Cluster, monkeypatch: pytest.MonkeyPatch) -> None:
    _publish(running, "polled", 3, queue_id=1, tags="t")
    wait = _Waiting.wait
    interrupts = [True]

    def interrupted(self: _Waiting[Any]) -> None:
        wait(self)
        if interrupts and self._results and isinstance(self._results[0], Batch):
            interrupts.clear()
            raise KeyboardInterrupt  # the messages are on their way to the caller

    with _consumer(running, "g_polled") as consumer:
        consumer.subscribe("polled", "t")
        queue = _queue("polled", 1)
        end = consumer.max_offset(queue)
        monkeypatch.setattr(_Waiting, "wait", interrupted)
        with pytest.raises(KeyboardInterrupt):
            _poll_until(consumer, 1)
        assert consumer.position(queue) == end - 3
        consumer.commit()
        assert not consumer.committed(queue) or consumer.committed(queue) == end - 3
        assert _poll_until(consumer, 3) == _numbers(0, 1, 2)
        consumer.commit()
        assert consumer.committed(queue) == end


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning", "ignore:coroutine:RuntimeWarning")
@pytest.mark.parametrize("form", ["poll", "loop"])
def test_signals_lose_nothing(running: Cluster, form: str) -> None:
    count = 400
    topic = f"signals-{form}"
    _publish(running, topic, count, queue_id=1, tags="t")
    seen: list[bytes] = []
    with _consumer(
        running, f"g_{topic}", auto_commit=True, auto_commit_interval_ms=1_000, pull_batch_size=5
    ) as consumer:
        consumer.subscribe(topic, "t")
        interrupts = 0
        end_s = time.monotonic() + _LIMIT_S
        with _signals(0.003):
            while len(seen) < count:
                assert time.monotonic() < end_s, f"{len(seen)} of {count} came"
                try:
                    if form == "poll":
                        for message in consumer.poll(500):
                            seen += [message.body_bytes]
                    else:
                        for message in consumer:
                            seen += [message.body_bytes]
                            if len(seen) >= count:
                                break
                except _Interrupted:
                    interrupts += 1
        assert sorted(seen) == sorted(_numbers(*range(count)))
        assert interrupts
        consumer.commit()
        queue = _queue(topic, 1)
        assert consumer.committed(queue) == consumer.max_offset(queue)


def test_a_poll_counts_messages_polled_by_any_thread_as_done(running: Cluster) -> None:
    _publish(running, "polls", 30, queue_id=1, tags="t")
    queue = _queue("polls", 1)
    options: Any = {"auto_commit": True, "auto_commit_interval_ms": 1_000, "pull_batch_size": 10}
    with _consumer(running, "g_polls", **options) as consumer:
        consumer.subscribe("polls", "t")
        begin = consumer.max_offset(queue) - 30
        with ThreadPoolExecutor(1) as threads:
            assert threads.submit(_poll_until, consumer, 1).result()[0] == b"0"
        done = consumer.position(queue)
        assert done is not None
        assert done > begin
        _until(lambda: (consumer.committed(queue) or 0) >= done, consumer)


def test_loop_of_another_thread_is_not_committed_past(running: Cluster) -> None:
    _publish(running, "threads", 200, queue_id=1, tags="t")
    queue = _queue("threads", 1)
    options: Any = {"auto_commit": True, "auto_commit_interval_ms": 1_000, "pull_batch_size": 10}
    with _consumer(running, "g_threads", **options) as consumer:
        consumer.subscribe("threads", "t")
        end = consumer.max_offset(queue)
        took, go_on = threading.Event(), threading.Event()

        def work() -> None:
            for message in consumer:
                assert message.queue_offset == end - 200
                took.set()
                assert go_on.wait(_LIMIT_S)
                break

        thread = threading.Thread(target=work)
        thread.start()
        assert took.wait(_LIMIT_S)
        for number, _ in enumerate(consumer, start=1):
            if number == 190:
                break
        consumer.commit()
        assert consumer.committed(queue) == end - 200
        go_on.set()
        thread.join()
        rest = _poll_until(consumer, 9)
        assert rest == _numbers(*range(1, 10))
        consumer.commit()
        assert consumer.committed(queue) == end


@pytest.mark.parametrize("call", ["position", "commit", "close"])
def test_loop_that_another_thread_left_counts_up_to_its_last_message(running: Cluster, call: str) -> None:
    topic = f"left-elsewhere-{call}"
    _publish(running, topic, 5, queue_id=1, tags="t")
    queue = _queue(topic, 1)
    with _consumer(running, f"g_{topic}", auto_commit=True) as consumer:
        consumer.subscribe(topic, "t")
        end = consumer.max_offset(queue)

        def work() -> None:
            for number, _ in enumerate(consumer, start=1):
                if number == 3:
                    break

        with ThreadPoolExecutor(1) as threads:
            threads.submit(work).result()
        if call == "position":
            assert consumer.position(queue) == end - 2
        elif call == "commit":
            consumer.commit()
            assert consumer.committed(queue) == end - 2
    if call == "close":
        assert _stored(running, f"g_{topic}", queue) == end - 2
