"""Checks: sends and pulls as a client writes them, their answers, and the messages in them, against captured frames."""

from __future__ import annotations

import hashlib
import pickle
import random
from collections.abc import Iterator
from typing import Any

import pytest

from cometmq._engine import (
    PullAnswer,
    PullRequest,
    ReceivedMessage,
    SendAnswer,
    SendRequest,
    decode_messages,
    decode_pulled,
    encode_request,
    read_answer,
    set_reconsume_times,
)
from cometmq.errors import CorruptRecord, DecompressionError, InvalidArgument, MalformedCommand
from cometmq.remoting.codes import RequestCode, ResponseCode
from cometmq.remoting.command import Command, HeaderFormat
from cometmq.remoting.members import Members
from support.client_requests import PULL, SEND
from support.frames import all_frames, broker_frames, exchanges
from support.golden import expected_records

RUNS = ["apache-4.9.7", "apache-5.3.3", "apache-5.3.3-binary-headers", "apache-5.3.3-rare"]
SENDS = {RequestCode.SEND_MESSAGE, RequestCode.SEND_MESSAGE_V2, RequestCode.SEND_BATCH_MESSAGE}
PULLS = {RequestCode.PULL_MESSAGE, RequestCode.LITE_PULL_MESSAGE}
# Fields that upstream's hooks and base classes add and no broker needs.
EXTRA = {"ReqT", "lo", "ns", "nsd", "oway", "bname", "requestSource", "n"}


def captured(name: str, codes: set[RequestCode]) -> Iterator[tuple[Command, Command | None]]:
    frames = all_frames(name)
    if frames is None:
        pytest.skip("the captured frames are not at hand: ../shared/golden")
    for _, request, answer in exchanges(frames):
        if request.code in codes:
            yield request, answer


def send_of(command: Command) -> SendRequest:
    letters = "abcdefghijklm"
    names = [
        *("producerGroup", "topic", "defaultTopic", "defaultTopicQueueNums", "queueId", "sysFlag", "bornTimestamp"),
        *("flag", "properties", "reconsumeTimes", "unitMode", "maxReconsumeTimes", "batch"),
    ]
    keys = names if command.code == RequestCode.SEND_MESSAGE else list(letters)
    given = dict(zip(names, (command.fields.get(key) for key in keys), strict=True))

    def number(name: str, absent: int = 0) -> int:
        text = given[name]
        return absent if text is None else int(text)

    return SendRequest(
        code=command.code,
        producer_group=given["producerGroup"] or "",
        topic=given["topic"] or "",
        default_topic=given["defaultTopic"] or "",
        default_topic_queues=number("defaultTopicQueueNums"),
        queue_id=number("queueId"),
        sys_flag=number("sysFlag"),
        born_timestamp_ms=number("bornTimestamp"),
        flag=number("flag"),
        properties=(given["properties"] or "").encode(),
        reconsume_times=number("reconsumeTimes"),
        unit_mode=given["unitMode"] == "true",
        max_reconsume_times=number("maxReconsumeTimes", -1),
        batch=given["batch"] == "true",
        body=command.body,
    )


def pull_of(command: Command) -> PullRequest:
    members = Members(command.fields)
    return PullRequest(
        lite=command.code == RequestCode.LITE_PULL_MESSAGE,
        group=members.required("consumerGroup"),
        topic=members.required("topic"),
        queue_id=members.required_int32("queueId"),
        queue_offset=members.required_int64("queueOffset"),
        max_messages=members.required_int32("maxMsgNums"),
        sys_flag=members.required_int32("sysFlag"),
        commit_offset=members.required_int64("commitOffset"),
        suspend_timeout_ms=members.required_int64("suspendTimeoutMillis"),
        sub_version=members.required_int64("subVersion"),
        subscription=command.fields.get("subscription"),
        expression_type=command.fields.get("expressionType"),
        max_bytes=int(command.fields.get("maxMsgBytes", "0")),
    )


@pytest.mark.parametrize("name", RUNS)
def test_captured_sends_are_written_alike(name: str) -> None:
    seen = 0
    for command, _ in captured(name, SENDS):
        for header_format in HeaderFormat:
            again = Command.decode(encode_request(send_of(command), format=header_format, opaque=7))
            written = {
                "j": "0",
                "k": "false",
                "m": "false",
                "reconsumeTimes": "0",
                "unitMode": "false",
                "batch": "false",
            }
            expected = {key: value for key, value in command.fields.items() if key not in EXTRA}
            assert {**written, **expected} == {**written, **dict(again.fields)}
            assert (again.code, again.body, again.opaque, again.flag) == (command.code, command.body, 7, 0)
        seen += 1
    assert seen > 5


@pytest.mark.parametrize("name", RUNS)
def test_captured_pulls_are_written_alike(name: str) -> None:
    seen = 0
    for command, _ in captured(name, PULLS):
        for header_format in HeaderFormat:
            again = Command.decode(encode_request(pull_of(command), format=header_format, opaque=-1))
            assert dict(again.fields) == {key: value for key, value in command.fields.items() if key not in EXTRA}
            assert (again.code, again.body, again.opaque, again.flag) == (command.code, b"", -1, 0)
        seen += 1
    assert seen > 5


@pytest.mark.parametrize("name", RUNS)
def test_captured_answers_to_sends(name: str) -> None:
    seen = 0
    for command, answer in captured(name, SENDS):
        if answer is None:
            continue
        read = read_answer(send_of(command), answer.encode())
        fields = answer.fields
        assert (read.code, read.remark) == (answer.code, answer.remark)
        assert (read.message_id, read.transaction_id) == (fields.get("msgId"), fields.get("transactionId"))
        assert (read.queue_id, read.queue_offset) == (
            int(fields.get("queueId", "-1")),
            int(fields.get("queueOffset", "-1")),
        )
        assert (read.region_id, read.trace_on) == (fields.get("MSG_REGION"), fields.get("TRACE_ON") != "false")
        assert (read.batch_unique_id, read.recall_handle) == (fields.get("batchUniqId"), fields.get("recallHandle"))
        seen += 1
    assert seen > 5


@pytest.mark.parametrize("name", RUNS)
def test_captured_answers_to_pulls(name: str) -> None:
    seen = found = 0
    stored = {record["physicalOffset"]: record for record in expected_records(name)}
    for command, answer in captured(name, PULLS):
        if answer is None:
            continue
        seen += 1
        read = read_answer(pull_of(command), answer.encode())
        fields = answer.fields
        assert (read.code, read.remark, read.body) == (answer.code, answer.remark, answer.body)
        if "nextBeginOffset" not in fields:
            assert answer.code not in (ResponseCode.SUCCESS, ResponseCode.PULL_NOT_FOUND)
            continue
        assert (read.next_begin_offset, read.min_offset, read.max_offset, read.suggested_broker_id) == (
            int(fields["nextBeginOffset"]),
            int(fields["minOffset"]),
            int(fields["maxOffset"]),
            int(fields["suggestWhichBrokerId"]),
        )
        if answer.code != ResponseCode.SUCCESS:
            continue
        topic, queue_id = command.fields["topic"], int(command.fields["queueId"])
        pulled = decode_pulled(
            answer.body,
            broker_name="broker-a",
            topic=topic,
            queue_id=queue_id,
            min_offset=read.min_offset,
            max_offset=read.max_offset,
        )
        known = decode_messages(answer.body)
        assert pulled.decoded == len(known) == len(pulled.messages)
        assert pulled.body_bytes == sum(message.body_size for message in pulled.messages)
        for message, plain in zip(pulled.messages, known, strict=True):
            found += 1
            look_at(message, plain, stored[message.physical_offset])
            assert (message.broker_name, message.queue_id) == ("broker-a", queue_id)
            assert (message.min_offset, message.max_offset) == (read.min_offset, read.max_offset)
            assert message.topic == message.properties.get("RETRY_TOPIC", topic)
    assert seen > 5
    assert found > 5


def look_at(message: ReceivedMessage, plain: Any, record: dict[str, Any]) -> None:
    """Compare a message with the plain one of the same bytes, with the log's record, and with itself after a pickle."""
    assert (message.stored_topic, message.properties, message.sys_flag) == (
        plain.topic,
        plain.properties,
        plain.sys_flag,
    )
    assert (message.queue_offset, message.body_bytes) == (plain.queue_offset, plain.body_bytes)
    assert (message.message_id, message.unique_id) == (plain.message_id, plain.unique_id)
    assert message.original_message_id == message.properties.get("ORIGIN_MESSAGE_ID", message.message_id)
    assert message.body_size == len(message.raw_body)
    assert message.reconsume_times == record["reconsumeTimes"]
    if not record["sysFlag"] & 0x80:
        assert hashlib.sha256(message.body).hexdigest() == record["bodySha256"]
    again = pickle.loads(pickle.dumps(message))
    assert again == message
    assert hash(again) == hash(message)
    assert (again.body_bytes, again.properties, again.topic) == (message.body_bytes, message.properties, message.topic)
    assert (again.born_host, again.store_host, again.flag) == (message.born_host, message.store_host, message.flag)
    assert again.is_inner_batch == message.is_inner_batch
    assert repr(again) == repr(message)


# --- Messages ---------------------------------------------------------------------------------------------------------


def an_answer() -> bytes:
    """The messages of one pull: the largest of the run."""
    bodies = (
        answer.body
        for _, request, answer in exchanges(broker_frames("apache-5.3.3-groups"))
        if request.code in {*PULLS, RequestCode.QUERY_MESSAGE} and answer is not None and answer.code == 0
    )
    return max(bodies, key=len)


def decoded(body: bytes, **options: Any) -> Any:
    return decode_pulled(body, broker_name="b", topic="T", queue_id=3, **options)


def test_tags_are_filtered_by_their_text() -> None:
    body = an_answer()
    all_of_them = decoded(body)
    tags = [message.tags for message in all_of_them.messages]
    for wanted in (frozenset[str](), frozenset({"no such tag"}), frozenset({tag for tag in tags if tag is not None})):
        some = decoded(body, tags=wanted)
        assert [message.tags for message in some.messages] == [tag for tag in tags if tag in wanted]
        assert some.decoded == all_of_them.decoded
        assert some.body_bytes == sum(message.body_size for message in some.messages)


def test_offset_delta_and_reconsume_times() -> None:
    body = an_answer()
    plain, moved = decoded(body).messages[0], decoded(body, offset_delta=1_000).messages[0]
    assert moved.queue_offset == plain.queue_offset + 1_000
    assert plain != moved
    assert plain == decoded(body).messages[0]
    set_reconsume_times(moved, 7)
    assert moved.reconsume_times == 7
    assert pickle.loads(pickle.dumps(moved)).reconsume_times == 7
    assert decoded(body).messages[0] in {plain}
    assert plain != decode_messages(body)[0]


def test_nothing_and_damage() -> None:
    body = an_answer()
    assert (decoded(b"").messages, decoded(b"").decoded, decoded(b"").body_bytes) == ([], 0, 0)
    first = decode_messages(body)[0].record_bytes
    for end in range(1, first):
        with pytest.raises(CorruptRecord) as caught:
            decoded(body + body[:end])
        assert caught.value.offset == len(body)


@pytest.mark.parametrize("seed", [20261122, 20261123])
def test_damage_is_an_error_or_another_message(seed: int) -> None:
    chooser = random.Random(seed)
    body = an_answer()
    refused = 0
    for _ in range(2_000):
        damaged = bytearray(body)
        for _ in range(chooser.choice((1, 1, 2, 8))):
            damaged[chooser.randrange(len(damaged))] = chooser.randrange(256)
        try:
            for message in decoded(bytes(damaged)).messages:
                assert message.topic
                assert isinstance(message.properties, dict)
                assert pickle.loads(pickle.dumps(message)) == message
                assert len(message.body) >= 0
        except (CorruptRecord, DecompressionError, InvalidArgument):
            refused += 1
    assert 0 < refused < 2_000


def test_a_large_answer_is_parsed_without_the_lock_alike() -> None:
    body = an_answer()
    times = 1 + (200_000 // len(body))
    many = decoded(body * times)
    once = decoded(body)
    assert many.decoded == once.decoded * times
    assert many.messages[-1] == once.messages[-1]
    with pytest.raises(CorruptRecord):
        decoded(body * times + b"\0\0\0\1")


# --- Malformed answers ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("request_", "fields", "name"),
    [
        (SEND, {}, "msgId"),
        (SEND, {"msgId": "x", "queueId": "1"}, "queueOffset"),
        (SEND, {"msgId": "x", "queueId": "1", "queueOffset": "many"}, "queueOffset"),
        (SEND, {"msgId": "x", "queueId": "4294967296", "queueOffset": "1"}, "queueId"),
        (PULL, {}, "nextBeginOffset"),
        (PULL, {"suggestWhichBrokerId": "0", "nextBeginOffset": "1", "minOffset": "0", "maxOffset": ""}, "maxOffset"),
    ],
)
def test_answers_that_say_too_little(request_: Any, fields: dict[str, str], name: str) -> None:
    answer = Command(code=0, fields=fields, flag=1)
    with pytest.raises(MalformedCommand, match=f"answer 0: .*{name}"):
        read_answer(request_, answer.encode())
    refusal = read_answer(request_, Command(code=1, remark="no", flag=1).encode())
    assert (refusal.code, refusal.remark) == (1, "no")


def test_bytes_that_are_no_answer() -> None:
    frame = Command(code=1, remark="no", flag=1).encode()
    for end in range(len(frame)):
        with pytest.raises(MalformedCommand):
            read_answer(SEND, frame[:end])


# --- Values -----------------------------------------------------------------------------------------------------------


def test_values_are_made_shown_and_varied() -> None:
    assert SEND.to_queue("b", 5).queue_id == 5
    other = SEND.message("b", 2, b"TAGS\x01A\x02", b"body", 9, 1, 4)
    assert (other.topic, other.broker_name, other.queue_id, other.body) == ("t", "b", 2, b"body")
    assert (other.sys_flag, other.flag, other.max_reconsume_times, other.default_topic) == (1, 4, -1, "TBW102")
    assert repr(other) == "<SendRequest 310 t/b/2 4 B>"
    assert repr(PULL) == "<PullRequest 11 g t/None/0@0>"
    assert (PULL.code, PULL.lite) == (11, False)
    assert repr(SendAnswer(code=0, message_id="id", queue_id=1, queue_offset=2)) == "<SendAnswer 0 1@2 id>"
    assert "FOUND" in repr(PullAnswer(code=0, remark="FOUND", body=b"xx"))
    with pytest.raises(AttributeError):
        SEND.queue_id = 4  # type: ignore[misc]


def test_codes_and_texts_that_no_binary_header_holds() -> None:
    pop = Command(code=RequestCode.POP_MESSAGE, fields={"topic": "t"})
    assert Command.decode(encode_request(pop, format=HeaderFormat.ROCKETMQ)).format is HeaderFormat.JSON
    route = Command(code=RequestCode.GET_ROUTEINFO_BY_TOPIC, fields={"topic": "t"})
    assert Command.decode(encode_request(route, format=HeaderFormat.ROCKETMQ)).format is HeaderFormat.ROCKETMQ
    with pytest.raises(InvalidArgument, match="no frame can hold"):
        encode_request(SEND.message(None, 0, b"", bytes(17 << 20), 0), format=HeaderFormat.JSON)


def test_a_long_header_is_written_whole() -> None:
    properties = b"NAME\x01" + b'"\x01'.replace(b"\x01", b"\\") * 15_000 + b"\x02"
    for header_format in HeaderFormat:
        again = Command.decode(encode_request(SEND.message(None, 0, properties, b"b", 0), format=header_format))
        assert again.fields["i"].encode() == properties
        assert again.body == b"b"
