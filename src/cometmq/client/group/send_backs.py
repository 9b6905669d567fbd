"""Gives failed messages back: to their broker, or where that fails into the group's retry topic.

Messages that cannot be sent back are logged as a warning once, until a broker takes one again; DEBUG has each.

Threads: the client's loop. Source: consumption specification 1.10.1.
"""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING, Final

from cometmq.client.group.retry_policy import SEND_BACK_TIMEOUT_MS, is_logical_broker, resend_of, send_back_command
from cometmq.errors import Error
from cometmq.remoting.channel import checked

if TYPE_CHECKING:
    from cometmq._engine import ReceivedMessage
    from cometmq.client.instance.instance import ClientInstance

__all__ = ["SendBacks"]

_UNDER_WAY_MAX: Final = 64
"""How many messages are on their way back at a time: brokers take only so many requests of a client at once."""

_log = logging.getLogger(__name__)


class SendBacks:
    """The way back for messages of one group."""

    def __init__(self, instance: ClientInstance, group: str, *, most: int, unit_mode: bool) -> None:
        """Send nothing yet.

        Args:
            instance: reaches the brokers.
            group: the consumer group, as brokers know it.
            most: how often a message is tried again before it is a dead letter.
            unit_mode: the group's clients are spread over units.
        """
        self._instance = instance
        self._group = group
        self._most = most
        self._unit_mode = unit_mode
        self._room = asyncio.Semaphore(_UNDER_WAY_MAX)
        # Failures that were logged, without a success since: a broker that is gone takes none of thousands.
        self._logged: set[str] = set()

    async def give_back(self, message: ReceivedMessage, delay_level: int) -> bool:
        """Give a message back as :meth:`send_back` does; False, and the log says why, where nobody took it."""
        try:
            await self.send_back(message, delay_level)
        except Error as error:
            self._log_once("group %s: %s could not be sent again: %s", message, error)
            return False
        return True

    async def send_back(self, message: ReceivedMessage, delay_level: int) -> None:
        """Give a message back to its broker; where that does not take it, send it to the group's retry topic.

        Raises:
            Error: that was not acknowledged either; the message may be redelivered all the same.
        """
        async with self._room:
            await self._send_back(message, delay_level)

    async def _send_back(self, message: ReceivedMessage, delay_level: int) -> None:
        broker_name = message.broker_name
        if not is_logical_broker(broker_name):
            command = send_back_command(
                message,
                group=self._group,
                delay_level=delay_level,
                most=self._most,
                unit_mode=self._unit_mode,
                broker_name=broker_name,
            )
            try:
                answer = await self._instance.ask_broker(
                    broker_name, command, timeout_ms=SEND_BACK_TIMEOUT_MS, topic=message.stored_topic
                )
                checked(answer, address=broker_name)
            except Error as error:
                self._log_once("group %s: broker %s did not take %s back: %s", broker_name, message, error)
            else:
                self._logged.clear()
                return
        await self._resend(message)

    async def send_again(self, message: ReceivedMessage) -> bool:
        """Send a message to the group's retry topic; False, and the log says why, where that was not acknowledged."""
        try:
            async with self._room:
                await self._resend(message)
        except Error as error:
            self._log_once("group %s: %s could not be sent again: %s", message, error)
            return False
        return True

    def _log_once(self, text: str, *given: object) -> None:
        _log.log(logging.DEBUG if text in self._logged else logging.WARNING, text, self._group, *given)
        self._logged.add(text)

    async def _resend(self, message: ReceivedMessage) -> None:
        resend = resend_of(message, group=self._group, most=self._most)
        await self._instance.send_inner(
            resend.topic,
            resend.body,
            properties=resend.properties,
            flag=resend.flag,
            timeout_ms=SEND_BACK_TIMEOUT_MS,
        )
