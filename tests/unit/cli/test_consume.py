"""``cometmq consume`` against our own servers: alone, in a group, in a pipe."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import time
from collections import defaultdict
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from cometmq.admin import Admin
from cometmq.cli.failures import ExitCode
from cometmq.client import OutgoingMessage, Producer
from cometmq.store_config.topic_config import Perm
from cometmq.testing import Cluster, cluster
from support.command_line import Outcome, run, start

MANY = 400
ORDERS = 40


@pytest.fixture(scope="module")
def running() -> Iterator[Cluster]:
    with (
        cluster() as running,
        Admin(namesrv=running.name_server_address) as admin,
        Producer("filler", name_servers=running.name_server_address) as producer,
    ):
        for topic, queues in (("orders", 4), ("refunds", 2), ("empty", 3), ("many", 4)):
            admin.topics.create(topic, queues=queues)
        for number in range(ORDERS):
            tags = "odd" if number % 2 else "even"
            body = b"%d" % number
            producer.send(
                OutgoingMessage(body, tags=tags, keys=f"k{number % 5} all", queue_id=number % 4, topic="orders")
            )
        producer.send("refunds", b"back", tags="even")
        producer.send_many([OutgoingMessage(b"%d" % number) for number in range(MANY)], topic="many")
        yield running


@pytest.fixture(autouse=True)
def environment(running: Cluster, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COMETMQ_NAMESRV", running.name_server_address)


def ok(*arguments: str) -> Outcome:
    outcome = run("consume", *arguments)
    assert outcome.code == ExitCode.OK, outcome
    return outcome


def bodies(*arguments: str) -> list[str]:
    return ok(*arguments, "--format", "raw", "--quiet").lines


def progress(group: str) -> int:
    """How many messages a group has left behind."""
    queues: list[dict[str, Any]] = json.loads(run("offset", "show", group, "--json").out)["queues"]
    return sum(max(one["consumer_offset"], 0) for one in queues)


# --- Without a group


def test_all_that_is_there_each_queue_in_order() -> None:
    outcome = ok("orders", "--format", "{queue} {body}\\n")
    queues = defaultdict(list)
    for line in outcome.lines:
        queue, number = map(int, line.split())
        queues[queue].append(number)
    assert queues == {queue: list(range(queue, ORDERS, 4)) for queue in range(4)}
    assert outcome.err.startswith("cometmq: 40 messages (70 B) in ")


def test_text_and_json() -> None:
    (line,) = ok("orders", "refunds", "--tags", "even", "--key", "k4", "--count", "1", "--queue", "0").lines
    assert line.endswith("orders/0@1 [even] (k4 all) 4")
    (line,) = ok("refunds", "-f", "json").lines
    found = json.loads(line)
    assert (found["topic"], found["broker_name"], found["tags"], found["body"]) == (
        "refunds",
        "broker-a",
        "even",
        "back",
    )
    assert "body" not in json.loads(ok("refunds", "-f", "json", "--no-body").out)


def test_tags_keys_and_queues() -> None:
    assert sorted(bodies("orders", "--tags", "odd || none"), key=int) == [str(n) for n in range(1, ORDERS, 2)]
    assert sorted(bodies("orders", "--key", "k1", "--key", "k2"), key=int) == [
        str(n) for n in range(ORDERS) if n % 5 in (1, 2)
    ]
    assert bodies("orders", "-q", "3") == [str(n) for n in range(3, ORDERS, 4)]
    assert bodies("orders", "--tags", "none") == []
    assert bodies("empty") == []
    assert sorted(bodies("orders", "refunds", "--tags", "even"))[-1] == "back"


def test_where_it_begins() -> None:
    assert bodies("orders", "--from", "last") == []
    assert sorted(bodies("orders", "--from", "offset=9"), key=int) == ["36", "37", "38", "39"]
    assert bodies("orders", "--from", "offset=99") == []
    assert len(bodies("orders", "--from", "1h")) == ORDERS
    later = str(time.time_ns() // 1_000_000 + 60_000)
    assert bodies("orders", "--from", later) == []


def test_a_count_and_a_rate() -> None:
    began = time.monotonic()
    assert len(bodies("many", "--count", "21", "--rate", "40")) == 21
    assert time.monotonic() - began >= 0.49
    assert bodies("many", "--count", "0") == []


def test_nobody_is_idle_for_ever() -> None:
    assert len(bodies("orders", "--follow", "--timeout", "0.3")) == ORDERS


def test_peeking_commits_nothing(running: Cluster) -> None:
    bodies("orders")
    with Admin(namesrv=running.name_server_address) as admin:
        queues = admin.offsets.progress("TOOLS_CONSUMER", topic="orders").queues
    assert all(one.consumer_offset <= 0 for one in queues)


# --- As a member of a group


def test_member_leaves_unprinted_messages_to_the_group() -> None:
    first = bodies("many", "--group", "g-share", "--count", "10")
    assert len(first) == 10
    assert progress("g-share") == 10
    rest = bodies("many", "--group", "g-share", "--until-end")
    assert sorted(first + rest, key=int) == [str(number) for number in range(MANY)]
    assert progress("g-share") == MANY


def test_an_orderly_member() -> None:
    first = ok("orders", "-g", "g-orderly", "--orderly", "--count", "7", "-f", "{queue} {body}\\n", "--quiet").lines
    rest = ok("orders", "-g", "g-orderly", "--orderly", "--until-end", "-f", "{queue} {body}\\n", "--quiet").lines
    queues = defaultdict(list)
    for line in first + rest:
        queue, number = map(int, line.split())
        queues[queue].append(number)
    assert queues == {queue: list(range(queue, ORDERS, 4)) for queue in range(4)}


def test_group_commits_filtered_messages_at_the_end() -> None:
    """The last messages of some queues have other tags: the group's progress passes them."""
    found = bodies("orders", "empty", "--group", "g-tags", "--tags", "odd", "--until-end", "--key", "k1")
    assert sorted(found, key=int) == ["1", "11", "21", "31"]


def test_member_without_further_messages_ends() -> None:
    """A new group begins at the time that was given; queues so young are read whole, as upstream's are."""
    assert len(bodies("orders", "--group", "g-idle", "--from", "1h", "--timeout", "0.2")) == ORDERS
    assert bodies("orders", "--group", "g-idle", "--from", "last", "--timeout", "0.2") == []


# --- Following, pipes, Ctrl-C


@pytest.mark.parametrize("group", [[], ["--group", "g-follow"]])
def test_following_prints_at_once_and_ctrl_c_tells_how_much(running: Cluster, group: list[str]) -> None:
    topic = f"follow{len(group)}"
    with (
        Admin(namesrv=running.name_server_address) as admin,
        Producer("follower", name_servers=running.name_server_address) as producer,
    ):
        admin.topics.create(topic, queues=2)
        with start("consume", topic, "--follow", "-f", "raw", *group) as process:
            try:
                assert process.stdout is not None
                for number in range(5):
                    producer.send(topic, b"new %d" % number)
                    assert process.stdout.readline() == b"new %d\n" % number
                process.send_signal(signal.SIGINT)
                out, err = process.communicate(timeout=60)
            finally:
                process.kill()
    assert (process.returncode, out) == (ExitCode.INTERRUPTED, b"")
    assert err.startswith(b"cometmq: 5 messages (25 B) in ")
    if group:
        assert progress("g-follow") == 5


@pytest.mark.parametrize("group", [[], ["--group", "g-twice"]])
def test_a_second_ctrl_c_ends_it_while_it_waits_for_a_broker_that_hangs(group: list[str], tmp_path: Path) -> None:
    with start("serve", tmp_path, "--listen", "127.0.0.1:0", "--namesrv-listen", "127.0.0.1:0", "--json") as server:
        assert server.stderr is not None
        told = (json.loads(line) for line in server.stderr)
        where = next(one for one in told if one["event"] == "broker started")["name_servers"]
        try:
            with Producer("twice", name_servers=where) as producer:
                producer.send("twice", b"x")
            with start("consume", "twice", "--follow", "-f", "raw", "--namesrv", where, *group) as process:
                assert process.stdout is not None
                assert process.stdout.readline() == b"x\n"
                server.send_signal(signal.SIGSTOP)
                process.send_signal(signal.SIGINT)
                with suppress(subprocess.TimeoutExpired):
                    process.wait(0.05)  # most often it waits for the broker by then, to take its leave
                process.send_signal(signal.SIGINT)
                _, err = process.communicate(timeout=60)
            assert process.returncode == ExitCode.INTERRUPTED
            (line,) = err.decode().splitlines()
            assert line.startswith("cometmq: 1 message (1 B) in ")
        finally:
            server.send_signal(signal.SIGCONT)
            server.kill()


def test_following_and_ending_exclude_each_other() -> None:
    outcome = run("consume", "orders", "--follow", "--until-end")
    assert outcome.code == ExitCode.USAGE
    assert "--follow and --until-end exclude each other" in outcome.err


@pytest.mark.parametrize("group", [[], ["--group", "g-pipe", "--orderly"]])
def test_a_closed_pipe_is_quiet(group: list[str]) -> None:
    with start("consume", "many", "--follow", "--rate", "200", *group) as process:
        try:
            assert process.stdout is not None
            assert process.stdout.readline()
            process.stdout.close()
            assert process.wait(60) == ExitCode.PIPE_CLOSED
            assert process.stderr is not None
            assert process.stderr.read() == b""
        finally:
            process.kill()
    if group:  # unread messages are there for the group
        assert progress("g-pipe") < MANY


def test_queues_that_come_while_it_follows(running: Cluster) -> None:
    program = (
        "import cometmq.cli, cometmq.cli.consuming\ncometmq.cli.consuming._TOPIC_CHECK_S = 0.01\ncometmq.cli.main()\n"
    )
    command = [sys.executable, "-c", program, "consume", "grows", "--follow", "-f", "raw", "--quiet"]
    with (
        Admin(namesrv=running.name_server_address) as admin,
        Producer("grower", name_servers=running.name_server_address) as producer,
    ):
        admin.topics.create("grows", queues=1)
        producer.send("grows", b"old")
        with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
            try:
                assert process.stdout is not None
                assert process.stdout.readline() == b"old\n"
                admin.topics.update("grows", read_queues=2, write_queues=2)
                later = OutgoingMessage(b"new", queue_id=1, topic="grows")
                with Producer("grower-2", name_servers=running.name_server_address) as fresh:
                    fresh.send(later)
                assert process.stdout.readline() == b"new\n"
            finally:
                process.kill()


# --- What cannot be


@pytest.mark.parametrize(
    ("arguments", "problem"),
    [
        (["orders", "--tags", "a", "--sql", "b > 1"], "exclude each other"),
        (["orders", "--tags", "||"], "names no tag"),
        (["orders", "--key", ""], "--key must not be empty"),
        (["orders", "--orderly"], "--orderly needs --group"),
        (["orders", "-g", "g", "-q", "1"], "share the queues"),
        (["orders", "-g", "g", "--from", "offset=3"], "`cometmq offset reset`"),
        (["orders", "--from", "whenever"], "is not a time"),
        (["orders", "--from", "offset=x"], "offset=N"),
        (["orders", "-f", "yaml"], "text, json, raw or a template"),
        (["orders", "-f", "{nothing}"], "unknown template field {nothing}"),
        (["a b"], "a b"),
        (["orders", "-g", "no group"], "no group"),
        (["orders", "-n", "nowhere"], "nowhere"),
        ([], "Missing argument"),
    ],
)
def test_invalid_options_are_rejected(arguments: list[str], problem: str) -> None:
    outcome = run("consume", *arguments)
    assert (outcome.code, outcome.out) == (ExitCode.USAGE, "")
    assert problem in outcome.err


def test_missing_things_are_named() -> None:
    for more in ([], ["--group", "g"]):
        outcome = run("consume", "nothing", *more)
        assert (outcome.code, outcome.out) == (ExitCode.FAILED, "")
        assert "cometmq topic create nothing" in outcome.err
    outcome = run("consume", "orders", "-q", "7")
    assert outcome.code == ExitCode.FAILED
    assert "orders has no queue 7; it has 4 queues" in outcome.err
    outcome = run("consume", "orders", "--namesrv", "127.0.0.1:1")
    assert outcome.code == ExitCode.FAILED
    assert "Start one there (`cometmq serve PATH`)" in outcome.err


def test_an_expression_that_the_broker_does_not_take_ends_it() -> None:
    for more in ([], ["--group", "g-sql"]):
        outcome = run("consume", "orders", "--sql", "a >", *more)
        assert (outcome.code, outcome.out) == (ExitCode.FAILED, "")
        assert "SQL92" in outcome.err or "filter" in outcome.err


def test_a_topic_that_may_not_be_read_ends_it(running: Cluster) -> None:
    with Admin(namesrv=running.name_server_address) as admin:
        admin.topics.create("closed", queues=1)
        admin.messages.send("closed", b"1")
        admin.topics.update("closed", perm=Perm.WRITE)
    for more in ([], ["--follow"]):
        outcome = run("consume", "closed", *more)
        assert (outcome.code, outcome.out) == (ExitCode.FAILED, "")
        assert len(outcome.err.splitlines()) == 1
