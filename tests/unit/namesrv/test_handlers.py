"""Checks: the answer to each request of a name server, and to wrong ones."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Awaitable, Callable, Mapping
from inspect import isawaitable
from typing import TypeVar, cast

import pytest

from cometmq.namesrv.handlers import NameServer
from cometmq.namesrv.kv_config import KVConfig, KVLimits
from cometmq.namesrv.routes import STEP_TOPICS
from cometmq.namesrv.settings import NamesrvSettings
from cometmq.remoting.bodies.config_tables import KVTable, TopicConfigAndMappingSerializeWrapper, TopicList
from cometmq.remoting.bodies.registration import RegisterBrokerBody, body_checksum
from cometmq.remoting.bodies.routes import (
    ClusterInfo,
    GetBrokerMemberGroupResponseBody,
    QueueData,
    TopicRouteData,
)
from cometmq.remoting.codes import NAMESRV_REQUESTS, RequestCode, ResponseCode
from cometmq.remoting.command import Command, HeaderFormat
from cometmq.remoting.lanes import Lanes
from cometmq.store_config.data_version import DataVersion
from cometmq.store_config.topic_config import TopicConfig
from support.callers import DirectCaller, answer_of
from support.steps import finished

BROKER = {
    "clusterName": "c",
    "brokerName": "broker-ü",
    "brokerAddr": "10.0.0.1:10911",
    "haServerAddr": "10.0.0.1:10912",
    "brokerId": "0",
}
T = TypeVar("T")
VERSION = DataVersion(counter=3, timestamp_ms=7)


class Asked:
    """A name server, and the clock that it looks at."""

    def __init__(self, settings: NamesrvSettings | None = None) -> None:
        self.now_ms = 1_000
        self.kv = KVConfig(None, limits=KVLimits(entries=3))
        self.server = NameServer(settings or NamesrvSettings(), self.kv, now_ms=lambda: self.now_ms)
        self.table = self.server.table()

    def ask(
        self,
        code: int,
        fields: Mapping[str, str] | None = None,
        body: bytes = b"",
        *,
        version: int = 479,
        connection: int = 1,
    ) -> Command:
        request = Command(
            code=code, fields=fields or {}, body=body, version=version, opaque=5, format=HeaderFormat.ROCKETMQ
        )
        answer = answer_of(self.table[code](request, DirectCaller(connection)))
        assert (answer.opaque, answer.format, answer.is_response) == (5, HeaderFormat.ROCKETMQ, True)
        return answer

    def expired(self) -> list[int]:
        closed: list[int] = []
        self.server.expire(closed.append)
        return closed

    def register(self, fields: Mapping[str, str] | None = None, body: bytes | None = None) -> Command:
        return self.ask(
            RequestCode.REGISTER_BROKER, {**BROKER, **(fields or {})}, registration() if body is None else body
        )


def registration(*topics: str) -> bytes:
    configs = {name: TopicConfig(topic_name=name) for name in topics or ("orders", "bills")}
    wrapper = TopicConfigAndMappingSerializeWrapper(topics=configs, data_version=VERSION)
    return RegisterBrokerBody(wrapper=wrapper).to_json()


LONG = registration(*(f"topic-{number:03}" for number in range(700)))
"""Read apart from the event loop, and taken with a pause."""


async def paused_registration(asked: Asked, connection: int = 1, **fields: str) -> Awaitable[object]:
    """Return a registration whose last topics are not entered yet."""
    request = Command(code=RequestCode.REGISTER_BROKER, fields={**BROKER, **fields}, body=LONG)
    registering = asyncio.ensure_future(
        cast("Awaitable[object]", asked.table[request.code](request, DirectCaller(connection)))
    )
    await asyncio.sleep(0)
    assert finished(asked.server.routes.route("topic-000")) is not None
    assert finished(asked.server.routes.route("topic-699")) is None
    return registering


class LaneCaller:
    """A connection whose long work is done in threads."""

    conn = 1
    peer = "10.0.0.9:1"

    def __init__(self, lanes: Lanes) -> None:
        self._lanes = lanes

    @property
    def is_busy(self) -> bool:
        return self._lanes.is_busy(self.conn)

    def apart(self, work: Callable[[], T]) -> Awaitable[T]:
        return self._lanes.run(self.conn, work)

    store_apart = apart


def test_every_code_of_the_table_is_served() -> None:
    assert set(Asked().table) == NAMESRV_REQUESTS


def test_a_route_in_both_forms() -> None:
    asked = Asked()
    assert asked.register().code == ResponseCode.SUCCESS
    standard = asked.ask(RequestCode.GET_ROUTEINFO_BY_TOPIC, {"topic": "orders"}, version=401)
    assert b'"brokerAddrs":{"0":"10.0.0.1:10911"},"brokerName":"broker-\\u00FC"' in standard.body
    legacy = asked.ask(RequestCode.GET_ROUTEINFO_BY_TOPIC, {"topic": "orders"}, version=400)
    assert '"brokerAddrs":{0:"10.0.0.1:10911"},"brokerName":"broker-ü"'.encode() in legacy.body
    flag = {"topic": "orders", "acceptStandardJsonOnly": "true"}
    assert asked.ask(RequestCode.GET_ROUTEINFO_BY_TOPIC, flag, version=400).body == standard.body
    assert TopicRouteData.from_json(standard.body) == TopicRouteData.from_json(legacy.body)


def test_an_unknown_topic_is_17_with_upstream_s_text() -> None:
    answer = Asked().ask(RequestCode.GET_ROUTEINFO_BY_TOPIC, {"topic": "orders"})
    assert answer.code == ResponseCode.TOPIC_NOT_EXIST
    assert answer.remark == (
        "No topic route info in name server for the topic: orders\n"
        "See https://rocketmq.apache.org/docs/bestPractice/06FAQ for further details."
    )


def test_a_body_is_checked_by_its_sum() -> None:
    asked = Asked()
    body = registration()
    wrong = asked.register({"bodyCrc32": str(body_checksum(body) ^ 1)}, body)
    assert (wrong.code, wrong.remark) == (ResponseCode.SYSTEM_ERROR, "crc32 not match")
    assert asked.register({"bodyCrc32": str(body_checksum(body))}, body).code == ResponseCode.SUCCESS


def test_a_single_topic_of_an_unknown_broker_is_refused() -> None:
    answer = Asked().register(body=registration("orders"))
    assert (answer.code, answer.remark) == (ResponseCode.SYSTEM_ERROR, "register broker failed")


def test_a_slave_learns_its_master() -> None:
    asked = Asked()
    asked.register()
    answer = asked.register({"brokerId": "1", "brokerAddr": "10.0.0.2:10911"})
    assert answer.fields == {"masterAddr": "10.0.0.1:10911", "haServerAddr": "10.0.0.1:10912"}


def test_compressed_registration_is_read_though_its_header_denies_it() -> None:
    asked = Asked()
    body = RegisterBrokerBody.from_json(registration()).to_compressed()
    assert asked.register({"compressed": "false"}, body).code == ResponseCode.SUCCESS
    assert TopicList.from_json(asked.ask(RequestCode.GET_ALL_TOPIC_LIST_FROM_NAMESERVER).body).topics == (
        "orders",
        "bills",
    )


def test_data_versions() -> None:
    asked = Asked()
    fields = {name: BROKER[name] for name in ("clusterName", "brokerName", "brokerAddr", "brokerId")}
    body = b'{"counter":3,"stateVersion":0,"timestamp":7}'
    unknown = asked.ask(RequestCode.QUERY_DATA_VERSION, fields, body)
    assert (unknown.fields, unknown.body) == ({"changed": "true"}, b"")
    asked.register()
    asked.now_ms += 119_000
    known = asked.ask(RequestCode.QUERY_DATA_VERSION, fields, body)
    assert (known.fields, known.body) == ({"changed": "false"}, body)
    older = asked.ask(RequestCode.QUERY_DATA_VERSION, fields, b'{"counter":2,"stateVersion":0,"timestamp":7}')
    assert older.fields == {"changed": "true"}
    asked.now_ms += 119_000
    assert asked.expired() == [], "the question was a sign of life"
    asked.ask(RequestCode.BROKER_HEARTBEAT, {"clusterName": "c", "brokerAddr": "10.0.0.1:10911", "brokerName": "b"})
    asked.now_ms += 120_001
    assert asked.expired() == [1], "its connection is to be closed"
    assert asked.server.routes.broker_count == 0


def test_two_living_brokers_with_one_name_and_id_are_reported(caplog: pytest.LogCaptureFixture) -> None:
    asked = Asked()
    theirs = {"brokerAddr": "10.0.0.2:10911"}

    def reported() -> list[tuple[str, str]]:
        found = [record.__dict__ for record in caplog.records if record.levelname == "WARNING"]
        caplog.clear()
        return [(one["address"], one["other_address"]) for one in found]

    def register(fields: Mapping[str, str], connection: int) -> None:
        asked.ask(RequestCode.REGISTER_BROKER, {**BROKER, **fields}, registration(), connection=connection)

    register({}, 1)
    register({}, 1)
    register({**theirs, "brokerId": "1"}, 2)
    assert reported() == []
    register(theirs, 3)
    assert reported() == [], "it may have taken the place for good"
    register({}, 1)
    assert reported() == [(BROKER["brokerAddr"], "10.0.0.2:10911")]
    register(theirs, 3)
    assert reported() == [], "not each time"
    asked.now_ms += 600_000
    register({}, 1)
    assert reported() == [(BROKER["brokerAddr"], "10.0.0.2:10911")]


def test_a_broker_that_moved_to_another_address_is_not_reported(caplog: pytest.LogCaptureFixture) -> None:
    asked = Asked()
    asked.register()
    asked.server.connection_closed(1)
    asked.ask(RequestCode.REGISTER_BROKER, {**BROKER, "brokerAddr": "10.0.0.2:10911"}, registration(), connection=2)
    assert [record for record in caplog.records if record.levelname == "WARNING"] == []


def test_the_end_of_a_connection_ends_its_brokers() -> None:
    asked = Asked()
    asked.register()
    asked.server.connection_closed(2)
    assert asked.server.routes.broker_count == 1
    asked.server.connection_closed(1)
    assert asked.ask(RequestCode.GET_ROUTEINFO_BY_TOPIC, {"topic": "orders"}).code == ResponseCode.TOPIC_NOT_EXIST


def test_clusters_members_and_unregistering() -> None:
    asked = Asked()
    asked.register()
    info = ClusterInfo.from_json(asked.ask(RequestCode.GET_BROKER_CLUSTER_INFO).body)
    assert info.clusters == {"c": ("broker-ü",)}
    group = asked.ask(RequestCode.GET_BROKER_MEMBER_GROUP, {"clusterName": "c", "brokerName": "broker-ü"})
    members = GetBrokerMemberGroupResponseBody.from_json(group.body).group
    assert members is not None
    assert members.broker_addresses == {0: "10.0.0.1:10911"}
    assert asked.ask(RequestCode.UNREGISTER_BROKER, BROKER).code == ResponseCode.SUCCESS
    assert asked.ask(RequestCode.GET_BROKER_CLUSTER_INFO).body == b'{"brokerAddrTable":{},"clusterAddrTable":{}}'


def test_write_permission() -> None:
    asked = Asked()
    asked.register()
    name = {"brokerName": "broker-ü"}
    assert asked.ask(RequestCode.WIPE_WRITE_PERM_OF_BROKER, name).fields == {"wipeTopicCount": "2"}
    assert asked.ask(RequestCode.ADD_WRITE_PERM_OF_BROKER, name).fields == {"addTopicCount": "2"}


def test_lists_of_topics() -> None:
    asked = Asked()
    asked.register()
    lists = {
        RequestCode.GET_TOPICS_BY_CLUSTER: b'{"topicList":["orders","bills"]}',
        RequestCode.GET_UNIT_TOPIC_LIST: b'{"topicList":[]}',
        RequestCode.GET_HAS_UNIT_SUB_TOPIC_LIST: b'{"topicList":[]}',
        RequestCode.GET_HAS_UNIT_SUB_UNUNIT_TOPIC_LIST: b'{"topicList":[]}',
    }
    for code, body in lists.items():
        assert asked.ask(code, {"cluster": "c"}).body == body
    system = asked.ask(RequestCode.GET_SYSTEM_TOPIC_LIST_FROM_NS).body.decode()
    assert system == '{"brokerAddr":"10.0.0.1:10911","topicList":["c","broker-ü"]}'
    asked.ask(RequestCode.UPDATE_NAMESRV_CONFIG, body=b"enableTopicList=false\nenableAllTopicList=false\n")
    for code in (*lists, RequestCode.GET_ALL_TOPIC_LIST_FROM_NAMESERVER):
        assert asked.ask(code, {"cluster": "c"}).remark == "disable"


def test_topics_made_and_deleted_by_request() -> None:
    asked = Asked()
    asked.register()
    queues = (QueueData(broker_name="broker-ü", read_queue_nums=1, write_queue_nums=1, perm=6),)
    body = TopicRouteData(queue_datas=queues).to_json()
    assert asked.ask(RequestCode.REGISTER_TOPIC_IN_NAMESRV, {"topic": "made"}, body).code == ResponseCode.SUCCESS
    assert asked.ask(RequestCode.GET_ROUTEINFO_BY_TOPIC, {"topic": "made"}).code == ResponseCode.SUCCESS
    asked.ask(RequestCode.DELETE_TOPIC_IN_NAMESRV, {"topic": "made"})
    asked.ask(RequestCode.DELETE_TOPIC_IN_NAMESRV, {"topic": "orders", "clusterName": "c"})
    assert asked.server.routes.topics() == ("bills",)


def test_a_topic_deleted_during_an_older_registration_stays_deleted() -> None:
    async def check() -> None:
        asked = Asked()
        registering = await paused_registration(asked)
        request = Command(code=RequestCode.DELETE_TOPIC_IN_NAMESRV, fields={"topic": "topic-699"})
        deleted = cast("Awaitable[object]", asked.table[request.code](request, DirectCaller(2)))
        await asyncio.gather(registering, deleted)
        assert finished(asked.server.routes.route("topic-699")) is None
        assert finished(asked.server.routes.route("topic-698")) is not None

    asyncio.run(check())


def test_a_topic_of_many_brokers_is_looked_up_beside_other_work() -> None:
    """In steps, and written apart from the event loop; a small one does not wait for a long registration."""

    async def check() -> None:
        asked = Asked()
        for number in range(2 * STEP_TOPICS):
            name = {"brokerName": f"b{number}", "brokerAddr": f"b{number}:1"}
            asked.register(name, registration("wide", "narrow") if number == 0 else registration("wide", "other"))

        def look_up(topic: str) -> object:
            request = Command(code=RequestCode.GET_ROUTEINFO_BY_TOPIC, fields={"topic": topic}, version=479)
            return asked.table[request.code](request, DirectCaller(2))

        registering = await paused_registration(asked)
        assert isinstance(look_up("narrow"), Command)
        wide = look_up("wide")
        assert isawaitable(wide)
        _, answer = await asyncio.gather(registering, wide)
        assert len(TopicRouteData.from_json(answer.body).broker_datas) == 2 * STEP_TOPICS

    asyncio.run(check())


def test_a_topic_registered_during_an_older_registration_keeps_its_queues() -> None:
    async def check() -> None:
        asked = Asked()
        registering = await paused_registration(asked)
        queues = QueueData(broker_name="broker-ü", read_queue_nums=9, write_queue_nums=9, perm=6)
        body = TopicRouteData(queue_datas=(queues,)).to_json()
        request = Command(code=RequestCode.REGISTER_TOPIC_IN_NAMESRV, fields={"topic": "topic-699"}, body=body)
        registered = cast("Awaitable[object]", asked.table[request.code](request, DirectCaller(2)))
        await asyncio.gather(registering, registered)
        route = finished(asked.server.routes.route("topic-699"))
        assert route is not None
        assert route.queue_datas == (queues,)

    asyncio.run(check())


def test_a_silent_broker_that_is_heard_of_before_its_turn_stays() -> None:
    async def check() -> None:
        asked = Asked()
        asked.register({"brokerName": "b", "brokerAddr": "10.0.0.2:10911"})
        asked.now_ms += 130_000
        registering = await paused_registration(asked)
        closed: list[int] = []
        asked.server.expire(closed.append)
        asked.ask(RequestCode.BROKER_HEARTBEAT, {"clusterName": "c", "brokerAddr": "10.0.0.2:10911"})
        await registering
        assert (closed, asked.server.routes.broker_count) == ([], 2)
        asked.now_ms += 130_000
        for _ in range(10):  # a pause for each 500 topics
            asked.server.expire(closed.append)
            await asyncio.sleep(0)
        assert (closed, asked.server.routes.broker_count) == ([1, 1], 0)

    asyncio.run(check())


@pytest.mark.parametrize("ending", ["unregistering", "closing"])
def test_a_registration_that_is_still_being_read_does_not_outlive_its_end(ending: str) -> None:
    async def check() -> None:
        asked, lanes, is_free = Asked(), Lanes(threads=1), threading.Event()
        caller = LaneCaller(lanes)
        occupied = lanes.run(9, is_free.wait)
        request = Command(code=RequestCode.REGISTER_BROKER, fields=BROKER, body=LONG)
        waiting = [occupied, asked.table[request.code](request, caller)]
        if ending == "unregistering":
            request = Command(code=RequestCode.UNREGISTER_BROKER, fields=BROKER)
            waiting.append(asked.table[request.code](request, caller))
        else:
            asked.server.connection_closed(caller.conn)
        is_free.set()
        await asyncio.gather(*cast("list[Awaitable[object]]", waiting))
        info = ClusterInfo.from_json(asked.ask(RequestCode.GET_BROKER_CLUSTER_INFO).body)
        assert (asked.server.routes.broker_count, info.lost) == (0, None)
        lanes.close()
        lanes.join()

    asyncio.run(check())


def test_keys_and_the_order_configuration() -> None:
    asked = Asked(NamesrvSettings(order_message_enable=True))
    assert asked.register().body == b"", "the namespace has never been there"
    order = {"namespace": "ORDER_TOPIC_CONFIG", "key": "orders"}
    assert asked.ask(RequestCode.PUT_KV_CONFIG, {**order, "value": "broker-a:4"}).code == ResponseCode.SUCCESS
    assert asked.ask(RequestCode.GET_KV_CONFIG, order).fields == {"value": "broker-a:4"}
    assert asked.register().body == b'{"table":{"orders":"broker-a:4"}}'
    route = TopicRouteData.from_json(asked.ask(RequestCode.GET_ROUTEINFO_BY_TOPIC, {"topic": "orders"}).body)
    assert route.order_topic_conf == "broker-a:4"
    listed = asked.ask(RequestCode.GET_KVLIST_BY_NAMESPACE, {"namespace": "ORDER_TOPIC_CONFIG"})
    assert KVTable.from_json(listed.body).table == {"orders": "broker-a:4"}
    asked.ask(RequestCode.DELETE_KV_CONFIG, order)
    assert asked.register().body == b'{"table":{}}'
    missing = asked.ask(RequestCode.GET_KV_CONFIG, order)
    assert missing.code == ResponseCode.QUERY_NOT_FOUND
    assert missing.remark == "No config item, Namespace: ORDER_TOPIC_CONFIG Key: orders"
    nowhere = asked.ask(RequestCode.GET_KVLIST_BY_NAMESPACE, {"namespace": "n"})
    assert (nowhere.code, nowhere.remark) == (ResponseCode.QUERY_NOT_FOUND, "No config item, Namespace: n")


def test_a_young_server_set_to_wait_gives_no_routes() -> None:
    asked = Asked(NamesrvSettings(need_wait_for_service=True, wait_for_service_seconds=45))
    asked.register()
    answer = asked.ask(RequestCode.GET_ROUTEINFO_BY_TOPIC, {"topic": "orders"})
    assert (answer.code, answer.remark) == (ResponseCode.SYSTEM_ERROR, "name server not ready")
    asked.now_ms += 45_000
    assert asked.ask(RequestCode.GET_ROUTEINFO_BY_TOPIC, {"topic": "orders"}).code == ResponseCode.SUCCESS


def test_settings_by_request() -> None:
    asked = Asked()
    answer = asked.ask(RequestCode.UPDATE_NAMESRV_CONFIG, body=b"deleteTopicWithBrokerRegistration=true\n")
    assert answer.code == ResponseCode.SUCCESS
    assert b"deleteTopicWithBrokerRegistration=true\n" in asked.ask(RequestCode.GET_NAMESRV_CONFIG).body
    assert asked.server.routes.delete_missing_topics
    refused = asked.ask(RequestCode.UPDATE_NAMESRV_CONFIG, body=b"kvConfigPath=/etc/passwd\n")
    assert refused.code == ResponseCode.NO_PERMISSION
    assert refused.remark == "Can not update config in black list: kvConfigPath"
    assert asked.ask(RequestCode.UPDATE_NAMESRV_CONFIG, body=b"enableTopicList=2").code == ResponseCode.SYSTEM_ERROR


@pytest.mark.parametrize("code", sorted(NAMESRV_REQUESTS))
@pytest.mark.parametrize("body", [b"", b"{", b"\x78\x9c", b"[1,2]", b'{"topicConfigSerializeWrapper":3}', b"\\u12"])
def test_a_request_that_says_nothing_is_answered_all_the_same(code: RequestCode, body: bytes) -> None:
    """Every request is answered: success where nothing is needed, else code 1 with a text."""
    answer = Asked().ask(code, body=body)
    assert answer.code in (ResponseCode.SUCCESS, ResponseCode.SYSTEM_ERROR, ResponseCode.NO_PERMISSION)
    assert answer.code == ResponseCode.SUCCESS or answer.remark


@pytest.mark.parametrize("missing", ["clusterName", "brokerName", "brokerAddr", "brokerId"])
def test_a_missing_field_is_named(missing: str) -> None:
    fields = {name: value for name, value in BROKER.items() if name != missing}
    for code in (RequestCode.REGISTER_BROKER, RequestCode.UNREGISTER_BROKER):
        answer = Asked().ask(code, fields, registration() if code == RequestCode.REGISTER_BROKER else b"")
        assert answer.code == ResponseCode.SYSTEM_ERROR
        assert missing in (answer.remark or "")


def test_a_limit_is_answered() -> None:
    asked = Asked()
    answers = [asked.ask(RequestCode.PUT_KV_CONFIG, {"namespace": "n", "key": key, "value": "v"}) for key in "abc"]
    assert [answer.code for answer in answers] == [
        ResponseCode.SUCCESS,
        ResponseCode.SUCCESS,
        ResponseCode.SYSTEM_ERROR,
    ]
    assert "3 keys" in (answers[-1].remark or "")


def test_remembered_rivals_have_a_limit(caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch) -> None:
    """Names that a client makes up make the server forget rivals, which are found again."""
    monkeypatch.setattr("cometmq.namesrv.handlers.RIVALS_MAX", 2)
    asked = Asked()

    def change_places(name: str) -> None:
        for number in (1, 2, 1):
            asked.register({"brokerName": name, "brokerAddr": f"10.0.0.{number}:10911"})

    for name in ("a", "b", "c", "d", "a"):
        change_places(name)
    warned = [vars(record)["broker"] for record in caplog.records if "take each other" in record.getMessage()]
    assert warned == ["a", "b", "c", "d", "a"]
    assert len(asked.server._displaced) <= 2
    assert len(asked.server._rivals_quiet_until) <= 2


def test_topics_of_an_address_that_wait_to_be_registered_have_a_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    """Registrations run in order: those of one address must not hold up all others until their brokers expire."""
    monkeypatch.setattr("cometmq.namesrv.handlers.REGISTERING_TOPICS_MAX", 1_000)

    async def check() -> None:
        asked = Asked()

        async def register(name: str, host: str, body: bytes) -> Command:
            fields = {**BROKER, "brokerName": name, "brokerAddr": f"{name}:1"}
            request = Command(code=RequestCode.REGISTER_BROKER, fields=fields, body=body)
            outcome = asked.table[request.code](request, DirectCaller(2, peer=f"{host}:1"))
            return await cast("Awaitable[Command]", outcome)

        answers = await asyncio.gather(
            *(register(name, "10.0.0.8", LONG) for name in ("a", "refused")),
            register("b", "10.0.0.9", LONG),
            register("small", "10.0.0.9", registration()),
            register("refused", "10.0.0.9", LONG),
        )
        busy = [answer.remark for answer in answers if answer.code == ResponseCode.SYSTEM_BUSY]
        assert [answer.code == ResponseCode.SUCCESS for answer in answers] == [True, False, True, True, False]
        assert [str(text).partition(" wait ")[0] for text in busy] == [
            "700 topics of 10.0.0.8",
            "702 topics of 10.0.0.9",
        ]
        await register("d", "10.0.0.9", LONG)
        infos = ClusterInfo.from_json(
            asked.table[RequestCode.GET_BROKER_CLUSTER_INFO](
                Command(code=RequestCode.GET_BROKER_CLUSTER_INFO), DirectCaller(2)
            ).body
        )
        assert set(infos.brokers) == {"a", "b", "small", "d"}
        assert not asked.server._registering

    asyncio.run(check())
