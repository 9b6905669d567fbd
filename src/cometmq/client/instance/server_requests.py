"""Servers' requests to a client: to share out queues again, to reset offsets, to report on itself.

Replies to requests (326) go to the requests that wait for them, questions about transactions (39) to the producer of
the message's group. Every other code is answered as not supported.

Threads: the loop's. Source: consumption specification 1.15, 1.16; remoting specification 2.3.
"""

from __future__ import annotations

import logging
import sys
import threading
import traceback
from collections.abc import Awaitable, Callable
from dataclasses import replace
from typing import TYPE_CHECKING, TypeAlias

from cometmq.client.instance.namespaces import without_namespace
from cometmq.remoting.bodies.offset_changes import GetConsumerStatusBody, ResetOffsetBody
from cometmq.remoting.bodies.running_info import ConsumerRunningInfo
from cometmq.remoting.codes import RequestCode, ResponseCode
from cometmq.remoting.command import VERSION, Command
from cometmq.remoting.members import Members
from cometmq.remoting.not_supported import not_supported_answer

if TYPE_CHECKING:
    from cometmq._engine import ReceivedMessage
    from cometmq.client.instance.instance import ClientInstance
    from cometmq.client.instance.registrants import ConsumerPart

__all__ = ["RequestHandler", "ServerRequests", "read_message", "thread_dump"]

RequestHandler: TypeAlias = Callable[[str, Command], "Awaitable[Command | None] | Command | None"]
"""Answers a server (address, request); None answers nothing."""

_NAME_SERVERS = "PROP_NAMESERVER_ADDR"
_CONSUME_TYPE = "PROP_CONSUME_TYPE"
_CLIENT_VERSION = "PROP_CLIENT_VERSION"
_VERSION_NAMES = {VERSION: "V5_3_3"}

_log = logging.getLogger(__name__)


class ServerRequests:
    """The answers of one client instance."""

    def __init__(self, instance: ClientInstance) -> None:
        """``instance`` is the one that is asked about."""
        self._instance = instance
        self._handlers: dict[int, RequestHandler] = {
            RequestCode.NOTIFY_CONSUMER_IDS_CHANGED: self._members_changed,
            RequestCode.RESET_CONSUMER_CLIENT_OFFSET: self._reset_offsets,
            RequestCode.GET_CONSUMER_STATUS_FROM_CLIENT: self._offsets,
            RequestCode.GET_CONSUMER_RUNNING_INFO: self._running_info,
            RequestCode.CONSUME_MESSAGE_DIRECTLY: self._consume_directly,
            RequestCode.CHECK_TRANSACTION_STATE: self._check_transaction,
            RequestCode.PUSH_REPLY_MESSAGE_TO_CLIENT: lambda address, command: instance.replies.take(address, command),
        }

    def answer(self, address: str, command: Command) -> Awaitable[Command | None] | Command | None:
        """Return the answer to a request of a server; None for none.

        Raises:
            MalformedCommand, MalformedBody: the request makes no sense.
        """
        handler = self._handlers.get(command.code)
        return not_supported_answer(command) if handler is None else handler(address, command)

    def _members_changed(self, address: str, command: Command) -> None:
        _log.info(
            "%s: %s says that the members of %s changed",
            self._instance.client_id,
            address,
            command.fields.get("consumerGroup"),
        )
        self._instance.wake_rebalance()

    def _reset_offsets(self, address: str, command: Command) -> None:
        members = Members(command.fields)
        group, topic = members.required("group"), members.required("topic")
        offsets = ResetOffsetBody.from_json(command.body).offsets
        part = self._instance.consumers.get(group)
        if part is None:
            _log.warning("%s: %s resets group %s, which is not here", self._instance.client_id, address, group)
            return
        # It rests for seconds in between, and the broker waits for no answer.
        self._instance.spawn(part.reset_offsets(topic, offsets))

    def _offsets(self, address: str, command: Command) -> Command:
        members = Members(command.fields)
        group, topic = members.required("group"), members.required("topic")
        part = self._instance.consumers.get(group)
        offsets = {} if part is None else part.offsets(topic)
        return command.response(ResponseCode.SUCCESS, body=GetConsumerStatusBody(queues=offsets).to_json())

    def _running_info(self, address: str, command: Command) -> Command:
        members = Members(command.fields)
        group = members.required("consumerGroup")
        part = self._instance.consumers.get(group)
        if part is None:
            return _no_group(command, group)
        info = self._completed(part.running_info(), part)
        if members.boolean("jstackEnable"):
            info = replace(info, jstack=thread_dump())
        return command.response(ResponseCode.SUCCESS, body=info.to_json())

    def _completed(self, info: ConsumerRunningInfo, part: ConsumerPart) -> ConsumerRunningInfo:
        """Add what the instance knows."""
        own = {
            _NAME_SERVERS: ";".join(self._instance.name_servers.addresses),
            _CONSUME_TYPE: part.consume_type.name,
            _CLIENT_VERSION: _VERSION_NAMES[VERSION],
        }
        return replace(info, properties={**own, **info.properties})

    def _check_transaction(self, address: str, command: Command) -> None:
        namespace = self._instance.settings.namespace
        message = read_message(command.body, broker_name=command.fields.get("bname"), namespace=namespace)
        group = message.properties.get("PGROUP", "")
        part = self._instance.producers.get(group)
        if part is None:
            _log.warning(
                "%s: %s asks for a transaction of group %s, which is not here", self._instance.client_id, address, group
            )
            return
        self._instance.spawn(part.check_transaction(address, command, message))

    async def _consume_directly(self, address: str, command: Command) -> Command:
        members = Members(command.fields)
        group = members.required("consumerGroup")
        part = self._instance.consumers.get(group)
        if part is None:
            return _no_group(command, group)
        broker_name = members.text("brokerName")
        message = read_message(command.body, broker_name=broker_name, namespace=part.namespace)
        result = await part.consume_directly(message, broker_name)
        return command.response(ResponseCode.SUCCESS, body=result.to_json())


def read_message(body: bytes, *, broker_name: str | None, namespace: str | None = None) -> ReceivedMessage:
    """Return the one stored message that a server sent, with its topic as the user of ``namespace`` calls it.

    Raises:
        CorruptRecord: it is not exactly one.
    """
    from cometmq import _engine
    from cometmq.errors import CorruptRecord

    stored = _engine.decode_messages(body)
    if len(stored) != 1:
        raise CorruptRecord(f"{len(stored)} messages where one belongs")
    messages = _engine.decode_pulled(
        body,
        broker_name=broker_name or "",
        topic=without_namespace(namespace, stored[0].topic),
        queue_id=stored[0].queue_id,
        namespace=namespace,
    ).messages
    if len(messages) != 1:  # an inner batch, or one that cannot be read
        raise CorruptRecord(f"the record holds {len(messages)} messages where one belongs")
    return messages[0]


def _no_group(command: Command, group: str) -> Command:
    return command.response(
        ResponseCode.SYSTEM_ERROR, remark=f"The Consumer Group <{group}> not exist in this consumer"
    )


def thread_dump() -> str:
    """Return where each thread of this process is now, for people."""
    names = {thread.ident: thread.name for thread in threading.enumerate()}
    return "\n".join(
        f"{names.get(ident, ident)}\n{''.join(traceback.format_stack(frame))}"
        for ident, frame in sys._current_frames().items()
    )
