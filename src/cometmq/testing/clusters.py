"""Clusters in one process: a name server, brokers registered with it, and their stores in a temporary folder.

Threads: a cluster may be used from any thread; starting and stopping is for one at a time.
"""

from __future__ import annotations

import os
import string
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

from cometmq.broker.config import load_broker_config
from cometmq.broker.server import Broker
from cometmq.errors import InvalidArgument
from cometmq.namesrv.server import NamesrvServer
from cometmq.namesrv.settings import NamesrvSettings

__all__ = ["Cluster", "cluster"]

_MEMORY_FOLDER = "/dev/shm"  # a file system in memory: nothing of a temporary store has to outlive the machine
_MEMORY_BYTES_MIN = 1 << 30

_SMALL_STORE: Mapping[str, object] = {
    "mappedFileSizeCommitLog": 16 << 20,
    "mappedFileSizeConsumeQueue": 60_000,
    "maxHashSlotNum": 10_000,
    "maxIndexNum": 40_000,
    "flushDiskType": "ASYNC_FLUSH",
    "diskMaxUsedSpaceRatio": 95,
}
"""A test's store is small, new each time and needs no power failure survived. Its result must not depend on the disk's
use: this ratio's upper bound is also the least for deletions and refused appends."""


@dataclass(frozen=True, slots=True)
class Cluster:
    """A running cluster.

    Attributes:
        name_server: the name server.
        brokers: the brokers, ``broker-a`` first.
        path: the folder with a store for each, named as the broker.
    """

    name_server: NamesrvServer
    brokers: tuple[Broker, ...]
    path: Path

    @property
    def name_server_address(self) -> str:
        """The address for clients, ``host:port``."""
        return self.name_server.address

    @property
    def broker(self) -> Broker:
        """The first broker."""
        return self.brokers[0]


@contextmanager
def cluster(
    *,
    brokers: int = 1,
    path: str | os.PathLike[str] | None = None,
    settings: Mapping[str, object] | None = None,
) -> Iterator[Cluster]:
    """Run a name server and brokers while the block runs; on leaving it everything is stopped and removed.

    Args:
        brokers: how many, 1 to 26.
        path: a folder for the stores, which stays; None for a temporary one.
        settings: brokers' settings by upstream's names or ours. Without, stores are small, flush asynchronously, and
            accept appends until the disk is 95% full.

    Raises:
        InvalidArgument: a number or a setting cannot be used.
    """
    if not 1 <= brokers <= len(string.ascii_lowercase):
        raise InvalidArgument(f"{brokers} brokers; a cluster for tests has 1 to {len(string.ascii_lowercase)}")
    with ExitStack() as life:
        if path is None:
            path = life.enter_context(tempfile.TemporaryDirectory(prefix="cometmq-", dir=_memory_folder()))
        folder = Path(path)
        name_server = life.enter_context(NamesrvServer(NamesrvSettings(listen_port=0)))
        running = []
        for letter in string.ascii_lowercase[:brokers]:
            name = f"broker-{letter}"
            given = {**_SMALL_STORE, **(settings or {}), "brokerName": name, "namesrvAddr": name_server.address}
            config = load_broker_config(folder / name, listen="127.0.0.1:0", settings=given, environ={})
            running.append(life.enter_context(Broker(config)))
        yield Cluster(name_server, tuple(running), folder)


def _memory_folder() -> str | None:
    """Return a folder in memory where there is one with room; else None, for the usual temporary one."""
    try:
        room = os.statvfs(_MEMORY_FOLDER)
    except OSError:
        return None
    has_room = room.f_bavail * room.f_frsize >= _MEMORY_BYTES_MIN
    return _MEMORY_FOLDER if has_room and os.access(_MEMORY_FOLDER, os.W_OK) else None
