"""``cometmq topic``, ``group``, ``message``, ``offset``, ``cluster``: against our own servers in this process."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import cometmq
import cometmq.admin
from cometmq.admin import EndTransactionTrace, PubTrace, RecallTrace, SubAfterTrace, SubBeforeTrace, TraceRecord
from cometmq.cli.failures import ExitCode
from cometmq.client import ConsumeFromWhere, Producer, SimpleConsumer
from cometmq.client.trace.trace_records import encode_trace
from cometmq.remoting.bodies.routes import BrokerData, QueueData, TopicRouteData
from cometmq.remoting.bodies.running_info import ConsumeMessageDirectlyResult, ConsumeResult
from cometmq.remoting.codes import RequestCode, ResponseCode
from cometmq.remoting.command import Command
from cometmq.remoting.sync_channel import Channel
from cometmq.testing import Cluster, cluster
from support.command_line import Outcome, run, start
from support.frames import broker_frames, exchanges
from support.peer import Peer
from support.registrations import registration

CSV = 'carrier,tailnum,text\nUA,N1,first\nAA,N2,"two,\nlines"\nUA,NA,third\n\nDL,N1,\n'


@pytest.fixture(scope="module")
def running() -> Iterator[Cluster]:
    with cluster() as running:
        yield running


@pytest.fixture(autouse=True)
def environment(running: Cluster, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COMETMQ_NAMESRV", running.name_server_address)


def ok(*arguments: str | Path, input: bytes | str | None = None) -> Outcome:
    outcome = run(*arguments, input=input)
    assert outcome.code == ExitCode.OK, outcome
    return outcome


def ok_json(*arguments: str | Path, input: bytes | str | None = None) -> Any:
    return json.loads(ok(*arguments, "--json", input=input).out)


def messages(topic: str) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = ok_json("message", "peek", topic, "--limit", "1000")
    return found


# --- Topics


def test_a_topic_from_birth_to_death() -> None:
    outcome = ok("topic", "create", "t-cli", "--queues", "3", "-a", "message.type=FIFO")
    assert outcome.out == "topic t-cli: 3 queues on broker-a\n"
    (row,) = [line.split() for line in ok("topic", "list").lines if line.startswith("t-cli ")]
    assert row == ["t-cli", "broker-a", "3", "3", "rw", "message.type=FIFO"]
    again = run("topic", "create", "t-cli")
    assert (again.code, again.out) == (ExitCode.FAILED, "")
    assert "already exists" in again.err
    wrong = run("topic", "create", "t-wrong", "-a", "message.typ=FIFO")
    assert wrong.code == ExitCode.FAILED
    assert "slave" not in wrong.err
    ok("topic", "create", "t-cli", "--exist-ok", "-q", "4")
    changed = ok_json(
        "topic", "update", "t-cli", "--write-queues", "2", "--perm", "r", "--delete-attribute", "message.type"
    )
    assert changed["brokers"]["broker-a"] == {
        "read_queues": 4,
        "write_queues": 2,
        "perm": "r",
        "order": False,
        "attributes": {},
    }
    described = ok_json("topic", "describe", "t-cli")
    assert [one["queue_id"] for one in described["queues"]] == [0, 1, 2, 3]
    assert "0 messages" in ok("topic", "describe", "t-cli").out
    assert run("topic", "delete", "t-cli").code == ExitCode.USAGE  # nobody can be asked
    assert run("topic", "delete", "t-cli", "--json").code == ExitCode.USAGE
    assert "deleted topic t-cli with 0 messages on broker-a" in ok("topic", "delete", "t-cli", "--yes").out
    gone = run("topic", "describe", "t-cli")
    assert gone.code == ExitCode.FAILED
    assert "cometmq topic create t-cli" in gone.err


@pytest.mark.parametrize(
    "arguments",
    [
        ["topic", "update", "t-none"],
        ["topic", "create", "x", "--perm", "maybe"],
        ["topic", "create", "x", "-a", "nothing"],
        ["group", "update", "g-none"],
        ["message", "send", "x", "--text", "a", "--tag-column", "b"],
        ["message", "send", "b d", "--text", "a"],
        ["message", "peek", "x", "--tags", "a &&& b"],
        ["message", "peek", "x", "--tags", "a | b"],
        ["message", "get"],
        ["message", "get", "id", "--offset", "3"],
        ["offset", "reset", "g", "t", "--to", "whenever"],
        ["offset", "reset", "g", "t", "--to", "offset=5"],
        ["offset", "reset", "g", "t", "--to", "offset=x", "--queue", "1"],
        ["cluster", "clean"],
        ["cluster", "config", "--set", "x"],
        ["topic", "list", "--namesrv", "nowhere"],
        ["topic", "list", "--broker", "127.0.0.1:99999"],
        ["topic", "list", "--namesrv", "a:1", "--broker", "b:2"],
    ],
)
def test_invalid_options_are_rejected(arguments: list[str]) -> None:
    outcome = run(*arguments)
    assert (outcome.code, outcome.out) == (ExitCode.USAGE, "")
    assert outcome.err


# --- Messages


def test_trace_prints_the_way_of_a_message(running: Cluster) -> None:
    records: list[TraceRecord] = [
        PubTrace(
            timestamp_ms=1_000,
            region_id="r",
            group="shop",
            topic="orders",
            message_id="AB",
            tags="",
            keys="",
            store_host="10.0.0.3:10911",
            body_bytes=7,
            cost_ms=3,
            message_type=1,
            offset_message_id=None,
            is_success=True,
        ),
        EndTransactionTrace(
            timestamp_ms=2_000,
            region_id="r",
            group="shop",
            topic="orders",
            message_id="AB",
            tags="",
            keys="",
            store_host="10.0.0.3:10911",
            message_type=2,
            transaction_id="AB",
            state="COMMIT_MESSAGE",
            is_from_check=True,
        ),
        SubBeforeTrace(
            timestamp_ms=3_000, region_id="r", group="billing", request_id="Q", message_id="AB", retry_times=1, keys=""
        ),
        # As clients of 4.9 write it: its time is that of the beginning and what it took.
        SubAfterTrace(request_id="Q", message_id="AB", cost_ms=5, is_success=False, keys="", context_code=4),
        RecallTrace(timestamp_ms=4_000, region_id="r", group="shop", topic="orders", message_id="AB", is_success=False),
        RecallTrace(timestamp_ms=5_000, region_id="r", group="shop", topic="orders", message_id="CD", is_success=True),
    ]
    with Producer("traces", name_servers=running.name_server_address) as producer:
        for record in reversed(records):
            producer.send("t-traces", encode_trace(record).encode(), keys=record.message_id)
    lines = ok("message", "trace", "AB", "--trace-topic", "t-traces").lines
    assert [line[24:] if line[0].isdigit() else line for line in lines] == [
        "sent to orders by shop from 127.0.0.1: 10.0.0.3:10911, 7 B, 3 ms",
        "transaction committed by shop after a check: 10.0.0.3:10911",
        "given to billing, retry 1",
        "consumed by a group: failed, 5 ms",
        "recalled by shop, failed",
    ]
    kinds = [one["kind"] for one in ok_json("message", "trace", "AB", "--trace-topic", "t-traces")]
    assert kinds == ["Pub", "EndTransaction", "SubBefore", "SubAfter", "Recall"]
    missing = run("message", "trace", "EF", "--trace-topic", "t-traces")
    assert missing.code == ExitCode.FAILED
    assert "no trace of the message EF" in missing.err


def test_a_delayed_message_has_no_place_yet() -> None:
    sent = ok("message", "send", "t-delayed", "--text", "a", "--delay-level", "17")
    assert "1 message: delayed, level 17\n" in sent.out
    assert "offset" not in sent.out
    above = run("message", "send", "t-delayed", "--text", "a", "--delay-level", "25")
    assert (above.code, above.out) == (ExitCode.USAGE, "")
    assert "Invalid value for '--delay-level': Input should be less than or equal to 18" in above.err


def test_texts() -> None:
    report = ok_json(
        "message", "send", "t-texts", "--text", "one", "--text", "two", "--tags", "paid", "--keys", "a b", "-p", "x=y"
    )
    assert (report["messages"], report["body_bytes"]) == (2, 6)
    found = messages("t-texts")
    assert sorted(one["body"] for one in found) == ["one", "two"]
    assert all((one["tags"], one["keys"], one["properties"]["x"]) == ("paid", ["a", "b"], "y") for one in found)
    first = found[0]
    assert ok_json("message", "get", first["message_id"]) == [first]
    assert first in ok_json("message", "get", first["unique_id"], "--topic", "t-texts")
    place = ["--topic", "t-texts", "--queue", str(first["queue_id"]), "--offset", str(first["queue_offset"])]
    assert ok_json("message", "get", *place) == [first]
    assert ok("message", "get", *place, "--raw").out == first["body"] + "\n"
    assert len(ok("message", "find", "t-texts", "b").lines) == 2
    assert len(ok("message", "find", "t-texts", "--tag", "paid").lines) == 2
    for wrong in ((), ("b", "--tag", "paid")):
        assert run("message", "find", "t-texts", *wrong).code == ExitCode.USAGE
    untagged = run("message", "find", "t-texts", "--tag", "a")
    assert untagged.err == "cometmq: no message with the tag a\n", "a is a key"
    missing = run("message", "find", "t-texts", "c")
    assert (missing.code, missing.err) == (ExitCode.FAILED, "cometmq: no message with the key c\n")
    assert "[paid] (a b)" in ok("message", "peek", "t-texts", "--newest", "--limit", "1").out


def test_lines_and_whole_files(tmp_path: Path) -> None:
    assert "sent 3 messages" in ok("message", "send", "t-lines", "--queue", "0", input=b"1\r\n\n3, no end").out
    (tmp_path / "whole").write_bytes(b"4\n\xff")
    ok("message", "send", "t-lines", "-f", str(tmp_path / "whole"), "--format", "file", "--queue", "0")
    assert [one["body"] for one in messages("t-lines")] == ["1", "", "3, no end", "NAr/"]
    assert messages("t-lines")[3]["body_encoding"] == "base64"


def test_csv(tmp_path: Path) -> None:
    file = tmp_path / "flights.csv"
    file.write_bytes(b"\xef\xbb\xbf" + CSV.encode())
    columns = ["--tag-column", "carrier", "--key-column", "tailnum", "--shard-column", "tailnum", "--null", "NA"]
    ok("topic", "create", "t-csv", "-q", "4")
    report = ok_json("message", "send", "t-csv", "--file", file, *columns)
    assert report["messages"] == 4
    found = {one["body"]: one for one in messages("t-csv")}
    assert set(found) == {"UA,N1,first", 'AA,N2,"two,\nlines"', "UA,NA,third", "DL,N1,"}
    assert (found["UA,N1,first"]["tags"], found["UA,N1,first"]["keys"]) == ("UA", ["N1"])
    assert found["UA,NA,third"]["keys"] == []
    assert found["UA,N1,first"]["queue_id"] == found["DL,N1,"]["queue_id"]
    assert found["UA,N1,first"]["queue_offset"] < found["DL,N1,"]["queue_offset"]


@pytest.mark.parametrize(
    ("body", "expected"),
    [
        ("text", ["first", "two,\nlines", "third", ""]),
        ("json", ['{"carrier": "UA", "tailnum": "N1", "text": "first"}']),
    ],
)
def test_bodies_of_rows(body: str, expected: list[str]) -> None:
    topic = f"t-body-{body}"
    ok("message", "send", topic, "--format", "csv", "--body", body, "--queue", "0", input=CSV)
    assert [one["body"] for one in messages(topic)][: len(expected)] == expected


def test_json_lines() -> None:
    lines = '{"kind": "a", "id": 7, "at": {"x": "é"}}\n\n{"kind": null, "id": "8"}\n'
    ok(
        "message",
        "send",
        "t-jsonl",
        "--format",
        "jsonl",
        "--tag-column",
        "kind",
        "--key-column",
        "id",
        "-q",
        "0",
        input=lines,
    )
    found = messages("t-jsonl")
    assert [(one["tags"], one["keys"], one["body"]) for one in found] == [
        ("a", ["7"], '{"kind": "a", "id": 7, "at": {"x": "é"}}'),
        (None, ["8"], '{"kind": null, "id": "8"}'),
    ]
    ok("message", "send", "t-jsonl2", "--format", "jsonl", "--body", "at", "-q", "0", input=lines)
    assert [one["body"] for one in messages("t-jsonl2")] == ['{"x": "é"}', ""]


@pytest.mark.parametrize(
    ("kind", "text", "problem"),
    [
        ("csv", "a,b\n1,2\n3\n", "line 3: the row has 1 columns, and the first one 2"),
        ("csv", 'a,b\n1,2\n"x"y,2\n', "line 3: invalid CSV"),
        ("csv", b"a,b\n1,2\n\xff,2\n", "line 3: not UTF-8"),
        ("jsonl", '{"a": 1}\n[]\n', "line 2: not a JSON object"),
        ("jsonl", '{"a": 1}\n{"a"\n', "line 2: invalid JSON"),
    ],
)
def test_input_that_is_broken_is_sent_up_to_there(kind: str, text: str | bytes, problem: str) -> None:
    topic = f"t-broken-{kind}-{len(problem)}"
    outcome = run("message", "send", topic, "--format", kind, "--key-column", "a", "--json", input=text)
    assert outcome.code == ExitCode.FAILED
    assert problem in outcome.err
    assert json.loads(outcome.out)["messages"] == 1
    assert len(messages(topic)) == 1


def test_a_column_that_is_not_there() -> None:
    outcome = run("message", "send", "t-columns", "--format", "csv", "--tag-column", "airline", input=CSV)
    assert outcome.code == ExitCode.USAGE
    assert "no column airline; it has carrier, tailnum, text" in outcome.err
    lines = run("message", "send", "t-columns", "--tag-column", "airline", input="x\n")
    assert lines.code == ExitCode.USAGE
    assert "lines have no columns" in lines.err


def test_files_are_looked_at_first(tmp_path: Path) -> None:
    (tmp_path / "there").write_bytes(b"1\n")
    outcome = run("message", "send", "t-files", "-f", str(tmp_path / "there"), "-f", str(tmp_path / "gone"))
    assert outcome.code == ExitCode.FAILED
    assert "cannot use" in outcome.err
    assert run("topic", "describe", "t-files").code == ExitCode.FAILED  # nothing was sent


def test_a_topic_that_takes_nothing() -> None:
    ok("topic", "create", "t-closed", "--perm", "r")
    outcome = run("message", "send", "t-closed", "--text", "x", "--json")
    assert (outcome.code, outcome.out) == (ExitCode.FAILED, "")
    assert "no write permission" in outcome.err


def test_slow_lines_are_sent_as_they_arrive_and_ctrl_c_prints_the_count(running: Cluster) -> None:
    process = start("message", "send", "t-slow", "--json")
    assert process.stdin is not None
    with process, cometmq.admin.connect(namesrv=running.name_server_address) as admin:
        try:
            for count in (1, 2):
                process.stdin.write(b"line\n")
                process.stdin.flush()
                while "t-slow" not in admin.topics.list() or admin.topics.describe("t-slow").messages < count:
                    assert process.poll() is None
            process.send_signal(signal.SIGINT)
            out, err = process.communicate(timeout=60)
        finally:
            process.kill()
    assert (process.returncode, err) == (ExitCode.INTERRUPTED, b"")
    assert json.loads(out)["messages"] == 2


# --- Groups and offsets


def test_a_group_pulls_or_pops() -> None:
    ok("topic", "create", "t-mode")
    ok("group", "create", "g-mode")
    assert ok_json("group", "describe", "g-mode")["consume_modes"] == []
    assert (
        ok("group", "set-consume-mode", "g-mode", "t-mode", "POP").out
        == "group g-mode pops topic t-mode on broker-a; no members are connected yet\n"
    )
    assert any(line.split() == ["t-mode", "broker-a", "pop", "all"] for line in ok("group", "describe", "g-mode").lines)
    told = ok_json("group", "set-consume-mode", "g-mode", "t-mode", "pop", "--share", "2")
    assert {name: told[name] for name in ("mode", "share")} == {"mode": "POP", "share": 2}
    assert [one["broker_name"] for one in told["brokers"]] == ["broker-a"]
    assert "2 others" in ok("group", "describe", "g-mode").out
    ok("group", "set-consume-mode", "g-mode", "t-mode", "pull")
    assert ok_json("group", "describe", "g-mode")["consume_modes"] == [
        {"topic": "t-mode", "broker_name": "broker-a", "mode": "PULL", "pop_share_queue_num": 0}
    ]
    assert run("group", "set-consume-mode", "g-mode", "t-mode", "push").code == ExitCode.USAGE
    for number in ("-3", "2147483648"):
        refused = run("group", "set-consume-mode", "g-mode", "t-mode", "pop", "--share", number)
        assert refused.code == ExitCode.USAGE
        assert f"--share is {number}; it must be the number of members" in refused.err
    refused = run("group", "set-consume-mode", "g-mode", "t-mode", "pull", "--share", "2")
    assert (refused.code, "--share needs pop" in refused.err) == (ExitCode.USAGE, True)
    assert ok("group", "set-consume-mode", "g-nobody", "t-mode", "pop").out.endswith("; no members are connected yet\n")
    assert ok_json("group", "set-consume-mode", "g-nobody", "t-mode", "pop")["members"] == 0
    assert run("group", "set-consume-mode", "g-mode", "t-nowhere", "pop").code == ExitCode.FAILED


@pytest.mark.parametrize("command", ["show", "describe", "delete", "set-consume-mode"])
def test_a_group_without_a_name(command: str) -> None:
    more = ("t-mode", "pop") if command == "set-consume-mode" else ()
    refused = run("group", command, "", *more)
    assert (refused.code, refused.out) == (ExitCode.USAGE, "")
    assert "the group name is empty" in refused.err


@pytest.mark.parametrize(
    "command", [("group", "show", "g"), ("topic", "list"), ("cluster", "show"), ("message", "send", "t", "--text", "x")]
)
def test_a_broker_that_is_given_for_a_name_server(running: Cluster, command: tuple[str, ...]) -> None:
    address = running.brokers[0].address
    refused = run(*command, "-n", address)
    assert (refused.code, refused.out) == (ExitCode.FAILED, "")
    assert f"{address} is a broker, not a name server" in refused.err


@pytest.mark.parametrize("command", [("group", "show", "g"), ("topic", "list"), ("cluster", "show")])
def test_a_name_server_that_is_given_for_a_broker(running: Cluster, command: tuple[str, ...]) -> None:
    address = running.name_server_address
    refused = run(*command, "--broker", address)
    assert (refused.code, refused.out) == (ExitCode.FAILED, "")
    assert f"{address} is a name server, not a broker" in refused.err
    assert "pass it as --namesrv" in refused.err


def test_in_flight_messages_of_a_group(running: Cluster) -> None:
    ok("topic", "create", "t-popped", "--queues", "1")
    ok("message", "send", "t-popped", input="1\n2\n3\n4\n")
    first = ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET
    with SimpleConsumer("g-popped", name_servers=running.name_server_address, consume_from_where=first) as consumer:
        consumer.subscribe("t-popped")
        assert len(consumer.receive(3, wait_s=60)) == 3
        shown = ok_json("group", "show", "g-popped")
        figures = ("waiting", "in_flight", "revive_lag_ms")
        assert [shown[name] for name in figures] == [1, 3, 0]
        assert shown["oldest_unacked_ms"] >= 0
        assert next(one for one in shown["queues"] if one["in_flight"])["next_offset"] == 3
        lines = ok("group", "show", "g-popped").lines
        assert lines[0].startswith("g-popped: 1 message waiting, 3 in flight; oldest in flight for ")
        assert lines[2].split() == [
            "topic",
            "broker",
            "queue",
            "committed",
            "end",
            "waiting",
            "in",
            "flight",
            "oldest",
            "overdue",
        ]
        row = next(line for line in lines if line.startswith("t-popped")).split()
        assert (row[:3], row[4:7]) == (["t-popped", "broker-a", "0"], ["4", "1", "3"])
        (member,) = ok_json("group", "describe", "g-popped")["members"]["connections"]
        (held,) = ok_json("group", "running", "g-popped", member["client_id"])["pop_queues"]
        assert (held["topic"], held["queue_id"], held["wait_ack_count"]) == ("t-popped", 0, 3)
        assert 0 < held["oldest_pop_timestamp_ms"] == held["last_pop_timestamp_ms"]
        told = ok("group", "running", "g-popped", member["client_id"]).lines
        (at,) = [number for number, line in enumerate(told) if "popped and held" in line]
        assert told[at + 1].split()[:4] == ["t-popped", "broker-a", "0", "3"]
    ok("group", "create", "g-unused")
    assert ok("group", "show", "g-unused").out == "group g-unused has no offsets: it has not consumed yet\n"
    nobody = run("group", "show", "g-nope")
    assert (nobody.code, nobody.out) == (ExitCode.FAILED, "")
    assert "cometmq group create g-nope" in nobody.err


def test_a_group_from_birth_to_death() -> None:
    ok("message", "send", "t-group", "--queue", "0", input="1\n2\n3\n4\n")
    assert ok("group", "create", "g-cli", "--retry-max-times", "2").out == "group g-cli on broker-a\n"
    assert run("group", "create", "g-cli").code == ExitCode.FAILED
    assert ok_json("group", "update", "g-cli", "--no-consume")["brokers"]["broker-a"]["consume_enable"] is False
    assert run("offset", "reset", "g-cli", "t-group", "--to", "latest").code == ExitCode.USAGE
    planned = ok_json("offset", "reset", "g-cli", "t-group", "--to", "offset=3", "--queue", "0", "--dry-run")
    assert planned["queues"] == [{"broker_name": "broker-a", "queue_id": 0, "offset": 3}]
    assert ok_json("offset", "show", "g-cli")["queues"] == []
    assert "has no offsets" in ok("offset", "show", "g-cli").out
    unknown = run("offset", "show", "g-cli", "t-nope")
    assert (unknown.code, unknown.out) == (ExitCode.FAILED, "")
    assert "t-nope" in unknown.err
    nobody = run("offset", "show", "g-nope", "--json")
    assert (nobody.code, nobody.out) == (ExitCode.FAILED, "")
    assert "cometmq group create g-nope" in nobody.err
    ok("offset", "reset", "g-cli", "t-group", "--to", "offset=3", "--queue", "0", "--yes")
    shown = ok_json("offset", "show", "g-cli", "t-group")
    assert (shown["lag"], [one["consumer_offset"] for one in shown["queues"] if one["queue_id"] == 0]) == (1, [3])
    assert "lag 1 message" in ok("offset", "show", "g-cli").out
    ok("group", "create", "g-clone")
    ok("offset", "clone", "g-cli", "g-clone", "--yes")
    assert ok_json("offset", "show", "g-clone")["lag"] == 1
    ok("offset", "reset", "g-cli", "t-group", "--to", "latest", "--yes")
    assert {one["group"]: one["lag"] for one in ok_json("group", "list")}["g-cli"] == 0
    assert any(line.split()[:2] == ["g-cli", "t-group"] for line in ok("group", "list").lines)
    ok("topic", "create", "%DLQ%g-cli", "--queues", "1", "--perm", "rw")
    assert {one["group"]: one["dead_letters"] for one in ok_json("group", "list")}["g-cli"] == 0
    ok("message", "send", "%DLQ%g-cli", "--text", "a")
    assert {one["group"]: one["dead_letters"] for one in ok_json("group", "list")}["g-cli"] == 1
    described = ok_json("group", "describe", "g-cli")
    assert (described["lag"], described["members"]) == (0, None)
    assert "no members connected, lag 0 messages" in ok("group", "describe", "g-cli").out
    assert run("group", "delete", "g-cli").code == ExitCode.USAGE
    assert "deleted group g-cli on broker-a" in ok("group", "delete", "g-cli", "--yes").out
    assert run("group", "describe", "g-cli").code == ExitCode.FAILED
    ok("group", "delete", "g-clone", "--keep-offsets", "--yes")
    assert run("group", "delete", "g-clone", "--keep-offsets", "--yes").code == ExitCode.FAILED
    assert ok_json("offset", "show", "g-clone")["lag"] == 1
    ok("group", "delete", "g-clone", "--yes")
    assert run("offset", "show", "g-clone").code == ExitCode.FAILED
    assert ok_json("group", "producers") == {}


# --- Clusters


def test_unknown_command_of_a_group_is_answered_with_its_commands() -> None:
    unknown = run("topic", "show", "t")
    assert unknown.code == ExitCode.USAGE
    assert "No such command 'show'. Commands: list, create, update, describe, delete." in " ".join(unknown.err.split())
    near = run("topic", "descibe", "t")
    assert "Did you mean 'describe'?" in near.err
    assert "Commands:" not in near.err


@pytest.mark.parametrize(
    ("command", "advice"),
    [
        (["peek", "%DLQ%g"], "(group g has no dead letters; a broker creates the topic with the first one)"),
        (["peek", "%RETRY%g"], "(group g has no messages to retry; a broker creates the topic with the first one)"),
        (["trace", "AB"], "(no client has traced a message: set enable_trace=True on producers and consumers)"),
        (["peek", "nowhere"], "(check the name, or create it: cometmq topic create nowhere)"),
    ],
)
def test_missing_topic_is_explained_by_its_kind(running: Cluster, command: list[str], advice: str) -> None:
    outcome = run("message", *command)
    assert outcome.code == ExitCode.FAILED
    assert outcome.err.endswith(f"does not exist {advice}\n")


def test_look_up_by_unique_id_names_the_other_kind(running: Cluster) -> None:
    ok("topic", "create", "t-get")
    missing = run("message", "get", "7F00000100002A9F0000000000001000", "--topic", "t-get")
    assert missing.err == (
        "cometmq: no message with the unique id 7F00000100002A9F0000000000001000 in topic t-get; an offset message id "
        "is looked up without --topic\n"
    )


def test_cluster(running: Cluster) -> None:
    address = running.broker.address
    assert [line.split() for line in ok("cluster", "show").lines[1:]] == [
        ["DefaultCluster", "broker-a", "master", address, "read,", "write"]
    ]
    (status,) = ok_json("cluster", "status")["brokers"]
    assert status["cometmq_version"] == cometmq.__version__
    assert f"CometMQ {cometmq.__version__}" in ok("cluster", "status").out
    assert status["broker"]["address"] == address
    assert "commitLogMaxOffset" in ok("cluster", "status", "--all").out
    assert ok_json("cluster", "config", "brokerName", "--broker", address) == {"broker-a": {"brokerName": "broker-a"}}
    assert "bindAddress" in ok("cluster", "config", "--of-namesrv").out
    unknown = run("cluster", "config", "noSuchSetting")
    assert (unknown.code, unknown.err) == (ExitCode.FAILED, "cometmq: unknown setting: noSuchSetting\n")
    unknown = run("cluster", "config", "broker-a")
    assert unknown.err == "cometmq: unknown setting: broker-a; for the settings of broker-a: --broker-name broker-a\n"
    misread = run("cluster", "config", "broker-a", "--set", "fileReservedTime=47")
    assert misread.code == ExitCode.USAGE
    text = "--set changes all brokers, and broker-a names a setting to show; for one broker: --broker-name broker-a"
    assert text in " ".join(misread.err.split())
    assert ok_json("cluster", "config", "fileReservedTime")["broker-a"] != {"fileReservedTime": "47"}
    refused = run("cluster", "config", "--set", "storePathRootDir=/elsewhere")
    assert refused.code == ExitCode.FAILED
    assert "configuration file" in refused.err
    assert ok_json("cluster", "kv", "space", "--set", "a=b", "--set", "c=d") == {"a": "b", "c": "d"}
    assert ok_json("cluster", "kv", "space", "--delete", "a") == {"c": "d"}
    assert ok_json("cluster", "write-perm", "broker-a", "--wipe")["topics"] > 0
    assert "read only" in ok("cluster", "show").out
    assert [one["writable"] for one in ok_json("cluster", "show")] == [False]
    assert "accept messages again" in ok("cluster", "write-perm", "broker-a", "--add").out
    nothing = run("cluster", "kv", "space", "--delete", "zz", "--delete", "c", "--json")
    assert (nothing.code, nothing.out) == (ExitCode.FAILED, "{}\n")
    assert "cannot delete from space: no key zz" in nothing.err
    for change in ("--add", "--wipe"):
        nobody = run("cluster", "write-perm", "nope", change)
        assert (nobody.code, nobody.out) == (ExitCode.FAILED, "")
        assert "broker nope is not registered; known brokers: broker-a" in nobody.err
    assert ok("cluster", "clean", "--queues").out == "cleaned on broker-a\n"


def test_commands_name_a_lost_broker_and_fail() -> None:
    with cluster() as running:
        namesrv = ("--namesrv", running.name_server_address)
        ok("topic", "create", "orders", *namesrv)
        ok("group", "create", "billing", *namesrv)
        ok("message", "send", "orders", *namesrv, input="one")
        ok("offset", "reset", "billing", "orders", "--to", "earliest", "--yes", *namesrv)
        with Channel(running.name_server_address) as second:
            command = registration(cluster="DefaultCluster", broker_name="broker-b")
            assert second.invoke(command, timeout_ms=10_000).code == ResponseCode.SUCCESS
        while run("cluster", "show", *namesrv).code == ExitCode.OK:
            pass  # until the name server has seen the end of the connection
        commands: list[tuple[str, ...]] = [
            ("offset", "show", "billing"),
            ("group", "list"),
            ("group", "describe", "billing"),
            ("group", "show", "billing"),
            ("cluster", "show"),
            ("cluster", "status"),
        ]
        for command_line in commands:
            outcome = run(*command_line, *namesrv)
            assert outcome.code == ExitCode.FAILED, command_line
            assert "broker-a" in outcome.out or command_line[1] == "list", command_line
            assert "broker broker-b (last at 127.0.0.1:10911) is lost" in outcome.err, command_line
        assert "lag at least 1 message" in run("offset", "show", "billing", *namesrv).out
        shown = json.loads(run("offset", "show", "billing", "--json", *namesrv).out)
        assert [one["broker_name"] for one in shown["lost_brokers"]] == ["broker-b"]
        clone = run("offset", "clone", "billing", "billing", "--yes", *namesrv)
        assert (clone.code, clone.out) == (ExitCode.FAILED, "")
        assert "broker broker-b" in clone.err
        registered = run("cluster", "forget", "broker-a", *namesrv)
        assert registered.code == ExitCode.FAILED
        assert "broker broker-a is registered" in registered.err
        unknown = run("cluster", "forget", "broker-c", *namesrv)
        assert (unknown.code, unknown.out) == (ExitCode.FAILED, "")
        assert "no broker broker-c is lost; lost are: broker-b" in unknown.err
        assert "cometmq cluster forget broker-b" in run("cluster", "show", *namesrv).err
        assert ok("cluster", "forget", "broker-b", *namesrv).out == "broker-b of cluster DefaultCluster is forgotten\n"
        for command_line in commands:
            ok(*command_line, *namesrv)


def test_a_lost_broker_of_another_cluster_concerns_no_group() -> None:
    with cluster() as running:
        namesrv = ("--namesrv", running.name_server_address)
        for group in ("billing", "idle"):
            ok("group", "create", group, *namesrv)
        ok("topic", "create", "orders", *namesrv)
        ok("message", "send", "orders", *namesrv, input="one")
        ok("offset", "reset", "billing", "orders", "--to", "earliest", "--yes", *namesrv)
        with Channel(running.name_server_address) as second:
            command = registration(cluster="other", broker_name="broker-b")
            assert second.invoke(command, timeout_ms=10_000).code == ResponseCode.SUCCESS
        while run("cluster", "show", *namesrv).code == ExitCode.OK:
            pass  # until the name server has seen the end of the connection
        ok("offset", "show", "billing", *namesrv)
        ok("group", "describe", "billing", *namesrv)
        ok("group", "show", "billing", *namesrv)
        ok("offset", "clone", "billing", "idle", "--yes", *namesrv)
        empty = run("offset", "clone", "nobody", "idle", "--yes", *namesrv)
        assert (empty.code, "broker broker-b" in empty.err) == (ExitCode.FAILED, True)
        (found,) = ok_json("cluster", "forget", "broker-b", *namesrv)
        assert (found["cluster"], found["address"]) == ("other", "127.0.0.1:10911")
        ok("cluster", "show", *namesrv)


def test_nobody_is_there() -> None:
    outcome = run("topic", "list", "--namesrv", "127.0.0.1:1")
    assert (outcome.code, outcome.out) == (ExitCode.FAILED, "")
    assert outcome.err.startswith("cometmq: cannot connect to 127.0.0.1:1: ")
    assert "`cometmq serve PATH`) or choose another with --namesrv or COMETMQ_NAMESRV" in outcome.err
    two = run("topic", "list", "--namesrv", "127.0.0.1:1;127.0.0.1:2").err
    assert two.count("cannot connect to") == 2
    assert two.count("\n") == 1
    assert "with --broker" in run("topic", "list", "--broker", "127.0.0.1:1").err


def test_somebody_else_is_there(caplog: pytest.LogCaptureFixture) -> None:
    with Peer(lambda *_: b"HTTP/1.1 400 Bad Request\r\n\r\n") as peer:
        for option in ("--namesrv", "--broker"):
            outcome = run("topic", "list", option, peer.address)
            assert (outcome.code, outcome.err.count("\n")) == (ExitCode.FAILED, 1)
            assert outcome.err.startswith(f"cometmq: {peer.address} does not speak RocketMQ's protocol: ")
    assert "no frame" not in caplog.text


def test_commands_load_their_own_module_and_no_heavy_library() -> None:
    """``--version`` needs no command; the groups of commands do not load what they will need."""
    program = (
        "import sys\n"
        "from cometmq.cli import app\n"
        "def loaded(*names): return [name for name in names if name in sys.modules]\n"
        "app(['--version'], standalone_mode=False)\n"
        "print(loaded('cometmq.cli.topic', 'cometmq.cli.cat', 'cometmq.store'))\n"
        "app(['topic', 'list', '--help'], standalone_mode=False)\n"
        "print(loaded('cometmq.cli.topic', 'cometmq.cli.cat'))\n"
        "app(['--help'], standalone_mode=False)\n"
        "print(loaded('cometmq.cli.cat', 'cometmq.admin', 'asyncio', 'pyarrow'))\n"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True, env=os.environ)
    shown = [line for line in done.stdout.splitlines() if line.startswith("[")]
    assert shown == ["[]", "['cometmq.cli.topic']", "['cometmq.cli.cat']"]


def test_unacknowledged_sends_are_reported() -> None:
    """The broker takes the first request and refuses the second for good."""
    stored = 0

    def script(peer: Peer, connection: socket.socket, request: Command) -> bytes | None:
        nonlocal stored
        if request.code == RequestCode.GET_ROUTEINFO_BY_TOPIC:
            queues = QueueData(broker_name="a", read_queue_nums=1, write_queue_nums=1, perm=6)
            broker = BrokerData(cluster="c", broker_name="a", broker_addresses={0: peer.address})
            return request.response(
                0, body=TopicRouteData(queue_datas=(queues,), broker_datas=(broker,)).to_json()
            ).encode()
        stored += 1
        if stored > 1:
            return request.response(ResponseCode.MESSAGE_ILLEGAL, remark="no more").encode()
        return request.response(0, fields={"queueId": "0", "queueOffset": "0", "msgId": "F"}).encode()

    with Peer(script) as peer:
        outcome = run("message", "send", "t", "--namesrv", peer.address, "--batch", "10", "--json", input="x\n" * 35)
    assert outcome.code == ExitCode.FAILED
    assert json.loads(outcome.out)["messages"] == 10
    first, second = outcome.err.splitlines()
    assert first == "cometmq: 25 of the messages read were not acknowledged"
    assert second.startswith(f"cometmq: code 13 from {peer.address}: no more")


def test_running_info_of_a_consumer() -> None:
    """A consumer of the captured run, behind a broker alone; and one that consumes a message again."""
    captured = {
        request.code: answer
        for _, request, answer in exchanges(broker_frames("apache-5.3.3-groups"))
        if answer is not None and answer.code == 0 and answer.body
    }
    results = ["CR_SUCCESS", "CR_LATER"]

    def script(peer: Peer, connection: socket.socket, request: Command) -> bytes | None:
        if request.code == RequestCode.GET_BROKER_CONFIG:
            return request.response(0, body=b"brokerName=a\n").encode()
        if request.code == RequestCode.VIEW_MESSAGE_BY_ID:
            return request.response(0, body=captured[RequestCode.QUERY_MESSAGE].body).encode()
        if request.code == RequestCode.CONSUME_MESSAGE_DIRECTLY:
            body = ConsumeMessageDirectlyResult(consume_result=ConsumeResult[results.pop(0)], spent_time_ms=3)
            return request.response(0, body=body.to_json()).encode()
        return request.response(0, body=captured[request.code].body).encode()

    with Peer(script) as peer:
        where = ["--broker", peer.address]
        running = ok_json("group", "running", "g_two", "192.0.2.2@m2", *where)
        assert running["properties"]["PROP_CONSUME_TYPE"] == "CONSUME_PASSIVELY"
        queues = [one for one in running["queues"] if one["topic"] == "Two"]
        assert [one["queue_id"] for one in queues] == sorted(one["queue_id"] for one in queues)
        assert queues[0]["commit_offset"] > 0
        assert "PROP_CLIENT_VERSION" in ok("group", "running", "g_two", "192.0.2.2@m2", "--stack", *where).out
        arguments = ["message", "consume", "7F000001000049DF000000000000D6FF", "--group", "g", "--client", "c", *where]
        assert ok_json(*arguments) == {"result": "CR_SUCCESS", "spent_ms": 3, "remark": None}
        later = run(*arguments)
        assert (later.code, later.out) == (ExitCode.FAILED, "CR_LATER after 3 ms\n")
        asked = peer.requests[-1].fields
        assert (asked["consumerGroup"], asked["clientId"], asked["topic"]) == ("g", "c", "Two")
