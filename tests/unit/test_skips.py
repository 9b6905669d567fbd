"""Checks: `make test` lists what was skipped and why, and a reason that is not in the list of allowed ones fails it."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
import skips

ROOT = Path(__file__).resolve().parents[2]
JUNIT = """<testsuite><testcase name="one" status="run"><system-out>ok</system-out></testcase>
<testcase name="two" status="notrun"><skipped message="SKIP_RETURN_CODE=77"/><system-out>x
no overlay file system</system-out></testcase></testsuite>"""


def test_reasons_of_both_kinds_are_listed_and_new_ones_fail(tmp_path: Path) -> None:
    notes = [{"test": f"t::{number}", "reason": "needs root"} for number in range(3)]
    (tmp_path / "pytest-1.jsonl").write_text("".join(json.dumps(note) + "\n" for note in notes), encoding="utf-8")
    (tmp_path / "ctest-asan.xml").write_text(JUNIT, encoding="utf-8")
    allowed = skips.allowed_reasons("# a comment\n\nneeds \\w+  # why\nno overlay file system")
    assert skips.report(tmp_path, allowed) == (
        ["skipped: 4 tests", "     3 needs root", "     1 no overlay file system"],
        False,
    )
    lines, is_new = skips.report(tmp_path, skips.allowed_reasons("needs roo"))
    assert is_new
    assert lines[1:3] == ["     3 needs root  <- not in tests/allowed_skips.txt", "       t::0"]
    assert lines[-1] == "       ctest-asan: two"


def test_nothing_skipped(tmp_path: Path) -> None:
    assert skips.report(tmp_path, []) == (["skipped: none"], False)


def test_allowed_reasons_are_expressions() -> None:
    assert len(skips.allowed_reasons(skips.ALLOWED.read_text(encoding="utf-8"))) > 5


@pytest.mark.parametrize("workers", [[], ["-n", "2"]])
def test_pytest_leaves_its_skips(tmp_path: Path, workers: list[str]) -> None:
    """Those of tests, of fixtures and of whole modules, also from workers."""
    (tmp_path / "conftest.py").write_text((ROOT / "tests" / "conftest.py").read_text(encoding="utf-8"))
    (tmp_path / "test_a.py").write_text(
        "import pytest\n@pytest.mark.skip(reason='by mark')\ndef test_a(): ...\n"
        "def test_b(): pytest.skip('while it runs')\ndef test_c(): ...\n"
    )
    (tmp_path / "test_b.py").write_text("import pytest\npytest.importorskip('no_such_module', reason='not here')\n")
    notes = tmp_path / "notes"
    notes.mkdir()
    subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "--rootdir", tmp_path, *workers, tmp_path],
        env={"CMQ_SKIPS": str(notes), "PYTHONPATH": f"{ROOT}:{ROOT / 'tests'}", "PATH": ""},
        check=True,
        capture_output=True,
    )
    assert sorted(reason for reason, _ in skips.skipped(notes)) == ["by mark", "not here", "while it runs"]
