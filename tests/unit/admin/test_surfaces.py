"""Checks: the calls against our own servers, blocking and on asyncio; and what happens when servers go away."""

from __future__ import annotations

import asyncio
import inspect
import socket
import threading
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

import cometmq.admin
import cometmq.admin.aio
import cometmq.aio
from cometmq.admin import (
    Admin,
    MessageRequestMode,
    OutgoingMessage,
    PubTrace,
    Sender,
    SendLimits,
    SendStatus,
    SubAfterTrace,
    SubBeforeTrace,
)
from cometmq.admin.aio import AsyncPart
from cometmq.admin.blocking import Cluster, Groups, Messages, Offsets, Topics
from cometmq.client import ConsumeFromWhere, Producer, PullConsumer, SimpleConsumer
from cometmq.errors import (
    BrokerError,
    ConnectionLost,
    HookFailed,
    InvalidArgument,
    MessageTooLarge,
    NotFound,
    RequestTimeout,
)
from cometmq.remoting.bodies.routes import BrokerData, QueueData, TopicRouteData
from cometmq.remoting.codes import RequestCode, ResponseCode
from cometmq.remoting.command import Command
from cometmq.store_config.topic_config import Perm
from cometmq.testing import Cluster as RunningCluster
from cometmq.testing import cluster
from support.peer import Peer


@pytest.fixture(scope="module")
def running() -> Iterator[RunningCluster]:
    with cluster(brokers=2) as running:
        yield running


@pytest.fixture
def admin(running: RunningCluster) -> Iterator[Admin]:
    with cometmq.admin.connect(namesrv=running.name_server_address) as admin:
        yield admin


def test_topics(admin: Admin) -> None:
    assert [one.broker_name for one in admin.topics.create("t-life", queues=3)] == ["broker-a", "broker-b"]
    assert "t-life" in admin.topics.list()
    with pytest.raises(InvalidArgument, match="already exists on broker-a"):
        admin.topics.create("t-life")
    admin.topics.create("t-life", queues=4, exist_ok=True)
    now = admin.topics.update("t-life", write_queues=2, attributes={"message.type": "FIFO"}, broker_name="broker-b")
    assert {name: (one.read_queue_nums, one.write_queue_nums) for name, one in now.items()} == {"broker-b": (4, 2)}
    found = admin.topics.describe("t-life")
    assert found.configs["broker-a"].write_queue_nums == 4
    assert found.configs["broker-b"].attributes == {"message.type": "FIFO"}
    assert [(one.broker_name, one.queue_id) for one in found.queues] == [
        (broker, queue) for broker in ("broker-a", "broker-b") for queue in range(4)
    ]
    assert (
        admin.topics.update("t-life", attributes={"message.type": None}, broker_name="broker-b")["broker-b"].attributes
        == {}
    )
    assert admin.topics.configs()["t-life"]["broker-a"].perm == Perm.READ | Perm.WRITE
    assert len(admin.topics.delete("t-life")) == 2
    assert "t-life" not in admin.topics.list()
    with pytest.raises(BrokerError, match="cometmq topic create t-life"):
        admin.topics.describe("t-life")


def test_order(admin: Admin) -> None:
    admin.topics.create("t-order", queues=2, order=True)
    assert admin.topics.order("t-order") == "broker-a:2;broker-b:2"
    assert admin.cluster.kv_list("ORDER_TOPIC_CONFIG") == {"t-order": "broker-a:2;broker-b:2"}
    with pytest.raises(InvalidArgument, match="invalid part"):
        admin.topics.set_order("t-order", "broker-a")
    admin.topics.set_order("t-order", None)
    assert admin.topics.order("t-order") is None


def test_groups(admin: Admin) -> None:
    admin.groups.create("g-life", retry_max_times=3)
    assert "g-life" in admin.groups.list()
    with pytest.raises(InvalidArgument, match="already exists"):
        admin.groups.create("g-life")
    now = admin.groups.update("g-life", consume_enable=False)
    assert {name: (one.retry_max_times, one.consume_enable) for name, one in now.items()} == {
        "broker-a": (3, False),
        "broker-b": (3, False),
    }
    described = admin.groups.describe("g-life")
    assert (described.members, described.progress.queues) == (None, ())
    assert [one.broker_name for one in admin.groups.delete("g-life")] == ["broker-a", "broker-b"]
    for call in (admin.groups.describe, admin.groups.delete):
        with pytest.raises(NotFound, match="no broker has a group g-life"):
            call("g-life")
    assert "g-life" not in admin.groups.list()  # asking for it has not made it


def test_consume_modes(admin: Admin) -> None:
    admin.topics.create("t-modes", queues=2)
    admin.groups.create("g-modes")
    assert admin.groups.consume_modes("g-modes") == ()
    told = admin.groups.set_consume_mode("g-modes", "t-modes", MessageRequestMode.POP, pop_share_queue_num=1)
    assert [one.broker_name for one in told] == ["broker-a", "broker-b"]
    admin.groups.set_consume_mode("g-modes", "t-modes", MessageRequestMode.PULL, broker_name="broker-b")
    assert [
        (one.topic, one.broker_name, one.mode, one.pop_share_queue_num)
        for one in admin.groups.describe("g-modes").consume_modes
    ] == [
        ("t-modes", "broker-a", MessageRequestMode.POP, 1),
        ("t-modes", "broker-b", MessageRequestMode.PULL, 0),
    ]
    with pytest.raises(NotFound, match=r"t-modes is not at broker broker-c; it is at broker-a of [^,]+, broker-b of "):
        admin.groups.set_consume_mode("g-modes", "t-modes", MessageRequestMode.POP, broker_name="broker-c")
    for number in (-2, 2**31):
        with pytest.raises(InvalidArgument, match="expected -1 to 2147483647"):
            admin.groups.set_consume_mode("g-modes", "t-modes", MessageRequestMode.POP, pop_share_queue_num=number)
    with pytest.raises(BrokerError, match="topic t-nowhere does not exist"):
        admin.groups.set_consume_mode("g-modes", "t-nowhere", MessageRequestMode.POP)


def test_messages_in_flight_are_returned(admin: Admin, running: RunningCluster) -> None:
    admin.topics.create("t-flight", queues=1, broker_name="broker-a")
    for number in range(5):
        admin.messages.send("t-flight", b"%d" % number)
    first = ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET
    with SimpleConsumer("g-flight", name_servers=running.name_server_address, consume_from_where=first) as consumer:
        consumer.subscribe("t-flight")
        taken = consumer.receive(3, wait_s=60)
        while len(taken) < 3:
            taken += consumer.receive(3 - len(taken), wait_s=60)
        consumer.ack(taken[0])
        found = admin.groups.in_flight("g-flight")
        assert (found.waiting, found.in_flight, found.revive_lag_ms) == (2, 2, 0)
        assert found.oldest_unacked_ms is not None
        (queue,) = (one for one in found.queues if one.in_flight)
        assert (queue.topic, queue.broker_name, queue.queue_id, queue.next_offset) == ("t-flight", "broker-a", 0, 3)
        assert "broker-a" in found.revives
        consumer.ack_many(taken[1:])
    done = admin.groups.in_flight("g-flight")
    assert (done.waiting, done.in_flight, done.oldest_unacked_ms) == (2, 0, None)
    with pytest.raises(NotFound, match="no broker has a group g-none"):
        admin.groups.in_flight("g-none")


class Marking:
    """A hook that marks each request and notes the answers; a code may fail."""

    def __init__(self, fails: int = -1) -> None:
        self.fails = fails
        self.answered: list[int] = []

    def before_request(self, address: str, request: Command) -> Command:
        if request.code == self.fails:
            raise ValueError("no key")
        return replace(request, fields={**request.fields, "Mark": "m"})

    def after_answer(self, address: str, request: Command, answer: Command) -> None:
        assert request.fields["Mark"] == "m"
        self.answered.append(request.code)


def test_hooks_see_each_request_of_a_session(running: RunningCluster) -> None:
    hook = Marking()
    with cometmq.admin.connect(namesrv=running.name_server_address, rpc_hooks=[hook]) as admin:
        assert admin.topics.list()
        assert hook.answered
        hook.fails = hook.answered[0]
        with pytest.raises(HookFailed, match="no key"):
            admin.topics.list()
    for connect in (cometmq.admin.connect, cometmq.admin.aio.connect):
        with pytest.raises(InvalidArgument, match="rpc_hooks"):
            connect(broker="127.0.0.1:1", rpc_hooks=[print])  # type: ignore[list-item]


def test_trace_of_a_message(running: RunningCluster, admin: Admin) -> None:
    admin.topics.create("t-traced")
    traced = {"name_servers": running.name_server_address, "enable_trace": True, "trace_topic": "t-traces"}
    with Producer("p-traced", **traced) as producer:  # type: ignore[arg-type]
        sent = producer.send("t-traced", b"x")
        producer.send("t-traced", b"another", keys=sent.unique_id)
    first = ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET
    with PullConsumer("g-traced", consume_from_where=first, **traced) as consumer:  # type: ignore[arg-type]
        consumer.subscribe("t-traced")
        taken = consumer.poll(60_000)
        while len(taken) < 2:
            taken += consumer.poll(60_000)
    records = admin.messages.trace(sent.unique_id, topic="t-traces")
    assert [type(one) for one in records] == [PubTrace, SubBeforeTrace, SubAfterTrace]
    pub, before, after = records
    assert isinstance(pub, PubTrace)
    assert isinstance(before, SubBeforeTrace)
    assert isinstance(after, SubAfterTrace)
    assert (pub.topic, pub.group, pub.keys, pub.is_success) == ("t-traced", "p-traced", "", True)
    assert pub.client_host == "127.0.0.1"
    assert (before.group, before.request_id) == ("g-traced", after.request_id)
    assert admin.messages.trace("unknown", topic="t-traces") == ()
    with pytest.raises(BrokerError):
        admin.messages.trace("unknown", topic="t-none")


def test_one_message(admin: Admin) -> None:
    admin.topics.create("t-one", queues=2)
    sent = admin.messages.send("t-one", b"hello", tags="paid", keys="k-1 k-2", properties={"a": "b"}, sharding_key="s")
    assert (sent.status, sent.attempts) == (SendStatus.SEND_OK, 1)
    for message in (
        admin.messages.by_id(sent.message_id),
        *admin.messages.by_unique_id("t-one", sent.unique_id),
        *admin.messages.by_key("t-one", "k-2"),
        *admin.messages.by_tag("t-one", "paid"),
        admin.messages.at("t-one", sent.queue_id, sent.queue_offset, broker_name=sent.broker_name),
        *admin.messages.peek("t-one", tags="refused || paid"),
    ):
        assert (message.body_bytes, message.tags, message.keys) == (b"hello", "paid", ("k-1", "k-2"))
        assert message.properties["a"] == "b"
        assert (message.queue_id, message.queue_offset) == (sent.queue_id, sent.queue_offset)
    assert admin.messages.peek("t-one", tags="refused") == ()
    assert admin.messages.by_key("t-one", "k-3") == ()
    assert admin.messages.by_tag("t-one", "k-2") == ()
    with pytest.raises(NotFound, match="has no message 5"):
        admin.messages.at("t-one", sent.queue_id, 5, broker_name=sent.broker_name)
    with pytest.raises(NotFound, match="of its log"):
        admin.messages.by_id(sent.message_id[:16] + f"{1 << 40:016X}")
    with pytest.raises(InvalidArgument, match="hexadecimal"):
        admin.messages.by_id("nothing")


def test_many_messages(admin: Admin) -> None:
    admin.topics.create("t-many", queues=2)
    with admin.messages.sender("t-many", limits=SendLimits(batch_messages=50)) as sender:
        for start in range(0, 1000, 100):
            sender.put(
                OutgoingMessage(str(number).encode(), keys=f"k{number}", sharding_key=f"s{number % 7}")
                for number in range(start, start + 100)
            )
    report = sender.report()
    assert (report.messages, report.retries, report.maybe_twice, report.not_durable) == (1000, 0, 0, 0)
    assert sum(one.messages for one in report.queues) == 1000
    assert report.requests < 200
    described = admin.topics.describe("t-many")
    assert described.messages == 1000
    arrived: dict[int, list[int]] = {}
    for queue in described.queues:
        found = admin.messages.peek("t-many", limit=1000, broker_name=queue.broker_name, queue_id=queue.queue_id)
        assert [one.queue_offset for one in found] == list(range(queue.max_offset))
        for one in found:
            arrived.setdefault(int(one.body_bytes) % 7, []).append(int(one.body_bytes))
    assert {key: sorted(numbers) for key, numbers in arrived.items()} == arrived  # in order, each in one queue
    assert sum(map(len, arrived.values())) == 1000
    (message,) = admin.messages.by_key("t-many", "k77")
    assert message.body_bytes == b"77"


def test_peek(admin: Admin) -> None:
    admin.topics.create("t-peek", queues=1, broker_name="broker-a")
    with admin.messages.sender("t-peek") as sender:
        sender.put(
            OutgoingMessage(str(number).encode(), tags="even" if number % 2 == 0 else "odd") for number in range(100)
        )
    peek = admin.messages.peek
    assert [one.body_bytes for one in peek("t-peek", limit=3)] == [b"0", b"1", b"2"]
    assert [one.body_bytes for one in peek("t-peek", limit=2, tags="odd")] == [b"1", b"3"]
    assert [one.body_bytes for one in peek("t-peek", limit=2, newest=True)] == [b"98", b"99"]
    assert [one.body_bytes for one in peek("t-peek", limit=2, queue_id=0, start=40)] == [b"40", b"41"]
    assert len(peek("t-peek", limit=1000)) == 100
    assert peek("t-peek", start_ms=1 << 50) == ()
    for wrong in ({"start": 1}, {"start": 1, "newest": True, "queue_id": 0}, {"limit": 0}):
        with pytest.raises(InvalidArgument):
            peek("t-peek", **wrong)  # type: ignore[arg-type]
    with pytest.raises(NotFound, match="no queue 9"):
        peek("t-peek", queue_id=9)


def test_offsets(admin: Admin) -> None:
    admin.topics.create("t-offsets", queues=2, broker_name="broker-a")
    with admin.messages.sender("t-offsets") as sender:
        sender.put(OutgoingMessage(b"x", queue_id=number % 2) for number in range(20))
    for group in ("g-one", "g-two"):
        admin.groups.create(group)
    moved = admin.offsets.reset("g-one", "t-offsets", timestamp_ms=cometmq.admin.LATEST_MS)
    assert [(one.queue_id, one.offset) for one in moved] == [(0, 10), (1, 10)]
    assert admin.offsets.progress("g-one").lag == 0
    admin.offsets.reset("g-one", "t-offsets", offset=4, queue_id=1)
    assert [(one.queue_id, one.consumer_offset, one.lag) for one in admin.offsets.progress("g-one").queues] == [
        (0, 10, 0),
        (1, 4, 6),
    ]
    admin.offsets.clone("g-one", "g-two")
    assert admin.offsets.progress("g-two", topic="t-offsets").lag == 6
    admin.offsets.skip("g-two", "t-offsets")
    lags = {one.group: one.lag for one in admin.groups.lags()}
    assert (lags["g-one"], lags["g-two"]) == (6, 0)
    assert set(admin.topics.groups("t-offsets")) >= {"g-one", "g-two"}
    assert [one.offset for one in admin.offsets.at_time("t-offsets", cometmq.admin.EARLIEST_MS)] == [0, 0]
    with pytest.raises(BrokerError, match="create the group: cometmq group create"):
        admin.offsets.reset("g-none", "t-offsets", timestamp_ms=0)


def test_cluster(admin: Admin, running: RunningCluster) -> None:
    brokers = admin.cluster.brokers()
    assert [(one.cluster, one.broker_name, one.is_master) for one in brokers] == [
        ("DefaultCluster", "broker-a", True),
        ("DefaultCluster", "broker-b", True),
    ]
    for status in admin.cluster.status():
        assert isinstance(status, cometmq.admin.BrokerStatus)
        assert status.version
    assert admin.cluster.broker_config(broker_name="broker-b")["broker-b"]["brokerName"] == "broker-b"
    with pytest.raises(NotFound, match="no broker broker-x"):
        admin.cluster.broker_config(broker_name="broker-x")
    with pytest.raises(BrokerError, match="configuration file") as caught:
        admin.cluster.set_broker_config({"storePathRootDir": "/elsewhere"})
    assert caught.value.code == ResponseCode.NO_PERMISSION
    for wrong in ({}, {"a": "b\nc=d"}, {"a=b": "c"}):
        with pytest.raises(InvalidArgument):
            admin.cluster.set_broker_config(wrong)
    assert admin.cluster.namesrv_config()["bindAddress"] == "127.0.0.1"
    admin.cluster.kv_put("space", "key", "a value")
    assert (admin.cluster.kv_get("space", "key"), admin.cluster.kv_get("space", "other")) == ("a value", None)
    admin.cluster.kv_delete("space", "key")
    assert admin.cluster.kv_list("none") == {}
    assert admin.cluster.wipe_write_perm("broker-b") > 0
    assert admin.cluster.add_write_perm("broker-b") > 0
    assert len(admin.cluster.clean(queues=True, log=True, unused_topics=True)) == 2
    with pytest.raises(InvalidArgument):
        admin.cluster.clean()


def test_a_broker_alone(running: RunningCluster) -> None:
    with cometmq.admin.connect(broker=running.broker.address) as admin:
        admin.topics.create("t-alone", queues=1)
        sent = admin.messages.send("t-alone", b"x")
        assert sent.broker_name == "broker-a"
        assert admin.topics.describe("t-alone").messages == 1
        assert "t-alone" in admin.topics.list()
        assert admin.messages.by_id(sent.message_id).body_bytes == b"x"
        with pytest.raises(InvalidArgument, match="name server"):
            admin.cluster.namesrv_config()
        with pytest.raises(InvalidArgument, match="name servers keep"):
            admin.topics.create("t-alone-2", order=True)
        assert "t-alone-2" not in admin.topics.list()
        assert len(admin.topics.delete("t-alone")) == 1


def test_asyncio(running: RunningCluster) -> None:
    async def main() -> None:
        async with cometmq.admin.aio.connect(namesrv=running.name_server_address) as admin:
            await admin.topics.create("t-aio", queues=2)
            await asyncio.gather(*(admin.messages.send("t-aio", b"x") for _ in range(10)))
            async with admin.messages.sender("t-aio", limits=SendLimits(waiting_bytes=1_000, in_flight=2)) as sender:
                for _ in range(10):
                    await sender.put(OutgoingMessage(b"y" * 100) for _ in range(20))
                await sender.flush()
                assert sender.messages == 200
            assert (await admin.topics.describe("t-aio")).messages == 210
            with pytest.raises(BrokerError):
                await admin.topics.describe("t-none")

    asyncio.run(main())


def test_a_sender_that_fails_says_how_far_it_came(admin: Admin) -> None:
    admin.topics.create("t-fails", queues=1, broker_name="broker-a")
    with pytest.raises(MessageTooLarge), admin.messages.sender("t-fails") as sender:
        sender.put(
            [OutgoingMessage(b"1"), OutgoingMessage(b"2"), OutgoingMessage(b"x" * (5 << 20)), OutgoingMessage(b"3")]
        )
    assert sender.report().messages == 2
    admin.topics.update("t-fails", perm=Perm.READ)
    with pytest.raises(InvalidArgument, match="no write permission"), admin.messages.sender("t-fails"):
        raise AssertionError("it was entered")


def test_a_topic_that_is_not_there_yet(admin: Admin) -> None:
    """Our brokers create topics automatically, as upstream's do."""
    with admin.messages.sender("t-new") as sender:
        sender.put([OutgoingMessage(b"1")])
    assert admin.topics.describe("t-new").messages == 1


def test_both_surfaces_have_all_calls() -> None:
    for blocking in (Topics, Groups, Offsets, Cluster, Messages):
        awaited = getattr(cometmq.admin.aio, f"Async{blocking.__name__}")
        assert issubclass(awaited, AsyncPart)
        calls = {name for name in vars(blocking) if not name.startswith("_")}
        assert calls == {name for name in vars(awaited) if not name.startswith("_")}
        operations = awaited.__orig_bases__[0].__args__[0]
        known = {name for name in vars(operations) if not name.startswith("_")} - {"send_route"}
        assert calls == known | ({"sender"} if blocking is Messages else set())
        for name in known:
            method = getattr(blocking, name)
            assert method.__doc__ == getattr(operations, name).__doc__
            assert not str(inspect.signature(method).return_annotation).startswith("Operation")


def test_a_server_that_is_away() -> None:
    with socket.create_server(("127.0.0.1", 0)) as probe:
        free = f"127.0.0.1:{probe.getsockname()[1]}"
    with cometmq.admin.connect(namesrv=free) as admin, pytest.raises(ConnectionLost, match=free):
        admin.topics.list()


def test_a_server_that_is_silent_and_one_that_is_not() -> None:
    answered = threading.Event()

    def script(peer: Peer, connection: socket.socket, request: Command) -> bytes | None:
        answered.set()
        return None

    with Peer(script) as silent, cometmq.admin.connect(namesrv=silent.address, timeout_ms=50) as admin:
        with pytest.raises(RequestTimeout):
            admin.cluster.namesrv_config()
        assert answered.is_set()

    def speak(peer: Peer, connection: socket.socket, request: Command) -> bytes | None:
        assert request.code == RequestCode.GET_NAMESRV_CONFIG
        return request.response(0, body=b"listenPort=1\n").encode()

    with Peer(speak) as second, Peer(script) as first:
        both = f"{first.address};{second.address}"
        with cometmq.admin.connect(namesrv=both, timeout_ms=50) as admin:
            assert admin.cluster.namesrv_config() == {"listenPort": "1"}


def test_a_session_that_is_closed(running: RunningCluster) -> None:
    before = threading.active_count()
    admin = cometmq.admin.connect(namesrv=running.name_server_address)
    admin.topics.list()
    admin.close()
    admin.close()
    with pytest.raises(RuntimeError, match="closed"):
        admin.topics.list()
    assert threading.active_count() == before


def test_the_environment_names_the_cluster(monkeypatch: pytest.MonkeyPatch) -> None:
    from cometmq.admin.addresses import namesrv_of_environment

    for name in cometmq.admin.NAMESRV_VARIABLES:
        monkeypatch.delenv(name, raising=False)
    assert namesrv_of_environment() == "127.0.0.1:9876"
    monkeypatch.setenv("NAMESRV_ADDR", "a:1;b:2")
    assert namesrv_of_environment() == "a:1;b:2"
    monkeypatch.setenv("COMETMQ_NAMESRV", "c:3")
    assert namesrv_of_environment() == "c:3"
    with pytest.raises(InvalidArgument, match="not both"):
        cometmq.admin.connect(namesrv="a:1", broker="b:1")


class FakeBroker:
    """A name server and a broker with one topic of one queue; ``refusals`` says what each send gets first."""

    def __init__(self, refusals: list[int]) -> None:
        self.refusals = refusals
        self.stored: list[bytes] = []

    def __call__(self, peer: Peer, connection: socket.socket, request: Command) -> bytes | None:
        if request.code == RequestCode.GET_ROUTEINFO_BY_TOPIC:
            queues = QueueData(broker_name="a", read_queue_nums=1, write_queue_nums=1, perm=6)
            broker = BrokerData(cluster="c", broker_name="a", broker_addresses={0: peer.address})
            return request.response(
                0, body=TopicRouteData(queue_datas=(queues,), broker_datas=(broker,)).to_json()
            ).encode()
        assert request.code in (RequestCode.SEND_MESSAGE_V2, RequestCode.SEND_BATCH_MESSAGE)
        if self.refusals:
            refusal = self.refusals.pop(0)
            if refusal < 0:  # the connection goes instead
                connection.shutdown(socket.SHUT_RDWR)
                return None
            if refusal:
                return request.response(refusal, remark="not now").encode()
        fields = {"queueId": "0", "queueOffset": str(len(self.stored)), "msgId": "F" * 32}
        self.stored.append(request.body)
        return request.response(0, fields=fields).encode()


def test_a_sender_goes_on_after_refusals_and_lost_connections() -> None:
    broker = FakeBroker([ResponseCode.SYSTEM_BUSY, -1, ResponseCode.SERVICE_NOT_AVAILABLE])
    with Peer(broker) as peer, cometmq.admin.connect(namesrv=peer.address) as admin:
        with admin.messages.sender("orders") as sender:
            sender.put([OutgoingMessage(b"1", sharding_key="k")])
            sender.put([OutgoingMessage(b"2", sharding_key="k")])
        report = sender.report()
    assert broker.stored == [b"1", b"2"]
    assert (report.messages, report.retries, report.maybe_twice) == (2, 3, 1)


def test_a_single_message_is_sent_again() -> None:
    broker = FakeBroker([ResponseCode.SYSTEM_ERROR])
    with Peer(broker) as peer, cometmq.admin.connect(namesrv=peer.address) as admin:
        assert admin.messages.send("orders", b"1").attempts == 2
        broker.refusals = [ResponseCode.MESSAGE_ILLEGAL]
        with pytest.raises(BrokerError, match="too large"):
            admin.messages.send("orders", b"2")
        broker.refusals = [-1, -1, -1]
        with pytest.raises(ConnectionLost):
            admin.messages.send("orders", b"3")
    assert broker.stored == [b"1"]


def test_the_error_says_how_many_were_acknowledged() -> None:
    def send_one_by_one(sender: Sender) -> None:
        with sender:
            for number in range(5):
                sender.put([OutgoingMessage(b"%d" % number)])
                sender.flush()

    broker = FakeBroker([0, 0, ResponseCode.MESSAGE_ILLEGAL])
    with Peer(broker) as peer, cometmq.admin.connect(namesrv=peer.address) as admin:
        sender = admin.messages.sender("orders")
        with pytest.raises(BrokerError) as caught:
            send_one_by_one(sender)
        assert (caught.value.appended, caught.value.code) == (2, ResponseCode.MESSAGE_ILLEGAL)
        assert sender.report().messages == 2


def test_a_sender_that_was_not_entered() -> None:
    with cometmq.admin.connect(namesrv="127.0.0.1:1") as admin:
        sender = admin.messages.sender("orders")
        with pytest.raises(RuntimeError, match="async with"):
            sender.put([OutgoingMessage(b"1")])


def test_a_broker_that_goes_away_meanwhile() -> None:
    with cluster(brokers=2) as running, cometmq.admin.connect(namesrv=running.name_server_address) as admin:
        admin.topics.create("orders", queues=2)
        with admin.messages.sender("orders", limits=SendLimits(batch_messages=10)) as sender:
            sender.put(OutgoingMessage(b"%d" % number) for number in range(100))
            sender.flush()
            running.brokers[1].stop()
            sender.put(OutgoingMessage(b"%d" % number) for number in range(100, 200))
        report = sender.report()
        assert report.messages == 200
        assert report.retries > 0
        (part,) = {one.broker_name for one in admin.topics.queues("orders")}
        assert part == "broker-a"
        bodies = {one.body_bytes for one in admin.messages.peek("orders", limit=1000)}
        assert {b"%d" % number for number in range(100, 200)} <= bodies


def test_sessions_and_stores_say_where_they_lead(tmp_path: Path) -> None:
    with cometmq.admin.connect(namesrv="127.0.0.1:1;127.0.0.1:2") as admin:
        assert repr(admin) == "<Admin 127.0.0.1:1;127.0.0.1:2>"
    assert repr(admin) == "<Admin 127.0.0.1:1;127.0.0.1:2 closed>"
    assert repr(cometmq.admin.aio.connect(broker="127.0.0.1:1")) == "<AsyncAdmin broker 127.0.0.1:1>"
    assert repr(cometmq.aio.open(tmp_path / "s")) == "<AsyncStore not entered>"
    with cometmq.open(tmp_path / "s") as store:
        assert repr(cometmq.aio.AsyncStore.wrap(store)) == f"<AsyncStore {store!r}>"
