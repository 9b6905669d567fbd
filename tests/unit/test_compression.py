"""Checks: every codec gives back what went in; damage and bombs give their own error; memory stays bounded."""

from __future__ import annotations

import hashlib
import random
import subprocess
import sys
import tracemalloc
import zlib
from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pytest

from cometmq._compression import CompressionType, decompress
from cometmq.errors import DecompressionError, LimitReached
from support.golden import expected_records

MIB = 1 << 20
KINDS = list(CompressionType)


def compress(kind: CompressionType, body: bytes, *, write_bytes: int = 1000) -> bytes:
    """Compress as upstream's clients do: as a stream, so that the frame does not name its size."""
    if kind is CompressionType.ZLIB:
        return zlib.compress(body)
    sink = pa.BufferOutputStream()
    with pa.CompressedOutputStream(sink, "lz4" if kind is CompressionType.LZ4 else "zstd") as stream:
        for start in range(0, len(body), write_bytes):
            stream.write(body[start : start + write_bytes])
    compressed: bytes = sink.getvalue().to_pybytes()
    return compressed


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("size", [0, 1, 4095, 65536, 65537, 300_000])
def test_bodies_round_trip(kind: CompressionType, size: int) -> None:
    body = random.Random(size).randbytes(size // 2) + b"abc" * size
    body = body[:size]
    data = compress(kind, body)
    assert decompress(kind, data, limit_bytes=size) == body
    assert decompress(kind, memoryview(bytearray(data)), limit_bytes=size) == body


def test_the_frames_do_not_name_their_size() -> None:
    lz4 = compress(CompressionType.LZ4, b"x" * 5000)
    zstd = compress(CompressionType.ZSTD, b"x" * 5000)
    assert lz4[:4] == bytes.fromhex("04224d18")
    assert not lz4[4] & 0x08, "the LZ4 frame states a content size, so this test proves nothing"
    assert zstd[:4] == bytes.fromhex("28b52ffd")
    assert not zstd[4] & 0xE0, "the ZSTD frame states a content size, so this test proves nothing"


@pytest.mark.parametrize("kind", KINDS)
def test_cut_short_at_every_byte(kind: CompressionType) -> None:
    data = compress(kind, random.Random(1).randbytes(300) + b"y" * 300)
    for cut in range(len(data)):
        with pytest.raises(DecompressionError):
            decompress(kind, data[:cut], limit_bytes=MIB)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("data", [b"", b"\0", b"nothing of the kind, whatever the flags say", bytes(1000)])
def test_other_data(kind: CompressionType, data: bytes) -> None:
    with pytest.raises(DecompressionError, match=kind.name):
        decompress(kind, data, limit_bytes=MIB)


@pytest.mark.parametrize("kind", KINDS)
def test_flipped_bits_end_in_a_result_or_a_typed_error(kind: CompressionType) -> None:
    rng = random.Random(7)
    data = compress(kind, b"the quick brown fox " * 200)
    for _ in range(500):
        damaged = bytearray(data)
        damaged[rng.randrange(len(data))] ^= 1 << rng.randrange(8)
        try:
            result = decompress(kind, damaged, limit_bytes=MIB)
        except (DecompressionError, LimitReached):
            continue
        assert len(result) <= MIB


@pytest.mark.parametrize("kind", KINDS)
def test_the_limit_is_exact(kind: CompressionType) -> None:
    data = compress(kind, b"z" * 100_000)
    assert len(decompress(kind, data, limit_bytes=100_000)) == 100_000
    with pytest.raises(LimitReached, match="99999"):
        decompress(kind, data, limit_bytes=99_999)


@pytest.mark.parametrize("kind", KINDS)
def test_a_bomb_is_stopped_at_the_limit(kind: CompressionType) -> None:
    bomb = compress(kind, bytes(200 * MIB), write_bytes=4 * MIB)
    assert len(bomb) < 2 * MIB
    tracemalloc.start()
    try:
        arrow_before = pa.total_allocated_bytes()
        with pytest.raises(LimitReached):
            decompress(kind, bomb, limit_bytes=4 * MIB)
        _, peak_bytes = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak_bytes < 10 * MIB
    assert pa.total_allocated_bytes() - arrow_before < MIB


@pytest.mark.parametrize("name", ["apache-4.9.7", "apache-5.3.3", "apache-5.3.3-binary-headers"])
def test_bodies_that_java_clients_compressed(name: str, golden_store: Callable[..., Path]) -> None:
    segments = {int(path.name): path.read_bytes() for path in (golden_store(name) / "commitlog").iterdir()}
    seen = set()
    for record in expected_records(name):
        kind = CompressionType.of_sys_flag(record["sysFlag"])
        if kind is None or record["sysFlag"] & 0x30:  # IPv6 hosts would move the body
            continue
        base = max(start for start in segments if start <= record["physicalOffset"])
        stored = segments[base][record["physicalOffset"] - base :][: record["size"]]
        body = stored[88:][: int.from_bytes(stored[84:88], "big")]
        assert hashlib.sha256(decompress(kind, body, limit_bytes=4 * MIB)).hexdigest() == record["bodySha256"]
        seen.add(kind)
    assert seen == set(CompressionType)


def test_bytes_behind_a_zlib_stream_are_passed_over_as_java_does() -> None:
    data = compress(CompressionType.ZLIB, b"body") + b"more"
    assert decompress(CompressionType.ZLIB, data, limit_bytes=100) == b"body"


@pytest.mark.parametrize(
    ("sys_flag", "expected"),
    [
        (0x000, None),
        (0x300, None),  # type bits without the compressed bit mean nothing
        (0x001, CompressionType.ZLIB),
        (0x101, CompressionType.LZ4),
        (0x201, CompressionType.ZSTD),
        (0x301, CompressionType.ZLIB),
        (0x331, CompressionType.ZLIB),
    ],
)
def test_kind_from_the_system_flag(sys_flag: int, expected: CompressionType | None) -> None:
    assert CompressionType.of_sys_flag(sys_flag) is expected


def test_unknown_kind_in_the_system_flag() -> None:
    with pytest.raises(DecompressionError, match="unknown compression 5"):
        CompressionType.of_sys_flag(0x501)


def test_pyarrow_is_loaded_by_the_first_frame_only() -> None:
    program = (
        "import sys, zlib; from cometmq._compression import *; "
        "decompress(CompressionType.ZLIB, zlib.compress(b'x'), limit_bytes=9); assert 'pyarrow' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", program], check=True)
