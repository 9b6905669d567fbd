"""``cometmq bench``: text, JSON, exit codes."""

from __future__ import annotations

import dataclasses
import json
import signal
import subprocess
import sys
import time
from collections.abc import Iterator

import pytest

import cometmq.loadtest
from cometmq.loadtest import LoadOptions, LoadReport, Target
from cometmq.remoting.codes import RequestCode
from cometmq.remoting.command import Command
from cometmq.remoting.sync_channel import Channel
from cometmq.testing import Cluster, cluster
from support.command_line import run, run_json, start


@pytest.fixture(scope="module")
def one() -> Iterator[Cluster]:
    with cluster() as running:
        yield running


def test_text(one: Cluster) -> None:
    outcome = run(
        "bench", "--namesrv", one.name_server_address, "--create", "-p", "2", "-c", "1", "--count", "500", "-s", "1K"
    )
    assert (outcome.code, outcome.err) == (0, "")
    lines = outcome.lines
    assert lines[0] == (
        f"cometmq_bench at {one.broker.address}: 4 queues, 2 producers, "
        "1 in flight per connection, 1.0 KiB, JSON headers"
    )
    assert lines[1].startswith("sent        500 messages in ")
    assert lines[2].startswith("send        p50 ")
    assert lines[3].startswith("consumed    500 messages in ")
    assert lines[4].startswith("end to end  p50 ")
    assert lines[5:] == ["verified    every offset and every consumed message"]


def test_json(one: Cluster) -> None:
    report = run_json(
        *("bench", "--broker", one.broker.address, "--create", "--topic", "json", "--queues", "2"),
        *("--batch", "5", "--count", "100", "--depth", "3", "--headers", "rocketmq", "--json"),
    )
    assert report["topic"] == "json"
    assert report["brokers"] == [one.broker.address]
    assert report["options"]["batch"] == 5
    assert report["report"]["verified"] is True
    assert report["report"]["sends"] == 20
    assert report["report"]["send_latency"]["count"] == 20


def test_transactions(one: Cluster) -> None:
    common = ("bench", "--broker", one.broker.address, "--create", "--topic", "transactions", "--queues", "2")
    report = run_json(*common, "--transactions", "--count", "100", "-d", "8", "-c", "1", "--json")["report"]
    assert (report["verified"], report["accepted"], report["consumed"]) == (True, 100, 100)
    assert (
        "8 in flight per connection, in transactions" in run(*common, "--transactions", "--count", "8", "-d", "8").out
    )
    for option in (("--batch", "2"), ("--oneway",)):
        outcome = run(*common, "--transactions", *option)
        assert (outcome.code, outcome.out) == (2, "")
        assert "--transactions excludes --batch and --oneway" in outcome.err


def test_pops(one: Cluster) -> None:
    report = run_json(
        *(
            "bench",
            "--broker",
            one.broker.address,
            "--create",
            "--topic",
            "popped",
            "--queues",
            "2",
            "--group",
            "poppers",
        ),
        *("--count", "100", "-c", "3", "--pop", "many", "--pops", "2", "--invisible", "30", "--json"),
    )
    assert report["options"]["invisible_ms"] == 30_000
    assert report["report"]["verified"] is True
    assert report["report"]["acked"] == 100
    outcome = run("bench", "--broker", one.broker.address, "--pop", "each", "--pull-messages", "33")
    assert (outcome.code, outcome.out) == (2, "")
    assert "at most 32 messages" in outcome.err


def test_impossible_requests_are_rejected(one: Cluster) -> None:
    assert run("bench", "--broker", one.broker.address, "--topic", "nowhere").code == 3
    assert run("bench").code == 2
    assert "--broker" in run("bench").err
    assert run("bench", "--broker", "127.0.0.1:1").code == 3
    assert run("bench", "--broker", one.broker.address, "--size", "much").code == 2
    outcome = run("bench", "--broker", one.broker.address, "--create", "--size", "39")
    assert (outcome.code, outcome.out) == (2, "")
    assert "--size is 39" in outcome.err


def test_a_wrong_run_prints_no_figure(one: Cluster, monkeypatch: pytest.MonkeyPatch) -> None:
    real = cometmq.loadtest.run_load

    def wrong(target: Target, options: LoadOptions, **more: object) -> LoadReport:
        report = real(target, options)
        return dataclasses.replace(
            report, verified=False, problem="3 accepted messages did not come", refused=5, refusal="code 2: busy"
        )

    monkeypatch.setattr(cometmq.loadtest, "run_load", wrong)
    outcome = run("bench", "--broker", one.broker.address, "--create", "--count", "10")
    assert (outcome.code, outcome.out) == (4, "")
    assert outcome.err.splitlines() == [
        "cometmq: 5 messages were rejected; first error: code 2: busy",
        "cometmq: verification failed: 3 accepted messages did not come",
    ]


def test_more_connections_than_descriptors(one: Cluster) -> None:
    command = 'ulimit -Sn 70; exec "$0" -m cometmq "$@"'
    arguments = ["bench", "--broker", one.broker.address, "--create", "-p", "100", "--count", "300"]
    done = subprocess.run(
        ["sh", "-c", command, sys.executable, *arguments], capture_output=True, timeout=60, text=True, check=False
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert "100 producers" in done.stdout


def await_messages(address: str, topic: str) -> None:
    """Return when the first queue has some."""
    end = time.monotonic() + 60
    request = Command(code=RequestCode.GET_MAX_OFFSET, fields={"topic": topic, "queueId": "0"})
    with Channel(address) as channel:
        while channel.invoke(request, timeout_ms=10_000).fields.get("offset", "0") == "0":
            assert time.monotonic() < end


def test_missing_measurements_have_no_figure(one: Cluster, monkeypatch: pytest.MonkeyPatch) -> None:
    real = cometmq.loadtest.run_load

    def stopped(target: Target, options: LoadOptions, **more: object) -> LoadReport:
        report = real(target, options)
        return dataclasses.replace(report, verified=False, stopped=True, consumed=0, consume_s=0.0)

    monkeypatch.setattr(cometmq.loadtest, "run_load", stopped)
    outcome = run("bench", "--broker", one.broker.address, "--create", "-c", "1", "--count", "10")
    assert outcome.code == 130
    assert ", 1 producer, " in outcome.lines[0]
    assert "consumed    0 messages" in outcome.lines


def test_ctrl_c_prints_the_figures_so_far(one: Cluster) -> None:
    address = one.broker.address
    process = start("bench", "--broker", address, "--create", "-t", "ctrlc", "--duration", "3600", "--json")
    try:
        await_messages(address, "ctrlc")
        process.send_signal(signal.SIGINT)
        out, err = process.communicate(timeout=60)
    finally:
        process.kill()
        process.communicate()
    assert (process.returncode, err) == (130, b"")
    report = json.loads(out)["report"]
    assert report["stopped"] is True
    assert report["verified"] is False
    assert report["accepted"] > 0
