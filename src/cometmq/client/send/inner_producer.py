"""The producer that sends what consumers put back, under the inner group of their client instance."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from cometmq.client.instance.instance import INNER_PRODUCER_GROUP
from cometmq.client.send.outgoing import OutgoingMessage
from cometmq.client.send.producer_settings import ProducerSettings
from cometmq.client.send.send_engine import SendEngine

if TYPE_CHECKING:
    from cometmq.client.instance.instance import ClientInstance

__all__ = ["InnerProducer"]


class InnerProducer:
    """Sends what consumers put back, each message once (:class:`cometmq.client.instance.registrants.InnerSender`)."""

    def __init__(self, instance: ClientInstance) -> None:
        """Send through this instance, under its inner group."""
        settings = ProducerSettings(group=INNER_PRODUCER_GROUP, name_servers=instance.settings.name_servers)
        self._engine = SendEngine(instance, settings)
        self._engine.serve()

    async def send(self, topic: str, body: bytes, *, properties: Mapping[str, str], flag: int, timeout_ms: int) -> None:
        """Send one message with these properties as they are.

        Raises:
            Error: it is not known to be stored.
        """
        rest = dict(properties)
        message = OutgoingMessage(body, rest.pop("TAGS", None), rest.pop("KEYS", None), rest, topic=topic, flag=flag)
        await self._engine.send(message, timeout_ms=timeout_ms)
