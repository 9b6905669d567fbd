"""A writer in a process of its own, which kills itself."""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path

__all__ = ["write_and_die"]

_WRITER = """
import os, signal, sys
import cometmq
store = cometmq.open(sys.argv[1], flush="sync", background=False)  # no durable point in between
exec(sys.argv[2])
os.kill(os.getpid(), signal.SIGKILL)
"""


def write_and_die(path: Path, code: str) -> None:
    """Run code over `store`, which is new or recovered, and die of SIGKILL."""
    ended = subprocess.run([sys.executable, "-c", _WRITER, path, code], check=False)
    assert ended.returncode == -signal.SIGKILL
