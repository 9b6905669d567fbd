"""Compression of bodies on their way out, as upstream's producer does it: zlib streams, LZ4 frames, ZSTD frames.

pyarrow is imported by the first LZ4 or ZSTD body, not before. The way back is :mod:`cometmq._compression`.

Source: consumption specification 2.1, 2.6; golden data (flags 257, 513, 769).
"""

from __future__ import annotations

import zlib

from cometmq._compression import CompressionType

__all__ = ["compress", "compression_flag"]

_COMPRESSED_FLAG = 0x1
_TYPE_SHIFT = 8


def compression_flag(kind: CompressionType) -> int:
    """Return the bits of a message's system flag that say how its body is compressed."""
    return _COMPRESSED_FLAG | kind << _TYPE_SHIFT


def compress(kind: CompressionType, body: bytes, *, level: int) -> bytes:
    """Return the body in compressed form.

    Args:
        kind: how.
        body: the bytes, not empty.
        level: 1 for quick to 9 for small, as zlib and ZSTD count; LZ4 frames have none and pass it over.

    Thread safety: any thread. zlib, LZ4 and ZSTD run without the GIL.
    """
    if kind is CompressionType.ZLIB:
        return zlib.compress(body, level)
    import pyarrow as pa

    codec = pa.Codec("zstd", compression_level=level) if kind is CompressionType.ZSTD else pa.Codec("lz4")
    packed: bytes = codec.compress(body, asbytes=True)
    return packed
