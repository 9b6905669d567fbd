"""Where tests take place: a name server, brokers as they are asked for, and the official Java client if wanted."""

from __future__ import annotations

import contextlib
import enum
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import cometmq.admin
from cometmq.admin import BrokerStatus
from cometmq.errors import ConnectionLost, NotFound, RequestTimeout
from interop.java_client import Client, Headers
from interop.processes import PEER_VERSION, START_LIMIT_S
from interop.servers import Broker, NameServer, OurBroker, OurNameServer, StoreSizes
from interop.waiting import eventually


class Maker(enum.Enum):
    """The maker of the serving program."""

    JAVA = "java"
    OURS = "ours"


@dataclass(frozen=True, slots=True)
class Landscape:
    """The programs of a test: makers of name server and broker, upstream's version, the client's and its headers."""

    namesrv: Maker = Maker.JAVA
    broker: Maker = Maker.JAVA
    version: str = PEER_VERSION
    headers: Headers = Headers.JSON
    server_version: str = PEER_VERSION

    def __str__(self) -> str:
        servers = "" if self.server_version == PEER_VERSION else f"-on-{self.server_version}"
        return f"{self.namesrv.value}-{self.broker.value}-{self.version}-{self.headers.value}{servers}"


SHARED_SIZES = StoreSizes(commit_log_bytes=16 << 20)
SHARED_SETTINGS: Mapping[str, object] = {
    "messageDelayLevel": "1s 2s " + " ".join(["1s"] * 16),
    "flushDelayOffsetInterval": 1000,
    # Without its timers, upstream cannot delete a topic.
    "timerWheelEnable": "true",
    "transactionCheckInterval": 1000,
    "transactionTimeOut": 1000,
}
"""A retried message comes back after a second, on level 3 and higher; level 2 is the one that takes longer."""


class Site:
    """A name server, and brokers as tests ask for them; leaving the context ends all. Needs no Java for ours."""

    def __init__(self, home: Path, landscape: Landscape = Landscape()) -> None:
        self.landscape = landscape
        self._home = home
        self._brokers: list[Broker] = []
        self._shared: Broker | None = None
        self.namesrv = self._new_name_server("namesrv")
        self.namesrv.start()

    def __enter__(self) -> Site:
        return self

    def __exit__(self, *_: object) -> None:
        self.kill_brokers()
        if self._shared is not None:
            self._shared.kill()
        self.namesrv.stop()

    def kill_brokers(self) -> None:
        """Ends what a test left running, so that the next one does not share the machine with it."""
        for broker in self._brokers:
            broker.kill()
        self._brokers.clear()

    def _new_name_server(self, name: str) -> NameServer | OurNameServer:
        if self.landscape.namesrv is Maker.OURS:
            return OurNameServer(self._home / name)
        return NameServer(self._home / name, version=self.landscape.server_version)

    @contextlib.contextmanager
    def another_name_server(self, name: str) -> Iterator[NameServer | OurNameServer]:
        """A second one beside the site's own, of the same maker."""
        started = self._new_name_server(name)
        started.start()
        try:
            yield started
        finally:
            started.stop()

    def _new_broker(
        self, maker: Maker, store: Path, version: str, sizes: StoreSizes, flush: str, settings: Mapping[str, object],
        name: str,
    ) -> Broker:  # fmt: skip
        home = self._home / f"broker-{len(list(self._home.glob('broker-*')))}"
        # Made now, so that the next one gets another number even when this one never starts.
        home.mkdir(parents=True)
        kind = Broker if maker is Maker.JAVA else OurBroker
        return kind(store, home, self.namesrv.address, version, sizes, flush, settings, name)

    @property
    def shared_broker(self) -> Broker:
        """The landscape's broker for tests that need none of their own: each has its own topics and groups in it."""
        if self._shared is None:
            broker = self._new_broker(
                self.landscape.broker,
                self._home / "shared-store",
                self.landscape.server_version,
                SHARED_SIZES,
                "ASYNC_FLUSH",
                SHARED_SETTINGS,
                "shared",
            )
            broker.start()
            self._shared = broker
            self.await_broker(broker)
        return self._shared

    def end_shared_broker(self) -> None:
        """Stop it, so that the name server knows it no longer; the next request for it starts it again."""
        if self._shared is not None:
            self._shared.stop()
            self._shared = None

    @contextlib.contextmanager
    def broker(
        self,
        store: Path,
        *,
        maker: Maker | None = None,
        name: str = "broker-a",
        version: str | None = None,
        sizes: StoreSizes | None = None,
        flush: str = "ASYNC_FLUSH",
        settings: Mapping[str, object] | None = None,
    ) -> Iterator[Broker]:
        """A running broker over ``store``, known to the name server; stopped cleanly at the end unless killed.

        It is the landscape's unless ``maker`` and ``version`` say whose.
        """
        version = version or self.landscape.server_version
        broker = self._new_broker(
            maker or self.landscape.broker, store, version, sizes or StoreSizes(), flush, settings or {}, name
        )
        self._brokers.append(broker)
        broker.start()
        try:
            self.await_broker(broker)
            yield broker
            broker.stop()
        finally:
            broker.kill()

    def await_broker(self, broker: Broker, *, name_server: str | None = None) -> None:
        """Returns when a name server, the site's own where no other is named, knows the broker and it answers.

        A Java broker that starts on an existing store often misses its first registration, because its connection to
        the name server is not up yet, and tries again ten seconds later. A change of its permission makes it register
        at once. And it cannot say how it is before it has counted for a second.
        """
        with (
            cometmq.admin.connect(namesrv=name_server or self.namesrv.address) as admin,
            cometmq.admin.connect(broker=broker.address) as at_broker,
        ):

            def is_registered() -> bool:
                with contextlib.suppress(NotFound):
                    return any(ref.address == broker.address for ref in admin.cluster.brokers())
                return False

            def is_ready() -> bool:
                (status,) = at_broker.cluster.status()
                if not isinstance(status, BrokerStatus):
                    return False
                if is_registered():
                    return True
                with contextlib.suppress(ConnectionLost, RequestTimeout):  # it still starts, on a busy machine for long
                    at_broker.cluster.set_broker_config({"brokerPermission": "6"})
                return is_registered()

            eventually(is_ready, limit_s=START_LIMIT_S, step_s=0.1)


class Peer(Site):
    """The same with the official Java client beside it."""

    def __init__(self, home: Path, landscape: Landscape = Landscape()) -> None:
        super().__init__(home, landscape)
        try:
            self.client = Client(
                home / "client", self.namesrv.address, version=landscape.version, headers=landscape.headers
            )
        except BaseException:
            self.namesrv.stop()
            raise

    def __enter__(self) -> Peer:
        return self

    def __exit__(self, *_: object) -> None:
        self.client.close()
        super().__exit__()
