"""Sends that the loops hand over: to a topic that is not there yet, and to a group's retry topic.

The first kind makes the topic and goes back to its loop. The second goes back, too, unless it is a message given up:
that is stored among the dead letters here, and answered as its send.

Threads: the event loop's. Source: consumption specification 3.7.2, 3.9; upstream's SendMessageProcessor.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping

from cometmq._engine import decode_properties
from cometmq.broker.groups import BrokerGroups
from cometmq.broker.locks import QueueLocks
from cometmq.broker.plane import DataPlane, OutgoingMessage, put_for
from cometmq.broker.send_back import DLQ_QUEUES, Route, effective_maximum, route_retry_send
from cometmq.broker.topics import BrokerTopics
from cometmq.errors import Error, InvalidArgument, InvalidTopic, MessageTooLarge, StorageError, StoreClosed
from cometmq.remoting.answers import Caller, Outcome, Refusal, Table
from cometmq.remoting.codes import RequestCode, ResponseCode
from cometmq.remoting.command import Command
from cometmq.remoting.members import Members
from cometmq.remoting.properties import PROPERTIES_BYTES_MAX
from cometmq.remoting.server import AGAIN
from cometmq.store_config.names import RETRY_PREFIX

__all__ = ["Sends", "check_size", "members_of_send", "not_stored"]

_log = logging.getLogger("cometmq.broker.sends")

# Short name of each member in codes 310, 320 and 325, by its long name in codes 10 and 324.
_SHORT = {
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
_LONG_CODES = (RequestCode.SEND_MESSAGE, RequestCode.SEND_REPLY_MESSAGE)

_TRANSACTION_MASK = 0xC


def members_of_send(request: Command) -> Members:
    """Return the members of a send or a reply under their long names."""
    if request.code in _LONG_CODES:
        return Members(request.fields)
    fields = request.fields
    return Members({name: fields[short] for name, short in _SHORT.items() if short in fields})


def check_size(*, body_bytes: int, properties_bytes: int, body_bytes_max: int) -> None:
    """Refuse a message that no record can hold, as the loops do.

    Raises:
        Refusal: body or properties are too long.
    """
    if body_bytes > body_bytes_max or properties_bytes > PROPERTIES_BYTES_MAX:
        raise Refusal(
            ResponseCode.MESSAGE_ILLEGAL,
            "the message is illegal, maybe msg body or properties length not matched. "
            f"msg body length limit {body_bytes_max}B, msg properties length limit 32KB.",
        )


class Sends:
    """Serves codes 10, 310 and 320 where the loops cannot."""

    def __init__(
        self,
        *,
        topics: BrokerTopics,
        groups: BrokerGroups,
        locks: QueueLocks,
        plane: DataPlane,
        answer_fields: Mapping[str, str],
        properties: Mapping[str, str],
        body_bytes_max: int,
        broker_ip: str,
    ) -> None:
        """Take what is needed.

        Args:
            topics, groups, locks, plane: the broker's.
            answer_fields: ``MSG_REGION`` and ``TRACE_ON``, which every answer to a send carries.
            properties: the properties that the broker adds to every message.
            body_bytes_max: largest body.
            broker_ip: for the text of a refusal.
        """
        self._topics = topics
        self._groups = groups
        self._locks = locks
        self._plane = plane
        self._answer_fields = dict(answer_fields)
        self._properties = dict(properties)
        self._added_bytes = sum(len(f"{name} {value} ".encode()) for name, value in properties.items())
        self._body_bytes_max = body_bytes_max
        self._broker_ip = broker_ip

    def handlers(self) -> Table:
        """Return what this part serves."""
        return {
            RequestCode.SEND_MESSAGE: self._send,
            RequestCode.SEND_MESSAGE_V2: self._send,
            RequestCode.SEND_BATCH_MESSAGE: self._send,
        }

    async def _send(self, request: Command, caller: Caller) -> Outcome:
        try:
            topic = await self._topics.make_for_request(request)
            if not topic.topic_name.startswith(RETRY_PREFIX) or request.code == RequestCode.SEND_BATCH_MESSAGE:
                return AGAIN
            route = await self._route(request, topic.topic_name)
            return await self._give_up(request, caller, route) if route.is_dead else AGAIN
        except Refusal as refusal:
            # A client reads these fields of a failed send, too.
            return request.response(refusal.code, remark=refusal.remark, fields=self._answer_fields)

    async def _route(self, request: Command, topic: str) -> Route:
        name = topic.removeprefix(RETRY_PREFIX)
        group = await self._groups.require(name)
        members = members_of_send(request)
        return route_retry_send(
            topic,
            reconsume_times=members.int32("reconsumeTimes", 0),
            times_max=effective_maximum(request, members, group),
            is_group_locked=self._locks.is_group_locked(name),
        )

    async def _give_up(self, request: Command, caller: Caller, route: Route) -> Command:
        members = members_of_send(request)
        sent, sys_flag = members.text("properties", "").encode("utf-8"), members.required_int32("sysFlag")
        properties = decode_properties(sent)
        self._check(len(request.body), len(sent), sys_flag, properties)
        try:
            await self._topics.make_for_group(route.topic, queues=DLQ_QUEUES)
        except InvalidTopic as error:
            raise Refusal(ResponseCode.SYSTEM_ERROR, error.message) from error
        properties["DELAY"] = "-1"
        host, _, port = caller.peer.rpartition(":")
        message = OutgoingMessage(
            topic=route.topic,
            queue_id=0,
            body=request.body,
            properties=properties | self._properties,
            flag=members.required_int32("flag"),
            sys_flag=sys_flag,
            born_timestamp_ms=members.required_int64("bornTimestamp"),
            born_host=(host.strip("[]"), int(port)),
            reconsume_times=members.int32("reconsumeTimes", 0),
        )
        try:
            place = await put_for(caller, self._plane, message)
        except Error as error:
            raise not_stored(error) from error
        _log.info("message given up", extra={"group": route.topic, "id": place.message_id})
        fields = self._answer_fields | {
            "msgId": place.message_id,
            "queueId": "0",
            "queueOffset": str(place.queue_offset),
        }
        unique = properties.get("UNIQ_KEY")
        if unique:
            fields["transactionId"] = unique
        return request.response(ResponseCode.SUCCESS, fields=fields)

    def _check(self, body_bytes: int, properties_bytes: int, sys_flag: int, properties: Mapping[str, str]) -> None:
        """Refuse what the loops refuse of any send (``may_carry`` in ``cmq_send.c``): nobody would ever see it."""
        check_size(
            body_bytes=body_bytes,
            properties_bytes=properties_bytes + 1 + self._added_bytes,
            body_bytes_max=self._body_bytes_max,
        )
        if properties.get("TRAN_MSG", "").lower() == "true" or sys_flag & _TRANSACTION_MASK:
            text = f"the broker[{self._broker_ip}] sending transaction message is forbidden"
            raise Refusal(ResponseCode.NO_PERMISSION, text)


def not_stored(error: Error) -> Refusal:
    """Return the refusal of a message that the store did not take."""
    if isinstance(error, MessageTooLarge | InvalidArgument):
        return Refusal(ResponseCode.MESSAGE_ILLEGAL, error.message)
    if isinstance(error, StorageError | StoreClosed):
        return Refusal(ResponseCode.SERVICE_NOT_AVAILABLE, f"service not available now. {error.message}")
    return Refusal(ResponseCode.SYSTEM_ERROR, error.message)
