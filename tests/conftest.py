"""Fixtures that every Python test may use."""

from __future__ import annotations

import signal
from collections.abc import Callable
from pathlib import Path
from typing import TypeAlias

import pytest

from support.golden import GoldenStores, StoreKind

GoldenStoreFixture: TypeAlias = Callable[[str, StoreKind], Path]


def pytest_configure() -> None:
    """Give the tests, and the programs that they start, signals as a shell in the foreground does.

    Under ``nohup``, and in the background of a script, SIGINT or SIGHUP are ignored, and programs inherit that.
    """
    signal.signal(signal.SIGINT, signal.default_int_handler)
    signal.signal(signal.SIGHUP, signal.SIG_DFL)


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
