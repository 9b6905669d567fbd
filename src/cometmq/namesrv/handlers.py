"""A name server's handlers: each request of upstream's, on the route table and the key-value store.

No sockets, and time is a parameter, so that all of it is tested as plain calls. An error in a request is raised and
becomes code 1 with a text that names it (:mod:`cometmq.remoting.answers`).

Threads: the server's event loop alone.
Source:  remoting specification 2.11.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from inspect import isawaitable
from typing import cast

from cometmq.errors import LimitReached
from cometmq.namesrv.kv_config import ORDER_TOPIC_CONFIG, KVConfig
from cometmq.namesrv.routes import STEP_TOPICS, Registered, Registration, RouteTable
from cometmq.namesrv.settings import NamesrvSettings, properties_text, with_updates
from cometmq.namesrv.turns import Steps, Turns
from cometmq.remoting.answers import Caller, Handler, Outcome, Refusal, Table, ok, table_of, with_body
from cometmq.remoting.bodies.body import REQUEST_LIMITS, Body, decode_body
from cometmq.remoting.bodies.config_tables import KVTable, TopicList, decode_data_version
from cometmq.remoting.bodies.registration import RegisterBrokerBody, body_checksum
from cometmq.remoting.bodies.routes import (
    STANDARD_JSON_VERSION,
    BrokerMemberGroup,
    GetBrokerMemberGroupResponseBody,
    TopicRouteData,
)
from cometmq.remoting.codes import RequestCode, ResponseCode
from cometmq.remoting.command import Command
from cometmq.remoting.members import Members, flag_text
from cometmq.remoting.shared_write import SharedWrite
from cometmq.store_config.data_version import DataVersion
from cometmq.store_config.fastjson import Layout, encode
from cometmq.store_config.java_properties import check_config_body, parse_properties

__all__ = ["REGISTERING_TOPICS_MAX", "RIVALS_MAX", "NameServer"]

_log = logging.getLogger(__name__)

_FAQ = "See https://rocketmq.apache.org/docs/bestPractice/06FAQ for further details."
_ZONE_FIELD = "__ZONE_NAME"
_LISTED_INLINE = 1_000
_ROUTE_INLINE = 200
_RIVALS_QUIET_MS = 600_000
RIVALS_MAX = 1_000
REGISTERING_TOPICS_MAX = 200_000
"""Topics of one address that wait to be entered: registrations run in order, and brokers expire that wait for long."""


@contextmanager
def _limited() -> Iterator[None]:
    """Answer code 1, without a line in the log, where a limit is reached."""
    try:
        yield
    except LimitReached as error:
        raise Refusal(ResponseCode.SYSTEM_ERROR, error.message) from error


def _version_of(body: bytes) -> DataVersion:
    return decode_body("DataVersion", body, decode_data_version, limits=REQUEST_LIMITS)


def _in_order(serve: Callable[[Command, Caller], Outcome | Awaitable[Outcome]]) -> Handler:
    """Return a handler whose requests wait for a registration of their connection that is still being read."""
    return with_body(len, lambda request, caller, _: serve(request, caller))


@dataclass(slots=True, eq=False)
class _Arrival:
    """A registration that is being read; ``closed``: its connection is gone."""

    closed: bool = False


class NameServer:
    """One name server without its socket."""

    def __init__(self, settings: NamesrvSettings, kv_config: KVConfig, *, now_ms: Callable[[], int]) -> None:
        """Begin without brokers.

        Args:
            settings: how it behaves; a request may change some of them.
            kv_config: its key-value store, loaded.
            now_ms: a clock that never steps back, milliseconds.
        """
        self.settings = settings
        self.kv_config = kv_config
        self._write_kv_config = SharedWrite(kv_config.persist)
        self._now_ms = now_ms
        self._started_ms = now_ms()
        self._turns = Turns()
        self._arrivals: dict[int, list[_Arrival]] = {}  # by connection
        self._registering: Counter[str] = (
            Counter()
        )  # topics of registrations that wait or pause, by their sender's host
        self._displaced: dict[tuple[str, int], str] = {}  # by name and id: the address that lost its place last
        self._rivals_quiet_until: dict[str, int] = {}  # by broker name
        self.routes = RouteTable(
            delete_missing_topics=settings.delete_topic_with_broker_registration,
            support_acting_master=settings.support_acting_master,
        )

    def table(self) -> Table:
        """Return request code to handler."""
        return table_of(
            [
                {
                    RequestCode.REGISTER_BROKER: self._register,
                    RequestCode.UNREGISTER_BROKER: _in_order(self._unregister_broker),
                    RequestCode.QUERY_DATA_VERSION: with_body(_version_of, self._query_data_version),
                    RequestCode.BROKER_HEARTBEAT: self._broker_heartbeat,
                    RequestCode.GET_BROKER_MEMBER_GROUP: self._get_broker_member_group,
                    RequestCode.GET_BROKER_CLUSTER_INFO: self._get_broker_cluster_info,
                    RequestCode.WIPE_WRITE_PERM_OF_BROKER: _in_order(self._wipe_write_perm),
                    RequestCode.ADD_WRITE_PERM_OF_BROKER: _in_order(self._add_write_perm),
                },
                {
                    RequestCode.GET_ROUTEINFO_BY_TOPIC: self._get_route,
                    RequestCode.GET_ALL_TOPIC_LIST_FROM_NAMESERVER: self._get_all_topics,
                    RequestCode.GET_TOPICS_BY_CLUSTER: self._get_topics_by_cluster,
                    RequestCode.GET_SYSTEM_TOPIC_LIST_FROM_NS: self._get_system_topics,
                    RequestCode.GET_UNIT_TOPIC_LIST: self._get_unit_topics,
                    RequestCode.GET_HAS_UNIT_SUB_TOPIC_LIST: self._get_unit_subscribed_topics,
                    RequestCode.GET_HAS_UNIT_SUB_UNUNIT_TOPIC_LIST: self._get_unit_subscribed_plain_topics,
                    RequestCode.REGISTER_TOPIC_IN_NAMESRV: with_body(TopicRouteData.from_request, self._register_topic),
                    RequestCode.DELETE_TOPIC_IN_NAMESRV: _in_order(self._delete_topic),
                },
                {
                    RequestCode.PUT_KV_CONFIG: self._put_kv_config,
                    RequestCode.GET_KV_CONFIG: self._get_kv_config,
                    RequestCode.DELETE_KV_CONFIG: self._delete_kv_config,
                    RequestCode.GET_KVLIST_BY_NAMESPACE: self._get_kv_list,
                    RequestCode.UPDATE_NAMESRV_CONFIG: self._update_config,
                    RequestCode.GET_NAMESRV_CONFIG: self._get_config,
                },
            ]
        )

    def _listed(self, request: Command, caller: Caller, body: Body) -> Outcome | Awaitable[Outcome]:
        """Answer with a list of brokers or topics; many are written apart from the event loop."""
        if self.routes.broker_count + self.routes.topic_count <= _LISTED_INLINE:
            return ok(request, body=body.to_json())

        async def later() -> Command:
            return ok(request, body=await caller.apart(body.to_json))

        return later()

    # --- Without a request --------------------------------------------------------------------------------------------

    def connection_closed(self, connection: int) -> None:
        """Forget the brokers that lived by this connection, and let its registrations that are being read end there."""
        for arrival in self._arrivals.get(connection, ()):
            arrival.closed = True

        def forget() -> Steps[None]:
            for cluster, address in (yield from self.routes.connection_closed(connection)):
                _log.info("broker gone: its connection closed", extra={"cluster": cluster, "address": address})

        self._turns.run_apart(forget())

    def expire(self, close: Callable[[int], None]) -> None:
        """Forget the brokers that were silent too long, and close their connections with ``close``."""

        def forget() -> Steps[None]:
            for (cluster, address), connection in (yield from self.routes.expire(self._now_ms())):
                _log.warning("broker gone: it was silent too long", extra={"cluster": cluster, "address": address})
                if isinstance(connection, int):
                    close(connection)

        self._turns.run_apart(forget())

    # --- Brokers ------------------------------------------------------------------------------------------------------

    def _register(self, request: Command, caller: Caller) -> Outcome | Awaitable[Outcome]:
        """Read the registration, which may be long and compressed, apart from the event loop."""
        checksum = Members(request.fields).int32("bodyCrc32", 0)

        def read(body: bytes) -> RegisterBrokerBody:
            if checksum != 0 and checksum != body_checksum(body):
                raise Refusal(ResponseCode.SYSTEM_ERROR, "crc32 not match")
            return RegisterBrokerBody.from_wire(body, version=request.version) if body else RegisterBrokerBody()

        arrival = _Arrival()
        register = partial(self._register_broker, arrival=arrival)
        outcome = with_body(read, register)(request, caller)
        if not isawaitable(outcome):
            return outcome
        self._arrivals.setdefault(caller.conn, []).append(arrival)
        return self._until_registered(arrival, caller.conn, cast("Awaitable[Outcome]", outcome))

    async def _until_registered(self, arrival: _Arrival, connection: int, outcome: Awaitable[Outcome]) -> Outcome:
        try:
            return await outcome
        finally:
            under_way = self._arrivals[connection]
            under_way.remove(arrival)
            if not under_way:
                del self._arrivals[connection]

    def _register_broker(
        self, request: Command, caller: Caller, body: RegisterBrokerBody, *, arrival: _Arrival
    ) -> Outcome | Awaitable[Outcome]:
        if arrival.closed:
            return ok(request)
        members = Members(request.fields)
        registration = Registration(
            cluster=members.required("clusterName"),
            broker_name=members.required("brokerName"),
            broker_id=members.required_int64("brokerId"),
            address=members.required("brokerAddr"),
            ha_address=members.text("haServerAddr", ""),
            zone=members.text(_ZONE_FIELD),
            expiry_ms=members.int64("heartbeatTimeoutMillis"),
            enable_acting_master=members.boolean("enableActingMaster")
            if "enableActingMaster" in request.fields
            else None,
        )
        host, count = caller.peer.rpartition(":")[0], len(body.wrapper.topics)
        waiting = self._registering[host]
        if waiting and count > STEP_TOPICS and waiting + count > REGISTERING_TOPICS_MAX:
            text = (
                f"{waiting} topics of {host} wait to be registered, at most {REGISTERING_TOPICS_MAX}; try again later"
            )
            raise Refusal(ResponseCode.SYSTEM_BUSY, text)
        outcome = self._turns.run(
            self._registered(registration, body, caller), lambda learned: self._answer_registered(request, learned)
        )
        if not isawaitable(outcome):
            return outcome
        self._registering[host] += count
        return self._until_entered(host, count, outcome)

    async def _until_entered(self, host: str, count: int, outcome: Awaitable[Outcome]) -> Outcome:
        try:
            return await outcome
        finally:
            self._registering[host] -= count
            if not self._registering[host]:
                del self._registering[host]

    def _registered(self, registration: Registration, body: RegisterBrokerBody, caller: Caller) -> Steps[Registered]:
        self._warn_of_rival(registration)
        is_new = self.routes.version_of(registration.cluster, registration.address) is None
        with _limited():
            learned = yield from self.routes.register(registration, body, connection=caller.conn, now_ms=self._now_ms())
        if learned is None:
            raise Refusal(ResponseCode.SYSTEM_ERROR, "register broker failed")
        if is_new:
            _log.info(
                "broker registered",
                extra={
                    "cluster": registration.cluster,
                    "broker": registration.broker_name,
                    "id": registration.broker_id,
                }
                | {"address": registration.address, "topics": len(body.wrapper.topics)},
            )
        return learned

    def _warn_of_rival(self, registration: Registration) -> None:
        """Warn, once in a while for each name, of two living brokers that take each other's place.

        One that takes another's place for good, as a broker on a new address or a new master does, is not reported.
        """
        rival = self.routes.rival_of(registration)
        if rival is None:
            return
        place = (registration.broker_name, registration.broker_id)
        takes_back = self._displaced.get(place) == registration.address
        if place not in self._displaced and len(self._displaced) >= RIVALS_MAX:
            self._displaced.clear()
        self._displaced[place] = rival
        now_ms = self._now_ms()
        if not takes_back or now_ms < self._rivals_quiet_until.get(registration.broker_name, now_ms):
            return
        if len(self._rivals_quiet_until) >= RIVALS_MAX:
            self._rivals_quiet_until.clear()
        self._rivals_quiet_until[registration.broker_name] = now_ms + _RIVALS_QUIET_MS
        _log.warning(
            "two brokers with one name and id take each other's routes; give one of them another brokerName",
            extra={
                "broker": registration.broker_name,
                "id": registration.broker_id,
                "address": registration.address,
                "other_address": rival,
            },
        )

    def _answer_registered(self, request: Command, learned: Registered) -> Command:
        fields = {"haServerAddr": learned.ha_address, "masterAddr": learned.master_address}
        return ok(
            request,
            fields={name: value for name, value in fields.items() if value is not None},
            body=self._order_config() if self.settings.return_order_topic_config_to_broker else b"",
        )

    def _order_config(self) -> bytes:
        table = self.kv_config.namespace(ORDER_TOPIC_CONFIG)
        return b"" if table is None else KVTable(table=table).to_json()

    def _unregister_broker(self, request: Command, caller: Caller) -> Outcome | Awaitable[Outcome]:
        members = Members(request.fields)
        members.required_int64("brokerId")
        cluster, address = members.required("clusterName"), members.required("brokerAddr")
        steps = self.routes.unregister(cluster=cluster, broker_name=members.required("brokerName"), address=address)

        def answer(is_known: bool) -> Command:
            if is_known:
                _log.info("broker gone: it unregistered", extra={"cluster": cluster, "address": address})
            return ok(request)

        return self._turns.run(steps, answer)

    def _query_data_version(self, request: Command, caller: Caller, asked: DataVersion) -> Command:
        members = Members(request.fields)
        cluster, address = members.required("clusterName"), members.required("brokerAddr")
        is_changed = self.routes.is_changed(cluster, address, asked)
        self.routes.heard_of(cluster, address, now_ms=self._now_ms())
        known = self.routes.version_of(cluster, address)
        body = b"" if known is None else encode(known.encode(), layout=Layout.COMPACT)
        return ok(request, fields={"changed": flag_text(is_changed)}, body=body)

    def _broker_heartbeat(self, request: Command, caller: Caller) -> Command:
        members = Members(request.fields)
        self.routes.heard_of(members.required("clusterName"), members.required("brokerAddr"), now_ms=self._now_ms())
        return ok(request)

    def _get_broker_member_group(self, request: Command, caller: Caller) -> Command:
        members = Members(request.fields)
        broker_name = members.required("brokerName")
        group = BrokerMemberGroup(
            cluster=members.required("clusterName"),
            broker_name=broker_name,
            broker_addresses=self.routes.members(broker_name),
        )
        return ok(request, body=GetBrokerMemberGroupResponseBody(group=group).to_json())

    def _get_broker_cluster_info(self, request: Command, caller: Caller) -> Outcome | Awaitable[Outcome]:
        return self._turns.run(self.routes.cluster_info(), lambda info: self._listed(request, caller, info))

    def _wipe_write_perm(self, request: Command, caller: Caller) -> Outcome | Awaitable[Outcome]:
        broker_name = Members(request.fields).required("brokerName")

        def answer(count: int) -> Command:
            _log.info("write permission wiped", extra={"broker": broker_name, "peer": caller.peer, "topics": count})
            return ok(request, fields={"wipeTopicCount": str(count)})

        return self._turns.run(self.routes.wipe_write_perm(broker_name), answer)

    def _add_write_perm(self, request: Command, caller: Caller) -> Outcome | Awaitable[Outcome]:
        broker_name = Members(request.fields).required("brokerName")

        def answer(count: int) -> Command:
            _log.info("write permission added", extra={"broker": broker_name, "peer": caller.peer, "topics": count})
            return ok(request, fields={"addTopicCount": str(count)})

        return self._turns.run(self.routes.add_write_perm(broker_name), answer)

    # --- Topics -------------------------------------------------------------------------------------------------------

    def _get_route(self, request: Command, caller: Caller) -> Outcome | Awaitable[Outcome]:
        members = Members(request.fields)
        topic = members.required("topic")
        waited_ms = self._now_ms() - self._started_ms
        if self.settings.need_wait_for_service and waited_ms < self.settings.wait_for_service_seconds * 1000:
            raise Refusal(ResponseCode.SYSTEM_ERROR, "name server not ready")
        order = self.kv_config.get(ORDER_TOPIC_CONFIG, topic) if self.settings.order_message_enable else None
        is_standard = request.version >= STANDARD_JSON_VERSION or members.boolean("acceptStandardJsonOnly")

        def answer(route: TopicRouteData | None) -> Outcome | Awaitable[Outcome]:
            if route is None:
                text = f"No topic route info in name server for the topic: {topic}\n{_FAQ}"
                raise Refusal(ResponseCode.TOPIC_NOT_EXIST, text)
            write = route.to_standard_json if is_standard else route.to_json
            if len(route.broker_datas) <= _ROUTE_INLINE:
                return ok(request, body=write())

            async def later() -> Command:
                return ok(request, body=await caller.apart(write))

            return later()

        # A look-up does not wait for a long registration.
        return self._turns.run(self.routes.route(topic, order_topic_conf=order), answer, ahead=True)

    def _get_all_topics(self, request: Command, caller: Caller) -> Outcome | Awaitable[Outcome]:
        if not self.settings.enable_all_topic_list:
            raise Refusal(ResponseCode.SYSTEM_ERROR, "disable")
        return self._listed(request, caller, TopicList(topics=self.routes.topics()))

    def _get_topics_by_cluster(self, request: Command, caller: Caller) -> Outcome | Awaitable[Outcome]:
        self._check_topic_list()
        cluster = Members(request.fields).required("cluster")
        return self._topics(request, caller, self.routes.topics_of_cluster(cluster))

    def _topics(self, request: Command, caller: Caller, steps: Steps[tuple[str, ...]]) -> Outcome | Awaitable[Outcome]:
        return self._turns.run(steps, lambda topics: self._listed(request, caller, TopicList(topics=topics)))

    def _get_system_topics(self, request: Command, caller: Caller) -> Outcome | Awaitable[Outcome]:
        topics, address = self.routes.system_topics()
        return self._listed(request, caller, TopicList(topics=topics, broker_address=address))

    def _get_unit_topics(self, request: Command, caller: Caller) -> Outcome | Awaitable[Outcome]:
        self._check_topic_list()
        return self._topics(request, caller, self.routes.unit_topics())

    def _get_unit_subscribed_topics(self, request: Command, caller: Caller) -> Outcome | Awaitable[Outcome]:
        self._check_topic_list()
        return self._topics(request, caller, self.routes.unit_subscribed_topics())

    def _get_unit_subscribed_plain_topics(self, request: Command, caller: Caller) -> Outcome | Awaitable[Outcome]:
        self._check_topic_list()
        return self._topics(request, caller, self.routes.unit_subscribed_plain_topics())

    def _check_topic_list(self) -> None:
        if not self.settings.enable_topic_list:
            raise Refusal(ResponseCode.SYSTEM_ERROR, "disable")

    def _register_topic(self, request: Command, caller: Caller, route: TopicRouteData) -> Outcome | Awaitable[Outcome]:
        topic = Members(request.fields).required("topic")

        def register() -> Steps[bool]:
            with _limited():
                return (yield from self.routes.register_topic(topic, route.queue_datas))

        return self._turns.run(register(), lambda _: ok(request))

    def _delete_topic(self, request: Command, caller: Caller) -> Outcome | Awaitable[Outcome]:
        members = Members(request.fields)
        topic, cluster = members.required("topic"), members.text("clusterName") or None
        return self._turns.run(self.routes.delete_topic(topic, cluster=cluster), lambda _: ok(request))

    # --- Keys and settings --------------------------------------------------------------------------------------------

    def _put_kv_config(self, request: Command, caller: Caller) -> Outcome | Awaitable[Outcome]:
        members = Members(request.fields)
        namespace, key = members.required("namespace"), members.required("key")
        with _limited():
            self.kv_config.change(namespace, key, members.required("value"))
        return ok(request) if self.kv_config.is_in_memory else self._written(request)

    async def _written(self, request: Command) -> Command:
        """Answer when the file has the change; changes that come meanwhile are written together."""
        await self._write_kv_config()
        return ok(request)

    def _get_kv_config(self, request: Command, caller: Caller) -> Command:
        members = Members(request.fields)
        namespace, key = members.required("namespace"), members.required("key")
        value = self.kv_config.get(namespace, key)
        if value is None:
            raise Refusal(ResponseCode.QUERY_NOT_FOUND, f"No config item, Namespace: {namespace} Key: {key}")
        return ok(request, fields={"value": value})

    def _delete_kv_config(self, request: Command, caller: Caller) -> Outcome | Awaitable[Outcome]:
        members = Members(request.fields)
        is_changed = self.kv_config.remove(members.required("namespace"), members.required("key"))
        return self._written(request) if is_changed and not self.kv_config.is_in_memory else ok(request)

    def _get_kv_list(self, request: Command, caller: Caller) -> Command:
        namespace = Members(request.fields).required("namespace")
        table = self.kv_config.namespace(namespace)
        if table is None:
            raise Refusal(ResponseCode.QUERY_NOT_FOUND, f"No config item, Namespace: {namespace}")
        return ok(request, body=KVTable(table=table).to_json())

    def _update_config(self, request: Command, caller: Caller) -> Command:
        try:
            check_config_body(request.body)
            self.settings = with_updates(self.settings, parse_properties(request.body))
        except PermissionError as error:
            raise Refusal(ResponseCode.NO_PERMISSION, f"Can not update config in black list: {error}") from error
        self.routes.delete_missing_topics = self.settings.delete_topic_with_broker_registration
        self.routes.support_acting_master = self.settings.support_acting_master
        _log.info("settings changed", extra={"peer": caller.peer})
        return ok(request)

    def _get_config(self, request: Command, caller: Caller) -> Command:
        return ok(request, body=properties_text(self.settings).encode())
