"""Checks: ``tools/in_memory.sh`` gives a command a folder of its own and removes it, and heeds a given TMPDIR."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
MEMORY = Path("/dev/shm")


def run_in_memory(command: str, directory: Path, **environment: str) -> tuple[int, str]:
    variables = {**os.environ, **environment}
    if "TMPDIR" not in environment:
        variables.pop("TMPDIR", None)
    done = subprocess.run(
        [ROOT / "tools" / "in_memory.sh", "lane", "sh", "-c", command],
        cwd=directory,
        env=variables,
        stdout=subprocess.PIPE,
        text=True,
        check=False,
    )
    return done.returncode, done.stdout


def test_given_folder_stays(tmp_path: Path) -> None:
    assert run_in_memory("echo $TMPDIR; exit 3", tmp_path, TMPDIR="/var/tmp") == (3, "/var/tmp\n")


def test_folder_lives_as_long_as_the_command_passes(tmp_path: Path) -> None:
    code, out = run_in_memory('touch "$TMPDIR/file"; echo "$TMPDIR"', tmp_path)
    if not out.strip():
        pytest.skip("/dev/shm has less than 4 GiB of room")
    folder = Path(out.strip())
    assert (code, folder.parent, folder.exists()) == (0, MEMORY, False)
    code, out = run_in_memory('touch "$TMPDIR/file"; exit 3', tmp_path)
    assert (code, out) == (3, f"lane: temporary files are in {folder} until the next run\n")
    assert (folder / "file").exists()
    try:
        assert run_in_memory('ls "$TMPDIR"', tmp_path) == (0, "")
        assert not folder.exists()
    finally:
        shutil.rmtree(folder, ignore_errors=True)
