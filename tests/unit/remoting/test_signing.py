"""Checks: signatures of requests are upstream's, on every way of a request and in both forms of headers."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import Any

import pytest

from cometmq._engine import PullRequest, SendRequest
from cometmq.client import NamespaceFields, RequestSigner
from cometmq.errors import InvalidArgument
from cometmq.remoting.command import Command, HeaderFormat
from cometmq.remoting.hub import Hub
from cometmq.remoting.signing import signature_of
from support.frames import broker_frames, namesrv_frames
from support.peer import Peer

SECRET = "12345678"


def test_signature_covers_all_fields_by_name_and_the_body() -> None:
    """The example of upstream's documentation, computed by its client."""
    fields = {"a": "PG", "Zz": "9", "AccessKey": "rocketmq2", "b": "TopicTest", "Signature": "an old one"}
    assert signature_of(fields, b"hello", secret_key=SECRET) == "XABT5sbyXKOmfYshX9yXo8wNjek="
    for changed in ({**fields, "Zz": "8"}, {**fields, "c": "x"}):
        assert signature_of(changed, b"hello", secret_key=SECRET) != "XABT5sbyXKOmfYshX9yXo8wNjek="
    assert signature_of(fields, b"hellO", secret_key=SECRET) != "XABT5sbyXKOmfYshX9yXo8wNjek="


def test_names_are_sorted_as_java_does() -> None:
    """By UTF-16 code units: what lies beyond the first plane comes before U+FF5E."""
    far, near = "\U0001f600", "\uff5e"
    expected = signature_of({"a": "12"}, b"", secret_key=SECRET)
    assert signature_of({near: "2", far: "1"}, b"", secret_key=SECRET) == expected


def test_captured_requests_of_mqadmin_have_the_signatures_that_we_make() -> None:
    name = "apache-5.3.3-expired"
    signed = [
        frame.command
        for frames in (broker_frames(name), namesrv_frames(name))
        for frame in frames
        if "Signature" in frame.command.fields
    ]
    assert len(signed) > 100
    for command in signed:
        unsigned = {name: value for name, value in command.fields.items() if name not in ("AccessKey", "Signature")}
        made = RequestSigner(command.fields["AccessKey"], SECRET).before_request(
            "b:1", replace(command, fields=unsigned)
        )
        assert made.fields == command.fields


@pytest.mark.parametrize("header_format", list(HeaderFormat))
def test_requests_arrive_with_valid_signatures(header_format: HeaderFormat) -> None:
    send = SendRequest(
        code=310,
        producer_group="P",
        topic="Größe",
        queue_id=0,
        properties=b"KEYS\x01k\x02",
        body=bytes(range(256)),
        born_timestamp_ms=1_700_000_000_000,
    )
    pull = PullRequest(
        group="G",
        topic="T",
        queue_id=0,
        queue_offset=0,
        max_messages=1,
        sys_flag=2,
        commit_offset=0,
        suspend_timeout_ms=1_000,
        sub_version=0,
        max_bytes=100,
    )

    def answer(peer: Peer, connection: Any, request: Command) -> bytes:
        return request.response(1).encode()

    async def ask(address: str) -> None:
        hooks = (NamespaceFields("tenant"), RequestSigner("me", "schlüssel", security_token="tok"))
        hub = Hub(hooks=hooks, header_format=header_format)
        try:
            done: list[asyncio.Future[Any]] = [asyncio.get_running_loop().create_future() for _ in range(2)]
            hub.send(address, send, done[0].set_result, timeout_ms=30_000)
            hub.pull(address, pull, done[1].set_result, timeout_ms=30_000)
            await asyncio.gather(*done)
            await hub.invoke(address, Command(code=34, fields={"a": ""}, body=b"{}"), timeout_ms=30_000)
            hub.oneway(address, Command(code=37, fields={"b": "x"}))
            await asyncio.to_thread(peer.wait_for, lambda: len(peer.requests) == 4)
        finally:
            await hub.close()

    with Peer(answer) as peer:
        asyncio.run(ask(peer.address))
        assert sorted(one.code for one in peer.requests) == [11, 34, 37, 310]
        for one in peer.requests:
            assert one.fields["Signature"] == signature_of(one.fields, one.body, secret_key="schlüssel")
            own = {"AccessKey": "me", "SecurityToken": "tok", "ns": "tenant", "nsd": "true"}
            assert own.items() <= one.fields.items()


def test_secret_is_not_shown() -> None:
    assert repr(RequestSigner("me", "hidden", security_token="also")) == "RequestSigner('me')"
    assert repr(NamespaceFields("tenant")) == "NamespaceFields('tenant')"


@pytest.mark.parametrize("wrong", ["", " ", None, b"x"])
def test_empty_credentials_are_refused_without_showing_them(wrong: Any) -> None:
    with pytest.raises(InvalidArgument, match="access_key"):
        RequestSigner(wrong, "hidden")
    with pytest.raises(InvalidArgument, match="secret_key"):
        RequestSigner("me", wrong)
    with pytest.raises(InvalidArgument, match="namespace"):
        NamespaceFields(wrong)
    if wrong is not None:
        with pytest.raises(InvalidArgument, match="security_token"):
            RequestSigner("me", "hidden", security_token=wrong)


def test_errors_about_other_fields_do_not_have_the_credentials() -> None:
    signer = RequestSigner("me", "hidden", security_token="also")
    with pytest.raises(UnicodeEncodeError) as raised:
        signer.before_request("a:1", Command(code=1, fields={"key": "k\udce9"}))
    assert raised.value.object == "k\udce9"
