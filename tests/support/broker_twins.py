"""Twins of what a broker's control plane works with: loops in memory, clients that answer, name servers, a clock.

And :class:`Rig`, a control plane over a real store with all of them, that a test asks as a client would.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Awaitable, Callable, Collection, Container, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from inspect import isawaitable
from pathlib import Path
from types import TracebackType
from typing import Any, TypeVar

from cometmq._engine import encode_properties
from cometmq.broker.config import BrokerConfig, load_broker_config
from cometmq.broker.control import ControlPlane
from cometmq.broker.plane import DelayMark, HalfQuestion, OffsetChange, OutgoingMessage, PoppedQueue, StoredPlace
from cometmq.broker.plane_options import TransactionOptions
from cometmq.broker.routes import Unanswered
from cometmq.errors import ConnectionLost, Error, OffsetOutOfRange
from cometmq.remoting.bodies.config_tables import CreateTopicListRequestBody
from cometmq.remoting.bodies.heartbeat import (
    ConsumeFromWhere,
    ConsumerData,
    ConsumeType,
    HeartbeatData,
    MessageModel,
    ProducerData,
    SubscriptionData,
)
from cometmq.remoting.bodies.routes import TopicRouteData
from cometmq.remoting.codes import RequestCode, ResponseCode
from cometmq.remoting.command import Command
from cometmq.remoting.lanes import Lanes
from cometmq.store.store import Store
from cometmq.store_config.order_info import OrderedBatch, OrderedQueue
from cometmq.store_config.subscription_group_config import SubscriptionGroupConfig
from cometmq.store_config.topic_config import TopicConfig
from support.any_disk import ANY_DISK

T = TypeVar("T")

NOW_MS = 1_800_000_000_000

SEND_NAMES = {
    "producerGroup": "a",
    "topic": "b",
    "defaultTopic": "c",
    "defaultTopicQueueNums": "d",
    "queueId": "e",
    "sysFlag": "f",
    "bornTimestamp": "g",
    "flag": "h",
    "properties": "i",
    "reconsumeTimes": "j",
    "unitMode": "k",
    "maxReconsumeTimes": "l",
}
"""Members of sends and replies: the name in codes 10 and 324, and the letter in 310, 320 and 325."""


def send_fields(code: int, **changes: str) -> dict[str, str]:
    """Return the fields of a send or a reply, to topic ``orders`` where nothing else is said."""
    fields = {
        "producerGroup": "p",
        "topic": "orders",
        "defaultTopic": "TBW102",
        "defaultTopicQueueNums": "4",
        "queueId": "0",
        "sysFlag": "0",
        "bornTimestamp": "1700000000000",
        "flag": "3",
        **changes,
    }
    if code in (RequestCode.SEND_MESSAGE, RequestCode.SEND_REPLY_MESSAGE):
        return fields
    return {SEND_NAMES[name]: value for name, value in fields.items()}


class Clock:
    """A wall clock that is frozen until time passes, or it is set."""

    def __init__(self, now_ms: int = NOW_MS) -> None:
        self.now_ms = now_ms
        self._set_ms = 0

    def __call__(self) -> int:
        return self.now_ms

    def steady_ms(self) -> int:
        """Return the time by a clock that is never set."""
        return self.now_ms - self._set_ms

    def move(self, by_ms: int) -> None:
        """Let time pass."""
        self.now_ms += by_ms

    def set(self, by_ms: int) -> None:
        """Set the wall clock ahead, or back."""
        self.now_ms += by_ms
        self._set_ms += by_ms


@dataclass(frozen=True)
class Caller:
    """One connection."""

    conn: int = 1
    peer: str = "127.0.0.1:40001"
    is_busy: bool = False

    async def apart(self, work: Callable[[], T]) -> T:
        return await asyncio.get_running_loop().run_in_executor(None, work)

    async def store_apart(self, work: Callable[[], T]) -> T:
        return await self.apart(work)


@dataclass(frozen=True)
class LaneCaller(Caller):
    """A connection whose work runs in real lanes, which the test shares out."""

    lanes: Lanes = field(kw_only=True)

    async def apart(self, work: Callable[[], T]) -> T:
        return await self.lanes.run(self.conn, work)


@dataclass
class MemoryPlane:
    """The loops' side in memory. Stored messages are appended to the store."""

    store: Store | None = None
    topics: dict[str, TopicConfig] = field(default_factory=dict)
    groups: dict[str, SubscriptionGroupConfig] = field(default_factory=dict)
    consumers: dict[str, tuple[MessageModel, ConsumeType, dict[str, SubscriptionData], frozenset[str]]] = field(
        default_factory=dict
    )
    consumer_fails: Error | None = None
    perm: int | None = None
    committed: dict[tuple[str, str, int], int] = field(default_factory=dict)
    resets: dict[tuple[str, str, int], int] = field(default_factory=dict)
    pulls: dict[tuple[str, str, int], int] = field(default_factory=dict)
    changes: list[OffsetChange] = field(default_factory=list)
    versions: int = 0
    ordered: dict[tuple[str, str, int], OrderedBatch] = field(default_factory=dict)
    ordered_changes: int = 0
    levels: dict[int, int] = field(default_factory=dict)
    levels_version: int = 0
    log_end: int = 0
    redelivered: int = 0
    delivering: bool = False
    timing: bool = False
    checking: bool = False
    transaction_rules: TransactionOptions | None = None
    questions: list[HalfQuestion] = field(default_factory=list)
    questions_per_step: int = 1
    producers_seen: list[Container[str]] = field(default_factory=list)
    resumed: list[int] = field(default_factory=list)
    resume_fails: Error | None = None
    halves: dict[str, tuple[int, int]] = field(default_factory=dict)
    popping: bool = False
    wanted_topics: list[str] = field(default_factory=list)
    pops: dict[tuple[str, str, int], int] = field(default_factory=dict)
    popped: dict[str, list[PoppedQueue]] = field(default_factory=dict)
    wanted_made: int = 0
    timer_state: bytes | None = None
    flush_fails: Error | None = None
    put_messages: list[OutgoingMessage] = field(default_factory=list)
    put_fails: Error | None = None
    put_threads: list[str] = field(default_factory=list)
    waits_for_disk: bool = True
    totals: dict[str, int] = field(default_factory=dict)
    carried: dict[tuple[str, str], tuple[int, int]] = field(default_factory=dict)
    log: list[str] = field(default_factory=list)

    def put_topic(self, topic: TopicConfig) -> None:
        self.topics[topic.topic_name] = topic
        self.log.append(f"topic {topic.topic_name}")

    def remove_topic(self, topic: str) -> None:
        self.topics.pop(topic, None)
        self.log.append(f"no topic {topic}")

    def put_group(self, group: SubscriptionGroupConfig) -> None:
        self.groups[group.group_name] = group

    def remove_group(self, group: str) -> None:
        self.groups.pop(group, None)

    def put_consumer(
        self,
        group: str,
        model: MessageModel,
        consume_type: ConsumeType,
        subscriptions: Iterable[SubscriptionData],
        forbidden_topics: Collection[str],
        selectors: Mapping[str, tuple[str, int]],
        *,
        end_holds: bool,
    ) -> None:
        if self.consumer_fails is not None:
            raise self.consumer_fails
        table = {subscription.topic: subscription for subscription in subscriptions}
        self.consumers[group] = (model, consume_type, table, frozenset(forbidden_topics))
        self.log.append(f"consumer {group}" + (", holds end" if end_holds else ""))

    def remove_consumer(self, group: str) -> None:
        del self.consumers[group]

    def set_broker_perm(self, perm: int) -> None:
        self.perm = perm

    def commit_offset(self, group: str, topic: str, queue_id: int, offset: int, address: bytes | None = None) -> None:
        key = (group, topic, queue_id)
        if key not in self.resets:
            self.committed[key] = offset
            self.changes.append(OffsetChange(group, topic, queue_id, offset))

    def query_offset(self, group: str, topic: str, queue_id: int) -> int | None:
        key = (group, topic, queue_id)
        return self.resets.get(key, self.committed.get(key))

    def pull_offset(self, group: str, topic: str, queue_id: int) -> int | None:
        return self.pulls.get((group, topic, queue_id))

    def reset_offset(self, group: str, topic: str, queue_id: int, offset: int, address: bytes | None = None) -> None:
        self.resets.pop((group, topic, queue_id), None)
        self.commit_offset(group, topic, queue_id, offset)
        self.resets[group, topic, queue_id] = offset

    def remove_offsets(self, *, group: str | None = None, topic: str | None = None) -> None:
        doomed = [key for key in self.committed if group in (None, key[0]) and topic in (None, key[1])]
        for key in doomed:
            del self.committed[key]
        self.changes += [OffsetChange(one, of, -1, -1) for one, of in dict.fromkeys((key[0], key[1]) for key in doomed)]

    def take_offset_changes(self) -> list[OffsetChange]:
        taken, self.changes = self.changes, []
        return taken

    def offset_version(self) -> int:
        return self.versions

    def ordered_batches(self) -> list[OrderedQueue]:
        return [OrderedQueue(*key, batch) for key, batch in self.ordered.items()]

    def restore_ordered(self, queue: OrderedQueue) -> None:
        self.ordered[queue[:3]] = queue.batch
        self.ordered_changes += 1

    def clear_ordered(self, group: str, topic: str, queue_id: int) -> None:
        del self.ordered[group, topic, queue_id]
        self.ordered_changes += 1

    def ordered_version(self) -> int:
        return self.ordered_changes

    def set_delay_progress(self, level: int, offset: int) -> None:
        assert not self.delivering
        self.levels[level] = offset

    def recover_delay(self, log_end: int) -> int:
        if log_end > self.log_end:
            raise OffsetOutOfRange("the log does not reach the mark", offset=log_end)
        for level in self.levels:
            self.levels[level] += self.redelivered
        return self.redelivered * len(self.levels)

    def start_delay(self) -> None:
        self.delivering = True

    def stop_delay(self) -> None:
        self.delivering = False

    def delay_mark(self) -> DelayMark:
        if self.flush_fails is not None:
            raise self.flush_fails
        return DelayMark(self.log_end, dict(self.levels))

    def delay_progress(self) -> Mapping[int, int]:
        return dict(self.levels)

    def delay_version(self) -> int:
        return self.levels_version

    def start_timers(self) -> None:
        self.timing = True

    def stop_timers(self) -> None:
        self.timing = False

    def timer_check(self) -> bytes | None:
        return self.timer_state

    def start_transactions(self) -> None:
        self.checking = True

    def stop_transactions(self) -> None:
        self.checking = False

    def set_transaction_rules(self, rules: TransactionOptions) -> None:
        self.transaction_rules = rules

    def step_transactions(self, producers: Container[str]) -> tuple[bool, list[HalfQuestion]]:
        self.producers_seen.append(producers)
        count = self.questions_per_step
        taken, self.questions = self.questions[:count], self.questions[count:]
        return bool(self.questions), taken

    def resume_half(self, physical_offset: int) -> None:
        if self.resume_fails is not None:
            raise self.resume_fails
        self.resumed.append(physical_offset)

    def half_counts(self) -> Mapping[str, tuple[int, int]]:
        return dict(self.halves)

    def start_pops(self) -> None:
        self.popping = True

    def stop_pops(self) -> None:
        self.popping = False

    def take_wanted_topics(self) -> list[str]:
        wanted, self.wanted_topics = self.wanted_topics, []
        return wanted

    def wanted_topics_made(self) -> None:
        self.wanted_made += 1

    def pop_offset(self, group: str, topic: str, queue_id: int) -> int | None:
        return self.pops.get((group, topic, queue_id))

    def pops_in_flight(self, group: str) -> list[PoppedQueue]:
        return self.popped.get(group, [])

    def flush(self) -> None:
        if self.flush_fails is not None:
            raise self.flush_fails

    def put(self, message: OutgoingMessage) -> StoredPlace:
        if self.put_fails is not None:
            raise self.put_fails
        self.put_threads.append(threading.current_thread().name)
        self.put_messages.append(message)
        assert self.store is not None
        stored = self.store.handle.append(
            message.topic,
            message.body,
            properties=encode_properties(
                {name: text for name, text in message.properties.items() if name not in ("TAGS", "KEYS")}
            ),
            tags=message.properties.get("TAGS"),
            keys=message.properties.get("KEYS"),
            queue_id=message.queue_id,
        )
        return StoredPlace(
            queue_offset=stored.queue_offset, physical_offset=stored.physical_offset, message_id=stored.message_id
        )

    def traffic(self) -> Mapping[tuple[str, str], tuple[int, int]]:
        return self.carried

    def counters(self) -> Mapping[str, int]:
        return self.totals


@dataclass
class MemoryLink:
    """Clients that keep their requests, and answer as scripted."""

    sent: list[tuple[int, Command]] = field(default_factory=list)
    closed: list[int] = field(default_factory=list)
    answers: dict[int, Callable[[Command], Command]] = field(default_factory=dict)
    asked: list[tuple[int, Command, int]] = field(default_factory=list)
    offers_taken_max: int = 1 << 30
    offers_dropped: int = 0

    def send_oneway(self, conn: int, request: Command) -> None:
        assert request.is_oneway
        self.sent.append((conn, request))

    def offer(self, conn: int, request: Command) -> None:
        if len(self.sent) < self.offers_taken_max:
            self.send_oneway(conn, request)
        else:
            self.offers_dropped += 1

    async def invoke(self, conn: int, request: Command, *, timeout_ms: int) -> Command:
        self.asked.append((conn, request, timeout_ms))
        answer = self.answers.get(conn)
        if answer is None:
            raise ConnectionLost("the connection is gone")
        return answer(request)

    def close_connection(self, conn: int) -> None:
        self.closed.append(conn)

    def notices(self, group: str) -> list[int]:
        """The connections that got a code 40 about a group, in order."""
        code = RequestCode.NOTIFY_CONSUMER_IDS_CHANGED
        return [conn for conn, one in self.sent if one.code == code and one.fields == {"consumerGroup": group}]


@dataclass
class MemoryNameServers:
    """Name servers that record their registrations.

    Attributes:
        routes: their routes of topics; None: there are no name servers.
        up: they can be asked.
        asked: the topics that they were asked for.
        pace: the period and force of registrations, once changed.
    """

    plane: MemoryPlane
    announced: list[list[str]] = field(default_factory=list)
    everything: int = 0
    routes: dict[str, TopicRouteData] | None = None
    up: bool = True
    asked: list[str] = field(default_factory=list)
    pace: tuple[int, bool] | None = None

    @property
    def has_name_servers(self) -> bool:
        return self.routes is not None

    async def route(self, topic: str) -> TopicRouteData | None:
        assert self.routes is not None
        self.asked.append(topic)
        await asyncio.sleep(0)
        if not self.up:
            raise Unanswered("nobody is there")
        return self.routes.get(topic)

    async def announce(self, topics: Sequence[TopicConfig]) -> None:
        await asyncio.sleep(0)
        self.announced.append([topic.topic_name for topic in topics])
        self.plane.log += [f"announced {topic.topic_name}" for topic in topics]

    async def announce_all(self) -> None:
        self.everything += 1

    def change_pace(self, *, period_ms: int, force: bool) -> None:
        self.pace = (period_ms, force)


class Rig:
    """A control plane over a store of its own, with twins all around."""

    def __init__(
        self, path: Path, *, settings: Mapping[str, object] | None = None, properties: Path | None = None
    ) -> None:
        """Make a small store, or open the one that is there by its broker's properties."""
        self.clock = Clock()
        small = {
            "brokerName": "broker-a",
            "mappedFileSizeCommitLog": 1 << 20,
            "mappedFileSizeConsumeQueue": 60_000,
            "maxHashSlotNum": 1_000,
            "maxIndexNum": 4_000,
            "flushDiskType": "ASYNC_FLUSH",
        }
        self.config: BrokerConfig = load_broker_config(
            path,
            config=properties,
            settings={**({} if properties is not None else small), **(settings or {})},
            insecure_listen=True,
            environ=ANY_DISK,
        )
        self.store = Store(self.config.plan(self.config.port), read_only=False)
        self.plane = MemoryPlane(store=self.store)
        self.link = MemoryLink()
        self.name_servers = MemoryNameServers(self.plane)
        self.control = ControlPlane(
            self.config,
            store=self.store,
            plane=self.plane,
            link=self.link,
            name_servers=self.name_servers,
            port=self.config.port,
            now_ms=self.clock,
            steady_ms=self.clock.steady_ms,
        )
        self.control.start()
        self.plane.log.clear()

    def __enter__(self) -> Rig:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.store.close()

    async def ask(
        self,
        code: int,
        fields: Mapping[str, str] | None = None,
        body: bytes = b"",
        *,
        caller: Caller | None = None,
        **members: Any,
    ) -> Any:
        """Ask the control plane; returns its answer, or the verdict."""
        request = Command(code=code, fields=fields or {}, body=body, opaque=7, **members)
        answer: Any = self.control.handlers[code](request, caller or Caller())
        if isawaitable(answer):
            answer = await answer
        if isinstance(answer, Command):
            assert answer.is_response
            assert answer.opaque == 7
        return answer

    def run(self, code: int, fields: Mapping[str, str] | None = None, body: bytes = b"", **members: Any) -> Any:
        """The same from a test that is no coroutine."""
        return asyncio.run(self.ask(code, fields, body, **members))

    async def make_topics(self, *topics: TopicConfig) -> None:
        """Make topics, as an administrator does."""
        body = CreateTopicListRequestBody(topics=topics)
        answer = await self.ask(RequestCode.UPDATE_AND_CREATE_TOPIC_LIST, body=body.to_json())
        assert answer.code == ResponseCode.SUCCESS, answer.remark

    async def heartbeat(
        self,
        caller: Caller,
        *consumers: ConsumerData,
        producers: Sequence[str] = (),
        client_id: str = "",
        fingerprint: int = 0,
        without_sub: bool = False,
    ) -> Any:
        """Send a heartbeat of one client."""
        data = HeartbeatData(
            client_id=client_id or f"c{caller.conn}",
            consumers=consumers,
            producers=tuple(ProducerData(group_name=name) for name in producers),
            fingerprint=fingerprint,
            without_sub=without_sub,
        )
        return await self.ask(RequestCode.HEART_BEAT, body=data.to_json(), caller=caller)


def consumer(
    group: str,
    *topics: str,
    model: MessageModel = MessageModel.CLUSTERING,
    kind: ConsumeType = ConsumeType.CONSUME_PASSIVELY,
    version: int = 1,
) -> ConsumerData:
    """Return the heartbeat data of one group that subscribes to all messages of topics."""
    return ConsumerData(
        group_name=group,
        consume_type=kind,
        message_model=model,
        consume_from_where=ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET,
        subscriptions=tuple(SubscriptionData(topic=topic, sub_string="*", sub_version=version) for topic in topics),
    )


def run(work: Awaitable[T]) -> T:
    """Run a coroutine to its end."""

    async def whole() -> T:
        return await work

    return asyncio.run(whole())
