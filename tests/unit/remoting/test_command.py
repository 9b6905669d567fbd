"""Checks: a command knows what it is; its answer mirrors it; its bytes go through the C codec and come back."""

from __future__ import annotations

import dataclasses

import pytest

from cometmq.errors import InvalidArgument, MalformedCommand
from cometmq.remoting.command import FLAG_ONEWAY, FLAG_RESPONSE, VERSION, Command, HeaderFormat, Language

# The worked example of a heartbeat's answer.
HEARTBEAT_ANSWER = (
    bytes.fromhex("000000aa000000a6")
    + b'{"code":0,"extFields":{"IS_SUPPORT_HEART_BEAT_V2":"true","IS_SUB_CHANGE":"true"},'
    b'"flag":1,"language":"JAVA","opaque":7,"serializeTypeCurrentRPC":"JSON","version":479}'
)


def test_a_request_and_its_answer() -> None:
    request = Command(code=105, fields={"topic": "orders"}, opaque=-5, format=HeaderFormat.ROCKETMQ, version=401)
    answer = request.response(17, remark="no route", fields={"a": "b"}, body=b"body")
    assert not request.is_response
    assert answer.is_response
    assert (answer.opaque, answer.format, answer.flag) == (-5, HeaderFormat.ROCKETMQ, FLAG_RESPONSE)
    assert (answer.code, answer.remark, answer.fields, answer.body) == (17, "no route", {"a": "b"}, b"body")
    assert answer.version == VERSION, "a server says its own version, not the request's"


def test_the_answer_to_a_oneway_request_carries_the_response_bit_alone() -> None:
    request = Command(code=15).as_oneway()
    assert request.is_oneway
    assert request.flag == FLAG_ONEWAY
    assert request.response(0).flag == FLAG_RESPONSE


def test_it_cannot_be_changed() -> None:
    with pytest.raises(dataclasses.FrozenInstanceError):
        Command(code=1).code = 2  # type: ignore[misc]
    assert Command(code=1).with_opaque(9).opaque == 9


def test_a_captured_form_decodes_and_encodes_to_the_same_bytes() -> None:
    command = Command.decode(HEARTBEAT_ANSWER)
    assert command.fields == {"IS_SUPPORT_HEART_BEAT_V2": "true", "IS_SUB_CHANGE": "true"}
    assert (command.code, command.opaque, command.language, command.version) == (0, 7, Language.JAVA, 479)
    assert command.remark is None
    assert command.encode() == HEARTBEAT_ANSWER


@pytest.mark.parametrize("header_format", list(HeaderFormat))
def test_both_formats_keep_everything(header_format: HeaderFormat) -> None:
    command = Command(
        code=310,
        fields={"i": "TAGS\x01rot\x02KEYS\x01größe 中 \U0001f600\x02", "a": 'PG"\\'},
        body=bytes(range(256)),
        opaque=2**31 - 1,
        flag=FLAG_ONEWAY,
        language=Language.PYTHON,
        remark="ein\nZeile",
        format=header_format,
    )
    assert Command.decode(command.encode()) == command


@pytest.mark.parametrize(
    "frame", [b"", HEARTBEAT_ANSWER[:-1], HEARTBEAT_ANSWER + b"x", b"\x00\x00\x00\x04\x02\x00\x00\x00"]
)
def test_malformed_frames_are_refused(frame: bytes) -> None:
    with pytest.raises(MalformedCommand):
        Command.decode(frame)


def test_a_frame_that_no_peer_takes_is_not_made() -> None:
    with pytest.raises(InvalidArgument, match="bytes"):
        Command(code=310, body=bytes(16 << 20)).encode()
