"""Checks: name servers hear everything in time, in upstream's form, also those that come late, leave or come back."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field

import pytest

from cometmq._engine import crc31
from cometmq.broker.registration import BrokerIdentity, Registrar, Registrations, Timing
from cometmq.broker.routes import Unanswered
from cometmq.errors import ConnectionLost, Error, StorageError
from cometmq.remoting.bodies.config_tables import KVTable
from cometmq.remoting.bodies.registration import RegisterBrokerBody
from cometmq.remoting.bodies.routes import QueueData, TopicRouteData
from cometmq.remoting.codes import RequestCode, ResponseCode
from cometmq.remoting.command import Command
from cometmq.store_config.data_version import DataVersion
from cometmq.store_config.fastjson import Layout, encode
from cometmq.store_config.topic_config import TopicConfig
from support.broker_twins import NOW_MS, run

IDENTITY = BrokerIdentity(
    cluster="DefaultCluster", name="broker-a", broker_id=0, address="127.0.0.1:11911", ha_address="192.0.2.2:11912"
)


@dataclass
class Source:
    """A broker's topics."""

    table: list[TopicConfig] = field(default_factory=lambda: [TopicConfig(topic_name="t"), TopicConfig(topic_name="u")])
    version: DataVersion = field(default_factory=lambda: DataVersion(counter=3, timestamp_ms=NOW_MS))
    perm: int = 6

    def topics(self) -> Sequence[TopicConfig]:
        return self.table

    def data_version(self) -> DataVersion:
        return self.version

    def broker_permission(self) -> int:
        return self.perm


@dataclass
class Channel:
    """The way to one name server."""

    server: NameServer
    lost: Callable[[], None]
    is_connected: bool = False

    async def invoke(self, request: Command, *, timeout_ms: int) -> Command:
        await asyncio.sleep(0)
        if not self.server.up:
            raise ConnectionLost("refused")
        if not self.is_connected:
            self.is_connected = True
            self.server.channels.append(self)
        self.server.got.append(request)
        return self.server.answer(request)

    async def close(self) -> None:
        self.is_connected = False
        self.server.got.append(Command(code=-1))


@dataclass
class NameServer:
    """A name server as its clients see it."""

    up: bool = True
    got: list[Command] = field(default_factory=list)
    channels: list[Channel] = field(default_factory=list)
    answer: Callable[[Command], Command] = field(default=lambda request: request.response(ResponseCode.SUCCESS))

    def lose(self) -> None:
        """End every connection."""
        for channel in self.channels:
            channel.is_connected = False
            channel.lost()
        self.channels.clear()

    def codes(self) -> list[int]:
        return [request.code for request in self.got]

    def topics(self) -> list[list[str]]:
        """The topics of each registration that came."""
        return [
            sorted(RegisterBrokerBody.from_json(request.body).wrapper.topics)
            for request in self.got
            if request.code == RequestCode.REGISTER_BROKER
        ]


class Bench:
    """A registrar whose time is moved by hand."""

    def __init__(self, servers: dict[str, NameServer], *, force: bool = True) -> None:
        self.source = Source()
        self.servers = servers
        self.pauses: list[tuple[float, asyncio.Future[None]]] = []
        self.orders: list[KVTable] = []
        self.order_fails: Error | None = None
        self.registrar = Registrar(
            list(servers),
            Registrations(IDENTITY, self.source, now_ms=lambda: NOW_MS),
            channel_to=lambda address, lost: Channel(self.servers[address], lost),
            timing=Timing(force=force),
            order_config=self._order,
            pause=self._pause,
        )

    async def _order(self, table: KVTable) -> None:
        self.orders.append(table)
        if self.order_fails is not None:
            raise self.order_fails

    async def _pause(self, seconds: float) -> None:
        over = asyncio.get_running_loop().create_future()
        self.pauses.append((seconds, over))
        await over

    async def settle(self) -> None:
        for _ in range(30):
            await asyncio.sleep(0)

    async def pass_pauses(self) -> list[float]:
        """End every pause; returns how long they were."""
        await self.settle()
        lengths = []
        for seconds, over in self.pauses:
            if not over.done():
                over.set_result(None)
                lengths.append(seconds)
        self.pauses.clear()
        await self.settle()
        return lengths


def test_a_registration_is_upstreams() -> None:
    source = Source()
    request = Registrations(IDENTITY, source, now_ms=lambda: NOW_MS).of()
    # The members of the first registration of golden/apache-5.3.3.
    assert request.code == RequestCode.REGISTER_BROKER
    assert request.fields == {
        "brokerId": "0",
        "bodyCrc32": str(crc31(request.body)),
        "clusterName": "DefaultCluster",
        "brokerAddr": "127.0.0.1:11911",
        "enableActingMaster": "false",
        "haServerAddr": "192.0.2.2:11912",
        "compressed": "false",
        "brokerName": "broker-a",
    }
    assert request.body.startswith(
        b'{"filterServerList":[],"topicConfigSerializeWrapper":{"dataVersion":{"counter":3,"stateVersion":0,"timestamp":'
    )
    body = RegisterBrokerBody.from_json(request.body)
    assert set(body.wrapper.topics) == {"t", "u"}
    assert body.wrapper.data_version == source.version


def test_a_broker_that_takes_nothing_says_so_of_every_topic() -> None:
    source = Source(perm=4)
    body = RegisterBrokerBody.from_json(Registrations(IDENTITY, source, now_ms=lambda: NOW_MS).of().body)
    assert {topic.perm for topic in body.wrapper.topics.values()} == {4}


def test_at_start_after_ten_seconds_and_every_thirty() -> None:
    async def check() -> None:
        servers = {"a:1": NameServer(), "b:1": NameServer()}
        bench = Bench(servers)
        await bench.registrar.start()
        assert bench.registrar.registered == ("a:1", "b:1")
        assert [await bench.pass_pauses() for _ in range(3)] == [[10.0, 10.0], [30.0, 30.0], [30.0, 30.0]]
        for server in servers.values():
            assert server.topics() == [["t", "u"]] * 4
        await bench.registrar.stop()
        for server in servers.values():
            assert server.codes()[-2:] == [RequestCode.UNREGISTER_BROKER, -1], "goodbye, then the connection"
        assert bench.registrar.registered == ()

    run(check())


def test_without_name_servers_nothing_waits() -> None:
    async def check() -> None:
        bench = Bench({})
        await bench.registrar.start()
        await bench.registrar.announce([TopicConfig(topic_name="t")])
        await bench.registrar.announce_all()
        await bench.registrar.stop()

    run(check())


def test_changed_topic_is_registered_alone_and_at_once() -> None:
    async def check() -> None:
        server = NameServer()
        bench = Bench({"a:1": server})
        await bench.registrar.start()
        await bench.registrar.announce([TopicConfig(topic_name="new")])
        assert server.topics() == [["t", "u"], ["new"]]
        await bench.registrar.announce_all()
        assert server.topics()[-1] == ["t", "u"]
        await bench.registrar.stop()
        await bench.registrar.announce([TopicConfig(topic_name="late")])
        assert ["late"] not in server.topics()

    run(check())


def test_one_that_is_down_is_tried_each_second_and_holds_nobody_up() -> None:
    async def check() -> None:
        up, down = NameServer(), NameServer(up=False)
        bench = Bench({"a:1": up, "b:1": down})
        await bench.registrar.start()
        assert bench.registrar.registered == ("a:1",)
        await bench.registrar.announce([TopicConfig(topic_name="new")])
        assert up.topics()[-1] == ["new"]
        bench.source.table.append(TopicConfig(topic_name="new"))
        assert sorted(await bench.pass_pauses()) == [1.0, 10.0]
        down.up = True
        await bench.pass_pauses()
        assert bench.registrar.registered == ("a:1", "b:1")
        assert down.topics() == [["new", "t", "u"]]
        await bench.registrar.stop()

    run(check())


def test_lost_connection_is_registered_again_at_once() -> None:
    async def check() -> None:
        server = NameServer()
        bench = Bench({"a:1": server}, force=False)
        await bench.registrar.start()
        await bench.settle()
        server.lose()
        assert bench.registrar.registered == ()
        assert 0.05 in await bench.pass_pauses(), "not without a breath"
        assert server.codes() == [RequestCode.REGISTER_BROKER] * 2, "in full, unasked: it has forgotten us"
        assert bench.registrar.registered == ("a:1",)
        await bench.registrar.stop()

    run(check())


def test_a_refusal_is_tried_again() -> None:
    async def check() -> None:
        server = NameServer(answer=lambda request: request.response(1, remark="name server not ready"))
        bench = Bench({"a:1": server})
        await bench.registrar.start()
        assert bench.registrar.registered == ()
        assert await bench.pass_pauses() == [1.0]
        server.answer = lambda request: request.response(0)
        await bench.pass_pauses()
        assert bench.registrar.registered == ("a:1",)
        await bench.registrar.stop()

    run(check())


def test_a_topic_that_was_refused_comes_with_the_next_full_registration() -> None:
    async def check() -> None:
        server = NameServer()
        bench = Bench({"a:1": server})
        await bench.registrar.start()
        await bench.settle()
        # A restarted Java name server refuses a broker which registers one topic alone.
        server.answer = lambda request: request.response(1 if server.topics()[-1] == ["new"] else 0)
        bench.source.table.append(TopicConfig(topic_name="new"))
        await bench.registrar.announce([TopicConfig(topic_name="new")])
        await bench.pass_pauses()
        assert server.topics()[-1] == ["new", "t", "u"]
        await bench.registrar.stop()

    run(check())


def test_a_changed_pace_counts_from_the_next_registration_on() -> None:
    async def check() -> None:
        server = NameServer()
        bench = Bench({"a:1": server})
        await bench.registrar.start()
        assert await bench.pass_pauses() == [10.0]
        assert await bench.pass_pauses() == [30.0]
        bench.registrar.change_pace(period_ms=20_000, force=False)
        await bench.pass_pauses()
        assert RequestCode.QUERY_DATA_VERSION in server.codes()
        assert await bench.pass_pauses() == [20.0]
        bench.registrar.change_pace(period_ms=1, force=True)
        await bench.pass_pauses()
        assert await bench.pass_pauses() == [10.0], "name servers drop brokers that are silent, and need no more"
        await bench.registrar.stop()

    run(check())


def test_without_force_only_changes_are_registered() -> None:
    async def check() -> None:
        known = DataVersion(counter=3, timestamp_ms=NOW_MS)

        def answer(request: Command) -> Command:
            if request.code != RequestCode.QUERY_DATA_VERSION:
                return request.response(0)
            body = encode(known.encode(), layout=Layout.COMPACT)
            return request.response(0, fields={"changed": "false"}, body=body)

        server = NameServer(answer=answer)
        bench = Bench({"a:1": server}, force=False)
        await bench.registrar.start()
        await bench.pass_pauses()
        assert server.codes() == [RequestCode.REGISTER_BROKER, RequestCode.QUERY_DATA_VERSION]
        bench.source.version = known.next(NOW_MS)
        await bench.pass_pauses()
        assert server.codes()[2:] == [RequestCode.QUERY_DATA_VERSION, RequestCode.REGISTER_BROKER]
        await bench.registrar.stop()

    run(check())


def test_the_order_of_topics_comes_with_the_answer() -> None:
    async def check() -> None:
        table = KVTable(table={"t": "broker-a:4"})
        server = NameServer(answer=lambda request: request.response(0, body=table.to_json()))
        bench = Bench({"a:1": server})
        await bench.registrar.start()
        assert bench.orders == [table]
        server.answer = lambda request: request.response(0, body=b"nonsense")
        await bench.pass_pauses()
        assert bench.registrar.registered == (), "an answer that cannot be read is a failure"
        await bench.registrar.stop()

    run(check())


def test_an_order_that_cannot_be_stored_does_not_end_the_registration() -> None:
    async def check() -> None:
        table = KVTable(table={"t": "broker-a:4"})
        server = NameServer(answer=lambda request: request.response(ResponseCode.SUCCESS, body=table.to_json()))
        bench = Bench({"a:1": server})
        bench.order_fails = StorageError("the disk is full")
        await bench.registrar.start()
        assert bench.registrar.registered == ("a:1",)
        assert [await bench.pass_pauses() for _ in range(2)] == [[10.0], [30.0]]
        await bench.registrar.announce([TopicConfig(topic_name="new")])
        assert server.topics() == [["t", "u"]] * 3 + [["new"]]
        assert bench.orders == [table] * 4, "each answer is tried again"
        await bench.registrar.stop()

    run(check())


def test_waiting_for_a_slow_name_server_has_an_end() -> None:
    async def check() -> None:
        never: Awaitable[None] = asyncio.get_running_loop().create_future()
        server = NameServer()
        bench = Bench({"a:1": server})
        bench.registrar._timing = Timing(announce_ms=1)
        await bench.registrar.start()
        (channel,) = server.channels

        async def invoke(request: Command, *, timeout_ms: int) -> Command:
            await never
            raise AssertionError

        channel.invoke = invoke  # type: ignore[method-assign]
        await bench.registrar.announce([TopicConfig(topic_name="new")])

    run(check())


def test_a_start_does_not_wait_for_ever() -> None:
    async def check() -> None:
        silent: asyncio.Future[Command] = asyncio.get_running_loop().create_future()
        bench = Bench({"a:1": NameServer()})

        @dataclass
        class Silent(Channel):
            async def invoke(self, request: Command, *, timeout_ms: int) -> Command:
                return await silent

        bench.registrar._channel_to = lambda address, lost: Silent(bench.servers[address], lost)
        bench.registrar._timing = Timing(start_ms=1)
        await bench.registrar.start()
        assert bench.registrar.registered == ()
        await bench.registrar.stop()

    run(check())


def test_whoever_answers_first_tells_where_a_topic_is() -> None:
    route = TopicRouteData(queue_datas=(QueueData(broker_name="b", read_queue_nums=2, write_queue_nums=2, perm=6),))

    def answer(request: Command) -> Command:
        if request.code != RequestCode.GET_ROUTEINFO_BY_TOPIC:
            return request.response(ResponseCode.SUCCESS)
        if request.fields != {"topic": "t", "acceptStandardJsonOnly": "true"}:
            return request.response(ResponseCode.TOPIC_NOT_EXIST)
        return request.response(ResponseCode.SUCCESS, body=route.to_standard_json())

    async def scenario() -> None:
        servers = {"down": NameServer(up=False), "up": NameServer(answer=answer)}
        bench = Bench(servers)
        assert bench.registrar.has_name_servers
        with pytest.raises(Unanswered):
            await bench.registrar.route("t")  # nobody was reached yet
        starting = asyncio.ensure_future(bench.registrar.start())
        await bench.settle()
        assert await bench.registrar.route("t") == route
        assert await bench.registrar.route("u") is None
        servers["up"].up = False
        with pytest.raises(Unanswered, match="no name server returned a route for t"):
            await bench.registrar.route("t")
        await starting
        await bench.registrar.stop()

    run(scenario())
    assert not Bench({}).registrar.has_name_servers
