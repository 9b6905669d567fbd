"""Timer messages, as far as requests go: their recall (370), and how far the wheel is (60).

The engine owns the wheel (``csrc/broker/timer/cmq_timer.h``). A recall is a message that deletes: it is parked for
the slot of the message that it recalls, and the engine reads it first when that slot is due.

Threads: the event loop's; storing waits for the disk in an executor.
Source: store specification 9.7, 9.8, remoting specification 2.2; upstream's RecallMessageProcessor.
"""

from __future__ import annotations

import base64
import binascii
import logging
from collections.abc import Callable
from dataclasses import dataclass

from cometmq.broker.plane import DataPlane, OutgoingMessage, put_for
from cometmq.broker.topics import BrokerTopics
from cometmq.errors import Error
from cometmq.remoting.answers import Caller, Refusal, Table, ok
from cometmq.remoting.codes import RequestCode, ResponseCode
from cometmq.remoting.command import Command
from cometmq.remoting.members import Members
from cometmq.store_config.broker_settings import BrokerSettings
from cometmq.store_config.names import may_send_to
from cometmq.store_config.topic_config import Perm

__all__ = ["BrokerTimers", "RecallHandle"]

_log = logging.getLogger("cometmq.broker.timers")

_VERSION = "v1"
_PARTS = 5
_TAG = "_RECALL_TAG_"
_BODY = b"0"
_MS = 1_000


@dataclass(frozen=True, slots=True, kw_only=True)
class RecallHandle:
    """The handle that the answer to a timer's send has.

    Attributes:
        topic: where the message was sent to.
        broker_name: the broker that has it.
        due_ms: when it is due, in ms since 1970.
        unique_id: its ``UNIQ_KEY``.
    """

    topic: str
    broker_name: str
    due_ms: int
    unique_id: str

    @classmethod
    def parse(cls, text: str) -> RecallHandle:
        """Read a handle.

        Raises:
            Refusal: it is invalid; code 604 as upstream answers.
        """
        invalid = Refusal(ResponseCode.ILLEGAL_OPERATION, "recall handle is invalid")
        try:
            padded = text + "=" * (-len(text) % 4)
            parts = base64.b64decode(padded, altchars=b"-_", validate=True).decode().split(" ")
        except (binascii.Error, ValueError) as error:
            raise invalid from error
        if len(parts) < _PARTS or parts[0] != _VERSION:
            raise invalid
        _, topic, broker_name, due, unique_id = parts[:_PARTS]
        # An invalid time was due long ago.
        return cls(
            topic=topic,
            broker_name=broker_name,
            due_ms=int(due) if due.isascii() and due.isdigit() and len(due) < len(str(1 << 63)) else -1,
            unique_id=unique_id,
        )


class BrokerTimers:
    """The requests about one broker's timer messages."""

    def __init__(
        self,
        *,
        topics: BrokerTopics,
        plane: DataPlane,
        settings: Callable[[], BrokerSettings],
        broker_name: str,
        region: str,
        now_ms: Callable[[], int],
    ) -> None:
        """Take what is needed.

        Args:
            topics, plane: the broker's.
            settings: returns the settings as they are now.
            broker_name: the broker's name.
            region: ``MSG_REGION`` of answers.
            now_ms: the wall clock.
        """
        self._topics = topics
        self._plane = plane
        self._settings = settings
        self._broker_name = broker_name
        self._fields = {"MSG_REGION": region}
        self._now_ms = now_ms

    def handlers(self) -> Table:
        """Return what this part serves."""
        return {
            RequestCode.GET_TIMER_CHECK_POINT: self._show_check,
            RequestCode.RECALL_MESSAGE: self._recall,
        }

    def _show_check(self, request: Command, caller: Caller) -> Command:
        check = self._plane.timer_check()
        if check is None:
            raise Refusal(
                ResponseCode.SYSTEM_ERROR, "The timer message store is not enabled, timerWheelEnable is false"
            )
        return ok(request, body=check)

    async def _recall(self, request: Command, caller: Caller) -> Command:
        try:
            message = self._deletion(Members(request.fields), caller)
            await self._store(message, caller)
        except Refusal as refusal:
            return request.response(refusal.code, remark=refusal.remark, fields=self._fields)
        unique_id = message.properties["UNIQ_KEY"]
        _log.info("timer recalled", extra={"topic": message.topic, "id": unique_id})
        return ok(request, fields=self._fields | {"msgId": unique_id})

    def _deletion(self, members: Members, caller: Caller) -> OutgoingMessage:
        """Return the message that deletes; Refusal with upstream's codes and texts."""
        settings = self._settings()
        if not settings.recall_message_enable:
            raise Refusal(ResponseCode.NO_PERMISSION, "recall failed, operation is forbidden")
        is_writable = bool(settings.broker_permission & Perm.WRITE)
        if not is_writable and not settings.allow_recall_when_broker_not_writeable:
            raise Refusal(ResponseCode.SERVICE_NOT_AVAILABLE, "recall failed, broker service not available")
        topic = members.required("topic")
        if not may_send_to(topic):
            raise Refusal(ResponseCode.NO_PERMISSION, f"recall failed, the topic[{topic}] is the broker's own")
        if self._topics.get(topic) is None:
            raise Refusal(ResponseCode.TOPIC_NOT_EXIST, f"recall failed, the topic[{topic}] not exist")
        handle = RecallHandle.parse(members.required("recallHandle"))
        if handle.topic != topic:
            raise Refusal(ResponseCode.ILLEGAL_OPERATION, "recall failed, topic not match")
        if handle.broker_name != self._broker_name:
            raise Refusal(ResponseCode.ILLEGAL_OPERATION, "recall failed, broker service not available")
        now_ms = self._now_ms()
        if not 0 < handle.due_ms - now_ms < settings.timer_max_delay_seconds * _MS:
            raise Refusal(ResponseCode.ILLEGAL_OPERATION, "recall failed, timestamp invalid")
        properties = {
            "TAGS": _TAG,
            "TIMER_DEL_UNIQKEY": f"{topic}+{handle.unique_id}",
            "UNIQ_KEY": handle.unique_id,
            "TIMER_DELIVER_MS": str(handle.due_ms),
            "BORN_TIMESTAMP": str(now_ms),
        }
        group = members.text("producerGroup", "")
        host, _, port = caller.peer.rpartition(":")
        return OutgoingMessage(
            topic=topic,
            queue_id=0,
            body=_BODY,
            properties=properties | ({"PGROUP": group} if group else {}),
            flag=0,
            sys_flag=0,
            born_timestamp_ms=now_ms,
            born_host=(host.strip("[]"), int(port)),
            reconsume_times=0,
        )

    async def _store(self, message: OutgoingMessage, caller: Caller) -> None:
        try:
            await put_for(caller, self._plane, message)
        except Error as error:
            _log.warning("timer not recalled", extra={"topic": message.topic, "error": str(error)})
            raise Refusal(ResponseCode.SYSTEM_ERROR, f"recall failed, execute error: {error.message}") from error
