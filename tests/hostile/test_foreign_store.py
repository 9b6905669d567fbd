"""Checks: opening, writing and closing a store that somebody gave us changes and reads nothing outside it.

Each case puts one thing into an honest store: a link to a folder or a file outside it, a FIFO, a file of many gigabytes
without a byte in it. The store may be refused, or opened; the folder outside must stay as it was, and nothing may wait.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

import cometmq
from cometmq import errors
from support.small_store import SMALL, open_small

TIMEOUT_S = 120
IN_ONE_PROCESS = 8

USE = """
import importlib.util
import sys
import cometmq
from cometmq import errors
from cometmq.store.inspection import inspect
from cometmq.store.repairing import repair
from cometmq.store.verification import verify
from support.small_store import SMALL

def attempt(action):
    try:
        return action()
    except (errors.Error, OSError) as error:
        print(type(error).__name__, error)

def write(path):
    with cometmq.open(path, settings=SMALL, flush="sync", default_queues=4) as store:
        for number in range(30):
            attempt(lambda: store.append("orders", b"%d" % number, keys=f"k{number}", queue=number % 4))
        attempt(lambda: store.delete_topic("orders"))
        for _ in range(3):
            attempt(store.maintain)
        attempt(lambda: store.append("orders", b"again"))

def read(path):
    with cometmq.open(path, mode="r", settings=SMALL) as store:
        attempt(lambda: inspect(store))
        attempt(lambda: verify(store))

def spark(path):
    from pyspark.sql.types import LongType, StringType, StructField, StructType
    from cometmq.spark.default_source import CometMQSource
    source = CometMQSource({"path": path, "topic": "orders"})
    reader = source.reader(StructType([StructField("topic", StringType()), StructField("queueOffset", LongType())]))
    print("spark", sum(batch.num_rows for part in reader.partitions() for batch in reader.read(part)))

for path in sys.argv[1:]:
    print(path)
    if importlib.util.find_spec("pyspark"):
        attempt(lambda: spark(path))
    attempt(lambda: read(path))
    attempt(lambda: write(path))
    attempt(lambda: repair(path, settings=SMALL))
    attempt(lambda: write(path))
"""


@pytest.fixture(scope="session")
def honest(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A store with two topics of some messages, closed."""
    path = tmp_path_factory.mktemp("honest") / "store"
    with open_small(path, default_queues=4) as store:
        for number in range(200):
            store.append("orders", b"order %d" % number, keys=f"k{number}", tags="t", queue=number % 4)
            store.append("notes", b"note")
    return path


def make_outside(folder: Path) -> dict[str, bytes]:
    """Fill a folder with what a store's names could hit: another store's files, and files of numbers."""
    for name in ("0", "orders/0", "commitlog", "rejected", "x"):
        (folder / name).mkdir(parents=True, exist_ok=True)
    for name in ("kept", "0/kept", "orders/0/kept", "commitlog/kept"):
        (folder / name).write_bytes(b"kept" * 1000)
    for name in ("00000000000000000000", "orders/0/00000000000000000000", "commitlog/00000000000000000000"):
        (folder / name).write_bytes(b"\1" * 20_000)
    return snapshot(folder)


def snapshot(folder: Path) -> dict[str, bytes]:
    return {
        os.fspath(path.relative_to(folder)): path.read_bytes() if path.is_file() else b"<folder>"
        for path in sorted(folder.rglob("*"))
    }


def link(where: str, to: str = ".") -> Callable[[Path, Path], None]:
    """Put a link to ``outside/to`` at ``store/where``, in the place of what is there."""

    def make(store: Path, outside: Path) -> None:
        clear(store / where)
        (store / where).symlink_to(outside / to)

    return make


def fifo(where: str) -> Callable[[Path, Path], None]:
    def make(store: Path, _outside: Path) -> None:
        clear(store / where)
        os.mkfifo(store / where)

    return make


def sparse(where: str, size: int) -> Callable[[Path, Path], None]:
    def make(store: Path, _outside: Path) -> None:
        clear(store / where)
        with (store / where).open("wb") as file:
            file.truncate(size)

    return make


def clear(path: Path) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)


SEGMENT = "commitlog/00000000000000000000"
UNITS = "consumequeue/orders/0/00000000000000000000"
FOLDERS = [
    "cometmq",
    "cometmq/deleted",
    "cometmq/deleted/0",
    "cometmq/handoff",
    "cometmq/handoff/rejected",
    "cometmq/staged",
    "cometmq/staged/job-1",
    "cometmq/staged/.removed-1",
    "cometmq/removed",
    "cometmq/removed/x",
    "cometmq/repair",
    "commitlog",
    "consumequeue",
    "consumequeue/orders",
    "consumequeue/orders/0",
    "consumequeue_ext",
    "batchconsumequeue",
    "index",
    "config",
]
FILES = [
    SEGMENT,
    UNITS,
    "abort",
    "checkpoint",
    "lock",
    "cometmq/follow",
    "cometmq/point",
    "cometmq/ends",
    "cometmq/handoff/wake",
    "cometmq/handoff/journal",
    "cometmq/handoff/00000000000000000001-c-x.work",
    "config/topics.json",
    "config/topics.json.bak",
    "config/consumerOffset.json",
    "index/20260101000000000",
    "consumequeue/other/0/00000000000000000000",
]
KINDS: dict[str, Callable[[Path, Path], None]] = {
    **{f"link to a folder: {name}": link(name) for name in FOLDERS},
    **{f"link to a file: {name}": link(name, "kept") for name in FILES},
    **{f"fifo: {name}": fifo(name) for name in FILES if not name.endswith("wake")},
    **{f"link to a fifo: {name}": link(name, "waits") for name in (SEGMENT, "config/topics.json", "cometmq/point")},
    "huge segment": sparse("commitlog/00000000000001048576", 1 << 42),
    "huge queue file": sparse("consumequeue/other/0/00000000000000000000", 1 << 42),
    "huge index": sparse("index/20260101000000000", 1 << 42),
    "huge configuration": sparse("config/topics.json", 1 << 40),
    "huge point": sparse("cometmq/point", 1 << 40),
    "huge ends": sparse("cometmq/ends", 1 << 40),
    "huge follow page": sparse("cometmq/follow", 1 << 40),
    "huge work": sparse("cometmq/handoff/00000000000000000001-c-x.work", 1 << 40),
    "huge journal": sparse("cometmq/handoff/journal", 1 << 40),
    "a topic of strange name": link("consumequeue/..%2f..%2f", "orders"),
    "a queue of strange name": link("consumequeue/orders/-1", "orders/0"),
}


@pytest.mark.parametrize("first", range(0, len(KINDS), IN_ONE_PROCESS))
def test_nothing_outside_is_touched(honest: Path, tmp_path: Path, first: int) -> None:
    kinds = list(KINDS.items())[first : first + IN_ONE_PROCESS]
    before = {}
    for number, (_, put) in enumerate(kinds):
        place = tmp_path / str(number)
        shutil.copytree(honest, place / "store")
        before[number] = make_outside(place / "outside")
        os.mkfifo(place / "outside" / "waits")
        put(place / "store", place / "outside")
    done = subprocess.run(
        [sys.executable, "-c", USE, *(os.fspath(tmp_path / str(number) / "store") for number in before)],
        env={**os.environ, "PYTHONPATH": os.fspath(Path(__file__).parents[1])},
        timeout=TIMEOUT_S,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, f"{kinds}: {done.stdout}{done.stderr}"
    for number, (name, _) in enumerate(kinds):
        (tmp_path / str(number) / "outside" / "waits").unlink()
        assert snapshot(tmp_path / str(number) / "outside") == before[number], f"{name}: {done.stdout}"


def test_the_text_of_a_refusal_names_the_link(honest: Path, tmp_path: Path) -> None:
    store = tmp_path / "store"
    shutil.copytree(honest, store)
    shutil.rmtree(store / "index")
    (store / "index").symlink_to(tmp_path)
    with pytest.raises(errors.NotAStore, match=r"index.*symbolic link"):
        open_small(store)


@pytest.mark.parametrize("name", ["topics.json", "consumerOffset.json"])
def test_a_link_to_itself_is_refused_by_name(honest: Path, tmp_path: Path, name: str) -> None:
    store = tmp_path / "store"
    shutil.copytree(honest, store)
    (store / "config" / name).unlink(missing_ok=True)
    (store / "config" / name).symlink_to(name)
    with pytest.raises(errors.Error, match=name):
        open_small(store, mode="r")


def test_the_operators_own_links_are_followed(honest: Path, tmp_path: Path) -> None:
    """The root, and the folders that ``storePathCommitLog`` names."""
    shutil.copytree(honest, tmp_path / "real")
    (tmp_path / "real" / "commitlog").rename(tmp_path / "disk")
    (tmp_path / "root").symlink_to("real")
    (tmp_path / "log").symlink_to("disk")
    settings = {**SMALL, "storePathCommitLog": os.fspath(tmp_path / "log")}
    with cometmq.open(tmp_path / "root", settings=settings) as store:
        assert store.append("orders", b"one more").queue_offset >= 0
    with cometmq.open(tmp_path / "root", mode="r", settings=settings) as store:
        assert len(store.queues("orders")) == 4


def test_links_in_the_trash_are_removed_themselves(honest: Path, tmp_path: Path) -> None:
    store, outside = tmp_path / "store", tmp_path / "outside"
    shutil.copytree(honest, store)
    before = make_outside(outside)
    (store / "cometmq" / "deleted" / "1").mkdir(parents=True)
    (store / "cometmq" / "deleted" / "0").symlink_to(outside)
    (store / "cometmq" / "deleted" / "1" / "file").symlink_to(outside / "kept")
    with open_small(store, background=False) as opened:
        for _ in range(5):
            opened.maintain()
        assert not (store / "cometmq" / "deleted").exists()
    assert snapshot(outside) == before
