"""Input as message bodies: lines of files or of standard input, as they come, or whole files."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO

from cometmq.cli.terminal import Interruption

__all__ = ["check_file", "read_bodies", "skipping"]

_CHUNK_BYTES = 1 << 20
_BATCH_BYTES_MAX = 8 << 20


def check_file(name: str) -> None:
    """Refuse a file that cannot be read before anything is done with the others; ``-`` is standard input.

    Raises:
        OSError: it cannot be opened.
    """
    if name != "-":
        with Path(name).open("rb"):
            pass


def read_bodies(files: list[str], interruption: Interruption, *, whole_file: bool, batch: int) -> Iterator[list[bytes]]:
    """Read the input as batches of bodies, each as soon as it is there.

    Args:
        files: names; ``-`` is standard input.
        interruption: Ctrl-C interrupts waiting for input, and nothing else.
        whole_file: a body per file, not per line.
        batch: most bodies of a batch.
    """
    pending: list[bytes] = []
    pending_bytes = 0
    for name in files:
        if not whole_file:
            yield from _lines(name, interruption, batch)
            continue
        with interruption.waiting():
            pending.append(sys.stdin.buffer.read() if name == "-" else Path(name).read_bytes())
        pending_bytes += len(pending[-1])
        if len(pending) >= batch or pending_bytes >= _BATCH_BYTES_MAX:
            yield pending
            pending, pending_bytes = [], 0
    if pending:
        yield pending


def skipping(batches: Iterator[list[bytes]], count: int) -> Iterator[list[bytes]]:
    """Leave out the first so many bodies."""
    for batch in batches:
        if count >= len(batch):
            count -= len(batch)
            continue
        yield batch[count:] if count else batch
        count = 0


def _lines(name: str, interruption: Interruption, batch: int) -> Iterator[list[bytes]]:
    if name == "-":
        yield from _split(sys.stdin.buffer, interruption, batch)
        return
    with Path(name).open("rb") as file:
        yield from _split(file, interruption, batch)


def _chunks(stream: BinaryIO, interruption: Interruption) -> Iterator[bytes]:
    read = getattr(stream, "read1", stream.read)
    while True:
        with interruption.waiting():
            chunk: bytes = read(_CHUNK_BYTES)
        if not chunk:
            return
        yield chunk


def _split(stream: BinaryIO, interruption: Interruption, batch: int) -> Iterator[list[bytes]]:
    """Cut a stream into lines; the lines of each read are handed on at once."""
    rest: list[bytes] = []
    for chunk in _chunks(stream, interruption):
        first, newline, others = chunk.partition(b"\n")
        rest.append(first)
        if not newline:
            continue
        lines = others.split(b"\n")
        lines.insert(0, b"".join(rest))
        rest = [lines.pop()]
        for at in range(0, len(lines), batch):
            with interruption.waiting():  # a chunk may be thousands of appends
                pass
            yield [line[:-1] if line.endswith(b"\r") else line for line in lines[at : at + batch]]
    last = b"".join(rest)
    if last:
        yield [last]
