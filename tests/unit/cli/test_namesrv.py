"""Checks: the name server as a process: it reports its address, serves, and ends cleanly by a signal."""

from __future__ import annotations

import json
import logging
import signal
import socket
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from cometmq.cli.logs import JsonLines, TextLines
from cometmq.remoting.codes import RequestCode, ResponseCode
from cometmq.remoting.command import Command
from cometmq.remoting.sync_channel import Channel
from support.command_line import run, start


@contextmanager
def running(*arguments: str | Path) -> Iterator[tuple[subprocess.Popen[bytes], str]]:
    """A name server that listens, and its address."""
    process = start("namesrv", "--listen", "127.0.0.1:0", "--json", *arguments)
    try:
        assert process.stderr is not None
        line = json.loads(process.stderr.readline())
        assert line["event"] == "name server started"
        yield process, line["address"]
    finally:
        process.kill()
        process.communicate()


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_it_serves_and_stops_by_signals(number: signal.Signals, tmp_path: Path) -> None:
    keys = tmp_path / "kvConfig.json"
    fields = {"namespace": "n", "key": "k", "value": "v"}
    with running("--kv-config", keys) as (process, address), Channel(address) as client:
        answer = client.invoke(Command(code=RequestCode.PUT_KV_CONFIG, fields=fields), timeout_ms=10_000)
        assert answer.code == ResponseCode.SUCCESS
        process.send_signal(number)
        out, err = process.communicate(timeout=30)
        assert process.returncode == 0
        assert out == b""
        assert [json.loads(line)["event"] for line in err.splitlines()] == ["name server stopped"]
    assert keys.read_text() == '{"configTable":{"n":{"k":"v"}}}'


def test_for_people_it_says_where_it_listens() -> None:
    process = start("namesrv", "--listen", "127.0.0.1:0")
    assert process.stdout is not None
    line = process.stdout.readline().decode()
    assert line.startswith("name server listening on 127.0.0.1:")
    process.terminate()
    _, err = process.communicate(timeout=30)
    assert process.returncode == 0
    assert b"INFO name server started address=127.0.0.1:" in err


def test_settings_come_from_a_file(tmp_path: Path) -> None:
    path = tmp_path / "namesrv.properties"
    path.write_text("enableAllTopicList=false\nlistenPort=1\n")
    with running("--config", path) as (_, address), Channel(address) as client:
        command = Command(code=RequestCode.GET_ALL_TOPIC_LIST_FROM_NAMESERVER)
        assert client.invoke(command, timeout_ms=10_000).remark == "disable"


def test_invalid_options_print_one_line(tmp_path: Path) -> None:
    refused = run("namesrv", "--listen", "0.0.0.0:0")
    assert refused.code == 3
    assert "change all routes" in refused.err
    assert "--insecure-listen" in refused.err
    with socket.create_server(("127.0.0.1", 0)) as taken:
        address = f"127.0.0.1:{taken.getsockname()[1]}"
        busy = run("namesrv", "--listen", address)
    assert busy.code == 3
    assert address in busy.err
    (tmp_path / "namesrv.properties").write_text("listenPrt=1")
    unknown = run("namesrv", "--config", tmp_path / "namesrv.properties")
    assert (unknown.code, unknown.err.count("\n")) == (3, 1)
    assert "listenPort" in unknown.err
    for words in ("nowhere", "nowhere:1", "127.0.0.1:99999"):
        assert run("namesrv", "--listen", words).code == 2


def record(text: str, **extra: object) -> logging.LogRecord:
    made = logging.makeLogRecord({"name": "cometmq.x", "levelname": "INFO", "levelno": 20, "created": 0.5, "msg": text})
    vars(made).update(extra)
    return made


def test_lines_for_people() -> None:
    line = TextLines().format(record("broker gone", address="h:1", reason='it said "no"', empty="", control="a\nb"))
    assert line.endswith(r'INFO broker gone address=h:1 reason="it said \"no\"" empty="" control="a\nb"')


def test_lines_for_scripts() -> None:
    line = JsonLines().format(record("broker gone", address="h:1", id=3))
    assert json.loads(line) == {
        "time": "1970-01-01T00:00:00.500+00:00",
        "level": "info",
        "logger": "cometmq.x",
        "event": "broker gone",
        "address": "h:1",
        "id": 3,
    }


def test_a_traceback_follows() -> None:
    try:
        raise ValueError("what")
    except ValueError as error:
        caught = (type(error), error, error.__traceback__)
    assert "ValueError: what" in TextLines().format(record("failed", exc_info=caught))
    assert "ValueError: what" in json.loads(JsonLines().format(record("failed", exc_info=caught)))["traceback"]
