"""The command as a real process: exit codes, closed pipes, Ctrl-C, progress only on a terminal."""

from __future__ import annotations

import json
import os
import pty
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

import cometmq
from support.command_line import run, spawn, start
from support.small_store import open_small


@pytest.fixture
def path(tmp_path: Path) -> Path:
    path = tmp_path / "store"
    with open_small(path) as store:
        store.append_many("orders", [b"order %d" % number for number in range(2000)], keys="every")
    return path


@contextmanager
def running(*arguments: str | Path) -> Iterator[subprocess.Popen[bytes]]:
    process = start(*arguments)
    try:
        yield process
    finally:
        process.kill()
        process.communicate()


def test_version_help_and_no_arguments(path: Path) -> None:
    assert spawn("--version").out.strip() == cometmq.__version__
    helped = spawn("--help")
    assert helped.code == 0
    for command in ("inspect", "verify", "repair", "cat", "put", "produce", "consume"):
        assert command in helped.out
        shown = run(command, "--help")
        assert shown.code == 0
        assert "Examples:" in shown.out
        assert f"cometmq {command} " in shown.out
    assert run().code == 2
    assert spawn("nosuch").code == 2


def test_exit_codes(path: Path, tmp_path: Path) -> None:
    assert run("verify", path).code == 0
    assert spawn("verify", tmp_path / "nothing").code == 3
    assert run("verify", path, "--nosuch").code == 2
    unit = path / "consumequeue" / "orders" / "0" / f"{0:020d}"
    with unit.open("r+b") as file:
        file.seek(7)
        file.write(b"\x09")
    assert spawn("verify", path).code == 1
    assert run("repair", path, "--yes").code == 0
    assert run("verify", path).code == 0


def test_errors_are_one_line_without_a_traceback(tmp_path: Path) -> None:
    for command, arguments in (
        (spawn, ["inspect", tmp_path]),
        (run, ["cat", tmp_path / "x"]),
        (run, ["repair", tmp_path / "x", "--yes"]),
        (run, ["put", "/dev/null", "t"]),
    ):
        outcome = command(*arguments)
        assert outcome.code == 3, arguments
        assert outcome.err.startswith("cometmq: ")
        assert "Traceback" not in outcome.err


def test_no_progress_without_a_terminal(path: Path) -> None:
    assert spawn("verify", path).err == ""
    assert spawn("put", path, "orders", input=b"x\n").err == ""


def test_progress_on_a_terminal(path: Path) -> None:
    """stderr is a terminal, stdout is not: the bar is on the one, the report on the other."""
    controller, terminal = pty.openpty()
    with subprocess.Popen(
        [sys.executable, "-m", "cometmq", "verify", path, "--json"], stdout=subprocess.PIPE, stderr=terminal
    ) as process:
        os.close(terminal)
        out, _ = process.communicate(timeout=60)
    shown = os.read(controller, 65536)
    os.close(controller)
    assert process.returncode == 0
    assert json.loads(out)["verdict"] == "healthy"
    assert b"verifying" in shown


def test_a_closed_pipe_is_quiet(tmp_path: Path) -> None:
    with open_small(tmp_path / "store") as store:
        store.append_many("orders", [b"x" * 1000] * 5000)
    with running("cat", tmp_path / "store", "orders") as process:
        assert process.stdout is not None
        assert process.stdout.readline().rstrip().endswith(b"x")
        process.stdout.close()
        assert process.wait(60) == 141
        assert process.stderr is not None
        assert process.stderr.read() == b""


def test_following_until_ctrl_c(path: Path) -> None:
    with open_small(path) as store, running("cat", path, "orders", "--tail", "1", "--follow", "-f", "raw") as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"order 1999\n"
        for number in range(3):
            store.append("orders", b"new %d" % number)
            assert process.stdout.readline() == b"new %d\n" % number
        process.send_signal(signal.SIGINT)
        out, err = process.communicate(timeout=60)
        assert (process.returncode, out, err) == (130, b"", b"")


def test_following_from_the_end_up_to_a_limit(path: Path) -> None:
    with open_small(path) as store, running("cat", path, "--follow", "-n", "2002", "-f", "raw") as process:
        store.append("other", b"first of a new topic")
        store.append("orders", b"last")
        store.append("orders", b"not asked for")
        out, err = process.communicate(timeout=60)
        assert (process.returncode, err) == (0, b"")
        assert out.splitlines()[2000:] == [b"first of a new topic", b"last"]


def test_slow_lines_are_appended_as_they_come(path: Path) -> None:
    with running("put", path, "slow") as process:
        assert process.stdin is not None
        process.stdin.write(b"first\n")
        process.stdin.flush()
        with cometmq.open(path, mode="r") as store:
            with store.read(follow=True, timeout_s=60) as reader:
                assert next(message.body_bytes for message in reader if message.topic == "slow") == b"first"
            process.stdin.write(b"second\nno end yet")
            process.stdin.flush()
            with store.read("slow", start=1, follow=True, timeout_s=60) as reader:
                assert next(reader).body_bytes == b"second"
        process.send_signal(signal.SIGINT)
        out, err = process.communicate(timeout=60)
        assert (process.returncode, err) == (130, b"")
        assert out.startswith(b"appended 2 messages")
    with cometmq.open(path) as store:
        assert not store.opening().was_unclean
        assert store.max_offset("slow") == 2


def test_a_killed_put_left_every_durable_line(path: Path) -> None:
    with running("put", path, "slow") as process:
        assert process.stdin is not None
        process.stdin.write(b"first\n")
        process.stdin.flush()
        with cometmq.open(path, mode="r") as store, store.read(follow=True, timeout_s=60) as reader:
            assert any(message.topic == "slow" for message in reader)
        process.kill()
        process.wait(60)
    assert spawn("verify", path).code == 0
    assert spawn("repair", path, "--yes").code == 0
    assert spawn("cat", path, "slow", "-f", "raw").out == "first\n"


@contextmanager
def _interrupting_bar(title: str) -> Iterator[object]:
    yield lambda done, total=None: os.kill(os.getpid(), signal.SIGINT)


def test_ctrl_c_in_a_verification_prints_the_findings(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("cometmq.cli.verify.byte_progress", _interrupting_bar)
    outcome = run("verify", path)
    assert outcome.code == 130
    assert outcome.out.startswith("stopped: no problem so far in 2,000 records")
    report = json.loads(run("verify", path, "--json").out)
    assert report["complete"] is False


def test_ctrl_c_in_a_repair_leaves_the_store_alone(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("cometmq.cli.repair.byte_progress", _interrupting_bar)
    before = sorted(file.name for file in path.rglob("*"))
    outcome = run("repair", path, "--yes")
    assert outcome.code == 130
    assert "the store is unchanged" in outcome.err
    assert sorted(file.name for file in path.rglob("*")) == before
    assert run("verify", path).code == 0


def test_ctrl_c_while_modules_load_ends_without_a_traceback() -> None:
    program = """
import sys

class Interrupted:
    def find_spec(self, name, path=None, target=None):
        if name == "cometmq.cli":
            raise KeyboardInterrupt

sys.meta_path.insert(0, Interrupted())
from cometmq.__main__ import main

main()
"""
    ended = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert (ended.returncode, ended.stdout, ended.stderr) == (130, "", "")
