"""Requests that the broker passes on to a client, and whose answer it passes back: 307, 309, 223.

The admin's fields and body go on unchanged (309 gets the message and the flags of topic and group besides). A client
that does not answer within 10 s costs code 207; other requests of the admin's connection are served meanwhile.

Threads: the event loop's. Source: consumption specification 1.15, 1.16, remoting specification 2.3; upstream's
Broker2Client and AdminBrokerProcessor.
"""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager

from cometmq._engine import parse_message_id, record_of
from cometmq.broker.groups import BrokerGroups
from cometmq.broker.link import ClientLink
from cometmq.broker.registry import ClientConnection, ConsumerRegistry
from cometmq.broker.topics import BrokerTopics
from cometmq.errors import ConnectionLost, CorruptRecord, MalformedBody, NotFound, OffsetOutOfRange, RequestTimeout
from cometmq.remoting.answers import Caller, Refusal, Table, ok
from cometmq.remoting.bodies.message_queue import MessageQueue
from cometmq.remoting.bodies.offset_changes import GetConsumerStatusBody
from cometmq.remoting.codes import RequestCode, ResponseCode
from cometmq.remoting.command import Command
from cometmq.remoting.members import Members
from cometmq.store.store import Store

__all__ = ["FORWARDED_MAX", "FORWARDED_OF_CALLER_MAX", "FORWARDED_TO_CLIENT_MAX", "ClientForwarding"]

_log = logging.getLogger("cometmq.broker.client_forwarding")

FORWARDED_OF_CALLER_MAX = 16
"""Requests of one connection that wait for members' answers. A member that never answers holds each for 10 s."""
FORWARDED_TO_CLIENT_MAX = 64
"""Requests that wait for one member's answer."""
FORWARDED_MAX = 1_000
"""All of them."""

_ANSWER_MS = 10_000
_STATUS_MS = 5_000
_VERSION_WITH_CALLS = 62
"""V3_1_8_SNAPSHOT: from there on clients take 307 and 309."""
_VERSION_WITH_STATUS = 28
"""V3_0_7_SNAPSHOT: from there on they take 221."""


class ClientForwarding:
    """Passes requests on."""

    def __init__(
        self,
        *,
        consumers: ConsumerRegistry,
        topics: BrokerTopics,
        groups: BrokerGroups,
        store: Store,
        link: ClientLink,
        broker_name: str,
    ) -> None:
        """Take what is needed."""
        self._consumers = consumers
        self._topics = topics
        self._groups = groups
        self._store = store
        self._link = link
        self._broker_name = broker_name
        self._askers: Counter[int] = Counter()
        self._asked: Counter[int] = Counter()

    def handlers(self) -> Table:
        """Return what this part serves."""
        return {
            RequestCode.GET_CONSUMER_RUNNING_INFO: self._running_info,
            RequestCode.CONSUME_MESSAGE_DIRECTLY: self._consume,
            RequestCode.INVOKE_BROKER_TO_GET_CONSUMER_STATUS: self._status,
        }

    async def _running_info(self, request: Command, caller: Caller) -> Command:
        members = Members(request.fields)
        group, client_id = members.required("consumerGroup"), members.required("clientId")
        return await self._pass_on(request, caller, group, client_id, request.fields, request.body)

    async def _consume(self, request: Command, caller: Caller) -> Command:
        members = Members(request.fields)
        group, message_id = members.required("consumerGroup"), members.required("msgId")
        client_id = members.text("clientId", "")
        # Refuse a client that is not connected before the log is read.
        self._member(group, client_id)
        fields = {**request.fields, "brokerName": self._broker_name}
        topic = self._topics.get(members.text("topic", ""))
        if topic is not None:
            fields["topicSysFlag"] = str(topic.topic_sys_flag)
        config = self._groups.get(group)
        if config is not None:
            fields["groupSysFlag"] = str(config.group_sys_flag)
        body = await caller.apart(lambda: self._message(message_id))
        return await self._pass_on(request, caller, group, client_id, fields, body)

    def _message(self, message_id: str) -> bytes:
        _, offset = parse_message_id(message_id)
        try:
            return record_of(self._store.get_physical(offset))
        except (NotFound, OffsetOutOfRange, CorruptRecord) as error:
            raise Refusal(ResponseCode.SYSTEM_ERROR, f"there is no message {message_id}") from error

    def _member(self, group: str, client_id: str) -> ClientConnection:
        online = self._consumers.get(group)
        member = None if online is None else online.find(client_id)
        if member is None:
            raise Refusal(ResponseCode.SYSTEM_ERROR, f"The Consumer <{group}> <{client_id}> not online")
        if member.version < _VERSION_WITH_CALLS:
            text = f"The Consumer <{client_id}> Version <{member.version}> too low to finish, please upgrade it"
            raise Refusal(ResponseCode.SYSTEM_ERROR, f"{text} to V3_1_8_SNAPSHOT")
        return member

    @contextmanager
    def _asking(self, caller: Caller, members: Sequence[ClientConnection]) -> Iterator[None]:
        """Count requests to members while the block runs; refuse those beyond a limit."""
        if self._askers[caller.conn] >= FORWARDED_OF_CALLER_MAX:
            text = f"{FORWARDED_OF_CALLER_MAX} requests of this connection wait for answers of clients"
            raise Refusal(ResponseCode.SYSTEM_BUSY, f"[OVERLOAD]system busy: {text}")
        if self._asked.total() + len(members) > FORWARDED_MAX:
            raise Refusal(ResponseCode.SYSTEM_BUSY, f"[OVERLOAD]system busy: clients are asked {FORWARDED_MAX} things")
        for member in members:
            if self._asked[member.conn] >= FORWARDED_TO_CLIENT_MAX:
                text = f"{FORWARDED_TO_CLIENT_MAX} requests wait for an answer of client <{member.client_id}>"
                raise Refusal(ResponseCode.SYSTEM_BUSY, f"[OVERLOAD]system busy: {text}")
        conns = [member.conn for member in members]
        self._askers[caller.conn] += 1
        self._asked.update(conns)
        try:
            yield
        finally:
            for counts, done in ((self._askers, [caller.conn]), (self._asked, conns)):
                counts.subtract(done)
                for conn in done:
                    if not counts[conn]:
                        del counts[conn]

    async def _pass_on(
        self, request: Command, caller: Caller, group: str, client_id: str, fields: Mapping[str, str], body: bytes
    ) -> Command:
        member = self._member(group, client_id)
        passed = Command(code=request.code, fields=fields, body=body)
        try:
            with self._asking(caller, (member,)):
                answer = await self._link.invoke(member.conn, passed, timeout_ms=_ANSWER_MS)
        except RequestTimeout as error:
            text = f"consumer <{group}> <{client_id}> Timeout: {error.message}"
            raise Refusal(ResponseCode.CONSUME_MSG_TIMEOUT, text) from error
        except ConnectionLost as error:
            text = f"invoke consumer <{group}> <{client_id}> Exception: {error.message}"
            raise Refusal(ResponseCode.SYSTEM_ERROR, text) from error
        return request.response(answer.code, remark=answer.remark, fields=dict(answer.fields), body=answer.body)

    # --- 223: where the members of a group are

    async def _status(self, request: Command, caller: Caller) -> Command:
        members = Members(request.fields)
        topic, group = members.required("topic"), members.required("group")
        wanted = members.text("clientAddr", "").strip()
        online = self._consumers.get(group)
        if online is None:
            text = f"No Any Consumer online in the consumer group: [{group}]"
            raise Refusal(ResponseCode.SYSTEM_ERROR, text)
        asked = [member for member in online.members.values() if wanted in ("", member.client_id)]
        for member in asked:
            if member.version < _VERSION_WITH_STATUS:
                text = f"the client does not support this feature. version={member.version}"
                raise Refusal(ResponseCode.SYSTEM_ERROR, text)
        with self._asking(caller, asked):
            tables = await asyncio.gather(*(self._ask(member, topic, group, caller) for member in asked))
        found = {member.client_id: table for member, table in zip(asked, tables, strict=True) if table is not None}
        return ok(request, body=await caller.apart(GetConsumerStatusBody(clients=found).to_json))

    async def _ask(
        self, member: ClientConnection, topic: str, group: str, caller: Caller
    ) -> Mapping[MessageQueue, int] | None:
        """Ask one member; None where it does not answer, which is only logged, as upstream does."""
        fields = {"topic": topic, "group": group}
        question = Command(code=RequestCode.GET_CONSUMER_STATUS_FROM_CLIENT, fields=fields)
        try:
            answer = await self._link.invoke(member.conn, question, timeout_ms=_STATUS_MS)
            if answer.code != ResponseCode.SUCCESS or not answer.body:
                return None
            return await caller.apart(lambda: GetConsumerStatusBody.from_request(answer.body).queues)
        except (RequestTimeout, ConnectionLost, MalformedBody) as error:
            _log.warning(
                "member has not said where it is",
                extra={"group": group, "client": member.client_id, "error": str(error)},
            )
            return None
