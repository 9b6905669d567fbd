"""Checks: the binding of the C codec: long headers, null fields, refusals. The C tests look at the codec itself."""

from __future__ import annotations

import struct

import pytest

from cometmq import _engine
from cometmq.errors import CorruptRecord, InvalidArgument, LimitReached

JSON, BINARY = 0, 1


def frame_of(header: bytes, body: bytes = b"", header_format: int = JSON) -> bytes:
    return struct.pack(">II", 4 + len(header) + len(body), header_format << 24 | len(header)) + header + body


@pytest.mark.parametrize("header_format", [JSON, BINARY])
@pytest.mark.parametrize("size", [0, 1, 3900, 4096, 5000, 200_000])
def test_headers_of_every_length(header_format: int, size: int) -> None:
    fields = {"long": 'x"\n' * (size // 3), "short": "y"}
    frame = _engine.encode_command(310, 3, 401, -7, 2, "note", fields, b"body", header_format)
    expected = fields if size >= 3 or header_format == JSON else {"short": "y"}
    assert _engine.decode_command(frame) == (310, 3, 401, -7, 2, "note", expected, b"body", header_format)
    assert _engine.decode_command(memoryview(frame)) == _engine.decode_command(bytearray(frame))


def test_null_fields_are_left_out() -> None:
    frame = frame_of(b'{"code":1,"extFields":{"a":null,"b":"","c":5},"opaque":3,"remark":null}')
    code, _, _, opaque, _, remark, fields, body, _ = _engine.decode_command(frame)
    assert (code, opaque, remark, fields, body) == (1, 3, None, {"b": "", "c": "5"}, b"")


@pytest.mark.parametrize(
    "frame",
    [
        b"",
        b"\0\0\0",
        frame_of(b""),
        frame_of(b"{"),
        frame_of(b"[]"),
        frame_of(b"{}", header_format=2),
        frame_of(b"{}")[:-1],
        frame_of(b"{}") + b"x",
        frame_of(b"short", header_format=BINARY),
        struct.pack(">II", 10, 100) + b"{}",
        b"\xff" * 100,
    ],
)
def test_malformed_commands_are_refused(frame: bytes) -> None:
    with pytest.raises(CorruptRecord):
        _engine.decode_command(frame)


def test_too_many_fields_are_refused() -> None:
    fields = {f"name{i}": "value" for i in range(65)}
    with pytest.raises(LimitReached):
        _engine.decode_command(_engine.encode_command(1, 0, 479, 1, 0, None, fields, b"", JSON))


def test_frames_over_the_limit_are_not_made() -> None:
    with pytest.raises(InvalidArgument, match="no frame can hold"):
        _engine.encode_command(1, 0, 479, 1, 0, None, {}, bytes(16 << 20), JSON)
    with pytest.raises(InvalidArgument, match="no frame can hold"):
        _engine.encode_command(1, 0, 479, 1, 0, None, {"n" * 40_000: "v"}, b"", BINARY)
    with pytest.raises(InvalidArgument, match="header format"):
        _engine.encode_command(1, 0, 479, 1, 0, None, {}, b"", 2)


@pytest.mark.parametrize("fields", [{"a": 1}, {1: "a"}, {"a": None}, {"a": b"x"}])
def test_fields_are_texts(fields: dict[str, str]) -> None:
    with pytest.raises(TypeError):
        _engine.encode_command(1, 0, 479, 1, 0, None, fields, b"", JSON)
