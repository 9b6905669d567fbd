"""Checks: ``make quick`` finds changed files, and the tests that belong to them."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest
import quick

ROOT = Path(__file__).resolve().parents[2]


@pytest.mark.parametrize(
    ("name", "c_programs", "pytest_file", "pages"),
    [
        ("csrc/store/index/cmq_index.c", {"test_cmq_index"}, None, set()),
        ("tests/c/net/test_cmq_net.c", {"test_cmq_net"}, None, set()),
        ("tests/crash/kill.c", {"crash_kill"}, None, set()),
        ("src/cometmq/store/handoff.py", set(), "tests/unit/store/", set()),
        ("bindings/python/_store.pxi", set(), "tests/unit/test_engine.py", set()),
        ("bindings/jvm/cmq_jvm.c", set(), "tests/jvm/", set()),
        ("tests/unit/test_quick.py", set(), "tests/unit/test_quick.py", set()),
        ("tools/tidy.py", set(), "tests/unit/test_tidy.py", set()),
        ("docs/arrow.md", set(), None, {"docs/arrow.md"}),
    ],
)
def test_tests_of_a_file(name: str, c_programs: set[str], pytest_file: str | None, pages: set[str]) -> None:
    plan = quick.make_plan([name])
    assert plan.c_programs >= c_programs
    assert bool(plan.c_programs) == bool(c_programs)
    assert plan.pages == pages
    assert plan.without_test == set()
    if pytest_file is None:
        assert plan.pytest_files == set()
    else:
        assert any(one.startswith(pytest_file) for one in plan.pytest_files)
    assert all((ROOT / one).exists() for one in plan.pytest_files)


def test_a_header_without_a_test_runs_its_folders() -> None:
    plan = quick.make_plan(["csrc/store/index/cmq_no_such_header.h"])
    assert "test_cmq_index" in plan.c_programs


def test_a_file_without_a_quick_test_is_named() -> None:
    assert quick.make_plan(["tests/spark/test_batch.py", "LICENSE"]).without_test == {
        "tests/spark/test_batch.py",
        "LICENSE",
    }


def test_changed_files_are_committed_edited_and_new_ones(tmp_path: Path) -> None:
    def git(*arguments: str) -> None:
        identity = ["-c", "user.name=x", "-c", "user.email=x@example.org"]
        subprocess.run(["git", *identity, *arguments], cwd=tmp_path, check=True, capture_output=True)

    git("init", "-b", "main")
    for name in ("kept", "edited"):
        (tmp_path / name).write_text("1")
    git("add", ".")
    git("commit", "-m", "first")
    assert quick.changed_files(None, tmp_path) == []
    git("checkout", "-b", "work")
    (tmp_path / "committed").write_text("1")
    git("add", ".")
    git("commit", "-m", "second")
    (tmp_path / "edited").write_text("2")
    (tmp_path / "new").write_text("1")
    assert quick.changed_files(None, tmp_path) == ["committed", "edited", "new"]
    assert quick.changed_files("HEAD", tmp_path) == ["edited", "new"]
