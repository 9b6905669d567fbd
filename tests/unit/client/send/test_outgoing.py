"""Checks: the messages that are refused before they are sent, and a message's form in a request and in a batch."""

from __future__ import annotations

import copy
import dataclasses
import pickle
import struct

import pytest

from cometmq._engine import decode_properties
from cometmq.client.send.outgoing import (
    BATCH_OVERHEAD_BYTES,
    OutgoingMessage,
    batch_body,
    can_be_batched,
    check_body,
    check_topic,
    encode_message,
    own_properties,
    stored_properties,
)
from cometmq.errors import InvalidArgument, InvalidTopic, MessageTooLarge


@pytest.mark.parametrize(
    "message",
    [
        OutgoingMessage(b"", tags="a\x01b"),
        OutgoingMessage(b"", keys="a\x02"),
        OutgoingMessage(b"", sharding_key="\x02KEYS\x01a"),
        OutgoingMessage(b"", tags="a||b"),
        OutgoingMessage(b"", tags=" a"),
        OutgoingMessage(b"", tags=5),
        OutgoingMessage(b"", properties=["a"]),
        OutgoingMessage(b"", delay_level="2"),
        OutgoingMessage(b"", keys=["a", "b"]),
        OutgoingMessage(b"", sharding_key=b"a"),
        OutgoingMessage(b"", properties={"a": "b\x02"}),
        OutgoingMessage(b"", properties={"TAGS": "t"}),
        OutgoingMessage(b"", delay_level=19),
        OutgoingMessage(b"", delay_level=1, delay_ms=5),
        OutgoingMessage(b"", deliver_at_ms=1795260282),  # seconds
        OutgoingMessage(b"", delay_ms=5, deliver_at_ms=7),
        OutgoingMessage(b"", delay_ms=-1),
        OutgoingMessage(b"", properties={"INNER_MULTI_DISPATCH": "%LMQ%a/b"}),
    ],
)
def test_texts_that_no_property_can_hold(message: OutgoingMessage) -> None:
    with pytest.raises(InvalidArgument):
        encode_message(message)


def test_delay_level_beyond_the_default_ones_is_a_property() -> None:
    stored, is_delayed = stored_properties(OutgoingMessage(b"", properties={"DELAY": "19"}))
    assert (stored, is_delayed) == (b"DELAY\x0119\x02", True)


def test_properties_have_a_limit() -> None:
    encode_message(OutgoingMessage(b"", keys="k" * 32_000))
    with pytest.raises(MessageTooLarge, match="properties"):
        encode_message(OutgoingMessage(b"", keys="k" * 32_300))


@pytest.mark.parametrize(
    ("topic", "answer"),
    [("orders", True), ("x" * 127, True), ("x" * 128, False), ("%RETRY%g", False), ("%DLQ%g", False)],
)
def test_which_topics_take_batches(topic: str, answer: bool) -> None:
    assert can_be_batched(topic) is answer


@pytest.mark.parametrize(
    ("message", "name", "value"),
    [
        (OutgoingMessage(b"", delay_level=3), "DELAY", "3"),
        (OutgoingMessage(b"", delay_ms=1500), "TIMER_DELAY_MS", "1500"),
        (OutgoingMessage(b"", deliver_at_ms=1795260282001), "TIMER_DELIVER_MS", "1795260282001"),
        (OutgoingMessage(b"", properties={"DELAY": "5"}), "DELAY", "5"),
    ],
)
def test_delayed_messages(message: OutgoingMessage, name: str, value: str) -> None:
    encoded = encode_message(message)
    assert encoded.is_delayed
    assert decode_properties(encoded.properties) == {name: value}


def test_a_batch_is_records_one_after_the_other() -> None:
    body = batch_body([(b"one", b"TAGS\x01t\x02", 0), (b"", b"", -7)])
    first = BATCH_OVERHEAD_BYTES + 3 + 7
    assert struct.unpack_from(">iiiii", body) == (first, 0, 0, 0, 3)
    assert body[20:23] == b"one"
    assert body[23:first] == b"\x00\x07TAGS\x01t\x02"
    assert struct.unpack(">iiiiiH", body[first:]) == (BATCH_OVERHEAD_BYTES, 0, 0, -7, 0, 0)


def test_every_request_has_an_id() -> None:
    assert decode_properties(own_properties("AB")) == {"UNIQ_KEY": "AB", "WAIT": "true"}
    assert decode_properties(own_properties("AB", wait_stored=False)) == {"UNIQ_KEY": "AB", "WAIT": "false"}


@pytest.mark.parametrize("topic", ["", "a b", "x" * 128, "SCHEDULE_TOPIC_XXXX", "RMQ_SYS_TRANS_HALF_TOPIC"])
def test_topics_that_take_nothing(topic: str) -> None:
    with pytest.raises(InvalidTopic):
        check_topic(topic)


def test_topics_that_take_messages() -> None:
    assert check_topic("orders") == "orders"
    assert check_topic("%RETRY%" + "g" * 120) == "%RETRY%" + "g" * 120


@pytest.mark.parametrize("body", [b"", "text", None, 7])
def test_bodies_that_are_none(body: object) -> None:
    with pytest.raises(InvalidArgument, match="body"):
        check_body(body, max_bytes=10)


def test_bodies_are_bytes_up_to_a_limit() -> None:
    assert check_body(memoryview(b"0123456789"), max_bytes=10) == b"0123456789"
    with pytest.raises(MessageTooLarge, match="11 bytes; max_message_size_bytes is 10"):
        check_body(b"x" * 11, max_bytes=10)


def test_a_message_is_a_dataclass_that_does_not_change() -> None:
    message = OutgoingMessage(b"x", "t", properties={"a": "b"}, topic="orders", delay_ms=5)
    assert message == OutgoingMessage(b"x", "t", None, {"a": "b"}, topic="orders", delay_ms=5)
    assert dataclasses.replace(message, keys="k") == OutgoingMessage(
        b"x", "t", "k", {"a": "b"}, topic="orders", delay_ms=5
    )
    assert pickle.loads(pickle.dumps(message)) == copy.copy(message) == message
    assert hash(OutgoingMessage(b"x")) == hash(OutgoingMessage(b"x"))
    assert repr(message).startswith("OutgoingMessage(body=b'x', tags='t', keys=None, properties={'a': 'b'},")
    assert [field.name for field in dataclasses.fields(message)][:3] == ["body", "tags", "keys"]
    with pytest.raises(AttributeError):
        message.tags = "u"  # type: ignore[misc]
    with pytest.raises(TypeError, match="at least 1"):
        OutgoingMessage()  # type: ignore[call-arg]
    with pytest.raises(TypeError, match="tag"):
        OutgoingMessage(b"x", tag="t")  # type: ignore[call-arg]


def test_text_that_utf8_cannot_hold() -> None:
    for given in ({"tags": "\ud800"}, {"keys": "\ud800"}, {"sharding_key": "\ud800"}):
        with pytest.raises(InvalidArgument, match="UTF-8"):
            stored_properties(OutgoingMessage(b"", **given))
