"""The producer behind upstream's message trace: it sends what a dispatcher has gathered, and is not traced itself.

Source: consumption specification 1.17.
"""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Callable
from typing import TYPE_CHECKING

from cometmq.client.send.producer_settings import ProducerSettings
from cometmq.client.send.send_engine import SendEngine
from cometmq.client.trace.trace import TraceDispatcher

if TYPE_CHECKING:
    from cometmq.client.instance.instance import NetworkFactory
    from cometmq.client.settings import ClientSettings

__all__ = ["Tracing"]

_TRACE_BYTES_MAX = 512_000  # of 128,000 characters
_trace_numbers = itertools.count()


class Tracing:
    """The message trace of one producer or consumer: a dispatcher, and a producer of its own.

    Attributes:
        dispatcher: takes the records.
    """

    def __init__(self, engine: SendEngine, dispatcher: TraceDispatcher) -> None:
        """Keep both; :meth:`open` makes them."""
        self._engine = engine
        self.dispatcher = dispatcher

    @classmethod
    async def open(
        cls,
        settings: ClientSettings,
        *,
        group: str,
        role: str,
        network_factory: NetworkFactory | None = None,
        now_ms: Callable[[], int] | None = None,
    ) -> Tracing:
        """Start it on the running loop.

        Args:
            settings: those of the client that is traced.
            group: its group.
            role: ``PRODUCE`` or ``CONSUME``.
            network_factory, now_ms: as :meth:`ClientInstance.shared`.

        Raises:
            Error: as :meth:`SendEngine.open`.
        """
        own = ProducerSettings(
            group=f"_INNER_TRACE_PRODUCER-{group}-{role}-{next(_trace_numbers)}",
            name_servers=settings.name_servers,
            name_server_domain=settings.name_server_domain,
            name_server_subgroup=settings.name_server_subgroup,
            client_ip=settings.client_ip,
            instance_name="PID_CLIENT_INNER_TRACE_PRODUCER_" + ";".join(settings.name_servers),
            vip_channel_enabled=settings.vip_channel_enabled,
            header_format=settings.header_format,
            rpc_hooks=settings.rpc_hooks,
            send_msg_timeout_ms=5_000,
            max_message_size_bytes=_TRACE_BYTES_MAX,
        )
        engine = await SendEngine.open(own, network_factory=network_factory, now_ms=now_ms)
        dispatcher = TraceDispatcher(
            engine,
            asyncio.get_running_loop(),
            trace_topic=settings.trace_topic,
            batch=settings.trace_message_batch_num,
        )
        return cls(engine, dispatcher)

    async def close(self, *, timeout_ms: int | None = None) -> None:
        """Send what waits, and leave; ``timeout_ms`` as :meth:`SendEngine.close`."""
        self.dispatcher.flush()
        await self._engine.close(timeout_ms=timeout_ms)
