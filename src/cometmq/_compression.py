"""Decompression of message bodies: zlib from the standard library, LZ4 and ZSTD frames through pyarrow's codecs.

Upstream's clients write frames that do not name their size, so that a body is read as a stream, piece by piece, and
never beyond the caller's limit. pyarrow is imported by the first LZ4 or ZSTD body, not before.
"""

from __future__ import annotations

import enum
import zlib
from contextlib import closing
from typing import TYPE_CHECKING

from cometmq.errors import DecompressionError, LimitReached

if TYPE_CHECKING:
    from collections.abc import Generator
    from typing import TypeAlias

    BytesLike: TypeAlias = bytes | bytearray | memoryview

__all__ = ["BODY_BYTES_MAX", "CompressionType", "decompress", "decompress_body"]

BODY_BYTES_MAX = 256 << 20
"""Longest body that a message decompresses to; take a longer one raw, and decompress it with another limit."""

_COMPRESSED_FLAG = 0x1
_TYPE_SHIFT = 8
_TYPE_MASK = 0x7
_PIECE_BYTES = 64 * 1024


class CompressionType(enum.IntEnum):
    """How a body is compressed; the values are upstream's, as they stand in bits 8 to 10 of the system flag."""

    LZ4 = 1
    ZSTD = 2
    ZLIB = 3

    @classmethod
    def of_sys_flag(cls, sys_flag: int) -> CompressionType | None:
        """Return what a record's system flag says of its body, None for a body that is not compressed.

        Raises:
            DecompressionError: upstream does not have the type.
        """
        if not sys_flag & _COMPRESSED_FLAG:
            return None
        value = sys_flag >> _TYPE_SHIFT & _TYPE_MASK
        if value == 0:  # clients older than 5.0 knew zlib only and left the bits empty
            return cls.ZLIB
        try:
            return cls(value)
        except ValueError:
            raise DecompressionError(f"the system flag 0x{sys_flag:x} names the unknown compression {value}") from None


def decompress(kind: CompressionType, data: BytesLike, *, limit_bytes: int) -> bytes:
    """Return the body that ``data`` holds in compressed form.

    Args:
        kind: how it was compressed.
        data: one whole zlib stream, LZ4 frame or ZSTD frame; read without a copy, let go on return.
        limit_bytes: the longest result that is accepted. At most one piece of 64 KiB more is ever held, however
            much the data would unfold to.

    Raises:
        DecompressionError: the data is empty, cut short or not of this kind.
        LimitReached: the result would be longer than ``limit_bytes``.

    Thread safety: any thread.
    """
    if len(data) == 0:
        raise DecompressionError(f"an empty body is no {kind.name} data")
    pieces = _inflate(data) if kind is CompressionType.ZLIB else _unframe(kind, data)
    result = bytearray()
    with closing(pieces):  # it releases the data, so that the caller may free it when this returns
        for piece in pieces:
            if len(piece) > limit_bytes - len(result):
                raise LimitReached(
                    f"a body of {len(data)} bytes unfolds to more than the limit of {limit_bytes} bytes ({kind.name}); "
                    "raise the limit, or take the stored bytes as they are"
                )
            result += piece
    return bytes(result)


def decompress_body(sys_flag: int, data: BytesLike, limit_bytes: int = BODY_BYTES_MAX) -> bytes:
    """Return the body of a record with this system flag, up to ``limit_bytes``.

    Raises:
        DecompressionError, LimitReached: as :func:`decompress`; also for a compression that upstream does not have.
    """
    kind = CompressionType.of_sys_flag(sys_flag)
    return bytes(data) if kind is None else decompress(kind, data, limit_bytes=limit_bytes)


def _inflate(data: BytesLike) -> Generator[bytes, None, None]:
    """Yield a zlib stream's content. Bytes behind its end are passed over, as Java's inflater does."""
    stream = zlib.decompressobj()
    rest: BytesLike = data
    try:
        while not stream.eof:
            piece = stream.decompress(rest, _PIECE_BYTES)
            rest = stream.unconsumed_tail
            if not piece and not rest and not stream.eof:
                raise DecompressionError(f"a ZLIB body of {len(data)} bytes is cut short")
            yield piece
    except zlib.error as error:
        raise DecompressionError(f"a body of {len(data)} bytes is not ZLIB data: {error}") from error


def _unframe(kind: CompressionType, data: BytesLike) -> Generator[bytes, None, None]:
    """Yield the content of an LZ4 or ZSTD frame, or of several in a row."""
    import pyarrow as pa

    codec = "lz4" if kind is CompressionType.LZ4 else "zstd"
    problem = ""
    try:
        with pa.CompressedInputStream(pa.BufferReader(pa.py_buffer(data)), codec) as stream:
            while piece := stream.read(_PIECE_BYTES):
                yield piece
    except (OSError, pa.ArrowException) as error:
        problem = str(error)
    # Out here, without the stream: a traceback that held it would keep the data from whoever lent it.
    stream = None
    if problem:
        raise DecompressionError(f"a body of {len(data)} bytes is not a whole {kind.name} frame: {problem}")
