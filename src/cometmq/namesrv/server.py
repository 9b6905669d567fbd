"""A name server that listens: the handlers behind the engine's sockets, and the look for silent brokers.

>>> with NamesrvServer(NamesrvSettings(listen_port=0)) as server:  # doctest: +SKIP
...     print(server.address)

Threads: the handlers run on one event loop, in a thread of the server's own or where the caller wants them;
:meth:`NamesrvServer.start` and :meth:`NamesrvServer.stop` may be called from any thread but that one.
"""

from __future__ import annotations

import asyncio
import logging
import threading
import time
from pathlib import Path
from types import TracebackType

from cometmq.namesrv.handlers import NameServer
from cometmq.namesrv.kv_config import KVConfig
from cometmq.namesrv.settings import NamesrvSettings
from cometmq.remoting.addresses import check_listen_host, host_port, listen_host
from cometmq.remoting.server import RemotingServer, ServerLimits

__all__ = ["NamesrvServer"]

_log = logging.getLogger("cometmq.namesrv")


def _monotonic_ms() -> int:
    return time.monotonic_ns() // 1_000_000


class NamesrvServer:
    """One name server with its socket."""

    def __init__(self, settings: NamesrvSettings | None = None, *, insecure_listen: bool = False) -> None:
        """Listen; nothing is served before :meth:`start`.

        Args:
            settings: how it behaves; None for the defaults.
            insecure_listen: allow an address that is not the loopback: anyone who reaches it can change all routes.

        Raises:
            InvalidArgument: the address cannot be used, or is not the loopback.
            CannotListen: the port is taken.
            ConfigError: ``kvConfig.json`` cannot be read, and neither can its ``.bak``.
        """
        self._settings = settings if settings is not None else NamesrvSettings()
        self._host = listen_host(self._settings.bind_address)
        check_listen_host(self._host, insecure_listen=insecure_listen, danger="change all routes")
        path = self._settings.kv_config_path
        kv_config = KVConfig(None if path is None else Path(path))
        if path is not None:
            warning = kv_config.load().warning
            if warning is not None:
                _log.warning("%s", warning)
        self._name_server = NameServer(self._settings, kv_config, now_ms=_monotonic_ms)
        self._remoting = RemotingServer(
            [host_port(self._host, self._settings.listen_port)],
            limits=ServerLimits(idle_ms=self._settings.server_channel_max_idle_time_seconds * 1000),
        )
        self._port = self._remoting.ports[0]
        self._life = threading.Lock()
        self._is_running = False
        self._timer: asyncio.TimerHandle | None = None  # the event loop's

    @property
    def port(self) -> int:
        """The port that it listens on."""
        return self._port

    @property
    def address(self) -> str:
        """The address for clients, ``host:port``."""
        return host_port(self._host, self.port)

    @property
    def name_server(self) -> NameServer:
        """The state that it answers from. For the thread of its event loop alone."""
        return self._name_server

    def counters(self) -> dict[str, int]:
        """Return the sockets' totals, and how many brokers and topics there are."""
        routes = self._name_server.routes
        return {**self._remoting.counters(), "brokers": routes.broker_count, "topics": routes.topic_count}

    def start(self, *, loop: asyncio.AbstractEventLoop | None = None) -> None:
        """Begin to serve. ``loop``: where the handlers run; None for a thread of the server's own."""
        self._is_running = True
        self._remoting.on_closed(self._name_server.connection_closed)
        self._remoting.start(self._name_server.table(), loop=loop)
        self._remoting.loop.call_soon_threadsafe(self._look_again)
        _log.info("name server started", extra={"address": self.address})

    def _look_again(self) -> None:
        if not self._is_running:
            return
        delay_s = self._name_server.settings.scan_not_active_broker_interval_ms / 1000
        self._timer = self._remoting.loop.call_later(delay_s, self._look)

    def _look(self) -> None:
        try:
            self._name_server.expire(self._remoting.close_connection)
        except Exception:  # noqa: BLE001 - the next look comes all the same
            _log.exception("the look for silent brokers failed")
        finally:
            self._look_again()

    def stop(self) -> None:
        """Take no more requests, finish what is under way, close. Stopping twice is fine."""
        with self._life:
            was_running, self._is_running = self._is_running, False
            if was_running:
                self._remoting.loop.call_soon_threadsafe(self._look_no_more)
            self._remoting.stop(grace_ms=self._settings.shutdown_wait_time_seconds * 1000)
        if was_running:
            _log.info("name server stopped", extra={"address": self.address})

    def _look_no_more(self) -> None:
        if self._timer is not None:
            self._timer.cancel()

    def __enter__(self) -> NamesrvServer:
        """Start."""
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Stop."""
        self.stop()
