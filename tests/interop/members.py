"""Our client in the interop tests: consumers that keep what they are given, and everything that a topic holds."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import cometmq.admin
from cometmq.client import MessageQueue, Producer, PullConsumer, PushConsumer, ReceivedMessage, SendResult
from interop.ours import contents
from interop.patterns import Content, MessageSpec, content_of_row, content_of_spec
from interop.sites import Peer, Site
from interop.waiting import LIMIT_S, eventually

# Routes of new topics and shares of new members come within a test; offsets are committed every second.
QUICK: Any = {
    "poll_name_server_interval_ms": 200,
    "heartbeat_broker_interval_ms": 1000,
    "persist_consumer_offset_interval_ms": 1000,
    "rebalance_min_interval_ms": 50,
    "rebalance_wait_interval_ms": 500,
}
PATIENT: Any = {"send_msg_timeout_ms": 10_000, "poll_name_server_interval_ms": 200}


@dataclass(frozen=True, slots=True)
class Taken:
    """One call of a listener."""

    member: str
    message: ReceivedMessage
    reconsume_times: int
    at_ms: int
    thread: str

    @property
    def key(self) -> str:
        (key,) = self.message.keys
        return key

    @property
    def place(self) -> tuple[str, int, int]:
        return self.message.broker_name, self.message.queue_id, self.message.queue_offset


class Seen:
    """The messages that listeners got, in order of arrival. Any threads may write and wait."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._taken: list[Taken] = []

    def by(
        self, member: str = "python", answer: Callable[[ReceivedMessage], Any] = lambda _: None
    ) -> Callable[[ReceivedMessage], Any]:
        """A listener that notes each message as this member's, and returns the given result."""

        def listener(message: ReceivedMessage) -> Any:
            now_ms, thread = time.time_ns() // 1_000_000, threading.current_thread().name
            with self._changed:
                self._taken.append(Taken(member, message, message.reconsume_times, now_ms, thread))
                self._changed.notify_all()
            return answer(message)

        return listener

    @property
    def all(self) -> list[Taken]:
        with self._changed:
            return list(self._taken)

    def until(self, condition: Callable[[Sequence[Taken]], object]) -> list[Taken]:
        """Waits until what was taken is so, and returns it."""
        with self._changed:
            was_so = self._changed.wait_for(lambda: condition(self._taken), LIMIT_S)
            assert was_so, [(one.member, *one.place, one.message.keys) for one in self._taken][-50:]
            return list(self._taken)

    def wait_for(self, count: int) -> list[Taken]:
        """Waits for so many calls."""
        return self.until(lambda taken: len(taken) >= count)

    def wait_for_keys(self, wanted: Sequence[str]) -> list[Taken]:
        """Waits until each of these has come, once or more often, and nothing else."""
        taken = self.until(lambda taken: len(taken) >= len(wanted) and {one.key for one in taken} >= set(wanted))
        assert {one.key for one in taken} == set(wanted)
        return taken


def push(
    site: Site,
    group: str,
    seen: Seen,
    *,
    member: str = "python",
    answer: Callable[[ReceivedMessage], Any] = lambda _: None,
    name_servers: str | None = None,
    **options: Any,
) -> PushConsumer:
    """A consumer of everything from the beginning, which is not started yet."""
    given = {"consume_from_where": "CONSUME_FROM_FIRST_OFFSET", "consume_thread_max": 4, **QUICK, **options}
    if "batch_listener" not in given:
        given["listener"] = seen.by(member, answer)
    return PushConsumer(group, name_servers=name_servers or site.namesrv.address, **given)


def producer(site: Site, group: str = "python_senders", *, name_servers: str | None = None, **options: Any) -> Producer:
    return Producer(group, name_servers=name_servers or site.namesrv.address, **{**PATIENT, **options})


def puller(site: Site, group: str, **options: Any) -> PullConsumer:
    given = {"consume_from_where": "CONSUME_FROM_FIRST_OFFSET", **QUICK, **options}
    return PullConsumer(group, name_servers=site.namesrv.address, **given)


def queue_of(topic: str, queue_id: int, broker_name: str = "shared") -> MessageQueue:
    return MessageQueue(topic=topic, broker_name=broker_name, queue_id=queue_id)


def create_topic(site: Site, topic: str, *, queues: int, broker_names: Sequence[str] = ("shared",)) -> None:
    """Creates it at these brokers and waits until its route has them all."""
    if "shared" in broker_names:
        assert site.shared_broker.address
    with cometmq.admin.connect(namesrv=site.namesrv.address) as admin:
        for broker_name in broker_names:
            admin.topics.create(topic, queues=queues, broker_name=broker_name)
        eventually(lambda: topic in admin.topics.list())
        eventually(lambda: len(admin.topics.queues(topic)), lambda found: found == queues * len(broker_names))


def committed(site: Site, group: str, topic: str) -> dict[tuple[str, int], int]:
    """Broker and queue to the group's progress there, as the brokers have it."""
    with cometmq.admin.connect(namesrv=site.namesrv.address) as admin:
        progress = admin.offsets.progress(group, topic=topic)
        return {(one.broker_name, one.queue_id): one.consumer_offset for one in progress.queues}


def await_progress(site: Site, group: str, topic: str, count: int) -> None:
    """Returns when the brokers have the group's progress, all queues together."""
    eventually(lambda: committed(site, group, topic), lambda found: sum(found.values()) == count)


def keyed(topic: str, numbers: Sequence[int], *, queues: int, tags: str | None = None) -> list[MessageSpec]:
    return [MessageSpec(topic, b"x", tags, (f"n{number}",), {}, number % queues) for number in numbers]


def keys_of(specs: Sequence[MessageSpec]) -> list[str]:
    return [spec.keys[0] for spec in specs]


def as_arguments(spec: MessageSpec, broker_name: str = "shared") -> dict[str, Any]:
    """Return the arguments of ``Producer.send`` for it."""
    queue = None if spec.queue is None else queue_of(spec.topic, spec.queue, broker_name)
    return {
        "topic": spec.topic,
        "body": spec.body,
        "tags": spec.tags,
        "keys": " ".join(spec.keys) or None,
        "properties": dict(spec.properties),
        "delay_level": spec.delay_level or 0,
        "sharding_key": spec.hash_key,
        "queue": queue,
    }


def send_all(with_producer: Producer, specs: Sequence[MessageSpec]) -> list[Content]:
    """Send them without waiting in between; return the content that must then be in the store."""
    futures = [with_producer.send_async(**as_arguments(spec)) for spec in specs]
    return [stored(spec, future.result()) for spec, future in zip(specs, futures, strict=True)]


def stored(spec: MessageSpec, result: SendResult, behind: int = 0) -> Content:
    """Return the content of an acknowledged message in the store; ``behind`` is its place in a batch."""
    assert result.status.name == "SEND_OK"
    return content_of_spec(spec, result.queue.queue_id, result.queue_offset + behind)


def read_all(site: Site, topic: str, expression: str = "*") -> list[Content]:
    """Everything in the topic, by our own client, in an order that can be compared."""
    with puller(site, "python_readers") as consumer:
        messages = []
        for queue in consumer.queues(topic):
            offset, end = consumer.min_offset(queue), consumer.max_offset(queue)
            while offset < end:
                result = consumer.pull(queue, offset, expression=expression)
                assert result.next_begin_offset > offset
                offset = result.next_begin_offset
                messages += result.messages
        return contents(messages)


def check_content(site: Site, topic: str, expected: Sequence[Content], expression: str = "*") -> None:
    """The topic holds exactly this, as our client reads it, and as the Java client does where there is one."""
    wanted = sorted(expected, key=repr)
    eventually(lambda: read_all(site, topic, expression), lambda found: found == wanted)
    if isinstance(site, Peer):
        tags = None if expression == "*" else expression
        found = sorted((content_of_row(row) for row in site.client.pull_all(topic, tags=tags)), key=repr)
        assert found == wanted
