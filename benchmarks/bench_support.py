"""Shared parts of the Python benchmarks: known messages, directories of their own, one shape for every figure.

A *figure* is a dictionary as the C programs print it, one JSON object a line: ``name``, ``value``, ``unit``, ``min``,
``max``, ``repeats`` and, where they apply, ``cpu_ns``, ``flush``, ``keys``, ``floor``, ``floor_value``, ``ratio``.
"""

from __future__ import annotations

import os
import shutil
import statistics
import tempfile
import zlib
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

Figure = dict[str, Any]

TOPIC = "BenchmarkOne"
TAG = "TagA"
SLOTS = 4000
"""Different bodies: message ``i`` has body ``i % SLOTS``."""


def is_quick() -> bool:
    """Tell whether only correctness is wanted: tiny sizes, figures without meaning."""
    return os.environ.get("CMQ_BENCH_QUICK") == "1"


@contextmanager
def new_directory() -> Iterator[Path]:
    """Yield an empty directory on the disk that is measured: CMQ_BENCH_DIR, else the system's temporary one."""
    path = Path(tempfile.mkdtemp(prefix="cmq-bench-", dir=os.environ.get("CMQ_BENCH_DIR")))
    try:
        yield path
    finally:
        shutil.rmtree(path)


def make_bodies(size: int, count: int = SLOTS) -> list[bytes]:
    """Return bodies that differ from one another: a number, then bytes that follow from it."""
    bodies = []
    for slot in range(count):
        state = (slot * 0x9E3779B97F4A7C15 + 1) & 0xFFFFFFFFFFFFFFFF
        pattern = state.to_bytes(8, "little")
        bodies.append((slot.to_bytes(4, "big") + pattern * (size // 8 + 1))[:size])
    return bodies


class Checksum:
    """CRC over bodies in order, with their number: two equal ones have seen the same messages."""

    def __init__(self) -> None:
        self.count = 0
        self.crc = 0

    def add(self, body: bytes | memoryview) -> None:
        self.count += 1
        self.crc = zlib.crc32(body, self.crc)

    def add_all(self, bodies: Iterable[bytes | memoryview]) -> Checksum:
        for body in bodies:
            self.add(body)
        return self

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Checksum) and (self.count, self.crc) == (other.count, other.crc)

    __hash__ = None  # type: ignore[assignment]

    def __repr__(self) -> str:
        return f"{self.count} messages, CRC {self.crc:08x}"


def expected_checksum(bodies: Sequence[bytes], count: int) -> Checksum:
    """Return the checksum of messages ``0 .. count``, whose bodies repeat."""
    return Checksum().add_all(bodies[i % len(bodies)] for i in range(count))


def figure(name: str, unit: str, values: Sequence[float], **more: Any) -> Figure:
    """Return a figure: the median of the repeats, with their range."""
    return {
        "name": name,
        "value": statistics.median(values),
        "unit": unit,
        "min": min(values),
        "max": max(values),
        "repeats": len(values),
        **more,
    }
