"""Name servers and brokers as peers of our tests: upstream's in child JVMs, and ours, behind one surface.

Everything listens on 127.0.0.1 with ports that were free a moment before; everything written goes to the directory that
the caller names. Heap sizes and thread pools are kept small: a broker takes about 250 MB, the name server 150 MB.
"""

from __future__ import annotations

import contextlib
import random
import re
import socket
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import ClassVar

from interop.processes import PEER_VERSION, POLL_STEP_S, START_LIMIT_S, Child, Jvm, OurProgram, PeerFailed


def free_ports(*offsets: int) -> int:
    """A port that is free with its neighbours at ``offsets``, below the range that clients get ports from."""
    chooser = random.SystemRandom()
    for _ in range(200):
        port = chooser.randrange(20_000, 32_000)
        with contextlib.ExitStack() as sockets:
            try:
                for offset in (0, *offsets):
                    probe = sockets.enter_context(socket.socket(socket.AF_INET, socket.SOCK_STREAM))
                    probe.bind(("127.0.0.1", port + offset))
            except OSError:
                continue
            return port
    raise PeerFailed("no free port found in 200 tries")


class NameServer:
    """An upstream name server, for as many brokers after each other as the tests like."""

    def __init__(self, home: Path, *, version: str = PEER_VERSION) -> None:
        home.mkdir(parents=True, exist_ok=True)
        self._jvm = Jvm("namesrv", home, version=version, heap_mb=64)
        self._home = home
        self._port = 0
        self.address = ""

    def start(self) -> None:
        """Starts it; on the same port, where it was started before."""
        port = self._port = self._port or free_ports()
        settings = self._home / "namesrv.properties"
        settings.write_text(f"listenPort={port}\nbindAddress=127.0.0.1\n")
        written = self._jvm.out.stat().st_size if self._jvm.out.exists() else 0
        self._jvm.start("org.apache.rocketmq.namesrv.NamesrvStartup", "-c", str(settings))
        self._jvm.wait_for_output("boot success", since=written)
        self.address = f"127.0.0.1:{port}"

    def stop(self) -> None:
        # It holds nothing that is worth a clean end.
        self._jvm.kill()


class OurNameServer:
    """CometMQ's name server, as a process."""

    def __init__(self, home: Path) -> None:
        self._program = OurProgram("namesrv", home)
        self._port = 0
        self.address = ""

    def start(self) -> None:
        """As :meth:`NameServer.start`."""
        port = self._port = self._port or free_ports()
        self.address = f"127.0.0.1:{port}"
        self._program.start("namesrv", "--listen", self.address)
        self._program.wait_for_port(port)

    def stop(self) -> None:
        self._program.stop()


@dataclass(frozen=True, slots=True)
class StoreSizes:
    """Lengths of the store's files, as in the golden stores: small, so that a test crosses their seams."""

    commit_log_bytes: int = 1 << 20
    consume_queue_units: int = 3000
    index_slots: int = 1000
    index_entries: int = 4000

    def properties(self) -> dict[str, object]:
        unit_bytes = 20
        return {
            "mappedFileSizeCommitLog": self.commit_log_bytes,
            "mapedFileSizeCommitLog": self.commit_log_bytes,
            "mappedFileSizeConsumeQueue": self.consume_queue_units * unit_bytes,
            "mapedFileSizeConsumeQueue": self.consume_queue_units * unit_bytes,
            "maxHashSlotNum": self.index_slots,
            "maxIndexNum": self.index_entries,
            "mappedFileSizeTimerLog": 1 << 20,
        }


@dataclass(slots=True)
class Broker:
    """An upstream broker over ``store``. May be started again after ``stop`` or ``kill``, on the same port.

    Its file lengths must be those of the store: upstream refuses a directory whose files have other lengths.
    ``settings`` are added to, or replace, what is written into ``home/broker.properties``.
    """

    store: Path
    home: Path
    namesrv: str
    version: str = PEER_VERSION
    sizes: StoreSizes = StoreSizes()
    flush: str = "ASYNC_FLUSH"
    settings: Mapping[str, object] = field(default_factory=dict)
    name: str = "broker-a"
    _port: int = 0
    _process: Child | None = None
    _PORT_TAKEN: ClassVar[str] = "BindException"

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self._port}"

    def properties(self) -> dict[str, object]:
        return {
            "brokerClusterName": "DefaultCluster",
            "brokerName": self.name,
            "brokerId": 0,
            "brokerIP1": "127.0.0.1",
            "brokerIP2": "127.0.0.1",
            "bindAddress": "127.0.0.1",
            "namesrvAddr": self.namesrv,
            "listenPort": self._port,
            "haListenPort": self._port + 1,
            "storePathRootDir": self.store,
            "storePathCommitLog": self.store / "commitlog",
            **self.sizes.properties(),
            "flushDiskType": self.flush,
            "brokerRole": "ASYNC_MASTER",
            "autoCreateTopicEnable": "true",
            "autoCreateSubscriptionGroup": "true",
            "defaultTopicQueueNums": 4,
            "timerWheelEnable": "false",
            "flushConsumerOffsetInterval": 1000,
            # A machine that is busy or almost full must not change what a test sees.
            "brokerFastFailureEnable": "false",
            "osPageCacheBusyTimeOutMills": 60_000,
            "diskMaxUsedSpaceRatio": 99,
            "diskSpaceCleanForciblyRatio": 99,
            "diskSpaceWarningLevelRatio": 99,
            **{
                f"{pool}ThreadPoolNums": 2
                for pool in (
                    "sendMessage", "putMessageFuture", "pullMessage", "litePullMessage", "ackMessage", "queryMessage",
                    "processReplyMessage", "adminBroker", "clientManage", "consumerManage", "loadBalanceProcessor",
                    "endTransaction", "recover",
                )
            },
            **self.settings,
        }  # fmt: skip

    def start(self) -> None:
        """Starts it and waits until it has recovered the store and listens. Raises PeerFailed when it refuses."""
        self.home.mkdir(parents=True, exist_ok=True)
        fixed = self._port != 0
        for attempt in range(5):
            if not fixed:
                # Upstream also listens two below the port, and on the next one for replicas.
                self._port = free_ports(-2, 1)
            file = self.home / "broker.properties"
            file.write_text("".join(f"{key}={value}\n" for key, value in self.properties().items()))
            try:
                self._launch(file)
                return
            except PeerFailed as failure:
                self.kill()
                # Somebody took the port between our look and the broker's.
                if fixed or self._PORT_TAKEN not in str(failure) or attempt == 4:
                    raise

    def _launch(self, properties: Path) -> None:
        jvm = Jvm("broker", self.home, version=self.version, heap_mb=384)
        self._process = jvm
        written = jvm.out.stat().st_size if jvm.out.exists() else 0
        jvm.start("org.apache.rocketmq.broker.BrokerStartup", "-c", str(properties))
        jvm.wait_for_output("boot success", since=written)

    def stop(self) -> None:
        """A clean stop, as of ``mqshutdown broker``."""
        if self._process is not None:
            self._process.stop()

    def kill(self) -> None:
        """kill -9."""
        if self._process is not None:
            self._process.kill()

    @property
    def pid(self) -> int:
        """The process id of the running broker."""
        assert self._process is not None
        assert self._process.process is not None
        return self._process.process.pid

    @property
    def log_text(self) -> str:
        """Everything that the broker has logged in all of its starts."""
        return (
            ""
            if self._process is None or not self._process.log.exists()
            else self._process.log.read_text(errors="replace")
        )

    def await_written(self, group: str, topic: str, count: int) -> None:
        """Returns when the group's progress, all queues together, stands in the store's own file."""
        file = self.store / "config" / "consumerOffset.json"
        pattern = re.compile(re.escape(f'"{topic}@{group}":') + r"\s*\{([^}]*)\}")
        limit = time.monotonic() + START_LIMIT_S
        while True:
            found = pattern.search(file.read_text()) if file.exists() else None
            progress = sum(int(offset) for offset in re.findall(r":\s*(\d+)", found.group(1))) if found else 0
            if progress == count:
                return
            if time.monotonic() > limit:
                raise PeerFailed(f"{file} has {progress} for {group} in {topic} after {START_LIMIT_S} s, not {count}")
            time.sleep(POLL_STEP_S)

    def offset_message_id(self, physical_offset: int) -> str:
        """The id by which a client asks this broker for the record at ``physical_offset``."""
        return (
            (socket.inet_aton("127.0.0.1") + self._port.to_bytes(4, "big") + physical_offset.to_bytes(8, "big"))
            .hex()
            .upper()
        )


class OurBroker(Broker):
    """CometMQ's broker, as a process, with the very properties file that upstream's broker would be given."""

    _PORT_TAKEN: ClassVar[str] = "in use"

    def _launch(self, properties: Path) -> None:
        program = OurProgram("broker", self.home)
        self._process = program
        program.start("broker", str(self.store), "--config", str(properties))
        program.wait_for_port(self._port)
