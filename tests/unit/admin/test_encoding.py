"""Checks: messages in requests are the bytes that the Java client sends, and the engine reads them back."""

from __future__ import annotations

import struct

import pytest

from cometmq._engine import decode_properties
from cometmq.admin.encoding import batch_request, single_request
from cometmq.client.send.outgoing import Encoded, OutgoingMessage, encode_message
from cometmq.remoting.codes import RequestCode
from support.frames import all_frames, exchanges


def elements(body: bytes) -> list[tuple[bytes, bytes]]:
    """Bodies and properties of a batch, read by the specification (4.2)."""
    found = []
    while body:
        size, magic, crc, flag, body_bytes = struct.unpack_from(">iiiii", body)
        (property_bytes,) = struct.unpack_from(">H", body, 20 + body_bytes)
        assert (size, magic, crc, flag) == (22 + body_bytes + property_bytes, 0, 0, 0)
        found.append((body[20 : 20 + body_bytes], body[22 + body_bytes : size]))
        body = body[size:]
    return found


def test_batch_bytes_equal_those_of_java() -> None:
    frames = all_frames("apache-5.3.3")
    if frames is None:
        pytest.skip("the captured frames are not at hand: ../shared/golden")
    java = next(request for _, request, _ in exchanges(frames) if request.code == RequestCode.SEND_BATCH_MESSAGE)
    unique_id = decode_properties(java.fields["i"].encode())["UNIQ_KEY"]
    encoded = [
        Encoded(body, properties, False, 22 + len(body) + len(properties)) for body, properties in elements(java.body)
    ]
    ours = batch_request(
        encoded,
        topic=java.fields["b"],
        queue_id=int(java.fields["e"]),
        group=java.fields["a"],
        unique_id=unique_id,
        now_ms=int(java.fields["g"]),
    )
    assert ours.body == java.body
    # Java names the broker besides, which brokers pass over.
    assert dict(ours.fields) == {name: value for name, value in java.fields.items() if name != "n"}


def test_a_batch_of_one_shape() -> None:
    messages = [OutgoingMessage(b"", tags="t"), OutgoingMessage(b"two", keys="a b", properties={"x": "y"})]
    request = batch_request(
        map(encode_message, messages), topic="orders", queue_id=3, group="g", unique_id="AB", now_ms=5
    )
    assert elements(request.body) == [(b"", b"TAGS\x01t\x02"), (b"two", b"KEYS\x01a b\x02x\x01y\x02")]
    assert request.fields["i"] == "UNIQ_KEY\x01AB\x02WAIT\x01true\x02"
    assert request.fields["m"] == "true"


def test_one_message() -> None:
    message = OutgoingMessage(b"body", tags="paid", keys="k", sharding_key="s", delay_level=2, properties={"a": "b"})
    request = single_request(encode_message(message), topic="orders", queue_id=3, group="g", unique_id="AB", now_ms=5)
    assert decode_properties(request.fields["i"].encode()) == {
        "TAGS": "paid",
        "KEYS": "k",
        "__SHARDINGKEY": "s",
        "DELAY": "2",
        "a": "b",
        "UNIQ_KEY": "AB",
        "WAIT": "true",
    }
    assert (request.code, request.body) == (RequestCode.SEND_MESSAGE_V2, b"body")
    assert {name: request.fields[name] for name in "abcdefghjkm"} == {
        "a": "g",
        "b": "orders",
        "c": "TBW102",
        "d": "4",
        "e": "3",
        "f": "0",
        "g": "5",
        "h": "0",
        "j": "0",
        "k": "false",
        "m": "false",
    }
