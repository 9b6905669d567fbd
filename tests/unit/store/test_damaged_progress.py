"""Damage to the files of consumers' progress: `config/consumerOffset.json`, its copy, and the journal of commits.

RocketMQ's JSON has no checksum, so a digit or a name that changed cannot be noticed (docs/reliability.md). Whatever is
damaged, opening fails with an error that names the file, or progress is one that was stored once, or that the damaged
text says, and never lies beyond the queue.
"""

from __future__ import annotations

import logging
import os
import re
import shutil
from collections import Counter
from collections.abc import Iterator
from contextlib import nullcontext
from pathlib import Path

import pytest

import cometmq
from support.killed_writer import write_and_die
from support.small_store import SMALL, open_small

MESSAGES = 30
STORED = (None, 0, 5, 10, 20)
"""Progress that was in a file once: none, the copy of the JSON, the JSON, the journal."""

FILES = ("config/consumerOffset.json", "config/consumerOffset.json.bak", "cometmq/progress")


@pytest.fixture(scope="module")
def killed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A store whose writer was killed: 10 messages consumed in the JSON, 5 in its copy, 20 in the journal."""
    path = tmp_path_factory.mktemp("progress")
    write_and_die(
        path / "unused",
        f"""
def opened():
    return cometmq.open({str(path / "store")!r}, settings={SMALL!r}, background=False)
small = opened()
for n in range({MESSAGES}):
    small.append("orders", b"m%d" % n)
def consume(consumer, count):
    [next(consumer) for _ in range(count)]
    consumer.commit()
with small.consumer("billing", "orders") as consumer:
    consume(consumer, 5)
small.close()
small = opened()
consumer = small.consumer("billing", "orders")
consume(consumer, 5)  # writes the JSON, as a session's first commit does
consume(consumer, 10)
""",
    )
    return path / "store"


def progress(path: Path) -> int | None:
    with open_small(path, background=False) as store:
        assert store.queues("orders")[0].max_offset == MESSAGES
        return next((one.offset for one in store.progress("billing", "orders")), None)


def progress_or_error(path: Path, named: str) -> int | None:
    """The progress; None also for an error, which names the file."""
    try:
        return progress(path)
    except cometmq.Error as error:
        if named not in str(error):
            raise
        return None


def damages(content: bytes) -> Iterator[tuple[str, bytes]]:
    """The damaged contents of a file: a bit, a byte of zero, a cut, a page of zeros; all bytes with CMQ_LONG."""
    length = len(content.rstrip(b"\0"))
    for at in range(0, length, 1 if os.environ.get("CMQ_LONG") else max(length // 5, 1)):
        yield f"flip at {at}", content[:at] + bytes([content[at] ^ 1 << at % 8]) + content[at + 1 :]
        yield f"zero at {at}", content[:at] + b"\0" + content[at + 1 :]
        yield f"cut at {at}", content[:at]
    yield "zeros", bytes(min(len(content), 4096)) + content[4096:]


@pytest.mark.filterwarnings("ignore:damaged file passed over:RuntimeWarning")
@pytest.mark.parametrize("name", FILES)
def test_damage_is_an_error_or_progress_that_the_queue_has(name: str, killed: Path, tmp_path: Path) -> None:
    content = (killed / name).read_bytes()
    path = tmp_path / "store"
    found_by: Counter[int | None] = Counter()
    for text, damaged in damages(content):
        shutil.rmtree(path, ignore_errors=True)
        shutil.copytree(killed, path)
        (path / name).write_bytes(damaged)
        found = progress_or_error(path, Path(name).name.split(".")[0])
        found_by[found] += 1
        assert found is None or 0 <= found <= MESSAGES, text
        if found not in (*STORED, MESSAGES):  # a larger one is set back to the end
            assert b'"orders@billing"' in damaged, text
            assert str(found).encode() in damaged, f"{text}: {found}"
    print(f"{name}: {sum(found_by.values())} damages, progress {dict(found_by)}")  # for docs/reliability.md


@pytest.mark.parametrize("name", FILES)
def test_missing_file_gives_progress_that_was_stored(name: str, killed: Path, tmp_path: Path) -> None:
    path = tmp_path / "store"
    shutil.copytree(killed, path)
    (path / name).unlink()
    has_backup = (path / f"{name}.bak").exists()
    with pytest.warns(RuntimeWarning, match="is missing; its .bak was used") if has_backup else nullcontext():
        assert progress(path) in STORED


def test_progress_behind_the_end_of_the_queue_is_set_back(
    killed: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = tmp_path / "store"
    shutil.copytree(killed, path)
    for name in FILES[:2]:
        text = (path / name).read_text()
        (path / name).write_text(re.sub(r"\{0:\d+", f"{{0:{MESSAGES + 1}", text))
    (path / FILES[2]).unlink()
    with caplog.at_level(logging.WARNING, "cometmq.store"):
        assert progress(path) == MESSAGES
    assert "billing" in caplog.text
