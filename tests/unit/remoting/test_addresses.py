"""Checks: addresses are read as RocketMQ writes them, and malformed ones are refused."""

from __future__ import annotations

import pytest

from cometmq.errors import InvalidArgument
from cometmq.remoting.addresses import parse_address, parse_addresses


@pytest.mark.parametrize(
    ("text", "pair"),
    [
        ("127.0.0.1:9876", ("127.0.0.1", 9876)),
        ("name.of-a_host:0", ("name.of-a_host", 0)),
        ("2001:db8::1:10911", ("2001:db8::1", 10911)),
        ("[2001:db8::1]:10911", ("2001:db8::1", 10911)),
        ("http://h:1", ("h", 1)),
        (" h:65535 ", ("h", 65535)),
    ],
)
def test_the_port_stands_behind_the_last_colon(text: str, pair: tuple[str, int]) -> None:
    assert parse_address(text) == pair


@pytest.mark.parametrize(
    "text", ["", "h", "h:", ":1", "h:65536", "h:-1", "h:+1", "h:1x", "h:٣", "a b:1", f"h:{9:0>99}"]
)
def test_malformed_addresses(text: str) -> None:
    with pytest.raises(InvalidArgument):
        parse_address(text)


def test_lists() -> None:
    assert parse_addresses("a:1; b:2,http://a:1;;") == ("a:1", "b:2")
    for text in ("", ";", "a:1;b"):
        with pytest.raises(InvalidArgument):
            parse_addresses(text)
