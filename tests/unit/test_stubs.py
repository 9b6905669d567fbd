"""Checks: the stub of the compiled module names exactly what the module has, with the same signatures."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]


def test_stub_matches_the_compiled_module() -> None:
    allowlist = Path(__file__).with_name("stubtest_allowlist.txt")
    options = ["--mypy-config-file", str(ROOT / "pyproject.toml"), "--allowlist", str(allowlist)]
    found = subprocess.run(
        [sys.executable, "-m", "mypy.stubtest", "cometmq._engine", "--ignore-unused-allowlist", *options],
        capture_output=True,
        text=True,
        cwd=ROOT,
        env={**os.environ, "MYPYPATH": str(ROOT / "src")},
        check=False,
    )
    assert found.returncode == 0, found.stdout + found.stderr
