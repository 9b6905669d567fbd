"""Checks: the benchmarks of the Python surface, the rivals and their runner work, in their short form.

The C programs' short forms run with the C tests.
"""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[2]
NEEDED = ("pytest_benchmark", "litequeue", "persistqueue", "lmdb")
MISSING = [name for name in NEEDED if importlib.util.find_spec(name) is None]

pytestmark = pytest.mark.skipif(
    bool(MISSING), reason=f"not installed: {', '.join(MISSING)} (pip install -e '.[bench]')"
)


def run_quick(directory: Path, *only: str) -> list[dict[str, Any]]:
    arguments = [argument for text in only for argument in ("--only", text)]
    # Its own pytest is no worker of ours: pytest-benchmark measures nothing beside others.
    alone = {name: value for name, value in os.environ.items() if name != "PYTEST_XDIST_WORKER"}
    done = subprocess.run(
        [sys.executable, str(ROOT / "benchmarks" / "run_store.py"), "--quick", "--json", *arguments],
        cwd=directory,
        env=alone | {"CMQ_BENCH_DIR": str(directory), "CMQ_BENCH_RESULTS": str(directory / "results")},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-4000:]
    document = json.loads(done.stdout)
    assert document["quick"]
    assert document["machine"]["processors"] >= 1
    figures: list[dict[str, Any]] = document["figures"]
    assert list(directory.glob("cmq-bench-*")) == []
    for figure in figures:
        assert figure["min"] <= figure["value"] <= figure["max"]
        assert figure["value"] > 0
    return figures


def test_python_surface(tmp_path: Path) -> None:
    names = {figure["name"] for figure in run_quick(tmp_path, "api/")}
    assert "python/append/async/128B/batch-4000/1 key/numpy" in names
    assert "python/append/sync/1024B/threads-64/no key" in names
    assert "python/read/by key" in names
    assert len(names) == 50


def test_rivals(tmp_path: Path) -> None:
    figures = {figure["name"]: figure for figure in run_quick(tmp_path, "rivals/")}
    for mode, engines in {
        "durable": {"litequeue (SQLite)", "persist-queue (SQLite)", "lmdb"},
        "relaxed": {"litequeue (SQLite)", "persist-queue (SQLite)", "persist-queue (files)", "lmdb"},
    }.items():
        for engine in engines:
            figure = figures[f"rivals/{mode}/128B/append, one a call/{engine}"]
            ours = figures[f"rivals/{mode}/128B/append, one a call/cometmq"]
            assert figure["ratio"] == pytest.approx(figure["value"] / ours["value"])
            assert figure["flush"]
