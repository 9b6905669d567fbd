"""A cluster as a Python object: a name server and brokers to which clients are connected without sockets.

It knows what instances, consumers and producers need: routes, heartbeats with members and notices of change, progress,
locks that expire, queues of real records, pulls with holds, sends, messages put back, delays and dead letters; and what
:mod:`support.fake_pops` knows of POP. Each client process has a :class:`FakeNetwork` of its own, which can be cut, as a
crash does, or be silent, as a lost host is. Every request and every answer takes ``latency_ms`` of the loop's time.

Source: consumption specification 3; remoting specification 2, 4.5.
"""

from __future__ import annotations

import asyncio
import inspect
import struct
from collections import defaultdict
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from cometmq.errors import ConnectionLost, RequestTimeout
from cometmq.remoting.bodies.connections import GetConsumerListByGroupResponseBody
from cometmq.remoting.bodies.heartbeat import HeartbeatData, MessageModel, SubscriptionData
from cometmq.remoting.bodies.locks import LockBatchRequestBody, LockBatchResponseBody, UnlockBatchRequestBody
from cometmq.remoting.bodies.message_queue import MessageQueue
from cometmq.remoting.bodies.routes import BrokerData, QueueData, TopicRouteData
from cometmq.remoting.codes import RequestCode, ResponseCode
from cometmq.remoting.command import Command
from cometmq.remoting.members import Members, request
from cometmq.store_config.names import dead_letter_topic, retry_topic
from support.fake_pops import FakePops
from support.virtual_loop import VirtualLoop

if TYPE_CHECKING:
    from cometmq._engine import PullRequest, SendRequest
    from cometmq.remoting.network import OnPullAnswer, OnSendAnswer

__all__ = ["Asked", "FakeBroker", "FakeCluster", "FakeNetwork", "Record", "tag_code"]

MEMBER_LIVES_MS = 120_000
EXPIRY_SCAN_MS = 10_000
LOCK_LIVES_MS = 60_000
RESET_FENCE_MS = 60_000
INFORMED_MAX = 4
DELAYS_S = (1, 5, 10, 30, 60, 120, 180, 240, 300, 360, 420, 480, 540, 600, 1200, 1800, 3600, 7200)
TRIES = 16
PROPERTIES_MAX = 32_767

_RECORD = struct.Struct(">iIiiiqqiq4sIq4sIiq")
_MAGIC = 0xDAA320A7
_HOST = b"\x7f\x00\x00\x01"
_COMMIT_BIT, _SUSPEND_BIT, _SUBSCRIPTION_BIT = 1, 2, 4


def tag_code(tag: str) -> int:
    from cometmq._engine import java_hash

    return java_hash(tag)


@dataclass(frozen=True, kw_only=True)
class Asked:
    """One request that a client made."""

    at_ms: int
    client: FakeNetwork
    address: str
    code: int
    fields: Mapping[str, str]
    body: bytes


@dataclass(kw_only=True)
class Record:
    """One stored message."""

    topic: str
    queue_id: int
    queue_offset: int
    physical_offset: int
    body: bytes
    properties: dict[str, str]
    born_ms: int
    stored_ms: int
    flag: int = 0
    sys_flag: int = 0
    reconsume_times: int = 0

    def encode(self) -> bytes:
        from cometmq._engine import crc31

        properties = "".join(f"{name}\1{value}\2" for name, value in self.properties.items()).encode()
        topic = self.topic.encode()
        head = _RECORD.size
        total = head + 4 + len(self.body) + 1 + len(topic) + 2 + len(properties)
        return b"".join(
            (
                _RECORD.pack(
                    total,
                    _MAGIC,
                    crc31(self.body),
                    self.queue_id,
                    self.flag,
                    self.queue_offset,
                    self.physical_offset,
                    self.sys_flag,
                    self.born_ms,
                    _HOST,
                    40_000,
                    self.stored_ms,
                    _HOST,
                    10_911,
                    self.reconsume_times,
                    0,
                ),
                struct.pack(">i", len(self.body)),
                self.body,
                struct.pack(">B", len(topic)),
                topic,
                struct.pack(">H", len(properties)),
                properties,
            )
        )


def _bytes_of(properties: Mapping[str, str]) -> int:
    return sum(len(name.encode()) + len(value.encode()) + 2 for name, value in properties.items())


class FakeNetwork:
    """One client's way to the cluster; the factory of instances is :meth:`FakeCluster.factory`."""

    links = None

    def __init__(
        self,
        cluster: FakeCluster,
        *,
        on_request: Callable[[str, Command], Any],
        on_connected: Callable[[str], None],
        on_lost: Callable[[str], None],
    ) -> None:
        self.cluster = cluster
        self._on_request, self._on_connected, self._on_lost = on_request, on_connected, on_lost
        self._open: set[str] = set()
        self._tasks: set[asyncio.Task[Any]] = set()
        self.is_cut = False
        self.is_closed = False
        self.answers: list[Command | None] = []

    # --- What the client calls ----------------------------------------------------------------------------------------

    async def invoke(self, address: str, request: Command, *, timeout_ms: int) -> Command:
        self._note(address, request.code, request.fields, request.body)
        server = await self._reach(address, timeout_ms)
        answer = server.answer(self, request)
        if inspect.isawaitable(answer):  # the broker holds it
            answer = await answer
        await self._way_back(address, server)
        return Command.decode(answer.with_opaque(1).encode())

    def oneway(self, address: str, request: Command) -> None:
        self._note(address, request.code, request.fields, request.body)
        self._spawn(self._oneway(address, request))

    async def _oneway(self, address: str, request: Command) -> None:
        try:
            (await self._reach(address, 3_000)).answer(self, request)
        except (ConnectionLost, RequestTimeout):
            return

    def send(self, address: str, request: SendRequest, on_answer: OnSendAnswer | None, *, timeout_ms: int) -> None:
        self._note(address, request.code, {"topic": request.topic, "queueId": str(request.queue_id)}, b"")
        self._spawn(self._send(address, request, on_answer, timeout_ms))

    async def _send(self, address: str, request: SendRequest, on_answer: OnSendAnswer | None, timeout_ms: int) -> None:
        from cometmq._engine import SendAnswer

        try:
            broker = await self._reach(address, timeout_ms)
            assert isinstance(broker, FakeBroker)
            is_illegal = len(request.properties) > PROPERTIES_MAX
            record = None if is_illegal else broker.take(request)
            await self._trip(address)
        except (ConnectionLost, RequestTimeout) as error:
            if on_answer is not None:
                on_answer(error)
            return
        if on_answer is not None:
            on_answer(
                SendAnswer(
                    code=ResponseCode.MESSAGE_ILLEGAL if record is None else ResponseCode.SUCCESS,
                    remark="the properties are too long" if record is None else None,
                    message_id="" if record is None else f"7F000001{10_911:08X}{record.physical_offset:016X}",
                    queue_id=0 if record is None else record.queue_id,
                    queue_offset=0 if record is None else record.queue_offset,
                    transaction_id=None,
                    region_id="DefaultRegion",
                    trace_on=True,
                    batch_unique_id=None,
                    recall_handle=None,
                )
            )

    def pull(self, address: str, request: PullRequest, on_answer: OnPullAnswer, *, timeout_ms: int) -> None:
        fields = {
            "topic": request.topic,
            "queueId": str(request.queue_id),
            "queueOffset": str(request.queue_offset),
        }
        self._note(address, RequestCode.PULL_MESSAGE, fields, b"")
        self._spawn(self._pull(address, request, on_answer, timeout_ms))

    async def _pull(self, address: str, request: PullRequest, on_answer: OnPullAnswer, timeout_ms: int) -> None:
        try:
            broker = await self._reach(address, timeout_ms)
            assert isinstance(broker, FakeBroker)
            answer = await broker.pull(self, request)
            await self._way_back(address, broker)
        except (ConnectionLost, RequestTimeout) as error:
            on_answer(error)
            return
        on_answer(answer)

    async def close(self) -> None:
        self.is_closed = True
        self._hang_up()

    # --- The wire -----------------------------------------------------------------------------------------------------

    def _note(self, address: str, code: int, fields: Mapping[str, str], body: bytes) -> None:
        now_ms = self.cluster.loop.now_ms()
        self.cluster.log.append(
            Asked(at_ms=now_ms, client=self, address=address, code=code, fields=dict(fields), body=body)
        )

    def _spawn(self, work: Any) -> None:
        task = self.cluster.loop.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _reach(self, address: str, timeout_ms: int) -> FakeNameServer | FakeBroker:
        self._require_wire(address)
        server = self.cluster.servers.get(address)
        if server is None:
            await self._trip(address)
            raise ConnectionLost(f"{address} cannot be reached")
        if address not in self._open:
            self._open.add(address)
            self.cluster.loop.call_soon(self._on_connected, address)
        if server.is_silent:
            await asyncio.sleep(timeout_ms / 1000)
            raise RequestTimeout(f"{address} did not answer within {timeout_ms} ms")
        await self._way_back(address, server)
        return server

    async def _way_back(self, address: str, server: FakeNameServer | FakeBroker) -> None:
        """Deliver a server's answer, if the server is still there."""
        await self._trip(address)
        if self.cluster.servers.get(address) is not server:
            raise ConnectionLost(f"{address} went away")

    async def _trip(self, address: str) -> None:
        await asyncio.sleep(self.cluster.latency_ms / 1000)
        self._require_wire(address)

    def _require_wire(self, address: str) -> None:
        if self.is_cut or self.is_closed:
            raise ConnectionLost(f"{address} cannot be reached any more")

    def _hang_up(self) -> None:
        for address in self._open:
            server = self.cluster.servers.get(address)
            if isinstance(server, FakeBroker) and not self.is_silent:
                server.lost(self)
        self._open.clear()

    is_silent = False

    def crash(self, *, host_too: bool = False) -> None:
        """End the client process; brokers see its connections end, unless its host went down, too."""
        self.is_cut = True
        self.is_silent = host_too
        self._hang_up()
        for task in self._tasks:
            task.cancel()

    def server_gone(self, address: str) -> None:
        """Lose the connection to a server that went."""
        if address in self._open:
            self._open.discard(address)
            self._on_lost(address)

    def receive(self, address: str, command: Command) -> None:
        """Get a request of a server after the usual time; the answer is kept in ``answers``."""
        self.cluster.loop.call_later(self.cluster.latency_ms / 1000, self._received, address, command)

    def _received(self, address: str, command: Command) -> None:
        if not (self.is_cut or self.is_closed):
            self._spawn(self._answer(address, Command.decode(command.encode())))

    async def _answer(self, address: str, command: Command) -> None:
        answer = self._on_request(address, command)
        self.answers.append(await answer if inspect.isawaitable(answer) else answer)


class FakeNameServer:
    """Knows the topics of the brokers that are there."""

    def __init__(self, cluster: FakeCluster) -> None:
        self._cluster = cluster
        self.is_silent = False
        self.garbage: bytes | None = None

    def answer(self, client: FakeNetwork, command: Command) -> Command:
        assert command.code == RequestCode.GET_ROUTEINFO_BY_TOPIC, command
        if self.garbage is not None:
            return command.response(ResponseCode.SUCCESS, body=self.garbage)
        topic = command.fields["topic"]
        brokers = [broker for broker in self._cluster.brokers if topic in broker.topics]
        if not brokers:
            return command.response(ResponseCode.TOPIC_NOT_EXIST, remark=f"No topic route info for {topic}")
        route = TopicRouteData(
            queue_datas=tuple(
                QueueData(
                    broker_name=broker.name,
                    read_queue_nums=len(broker.topics[topic]),
                    write_queue_nums=len(broker.topics[topic]),
                    perm=6,
                    topic_sys_flag=0,
                )
                for broker in brokers
            ),
            broker_datas=tuple(
                BrokerData(cluster="c", broker_name=broker.name, broker_addresses={0: broker.address})
                for broker in brokers
            ),
        )
        return command.response(ResponseCode.SUCCESS, body=route.to_json())


@dataclass
class _Member:
    network: FakeNetwork
    seen_ms: int
    model: MessageModel
    subscriptions: dict[str, SubscriptionData] = field(default_factory=dict)


class FakeBroker:
    """A master."""

    def __init__(self, cluster: FakeCluster, name: str) -> None:
        self._cluster = cluster
        self._loop = cluster.loop
        self.name = name
        self.address = f"{name}:10911"
        self.is_silent = False
        self.notices = True
        self.topics: dict[str, list[list[Record]]] = {}
        self.log: list[Record] = []
        self.groups: dict[str, dict[str, _Member]] = {}
        self.subscribed: dict[str, dict[str, SubscriptionData]] = {}
        """By group and topic, as the last heartbeat of any member has it."""
        self.offsets: dict[tuple[str, str, int], int] = {}
        self.moved: dict[tuple[str, str, int], int] = {}
        """Where the next pull of a group is sent instead, as after a reset on upstream's side."""
        self.resets: set[tuple[str, str, int]] = set()
        """Resets of which no pull has shown yet that its sender knows: progress stays where they put it."""
        self.knowing: dict[tuple[str, str, int], tuple[FakeNetwork, int]] = {}
        self.informed: defaultdict[tuple[str, str, int], set[FakeNetwork]] = defaultdict(set)
        """After a reset: the one client whose commits count, as it started at the progress, and until when."""
        self.locks: dict[tuple[str, MessageQueue], tuple[str, int]] = {}
        self.delayed = 0
        self.pops = FakePops(self, cluster.loop)
        self.unknown_codes: frozenset[int] = frozenset()
        self.unknown_groups: set[str] = set()
        """Groups that nobody has created yet, where brokers create none by themselves."""
        self.refused_lists: ResponseCode | None = None
        """The answer to each question for a group's members, unless None."""
        self.read_only = False
        self._held: dict[tuple[str, int], list[asyncio.Event]] = {}

    # --- Requests -----------------------------------------------------------------------------------------------------

    def answer(self, client: FakeNetwork, command: Command) -> Any:
        handler = self._HANDLERS.get(command.code)
        if handler is not None:
            return handler(self, client, command)
        answer = None if command.code in self.unknown_codes else self.pops.answer(client, command)
        return answer or command.response(ResponseCode.REQUEST_CODE_NOT_SUPPORTED, remark=f"{command.code}")

    def _heartbeat(self, client: FakeNetwork, command: Command) -> Command:
        data = HeartbeatData.from_json(command.body)
        for consumer in data.consumers:
            if consumer.group_name in self.unknown_groups:
                continue
            members = self.groups.setdefault(consumer.group_name, {})
            is_new = data.client_id not in members
            member = members.setdefault(
                data.client_id, _Member(network=client, seen_ms=0, model=consumer.message_model)
            )
            member.network, member.seen_ms = client, self._loop.now_ms()
            if not data.without_sub:
                member.subscriptions = {one.topic: one for one in consumer.subscriptions}
                before = self.subscribed.get(consumer.group_name, {})
                self.subscribed[consumer.group_name] = {
                    topic: max(one, before.get(topic, one), key=lambda known: known.sub_version)
                    for topic, one in member.subscriptions.items()
                }
            if consumer.message_model is MessageModel.CLUSTERING:
                self.create(retry_topic(consumer.group_name), 1)
            if is_new:
                self._members_changed(consumer.group_name)
        fields = {"IS_SUPPORT_HEART_BEAT_V2": "true", "IS_SUB_CHANGE": "false"}
        return command.response(ResponseCode.SUCCESS, fields=fields)

    def _members_changed(self, group: str) -> None:
        if self.notices:
            notice = request(RequestCode.NOTIFY_CONSUMER_IDS_CHANGED, consumerGroup=group).as_oneway()
            for member in self.groups[group].values():
                member.network.receive(self.address, notice)

    def _unregister(self, client: FakeNetwork, command: Command) -> Command:
        group = command.fields.get("consumerGroup")
        if group is not None:
            self._remove(group, command.fields["clientID"])
        return command.response(ResponseCode.SUCCESS)

    def _remove(self, group: str, client_id: str) -> None:
        if self.groups.get(group, {}).pop(client_id, None) is not None:
            self._members_changed(group)

    def lost(self, client: FakeNetwork) -> None:
        """Take note of the end of a client's connection."""
        self._drop_members(lambda member: member.network is client)

    def expire(self) -> None:
        """Drop members that were not heard of."""
        oldest_ms = self._loop.now_ms() - MEMBER_LIVES_MS
        self._drop_members(lambda member: member.seen_ms < oldest_ms)

    def _drop_members(self, is_gone: Callable[[_Member], bool]) -> None:
        for group, members in self.groups.items():
            for client_id in [client_id for client_id, member in members.items() if is_gone(member)]:
                self._remove(group, client_id)

    def _members(self, client: FakeNetwork, command: Command) -> Command:
        ids = tuple(self.groups.get(command.fields["consumerGroup"], ()))
        if self.refused_lists is not None:
            return command.response(self.refused_lists, remark="no list for you")
        if not ids:
            return command.response(ResponseCode.SYSTEM_ERROR, remark="no consumer for this group")
        body = GetConsumerListByGroupResponseBody(consumer_ids=ids).to_json()
        return command.response(ResponseCode.SUCCESS, body=body)

    def _lock(self, client: FakeNetwork, command: Command) -> Command:
        body = LockBatchRequestBody.from_json(command.body)
        now_ms = self._loop.now_ms()
        mine = []
        for queue in body.queues:
            owner, at_ms = self.locks.get((body.consumer_group, queue), (body.client_id, now_ms))
            if owner == body.client_id or now_ms - at_ms > LOCK_LIVES_MS:
                self.locks[body.consumer_group, queue] = (body.client_id, now_ms)
                mine.append(queue)
        return command.response(ResponseCode.SUCCESS, body=LockBatchResponseBody(locked_queues=tuple(mine)).to_json())

    def _unlock(self, client: FakeNetwork, command: Command) -> Command:
        body = UnlockBatchRequestBody.from_json(command.body)
        for queue in body.queues:
            if self.locks.get((body.consumer_group, queue), ("", 0))[0] == body.client_id:
                del self.locks[body.consumer_group, queue]
        return command.response(ResponseCode.SUCCESS)

    def _query_offset(self, client: FakeNetwork, command: Command) -> Command:
        offset = self.offsets.get(self._progress_key(command))
        if offset is None:
            return command.response(ResponseCode.QUERY_NOT_FOUND, remark="Not found")
        return command.response(ResponseCode.SUCCESS, fields={"offset": str(offset)})

    def _commit_offset(self, client: FakeNetwork, command: Command) -> Command:
        if self.read_only:
            return command.response(ResponseCode.NO_PERMISSION, remark="read only")
        self._commit(client, self._progress_key(command), Members(command.fields).required_int64("commitOffset"))
        return command.response(ResponseCode.SUCCESS)

    def _commit(self, client: FakeNetwork, key: tuple[str, str, int], offset: int) -> None:
        knowing, until_ms = self.knowing.get(key, (client, 0))
        if key not in self.resets and (knowing is client or self._loop.now_ms() >= until_ms):
            self.offsets[key] = offset

    def reset(self, group: str, topic: str, queue_id: int, offset: int) -> None:
        """Move a group's progress, and tell the pulls that begin elsewhere."""
        key = group, topic, queue_id
        dict.__setitem__(self.offsets, key, offset)
        self.resets.add(key)
        self.knowing.pop(key, None)
        self.informed.pop(key, None)
        for held in self._held.pop((topic, queue_id), ()):
            held.set()

    def _moved_to(self, client: FakeNetwork, asked: PullRequest) -> int | None:
        """Return where a pull is sent instead."""
        key = asked.group, asked.topic, asked.queue_id
        moved = self.moved.pop(key, None)
        if moved is not None:
            return moved
        if key in self.resets or key in self.knowing:
            if asked.queue_offset == self.offsets.get(key):
                self.resets.discard(key)
                self.informed[key].add(client)
                self.knowing[key] = client, self._loop.now_ms() + RESET_FENCE_MS
            elif key in self.resets:
                return self.offsets[key]
            elif self._missed_reset(client, key):
                self.informed[key].add(client)
                return self.offsets[key]
        return None

    def _missed_reset(self, client: FakeNetwork, key: tuple[str, str, int]) -> bool:
        """Whether another client took the reset a short while ago, and this one pulls on from before it."""
        informed = self.informed[key]
        return self._loop.now_ms() < self.knowing[key][1] and client not in informed and len(informed) < INFORMED_MAX

    def _progress_key(self, command: Command) -> tuple[str, str, int]:
        members = Members(command.fields)
        return members.required("consumerGroup"), members.required("topic"), members.required_int32("queueId")

    def _queue(self, command: Command) -> list[Record]:
        members = Members(command.fields)
        queues = self.topics.get(members.required("topic"), [])
        queue_id = members.required_int32("queueId")
        return queues[queue_id] if queue_id < len(queues) else []

    def _max_offset(self, client: FakeNetwork, command: Command) -> Command:
        return command.response(ResponseCode.SUCCESS, fields={"offset": str(len(self._queue(command)))})

    def _min_offset(self, client: FakeNetwork, command: Command) -> Command:
        return command.response(ResponseCode.SUCCESS, fields={"offset": "0"})

    def _search_offset(self, client: FakeNetwork, command: Command) -> Command:
        at_ms = Members(command.fields).required_int64("timestamp")
        offset = sum(record.stored_ms < at_ms for record in self._queue(command))
        return command.response(ResponseCode.SUCCESS, fields={"offset": str(offset)})

    def _earliest(self, client: FakeNetwork, command: Command) -> Command:
        queue = self._queue(command)
        return command.response(ResponseCode.SUCCESS, fields={"timestamp": str(queue[0].stored_ms if queue else -1)})

    def _put_back(self, client: FakeNetwork, command: Command) -> Command:
        members = Members(command.fields)
        group = members.required("group")
        at = members.required_int64("offset")
        old = next((record for record in self.log if record.physical_offset == at), None)
        if old is None:
            return command.response(ResponseCode.SYSTEM_ERROR, remark="look message by offset failed")
        if _bytes_of({**old.properties, "RETRY_TOPIC": old.topic, "ORIGIN_MESSAGE_ID": "0" * 32}) > PROPERTIES_MAX:
            return command.response(ResponseCode.SYSTEM_ERROR, remark="the properties are too long")
        level = members.int32("delayLevel", 0)
        given_up = level < 0 or old.reconsume_times >= members.int32("maxReconsumeTimes", TRIES)
        properties = {
            **old.properties,
            "ORIGIN_MESSAGE_ID": old.properties.get("ORIGIN_MESSAGE_ID", members.text("originMsgId", "")),
            "RETRY_TOPIC": old.properties.get("RETRY_TOPIC", old.topic),
        }
        self.append(
            dead_letter_topic(group) if given_up else retry_topic(group),
            0,
            old.body,
            properties,
            reconsume_times=old.reconsume_times + 1,
            delay_level=0 if given_up else level or 3 + old.reconsume_times,
        )
        return command.response(ResponseCode.SUCCESS)

    _HANDLERS: Mapping[int, Callable[[FakeBroker, FakeNetwork, Command], Command]] = {
        RequestCode.HEART_BEAT: _heartbeat,
        RequestCode.UNREGISTER_CLIENT: _unregister,
        RequestCode.GET_CONSUMER_LIST_BY_GROUP: _members,
        RequestCode.LOCK_BATCH_MQ: _lock,
        RequestCode.UNLOCK_BATCH_MQ: _unlock,
        RequestCode.QUERY_CONSUMER_OFFSET: _query_offset,
        RequestCode.UPDATE_CONSUMER_OFFSET: _commit_offset,
        RequestCode.GET_MAX_OFFSET: _max_offset,
        RequestCode.GET_MIN_OFFSET: _min_offset,
        RequestCode.SEARCH_OFFSET_BY_TIMESTAMP: _search_offset,
        RequestCode.GET_EARLIEST_MSG_STORETIME: _earliest,
        RequestCode.CONSUMER_SEND_MSG_BACK: _put_back,
    }

    # --- Messages -----------------------------------------------------------------------------------------------------

    def create(self, topic: str, queues: int) -> None:
        """Give a topic at least so many queues."""
        have = self.topics.setdefault(topic, [])
        have.extend([] for _ in range(queues - len(have)))

    def append(
        self,
        topic: str,
        queue_id: int,
        body: bytes,
        properties: dict[str, str] | None = None,
        *,
        reconsume_times: int = 0,
        delay_level: int = 0,
    ) -> Record:
        """Store a message; one with a delay is stored when that is over."""
        now_ms = self._loop.now_ms()
        record = Record(
            topic=topic,
            queue_id=queue_id,
            queue_offset=0,
            physical_offset=0,
            body=body,
            properties=properties or {},
            born_ms=now_ms,
            stored_ms=now_ms,
            reconsume_times=reconsume_times,
        )
        if delay_level > 0:
            self.delayed += 1
            self._loop.call_later(DELAYS_S[min(delay_level, len(DELAYS_S)) - 1], self._store_delayed, record)
        else:
            self._store(record)
        return record

    def _store_delayed(self, record: Record) -> None:
        self.delayed -= 1
        self._store(record)

    def _store(self, record: Record) -> None:
        self.create(record.topic, record.queue_id + 1)
        queue = self.topics[record.topic][record.queue_id]
        record.queue_offset = len(queue)
        record.physical_offset = 1_000 * len(self.log)
        record.stored_ms = self._loop.now_ms()
        queue.append(record)
        self.log.append(record)
        for held in self._held.pop((record.topic, record.queue_id), ()):
            held.set()
        self.pops.arrived()

    def take(self, sent: SendRequest) -> Record:
        """Store what a producer sent."""
        from cometmq._engine import decode_properties

        properties = decode_properties(sent.properties)
        level = int(properties.pop("DELAY", "0"))
        times = sent.reconsume_times
        return self.append(
            sent.topic, sent.queue_id, bytes(sent.body), properties, reconsume_times=times, delay_level=level
        )

    async def pull(self, client: FakeNetwork, asked: PullRequest) -> Any:
        """Answer a pull, at once or when there is something or its time is over."""
        from cometmq._engine import PullAnswer

        if asked.sys_flag & _COMMIT_BIT:
            self._commit(client, (asked.group, asked.topic, asked.queue_id), asked.commit_offset)
        queues = self.topics.get(asked.topic, [])
        refusal = None if asked.sys_flag & _SUBSCRIPTION_BIT else self._not_subscribed(asked)
        start, records = 0, list[Record]()
        if asked.group in self.unknown_groups:
            code = ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST
        elif asked.queue_id >= len(queues):
            code = ResponseCode.TOPIC_NOT_EXIST
        elif refusal is not None:
            code = refusal
        else:
            queue, start = queues[asked.queue_id], asked.queue_offset
            moved = self._moved_to(client, asked)
            if moved is None and start == len(queue) and asked.sys_flag & _SUSPEND_BIT:
                await self._hold(asked)
                moved = self._moved_to(client, asked)
            code = ResponseCode.SUCCESS if start < len(queue) else ResponseCode.PULL_NOT_FOUND
            if moved is not None:
                code, start = ResponseCode.PULL_OFFSET_MOVED, moved
            elif not 0 <= start <= len(queue):
                code, start = ResponseCode.PULL_OFFSET_MOVED, min(max(start, 0), len(queue))
            records = queue[start : start + asked.max_messages] if code is ResponseCode.SUCCESS else []
        wanted = [record for record in records if self._is_wanted(asked, record)]
        if records and not wanted:
            code = ResponseCode.PULL_RETRY_IMMEDIATELY
        return PullAnswer(
            code=code,
            remark=None,
            suggested_broker_id=0,
            next_begin_offset=start + len(records),
            min_offset=0,
            max_offset=len(queues[asked.queue_id]) if asked.queue_id < len(queues) else 0,
            offset_delta=None,
            body=b"".join(record.encode() for record in wanted),
        )

    def _not_subscribed(self, asked: PullRequest) -> ResponseCode | None:
        known = self.subscribed.get(asked.group, {}).get(asked.topic)
        if known is None:
            return ResponseCode.SUBSCRIPTION_NOT_EXIST
        return ResponseCode.SUBSCRIPTION_NOT_LATEST if known.sub_version < asked.sub_version else None

    async def _hold(self, asked: PullRequest) -> None:
        arrived = asyncio.Event()
        self._held.setdefault((asked.topic, asked.queue_id), []).append(arrived)
        timer = self._loop.call_later(asked.suspend_timeout_ms / 1000, arrived.set)
        await arrived.wait()
        timer.cancel()

    def _is_wanted(self, asked: PullRequest, record: Record) -> bool:
        for member in self.groups.get(asked.group, {}).values():
            subscription = member.subscriptions.get(asked.topic)
            if subscription is not None and subscription.codes:
                return tag_code(record.properties.get("TAGS", "")) in subscription.codes
        return True


class FakeCluster:
    """The servers and what was asked of them."""

    def __init__(self, loop: VirtualLoop, *, brokers: int = 1, latency_ms: float = 1) -> None:
        self.loop = loop
        self.latency_ms = latency_ms
        self.log: list[Asked] = []
        self.networks: list[FakeNetwork] = []
        self.name_server = FakeNameServer(self)
        self.servers: dict[str, FakeNameServer | FakeBroker] = {"ns:9876": self.name_server}
        for number in range(brokers):
            self.add_broker(f"b{number}")
        loop.call_later(EXPIRY_SCAN_MS / 1000, self._scan)

    @property
    def brokers(self) -> list[FakeBroker]:
        """The brokers that are there."""
        return [server for server in self.servers.values() if isinstance(server, FakeBroker)]

    def add_broker(self, name: str) -> FakeBroker:
        """Start a broker without topics."""
        broker = FakeBroker(self, name)
        self.servers[broker.address] = broker
        return broker

    def stop(self, address: str) -> FakeNameServer | FakeBroker:
        """End a server; put it back into ``servers`` to start it again."""
        server = self.servers.pop(address)
        for network in self.networks:
            network.server_gone(address)
        return server

    def factory(self, settings: object, **callbacks: Any) -> FakeNetwork:
        """Make the network of one client; the factory that instances are given."""
        callbacks.pop("hooks")
        network = FakeNetwork(self, **callbacks)
        self.networks.append(network)
        return network

    def asked(self, code: int, *, client: FakeNetwork | None = None) -> list[Asked]:
        """Return the requests of one code, in their order."""
        return [one for one in self.log if one.code == code and (client is None or one.client is client)]

    def _scan(self) -> None:
        for broker in self.brokers:
            broker.expire()
        self.loop.call_later(EXPIRY_SCAN_MS / 1000, self._scan)
