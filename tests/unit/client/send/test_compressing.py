"""Checks: compressed bodies are read back, and carry the flags that Java's producer writes."""

from __future__ import annotations

import pytest

from cometmq._compression import CompressionType, decompress_body
from cometmq.client.send.compressing import compress, compression_flag

BODY = b"order stock cart queue " * 400


@pytest.mark.parametrize(
    ("kind", "flag", "magic"),
    [
        (CompressionType.LZ4, 257, b"\x04\x22\x4d\x18"),
        (CompressionType.ZSTD, 513, b"\x28\xb5\x2f\xfd"),
        (CompressionType.ZLIB, 769, b"\x78\x5e"),
    ],
)
def test_there_and_back(kind: CompressionType, flag: int, magic: bytes) -> None:
    packed = compress(kind, BODY, level=5)
    assert compression_flag(kind) == flag
    assert packed.startswith(magic)
    assert len(packed) < len(BODY) // 10
    assert decompress_body(flag, packed) == BODY


def test_a_level_counts() -> None:
    assert len(compress(CompressionType.ZLIB, BODY, level=1)) > len(compress(CompressionType.ZLIB, BODY, level=9))
