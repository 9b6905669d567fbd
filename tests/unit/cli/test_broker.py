"""Checks: broker and serve as processes: they say where they listen, serve, keep what they had, and end cleanly."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from cometmq.remoting.codes import RequestCode, ResponseCode
from cometmq.remoting.command import Command
from cometmq.remoting.sync_channel import Channel
from support.command_line import run, start

SEND = {"a": "p", "b": "orders", "c": "TBW102", "d": "4", "e": "0", "f": "0", "g": "1", "h": "0", "i": ""}


@contextmanager
def running(*arguments: str | Path) -> Iterator[tuple[subprocess.Popen[bytes], dict[str, dict[str, str]]]]:
    """A process, and its log lines by event, up to the broker's start."""
    process = start(*arguments, "--listen", "127.0.0.1:0", "--json")
    try:
        assert process.stderr is not None
        told: dict[str, dict[str, str]] = {}
        while "broker started" not in told:
            line = json.loads(process.stderr.readline())
            told[line["event"]] = line
        yield process, told
    finally:
        process.kill()
        process.communicate()


def ask(channel: Channel, code: int, fields: dict[str, str], body: bytes = b"") -> Command:
    return channel.invoke(Command(code=code, fields=fields, body=body), timeout_ms=10_000)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_broker_serves_and_stops_by_signals(number: signal.Signals, tmp_path: Path) -> None:
    with running("broker", tmp_path, "--name", "broker-a") as (process, told):
        address = told["broker started"]["address"]
        assert told["broker started"]["flush"] == "sync"
        with Channel(address) as channel:
            assert ask(channel, RequestCode.SEND_MESSAGE_V2, SEND, b"hello").code == ResponseCode.SUCCESS
        process.send_signal(number)
        out, err = process.communicate(timeout=30)
        assert process.returncode == 0
        assert out == b""
        events = [json.loads(line)["event"] for line in err.splitlines()]
        assert events[-1] == "broker stopped"
        assert events.count("broker stopping") == 1  # a warning of a nearly full disk may come before and after it
    assert not (tmp_path / "abort").exists(), "it was stopped cleanly"
    assert "hello" in run("cat", tmp_path, "orders").out


def test_serve_runs_both(tmp_path: Path) -> None:
    with running("serve", tmp_path, "--namesrv-listen", "127.0.0.1:0", "--set", "flushDiskType=ASYNC_FLUSH") as (
        process,
        told,
    ):
        assert told["broker started"]["name_servers"] == told["name server started"]["address"]
        with Channel(told["broker started"]["address"]) as channel:
            assert ask(channel, RequestCode.SEND_MESSAGE_V2, SEND, b"hello").code == ResponseCode.SUCCESS
        with Channel(told["name server started"]["address"]) as channel:
            answer = ask(channel, RequestCode.GET_ROUTEINFO_BY_TOPIC, {"topic": "orders"})
            assert told["broker started"]["address"].encode() in answer.body
            fields = {"namespace": "n", "key": "k", "value": "v"}
            assert ask(channel, RequestCode.PUT_KV_CONFIG, fields).code == ResponseCode.SUCCESS
        process.terminate()
        process.communicate(timeout=30)
        assert process.returncode == 0
    assert (tmp_path / "namesrv" / "kvConfig.json").exists()


def test_a_second_one_on_the_same_store_names_the_holder(tmp_path: Path) -> None:
    with running("broker", tmp_path) as (process, _):
        refused = run("broker", tmp_path, "--listen", "127.0.0.1:0")
        assert refused.code == 3
        assert str(process.pid) in refused.err


def test_for_people_it_says_where_it_listens(tmp_path: Path) -> None:
    process = start("serve", tmp_path, "--listen", "127.0.0.1:0", "--namesrv-listen", "127.0.0.1:0")
    assert process.stdout is not None
    assert process.stdout.readline().startswith(b"name server listening on 127.0.0.1:")
    assert b" listening on 127.0.0.1:" in process.stdout.readline()
    os.kill(process.pid, signal.SIGTERM)
    process.communicate(timeout=30)
    assert process.returncode == 0


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (("broker",), "no store was given"),
        (("broker", "data", "--listen", "foo"), "write host:port"),
        (("broker", "data", "--listen", "foo:1"), "numeric address"),
        (("serve", "data", "--listen", "127.0.0.1:99999"), "from 0 to 65535"),
        (
            ("broker", "data", "--set", "popConsumerKVServiceEnable=true"),
            "--set popConsumerKVServiceEnable: there is no such setting: in Apache RocketMQ it has what is popped",
        ),
        (
            ("broker", "data", "--set", "asyncLearner=true"),
            "--set asyncLearner: there is no such setting: Apache RocketMQ's brokers have it, and CometMQ",
        ),
        (("broker", "data", "--set", "brokerPermision=6"), "--set brokerPermision: there is no such setting"),
        (("broker", "data", "--set", "brokerPermission=x"), "--set brokerPermission: "),
        (("broker", "data", "--set", "flushDiskTyp=x"), "flushDiskType"),
        (("broker", "data", "--namesrv", "nowhere"), "write host:port"),
        (("serve", "data", "--namesrv-listen", "nowhere"), "write host:port"),
    ],
)
def test_invalid_options_are_rejected(arguments: tuple[str, ...], text: str, tmp_path: Path) -> None:
    words = [str(tmp_path / word) if word == "data" else word for word in arguments]
    refused = run(*words)
    assert refused.code == 2
    assert text in " ".join(refused.err.split())
    assert "keyword" not in refused.err
    assert not (tmp_path / "data").exists(), "nothing was made"


def test_refused_start_prints_one_line(tmp_path: Path) -> None:
    wrong = tmp_path / "broker.properties"
    wrong.write_text("brokerPermission=x\n")
    for words, text in ((["--listen", "0.0.0.0:0"], "--insecure-listen"), (["--config", str(wrong)], str(wrong))):
        refused = run("broker", tmp_path / "data", *words)
        assert (refused.code, refused.err.count("\n")) == (3, 1)
        assert text in refused.err
        assert not (tmp_path / "data").exists(), "nothing was made"


def test_an_address_of_another_machine_is_named(tmp_path: Path) -> None:
    refused = run("broker", tmp_path, "--listen", "192.0.2.1:0", "--insecure-listen")
    assert (refused.code, refused.out) == (3, "")
    assert "cannot listen on 192.0.2.1: not an address of this machine" in refused.err


def test_a_setting_without_a_value_is_a_mistake_of_the_command_line(tmp_path: Path) -> None:
    refused = run("broker", tmp_path, "--set", "brokerName")
    assert refused.code == 2
    assert "NAME=VALUE" in refused.err


@pytest.mark.parametrize(
    ("arguments", "contradiction"),
    [
        (("--set", "storePathRootDir=/tmp/x"), "--set storePathRootDir=/tmp/x contradicts the store directory"),
        (("--set", "listenPort=1", "--listen", ":0"), "--set listenPort=1 contradicts --listen :0"),
        (("--set", "bindAddress=::1", "--listen", "127.0.0.1:0"), "--set bindAddress=::1 contradicts --listen"),
    ],
)
def test_settings_that_an_argument_replaces_are_refused(
    arguments: tuple[str, ...], contradiction: str, tmp_path: Path
) -> None:
    for command in ("serve", "broker"):
        refused = run(command, tmp_path / "data", *arguments)
        assert refused.code == 2
        assert contradiction in " ".join(refused.err.replace("│", " ").split())
    assert not (tmp_path / "data").exists()


def test_a_repeated_key_is_reported_and_an_unknown_one_with_a_suggestion(tmp_path: Path) -> None:
    properties = tmp_path / "broker.properties"
    properties.write_text("fileReservedTime=48\nfileReservedTim=1\nfileReservedTime=12\n")
    with socket.create_server(("127.0.0.1", 0)) as taken:
        address = f"127.0.0.1:{taken.getsockname()[1]}"
        refused = run("broker", tmp_path / "data", "--config", properties, "--listen", address)
    assert refused.code == 3
    assert f"warning: {properties}: fileReservedTime is given more than once; the last value is in force" in refused.err
    assert "unknown RocketMQ broker setting fileReservedTim; did you mean fileReservedTime" in refused.err


def test_unknown_settings_and_a_taken_port_are_reported(tmp_path: Path) -> None:
    properties = tmp_path / "broker.properties"
    properties.write_text("brokerName=broker-a\nmisspelt=1\n")
    with socket.create_server(("127.0.0.1", 0)) as taken:
        address = f"127.0.0.1:{taken.getsockname()[1]}"
        refused = run("broker", tmp_path / "data", "--config", properties, "--listen", address)
    assert refused.code == 3
    assert f"warning: {properties}: unknown RocketMQ broker setting misspelt" in refused.err
    assert address in refused.err
