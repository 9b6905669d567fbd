"""``cometmq produce``, and the whole messages that it and ``message send`` read: against our own servers."""

from __future__ import annotations

import json
import os
import pty
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from cometmq.cli.failures import ExitCode
from cometmq.testing import Cluster, cluster
from support.command_line import Outcome, run, start

CSV = "carrier,tailnum,text\nUA,N1,first\nAA,N2,second\nUA,NA,third\n"


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


def report_of(*arguments: str | Path, input: bytes | str | None = None) -> dict[str, Any]:
    report: dict[str, Any] = json.loads(ok("produce", *arguments, "--json", input=input).out)
    return report


def messages(topic: str) -> list[dict[str, Any]]:
    """All messages of a topic, as they are printed."""
    out = ok("consume", topic, "--format", "json", "--quiet").lines
    return [json.loads(line) for line in out]


def bodies(topic: str) -> Counter[str]:
    return Counter(one["body"] for one in messages(topic))


def test_messages_are_held_back_for_a_time_or_until_then() -> None:
    held = "t-held"
    ok("produce", held, "--text", "now", "--deliver-at", "2020-01-01T00:00Z")
    ok("produce", held, "--text", "later", "--delay-ms", "1")
    ok("produce", held, "--size", "5", "--count", "2", "--delay-ms", "1")
    ok("produce", held, "--text", "never", "--delay-ms", "3600000")
    lines = ok("consume", held, "--format", "json", "--quiet", "--follow", "--count", "4").lines
    assert sorted(json.loads(line)["body"] for line in lines) == ["1 ...", "2 ...", "later", "now"]
    too_far = run("produce", held, "--text", "a", "--deliver-at", "2199-01-01T00:00Z")
    assert too_far.code == ExitCode.INCOMPLETE
    assert "should not be bigger than the max delay" in too_far.err
    for both in (("--delay-level", "1"), ("--deliver-at", "1")):
        assert run("produce", held, "--text", "a", "--delay-ms", "5", *both).code == ExitCode.USAGE
    assert run("produce", held, "--text", "a", "--delay-ms", "5", "--batch", "2").code == ExitCode.USAGE


def test_delay_level_beyond_the_default_ones_is_a_usage_error() -> None:
    sent = ok("produce", "t-later", "--text", "a", "--delay-level", "17")
    assert "  delayed, level 17\n" in sent.out
    above = run("produce", "t-later", "--text", "a", "--delay-level", "19")
    assert above.code == ExitCode.USAGE
    assert "Invalid value for '--delay-level': Input should be less than or equal to 18" in above.err
    assert "-p DELAY=N" in " ".join(ok("produce", "--help").out.replace("│", " ").split())
    ok("produce", "t-later", "--text", "a", "-p", "DELAY=19")
    assert bodies("t-later") == Counter(), "the broker holds it back"


def test_option_errors_list_the_allowed_values() -> None:
    outcome = run("produce", "t-plain", "--text", "a", "--compress", "foo")
    assert outcome.code == ExitCode.USAGE
    assert "Invalid value for '--compress': 'foo' is not one of 'zlib', 'lz4', 'zstd', 'none'" in outcome.err


def test_tag_that_no_subscription_can_name_prints_a_warning() -> None:
    outcome = run("produce", "t-tags", "--text", "a", "--tags", "a||b")
    assert outcome.code == ExitCode.INCOMPLETE
    assert "a message has one tag" in outcome.err


def test_lines_of_standard_input_and_files(tmp_path: Path) -> None:
    (tmp_path / "more").write_bytes(b"three\nfour")
    report = report_of(
        "p-lines", "-", tmp_path / "more", "--tags", "paid", "--keys", "a b", "-p", "x=y", input="1\n2\n"
    )
    assert (report["messages"], report["failed"], report["body_bytes"]) == (4, 0, 11)
    assert report["messages_per_s"] > 0
    found = messages("p-lines")
    assert {one["body"] for one in found} == {"1", "2", "three", "four"}
    assert {(one["tags"], *one["keys"], one["properties"]["x"]) for one in found} == {("paid", "a", "b", "y")}


def test_messages_for_people() -> None:
    told = ok("produce", "p-told", "--text", "a", "--text", "bcd")
    assert told.out.startswith("sent 2 messages (4 B) to p-told in ")
    assert told.err == ""


@pytest.mark.parametrize("how", [[], ["--in-flight", "1"], ["--accumulate"], ["--batch", "7"], ["--one-way"]])
def test_every_way_brings_all(how: list[str]) -> None:
    topic = f"p-way{''.join(how)}"
    ok("topic", "create", topic)
    report = report_of(topic, "--size", "20", "--count", "100", *how)
    assert (report["messages"], report["failed"], report["one_way"]) == (100, 0, how == ["--one-way"])
    # One-way messages may be on their way still.
    lines = ok("consume", topic, "--follow", "--count", "100", "--timeout", "60", "-f", "raw", "--quiet").lines
    found = Counter(lines)
    assert sorted(found, key=lambda body: int(body.split()[0])) == [f"{n} ".ljust(20, ".") for n in range(1, 101)]
    assert set(found.values()) == {1}


def test_columns_of_csv_with_and_without_a_header() -> None:
    columns = ["--tag-column", "carrier", "--key-column", "tailnum", "--shard-column", "tailnum", "--null", "NA"]
    ok("topic", "create", "p-csv", "-q", "4")
    report_of("p-csv", "--format", "csv", *columns, input=CSV)
    behind = "# a remark\n" + CSV.partition("\n")[2].replace("second", "fifth")
    header = ["--skip", "1", "--header", "carrier,tailnum,text"]
    report = report_of("p-csv", "--format", "csv", "--body", "text", *header, *columns, "--count", "2", input=behind)
    assert report["messages"] == 2
    found = {one["body"]: one for one in messages("p-csv")}
    assert set(found) == {"UA,N1,first", "AA,N2,second", "UA,NA,third", "first", "fifth"}
    assert (found["fifth"]["tags"], found["fifth"]["keys"]) == ("AA", ["N2"])
    assert found["UA,N1,first"]["queue_id"] == found["first"]["queue_id"]
    assert found["UA,NA,third"]["keys"] == []


def test_whole_messages_and_copies_of_stored_ones() -> None:
    lines = [
        {
            "body": "one",
            "tags": "t",
            "keys": ["a", "b"],
            "properties": {"x": "y"},
            "sharding_key": "s",
            "delay_level": 0,
        },
        {"body": "/w==", "body_encoding": "base64", "keys": "c d", "queue": 1},
        {"body": "three", "sharding_key": "s"},
    ]
    text = "\n".join(map(json.dumps, lines)) + "\n\n"
    ok("topic", "create", "p-whole", "-q", "4")
    report_of("p-whole", "--format", "messages", "--tags", "other", "-p", "all=1", input=text)
    found = {one["body"]: one for one in messages("p-whole")}
    assert set(found) == {"one", "/w==", "three"}
    assert (found["one"]["tags"], found["one"]["keys"]) == ("t", ["a", "b"])
    assert (found["one"]["properties"]["x"], found["one"]["properties"]["all"]) == ("y", "1")
    assert (found["/w=="]["tags"], found["/w=="]["keys"], found["/w=="]["queue_id"]) == ("other", ["c", "d"], 1)
    assert found["one"]["queue_id"] == found["three"]["queue_id"]

    stored = ok("consume", "p-whole", "--format", "json").out
    assert report_of("p-copies", "--format", "messages", input=stored)["messages"] == 3
    assert ok("message", "send", "p-copies", "--format", "messages", input=stored)
    copies = messages("p-copies")
    assert Counter(one["body"] for one in copies) == Counter({"one": 2, "/w==": 2, "three": 2})
    for copy in copies:
        origin = found[copy["body"]]
        for name in ("tags", "keys", "body_encoding"):
            assert copy[name] == origin[name]
        for name in ("x", "all", "__SHARDINGKEY"):
            assert copy["properties"].get(name) == origin["properties"].get(name)
        assert copy["unique_id"] != origin["unique_id"]


@pytest.mark.parametrize(
    ("line", "problem"),
    [
        ('{"body": "a", "tag": "b"}', "line 1: unknown field tag; known fields: body,"),
        ('{"tags": "b"}', "line 1: body must be a string"),
        ('{"body": "?", "body_encoding": "base64"}', "line 1: body is not valid base64"),
        ('{"body": "\\ud800"}', "line 1: body is not valid utf-8"),
        ('{"body": "a", "body_encoding": "latin"}', "body_encoding is 'latin'"),
        ('{"body": "a", "keys": [1]}', "keys are [1]"),
        ('{"body": "a", "tags": 1}', "tags is 1"),
        ('{"body": "a", "properties": {"a": 1}}', "properties are"),
        ('{"body": "a", "delay_level": -1}', "delay_level is -1"),
        ('{"body": "a", "queue": true}', "queue is True"),
        ("[]", "line 1: not a JSON object"),
    ],
)
def test_whole_messages_that_are_none(line: str, problem: str) -> None:
    outcome = run("produce", "p-none", "--format", "messages", input=line + "\n")
    assert outcome.code == ExitCode.FAILED
    assert problem in outcome.err


@pytest.mark.parametrize(("line", "problem"), [("{bad", "line 2: invalid JSON"), ("[1]", "line 2: not a JSON object")])
def test_a_broken_line_of_json_ends_it_though_no_column_is_asked_for(line: str, problem: str) -> None:
    topic = f"p-broken-{len(line)}"
    outcome = run("produce", topic, "--format", "jsonl", input=f'{{"a": 1}}\n{line}\n{{"a": 2}}\n')
    assert outcome.code == ExitCode.FAILED
    assert problem in outcome.err
    assert bodies(topic) == {'{"a": 1}': 1}


def test_a_message_that_fails_is_counted_and_named_and_the_others_go_on() -> None:
    for how in ([], ["--batch", "3"], ["--in-flight", "1"], ["--accumulate"]):
        outcome = run("produce", "p-fails", "--json", *how, input="a\n\nb\n\n")
        assert outcome.code == ExitCode.INCOMPLETE, outcome
        report = json.loads(outcome.out)
        assert (report["messages"], report["failed"]) == (2, 2)
        (failures,) = report["failures"]
        assert (failures["error"], failures["messages"], failures["first_message"]) == ("InvalidArgument", 2, 2)
        assert "cometmq: 2 messages were not acknowledged\n" in outcome.err
        assert "first: message 2: the body is empty" in outcome.err
    assert bodies("p-fails") == {"a": 4, "b": 4}


def test_too_many_failures_end_it() -> None:
    outcome = run("produce", "p-many", "--max-failures", "3", "--in-flight", "1", "--json", input="\n" * 50 + "late\n")
    assert outcome.code == ExitCode.INCOMPLETE
    assert json.loads(outcome.out)["failed"] == 3
    assert "stopped after 3 failures; raise --max-failures" in outcome.err


def test_a_broker_that_takes_nothing() -> None:
    ok("topic", "create", "p-closed", "-q", "1", "--perm", "r")
    outcome = run("produce", "p-closed", "--text", "a", "--timeout", "2")
    assert outcome.code == ExitCode.INCOMPLETE
    assert "sent 0 messages" in outcome.out
    assert "p-closed has no queue that takes messages" in outcome.err


def test_bodies_are_compressed_by_the_option() -> None:
    body = "x" * 5_000
    for kind in ("zlib", "lz4", "zstd", "none"):
        ok("produce", f"p-{kind}", "--compress", kind, input=body)
    ok("produce", "p-short", "--compress-over", "1K", input=body[:2_000])
    stored = {kind: messages(f"p-{kind}")[0] for kind in ("zlib", "lz4", "zstd", "none", "short")}
    types = {kind: one["sys_flag"] >> 8 & 7 for kind, one in stored.items()}
    assert types == {"zlib": 3, "lz4": 1, "zstd": 2, "none": 0, "short": 3}
    assert stored["none"]["record_bytes"] > 5_000 > 1_000 > stored["zstd"]["record_bytes"]
    assert {one["body"] for kind, one in stored.items() if kind != "short"} == {body}


def test_a_namespace() -> None:
    ok("produce", "p-inside", "--namespace", "N1", "--text", "a")
    assert [one["topic"] for one in messages("N1%p-inside")] == ["N1%p-inside"]
    inside = ok("consume", "p-inside", "--namespace", "N1", "--format", "{topic} {body}").out
    assert inside == "p-inside a"


def test_a_rate() -> None:
    began = time.monotonic()
    report_of("p-rate", "--size", "8", "--count", "21", "--rate", "40")
    assert time.monotonic() - began >= 0.49
    assert sum(bodies("p-rate").values()) == 21


@pytest.mark.parametrize(
    "arguments",
    [
        ["p", "--size", "1K", "file"],
        ["p", "--size", "none"],
        ["p", "--size", "1K", "--tag-column", "a"],
        ["p", "--batch", "5", "--accumulate"],
        ["p", "--batch", "5", "--sharding-key", "a"],
        ["p", "--text", "a", "--tag-column", "b"],
        ["p", "--header", "a,b", "--text", "a"],
        ["p", "--header", "a,,b", "--format", "csv"],
        ["p", "--format", "messages", "--tag-column", "b"],
        ["p", "--format", "file", "--skip", "1"],
        ["p", "--compress-over", "x", "--text", "a"],
        ["p", "--rate", "0", "--text", "a"],
        ["a b", "--text", "a"],
        ["SCHEDULE_TOPIC_XXXX", "--text", "a"],
        ["p", "--text", "a", "--group", "no group"],
        ["p", "--text", "a", "-n", "nowhere"],
        ["p", "--text", "a", "-p", "x"],
    ],
)
def test_invalid_options_are_rejected(arguments: list[str]) -> None:
    outcome = run("produce", *arguments, input="")
    assert (outcome.code, outcome.out) == (ExitCode.USAGE, "")
    assert outcome.err


def test_nobody_is_there() -> None:
    outcome = run("produce", "p", "--text", "a", "--namesrv", "127.0.0.1:1")
    assert (outcome.code, outcome.out) == (ExitCode.FAILED, "")
    assert "Start one there (`cometmq serve PATH`)" in outcome.err
    missing = run("produce", "p", "/nowhere/at/all")
    assert (missing.code, missing.out) == (ExitCode.FAILED, "")


def test_slow_lines_are_sent_as_they_arrive_and_ctrl_c_prints_the_result(running: Cluster) -> None:
    with start("produce", "p-slow", "--batch", "100") as process:
        try:
            assert process.stdin is not None
            process.stdin.write(b"first\nsecond\n")
            process.stdin.flush()
            with start("consume", "p-slow", "--follow", "--count", "2", "-f", "raw", "--quiet") as reader:
                # The reader refuses a topic that is not there yet, and is then asked again.
                out, err = reader.communicate(timeout=60)
            while b"does not exist" in err:
                with start("consume", "p-slow", "--follow", "--count", "2", "-f", "raw", "--quiet") as reader:
                    out, err = reader.communicate(timeout=60)
            assert sorted(out.split()) == [b"first", b"second"]
            process.send_signal(signal.SIGINT)
            out, err = process.communicate(timeout=60)
        finally:
            process.kill()
    assert (process.returncode, err) == (ExitCode.INTERRUPTED, b"")
    assert out.startswith(b"sent 2 messages (11 B) to p-slow in ")


def test_progress_on_a_terminal() -> None:
    controller, terminal = pty.openpty()
    command = [sys.executable, "-m", "cometmq", "produce", "p-bar", "--size", "8", "--count", "60", "--rate", "100"]
    with subprocess.Popen([*command, "--json"], stdout=subprocess.PIPE, stderr=terminal) as process:
        os.close(terminal)
        out, _ = process.communicate(timeout=60)
    shown = os.read(controller, 65536)
    os.close(controller)
    assert process.returncode == 0
    assert json.loads(out)["messages"] == 60
    assert b"sent" in shown
