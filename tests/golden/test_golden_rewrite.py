"""Checks: a real RocketMQ's input, given to us, becomes the same files: log and consume queues byte for byte.

``golden_rewrite`` does the work, a C program that `make golden-programs` builds; without it these tests are skipped.
"""

from __future__ import annotations

import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from support.golden import StoreKind, golden_names
from support.programs import built_program

# Begins at segment 7: its oldest segments have expired, so it cannot be written again from offset 0.
EXPIRED = {"apache-5.3.3-expired"}
# Extension addresses in the units, and inner batches whose property order is the hash map's: the program compares
# units and fields there, the files differ.
FILES_DIFFER = {"apache-5.3.3-rare", "apache-5.3.3-groups"}


def files_below(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in sorted(folder.rglob("*")) if path.is_file()}


@pytest.mark.parametrize("name", [name for name in golden_names("clean") if name not in EXPIRED])
def test_same_messages_same_bytes(name: str, golden_store: Callable[[str, StoreKind], Path], tmp_path: Path) -> None:
    source, target = golden_store(name, "clean"), tmp_path / "target"
    done = subprocess.run(
        [built_program("golden_rewrite"), source, target], capture_output=True, text=True, timeout=120, check=False
    )
    assert done.returncode == 0, done.stderr
    if name in FILES_DIFFER:
        return
    assert files_below(target / "commitlog") == files_below(source / "commitlog")
    ours, theirs = files_below(target / "consumequeue"), files_below(source / "consumequeue")
    assert ours.keys() == theirs.keys()
    for path, content in ours.items():
        used = len(content.rstrip(b"\0")) + 19
        assert content[:used] == theirs[path][:used], path
