"""Checks: handles of popped messages, and how they are made of a broker's answer."""

from __future__ import annotations

import pickle
from collections.abc import Mapping

import pytest

from cometmq._engine import ReceivedMessage, decode_pulled
from cometmq.client.pop.pop_handles import (
    HANDLE_CHARS_MAX,
    PopHandle,
    PopTimes,
    TopicKind,
    pop_retry_topic,
    read_message_offsets,
    read_starts,
    set_handles,
)
from cometmq.client.pop.pop_policy import popped_times
from cometmq.errors import InvalidArgument, MalformedCommand
from cometmq.remoting.codes import RequestCode
from support.fake_cluster import Record
from support.frames import all_frames, exchanges

TEXT = "100 1700000000000 60000 3 0 broker-a 2 101"
TIMES = PopTimes(pop_ms=1_700_000_000_000, invisible_ms=60_000, revive_queue_id=3)


def test_a_handle_there_and_back() -> None:
    """The specification's example."""
    handle = PopHandle.parse(TEXT)
    assert handle == PopHandle(
        start_offset=100,
        times=TIMES,
        kind=TopicKind.NORMAL,
        broker_name="broker-a",
        queue_id=2,
        queue_offset=101,
    )
    assert str(handle) == TEXT
    renewed = handle.renewed(PopTimes(pop_ms=5, invisible_ms=6, revive_queue_id=7))
    assert str(renewed) == "101 5 6 7 0 broker-a 2 101"
    short, _, _ = TEXT.rpartition(" ")
    assert str(PopHandle.parse(short, queue_offset=101)) == TEXT


@pytest.mark.parametrize(
    "text",
    [
        "",
        "100 1700000000000 60000 3 0 broker-a 2",
        TEXT + " 1",
        TEXT.replace("100", "-1"),
        TEXT.replace("100", "x"),
        TEXT.replace("100", "\u0661"),
        TEXT.replace("100", "9" * 19),
        TEXT.replace(" 3 0 ", " 3 3 "),
        TEXT.replace(" 3 0 ", " 4294967296 0 "),
        TEXT.replace("broker-a", ""),
        TEXT + "1" * HANDLE_CHARS_MAX,
    ],
)
def test_invalid_handles_are_rejected(text: str) -> None:
    with pytest.raises(InvalidArgument):
        PopHandle.parse(text)


def test_retry_topics_of_each_kind() -> None:
    assert [pop_retry_topic("g", "T", kind) for kind in TopicKind] == ["T", "%RETRY%g_T", "%RETRY%g+T"]


def test_fields_of_an_answer() -> None:
    assert read_starts("0 1 5;1 0 7") == {(0, 1): 5, (1, 0): 7}
    assert read_message_offsets("0 1 5,6;2 0 7") == {(0, 1): [5, 6], (2, 0): [7]}
    assert read_starts("") == read_message_offsets("") == {}


@pytest.mark.parametrize("text", ["0 1", "0 1 5;0 1 6", "0 1 5;", "0 1 x", "3 1 5", "0 -1 5", "0 1 5 6", "a 1 5", " "])
def test_invalid_answers_are_rejected(text: str) -> None:
    with pytest.raises(MalformedCommand):
        read_starts(text)
    with pytest.raises(MalformedCommand):
        read_message_offsets(text)


def _record(offset: int, *, topic: str = "T", queue_id: int = 0, properties: Mapping[str, str] | None = None) -> bytes:
    return Record(
        topic=topic,
        queue_id=queue_id,
        queue_offset=offset,
        physical_offset=1000 + offset,
        body=b"%d" % offset,
        properties=dict(properties or {}),
        born_ms=1,
        stored_ms=2,
    ).encode()


def _decode(*records: bytes) -> list[ReceivedMessage]:
    return decode_pulled(b"".join(records), broker_name="b", topic="T", queue_id=-1).messages


def test_handles_are_made_of_an_answer() -> None:
    messages = _decode(_record(8), _record(7), _record(3, queue_id=1), _record(4, topic="%RETRY%g+T"))
    set_handles(messages, TIMES, broker_name="b", starts="0 0 7;0 1 2;2 0 4", message_offsets="0 0 17,18;0 1 3;2 0 4")
    # The i-th message of a queue, by offset, has the i-th of the offsets that the answer names.
    assert [message.pop_handle for message in messages] == [
        "7 1700000000000 60000 3 0 b 0 18",
        "7 1700000000000 60000 3 0 b 0 17",
        "2 1700000000000 60000 3 0 b 1 3",
        "4 1700000000000 60000 3 2 b 0 4",
    ]
    assert [(message.queue_id, message.queue_offset) for message in messages] == [(0, 18), (0, 17), (1, 3), (0, 4)]
    assert all(message.topic == "T" for message in messages)
    again = pickle.loads(pickle.dumps(messages[0]))
    assert again == messages[0]
    assert again.pop_handle == messages[0].pop_handle


def test_a_message_that_carries_its_handle_keeps_it() -> None:
    carried = "4 1700000000000 10000 5 1 b 0 6"
    messages = _decode(_record(6, properties={"POP_CK": carried}), _record(9, properties={"POP_CK": carried[:-2]}))
    assert set_handles(messages, TIMES, broker_name="b", starts="", message_offsets="") == messages
    assert [message.pop_handle for message in messages] == [carried, carried[:-1] + "9"]


STALE = (
    "nonsense",
    "4 1600000000000 10000 5 0 b 0 6",
    "4 1600000000000 10000 5 1 b 0 6",
    "4 1700000000000 10000 5 1 other 0 6",
    "9 1700000000000 10000 5 1 b 0 6",
)


@pytest.mark.parametrize("carried", STALE)
def test_handle_that_a_sender_set_is_not_trusted(carried: str) -> None:
    """As where an application forwards a popped message with its properties."""
    messages = _decode(_record(5), _record(6, properties={"POP_CK": carried}), _record(7))
    found = set_handles(messages, TIMES, broker_name="b", starts="0 0 5", message_offsets="0 0 5,6,7")
    assert found == messages
    assert [str(message.pop_handle) for message in messages] == [
        f"5 1700000000000 60000 3 0 b 0 {offset}" for offset in (5, 6, 7)
    ]


def test_handle_that_a_sender_set_is_not_trusted_in_a_retry_topic_either() -> None:
    """Apache's brokers leave the property as it is; the message comes under its own topic's name."""
    messages = _decode(_record(5), _record(8, properties={"POP_CK": STALE[2]}))
    assert (
        set_handles(messages, TIMES, broker_name="b", starts="0 0 5;1 0 8", message_offsets="0 0 5;1 0 8") == messages
    )
    assert [str(message.pop_handle) for message in messages] == [
        "5 1700000000000 60000 3 0 b 0 5",
        "8 1700000000000 60000 3 1 b 0 8",
    ]


def test_an_old_broker_names_no_starts() -> None:
    messages = _decode(_record(5), _record(6))
    set_handles(messages, TIMES, broker_name="b", starts=None, message_offsets=None)
    assert [message.pop_handle for message in messages] == [
        "5 1700000000000 60000 3 0 b 0 5",
        "5 1700000000000 60000 3 0 b 0 6",
    ]


@pytest.mark.parametrize(
    ("starts", "offsets"), [("0 1 5", "0 0 5"), ("0 0 5", "0 0 5,6"), ("0 0 5", "0 1 5"), ("0 0 5", "")]
)
def test_message_without_a_place_is_left_out(starts: str, offsets: str, caplog: pytest.LogCaptureFixture) -> None:
    other = _record(3, queue_id=7)
    messages = _decode(_record(9), other)
    found = set_handles(
        messages, TIMES, broker_name="b", starts=f"{starts};0 7 3", message_offsets=f"{offsets};0 7 3".lstrip(";")
    )
    assert found == messages[1:]
    assert "1 of its 2 messages" in caplog.text


def test_handles_of_a_real_run() -> None:
    """Each message that upstream's client acknowledged in the captured run was popped by us under the same handle."""
    ours: set[str] = set()
    theirs: set[str] = set()
    frames = all_frames("apache-5.3.3")
    if frames is None:
        pytest.skip("the whole capture is not at hand")
    for _, request, answer in exchanges(frames):
        if request.code == RequestCode.POP_MESSAGE and answer is not None and answer.code == 0:
            messages = decode_pulled(
                answer.body, broker_name="broker-a", topic=request.fields["topic"], queue_id=-1
            ).messages
            set_handles(
                messages,
                popped_times(answer),
                broker_name="broker-a",
                starts=answer.fields["startOffsetInfo"],
                message_offsets=answer.fields["msgOffsetInfo"],
            )
            ours.update(message.pop_handle or "" for message in messages)
        elif request.code in (RequestCode.ACK_MESSAGE, RequestCode.CHANGE_MESSAGE_INVISIBLETIME):
            text = request.fields["extraInfo"]
            theirs.add(text)
            assert str(PopHandle.parse(text)) == text
    assert len(theirs) >= 60
    assert theirs <= ours
