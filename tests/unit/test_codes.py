"""Checks: the files made from the table of codes are what the table gives; the table has all of upstream's codes."""

from __future__ import annotations

import re
from pathlib import Path

import make_codes
import pytest

from cometmq.remoting import codes
from cometmq.remoting.codes import RequestCode, ResponseCode

ROOT = Path(__file__).resolve().parents[2]
TEXT = (ROOT / make_codes.TABLE).read_text("utf-8")
TABLE = make_codes.read_table(TEXT)


@pytest.mark.parametrize("path", sorted(make_codes.generated()))
def test_generated_files_match_the_table(path: str) -> None:
    assert (ROOT / path).read_text("utf-8") == make_codes.generated()[path], "run make codes"


def test_all_codes_of_the_releases_are_there() -> None:
    """153 of 5.3.3, five of 4.9's access control, 11 of 5.4 and 5.5; 63 answers and the five of the transport."""
    assert len([one for one in TABLE.requests if one.since != "ours"]) == 169
    assert len(TABLE.responses) == 68
    assert (RequestCode.SEND_MESSAGE_V2, RequestCode.BATCH_ACK_MESSAGE) == (310, 200151)
    assert (ResponseCode.SUCCESS, ResponseCode.GO_AWAY, ResponseCode.RPC_TIME_OUT) == (0, 1500, -1006)


def test_codes_of_our_own_are_far_from_upstreams() -> None:
    """And within the 16 bits of a ROCKETMQ header."""
    ours = [one.code for one in TABLE.requests if one.since == "ours"]
    assert ours == [31001, 31002, 31003, 31004, 31005]
    assert all(abs(code - one.code) > 1000 for code in ours for one in TABLE.requests if one.since != "ours")
    assert max(ours) < 1 << 15


def test_every_request_to_us_has_one_place() -> None:
    places = [
        codes.ENGINE_REQUESTS,
        codes.BROKER_REQUESTS,
        codes.NAMESRV_REQUESTS,
        frozenset(codes.NOT_YET_REQUESTS),
        frozenset(codes.NEVER_REQUESTS),
    ]
    to_clients = {request.code for request in TABLE.requests if request.is_served and request.to == ("client",)}
    assert sum(map(len, places)) + len(to_clients) == len(RequestCode)
    assert set().union(*places) | to_clients == set(RequestCode)
    pops = {200050, 200051, 200052, 200053, 200054, 200055, 200151}
    assert {10, 310, 320, 11, 361, 14, 15, 29, 30, 31, 37} | pops == codes.ENGINE_REQUESTS


@pytest.mark.parametrize(
    ("before", "after", "text"),
    [
        ("code = 11,", "code = 10,", "twice"),
        ('where = "later"', 'where = "soon"', "soon"),
        ('note = "replication"', 'remark = "replication"', "remark"),
        (', note = "replication"', "", "says in note"),
        ('module = "csrc/broker/send/cmq_send.c", ', "", "module and test"),
        ('to = ["broker"]', 'to = ["nobody"]', "nobody"),
    ],
)
def test_a_wrong_entry_is_named(before: str, after: str, text: str) -> None:
    assert before in TEXT
    with pytest.raises(make_codes.TableError, match=text):
        make_codes.read_table(TEXT.replace(before, after, 1))


def test_names_are_constants_in_both_languages() -> None:
    assert all(re.fullmatch(r"[A-Z][A-Z0-9_]*", entry.name) for entry in (*TABLE.requests, *TABLE.responses))


@pytest.mark.parametrize(
    "request_code", [request for request in TABLE.requests if request.is_served], ids=lambda one: str(one.name)
)
def test_each_place_is_there(request_code: make_codes.Request) -> None:
    module = ROOT / request_code.module
    assert (ROOT / request_code.test).exists(), "the row's test"
    if request_code.where == "python":
        assert f"RequestCode.{request_code.name}" in module.read_text("utf-8")
    else:
        assert module.exists()


def test_loops_serve_the_codes_of_the_table() -> None:
    served = re.findall(r"case CMQ_REQUEST_(\w+):", (ROOT / "csrc/broker/cmq_broker.c").read_text("utf-8"))
    assert sorted(served) == sorted(request.name for request in TABLE.requests if request.where == "c")
