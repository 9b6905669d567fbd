"""Checks: servers stop cleanly however many signals come, and a stop that hangs can be forced."""

from __future__ import annotations

import json
import os
import resource
import signal
import subprocess
import sys
from pathlib import Path

import pytest
import typer

from cometmq.cli.failures import ExitCode, reported
from cometmq.cli.running import Stopping, descriptors_for_clients, stopping_by_signals
from cometmq.cli.terminal import interruptible
from support.command_line import start


def test_a_second_signal_does_not_interrupt_a_stop(capfd: pytest.CaptureFixture[str]) -> None:
    now = [100.0]
    stopping = Stopping(lambda: now[0])
    stopping.want()
    assert stopping.is_wanted
    now[0] += 9.0
    stopping.want()
    assert "already stopping; a signal after 1 s forces the exit" in capfd.readouterr().err


def test_a_late_signal_forces_a_stop_that_hangs(capfd: pytest.CaptureFixture[str]) -> None:
    now = [100.0]
    stopping = Stopping(lambda: now[0])
    stopping.want()
    now[0] += 10.0
    with pytest.raises(KeyboardInterrupt):
        stopping.want()
    assert "forcing the exit" in capfd.readouterr().err


def test_a_hangup_interrupts_a_job() -> None:
    with interruptible() as interruption:
        os.kill(os.getpid(), signal.SIGHUP)
        assert interruption.is_set()
    assert signal.getsignal(signal.SIGHUP) is signal.SIG_DFL


def test_the_second_hangup_of_a_terminal_does_not_cut_a_job_short() -> None:
    with interruptible() as interruption:
        os.kill(os.getpid(), signal.SIGHUP)
        os.kill(os.getpid(), signal.SIGHUP)
        assert interruption.is_set()
        with pytest.raises(KeyboardInterrupt):
            os.kill(os.getpid(), signal.SIGINT)


def test_a_hangup_stays_ignored_under_nohup() -> None:
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        with stopping_by_signals() as stopping, interruptible() as interruption:
            os.kill(os.getpid(), signal.SIGHUP)
            assert not stopping.is_wanted
            assert not interruption.is_set()
        assert signal.getsignal(signal.SIGHUP) is signal.SIG_IGN
    finally:
        signal.signal(signal.SIGHUP, signal.SIG_DFL)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGHUP])
def test_a_burst_of_signals_stops_a_broker_cleanly(number: signal.Signals, tmp_path: Path) -> None:
    process = start("serve", tmp_path, "--listen", "127.0.0.1:0", "--namesrv-listen", "127.0.0.1:0", "--json")
    assert process.stderr is not None
    try:
        while json.loads(process.stderr.readline())["event"] != "broker started":
            pass
        process.send_signal(number)
        events = []
        for line in process.stderr:  # each line of the stop is answered with one more signal, the last ones at exit
            if line.startswith(b"{"):
                events.append(json.loads(line)["event"])
                process.send_signal(number)
        process.wait(timeout=30)
    finally:
        process.kill()
        process.communicate()
    assert "broker stopped" in events
    assert "name server stopped" in events
    assert process.returncode == 0
    assert not (tmp_path / "abort").exists()


@pytest.mark.parametrize(
    "send_at_exit",
    [
        "atexit.register(os.kill, os.getpid(), signal.SIGTERM)",
        # a global of the program goes when the interpreter has taken its signal handlers away
        "late = type('Late', (), {'__del__': lambda self, kill=os.kill, pid=os.getpid(): kill(pid, signal.SIGTERM)})()",
    ],
    ids=["while exit functions run", "while modules go"],
)
def test_a_signal_during_the_exit_of_the_interpreter_changes_nothing(send_at_exit: str) -> None:
    program = (
        "import atexit, os, signal\n"
        "from cometmq.cli.running import stopping_by_signals\n"
        f"{send_at_exit}\n"
        "with stopping_by_signals() as stopping:\n"
        "    os.kill(os.getpid(), signal.SIGTERM)\n"
        "    stopping.wait()\n"
    )
    assert subprocess.run([sys.executable, "-c", program], check=False, timeout=60).returncode == 0


def test_a_server_has_descriptors_for_its_clients_while_it_runs() -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    few = 256 if hard == resource.RLIM_INFINITY else min(256, hard)
    resource.setrlimit(resource.RLIMIT_NOFILE, (few, hard))
    try:
        with descriptors_for_clients():
            most = 65_536 if hard == resource.RLIM_INFINITY else min(65_536, hard)
            assert resource.getrlimit(resource.RLIMIT_NOFILE) == (most, hard)
        assert resource.getrlimit(resource.RLIMIT_NOFILE) == (few, hard)
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def test_a_hangup_ends_commands_without_a_handler_of_their_own_as_ctrl_c_does() -> None:
    assert signal.getsignal(signal.SIGHUP) is signal.SIG_DFL
    with pytest.raises(typer.Exit) as ended, reported():
        signal.raise_signal(signal.SIGHUP)
    assert ended.value.exit_code == ExitCode.INTERRUPTED
    assert signal.getsignal(signal.SIGHUP) is signal.SIG_DFL


def test_a_command_under_nohup_ignores_a_hangup() -> None:
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        with reported():
            signal.raise_signal(signal.SIGHUP)
            assert signal.getsignal(signal.SIGHUP) is signal.SIG_IGN
    finally:
        signal.signal(signal.SIGHUP, signal.SIG_DFL)
