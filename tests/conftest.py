"""Fixtures that every Python test may use."""

from __future__ import annotations

import json
import os
import signal
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import TypeAlias

import hypothesis
import pytest

from support.any_disk import ANY_DISK, why_too_full
from support.golden import GoldenStores, StoreKind

GoldenStoreFixture: TypeAlias = Callable[[str, StoreKind], Path]


def pytest_configure() -> None:
    """Give the tests, and the programs that they start, signals as a shell in the foreground does.

    Under ``nohup``, and in the background of a script, SIGINT or SIGHUP are ignored, and programs inherit that; some
    supervisors ignore SIGTERM or SIGCHLD, or block signals.
    """
    signal.signal(signal.SIGINT, signal.default_int_handler)
    for number in (signal.SIGHUP, signal.SIGTERM, signal.SIGCHLD):
        if signal.getsignal(number) is signal.SIG_IGN:
            signal.signal(number, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_SETMASK, ())
    os.environ.update(ANY_DISK)
    if not os.access(".", os.W_OK):  # another user's checkout: examples cannot be kept there
        hypothesis.settings.register_profile("read-only checkout", database=None)
        hypothesis.settings.load_profile("read-only checkout")


def pytest_sessionstart(session: pytest.Session) -> None:
    """Refuse to start on a disk that is too full, where the failures of tests would not name the reason."""
    base = session.config.option.basetemp
    reason = why_too_full(Path(base).absolute().parent if base else Path(tempfile.gettempdir()))
    if reason is not None:
        pytest.exit(reason, returncode=pytest.ExitCode.USAGE_ERROR)


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Leave the reasons of skipped tests in the folder ``CMQ_SKIPS``; ``make test`` lists them at its end."""
    folder = os.environ.get("CMQ_SKIPS")
    if not folder or hasattr(terminalreporter.config, "workerinput"):
        return
    with (Path(folder) / f"pytest-{os.getpid()}.jsonl").open("w", encoding="utf-8") as file:
        for report in terminalreporter.stats.get("skipped", []):
            reason = report.longrepr[2] if isinstance(report.longrepr, tuple) else str(report.longrepr)
            note = {"test": report.nodeid, "reason": reason.removeprefix("Skipped: ")}
            print(json.dumps(note), file=file)


@pytest.fixture(scope="session")
def golden_stores(tmp_path_factory: pytest.TempPathFactory) -> GoldenStores:
    """The session's unpacked golden stores; tests use ``golden_store``."""
    return GoldenStores(tmp_path_factory.mktemp("golden"))


@pytest.fixture
def golden_store(golden_stores: GoldenStores, tmp_path: Path) -> GoldenStoreFixture:
    """A function that makes a fresh, writable copy of a golden store: ``golden_store("apache-5.3.3", "crashed")``."""
    copies = 0

    def copy(name: str, kind: StoreKind = "clean") -> Path:
        nonlocal copies
        copies += 1
        return golden_stores.copy(name, kind, tmp_path / f"{name}-{kind}-{copies}")

    return copy
