"""Checks: messages in brokers' answers, read from captured ones and from damaged ones."""

from __future__ import annotations

import hashlib
import random

import pytest

from cometmq._engine import Message, decode_messages
from cometmq.errors import CorruptRecord, DecompressionError
from cometmq.remoting.codes import RequestCode
from support.frames import all_frames, broker_frames, exchanges
from support.golden import expected_records


def found_by_key() -> bytes:
    """The one answer to a query in the run, with one message."""
    for _, request, answer in exchanges(broker_frames("apache-5.3.3-groups")):
        if request.code == RequestCode.QUERY_MESSAGE and answer is not None and answer.body:
            return answer.body
    raise AssertionError("the run has no such answer")


def test_one_message() -> None:
    body = found_by_key()
    (message,) = decode_messages(body)
    assert (message.topic, message.queue_id, message.body_bytes, message.keys) == ("Two", 5, b"two 5", ("two5",))
    assert message.record_bytes == len(body)
    assert message.store_host == ("127.0.0.1", 18911)
    assert decode_messages(body) == [message]
    del body
    assert bytes(message.body) == b"two 5"  # the message keeps the bytes


def test_several_and_none() -> None:
    body = found_by_key()
    assert decode_messages(b"") == []
    assert [one.body_bytes for one in decode_messages(body * 3)] == [b"two 5"] * 3


def test_bytes_that_end_too_early() -> None:
    body = found_by_key()
    for end in range(1, len(body)):
        with pytest.raises(CorruptRecord):
            decode_messages(body[:end])
        with pytest.raises(CorruptRecord):
            decode_messages(body + body[:end])


@pytest.mark.parametrize("seed", range(20261122, 20261126))
def test_damage_is_an_error_or_another_message(seed: int) -> None:
    chooser = random.Random(seed)
    body = found_by_key()
    for _ in range(2_000):
        damaged = bytearray(body)
        for _ in range(chooser.choice((1, 1, 2, 8))):
            damaged[chooser.randrange(len(damaged))] = chooser.randrange(256)
        try:
            messages = decode_messages(bytes(damaged))
        except (CorruptRecord, DecompressionError):
            continue
        for message in messages:
            read(message)


def read(message: Message) -> None:
    """Look at everything that it says."""
    assert isinstance(message.topic, str)
    assert isinstance(message.properties, dict)
    assert message.born_host
    assert message.message_id
    try:
        assert len(message.body_bytes) == len(message.body)
    except DecompressionError:
        assert message.is_compressed


@pytest.mark.parametrize("name", ["apache-5.3.3", "apache-5.3.3-rare", "apache-4.9.7"])
def test_all_pulls_of_a_run(name: str) -> None:
    """Compressed bodies, both layouts and inner batches: as the log of the run has them."""
    frames = all_frames(name)
    if frames is None:
        pytest.skip("the captured frames are not at hand: ../shared/golden")
    stored = {record["physicalOffset"]: record for record in expected_records(name)}
    seen = 0
    for _, request, answer in exchanges(frames):
        if (
            request.code not in (RequestCode.PULL_MESSAGE, RequestCode.LITE_PULL_MESSAGE)
            or answer is None
            or answer.code
        ):
            continue
        for message in decode_messages(answer.body):
            record = stored[message.physical_offset]
            assert (message.topic, message.queue_id, message.record_bytes) == (
                record["topic"],
                record["queueId"],
                record["size"],
            )
            assert message.store_timestamp_ms == record["storeTimestamp"]
            if message.queue_offset == record["queueOffset"] and not record["sysFlag"] & 0x80:
                assert message.properties == record["properties"]
                assert hashlib.sha256(message.body).hexdigest() == record["bodySha256"]
            seen += 1
    assert seen > 100
