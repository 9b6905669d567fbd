"""The conditions of a figure: the machine, the disk, the versions, the commit, and the load."""

from __future__ import annotations

import functools
import os
import platform
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent


def load() -> float:
    """Return the load average of the last minute."""
    return os.getloadavg()[0]


@functools.cache
def commit() -> str:
    """Return the short commit, with a ``+`` where files have changes beside it; "unknown" without git."""
    try:
        head = subprocess.run(
            ["git", "rev-parse", "--short", "HEAD"], cwd=ROOT, capture_output=True, text=True, check=True
        ).stdout.strip()
        changed = subprocess.run(
            ["git", "status", "--porcelain", "--", "csrc", "bindings", "src", "benchmarks"],
            cwd=ROOT,
            capture_output=True,
            text=True,
            check=True,
        ).stdout.strip()
    except (OSError, subprocess.CalledProcessError):
        return "unknown"
    return head + ("+" if changed else "")


def _first_line(command: list[str]) -> str:
    try:
        return subprocess.run(command, capture_output=True, text=True, check=True).stdout.splitlines()[0]
    except (OSError, subprocess.CalledProcessError, IndexError):
        return "unknown"


def _processor() -> str:
    text = Path("/proc/cpuinfo").read_text(encoding="utf-8")
    match = re.search(r"^model name\s*: (.*)$", text, re.MULTILINE)
    return match.group(1) if match else platform.machine()


def _file_system(directory: Path) -> str:
    """Return type and options of the mount that holds a directory."""
    best, found = "", "unknown"
    for line in Path("/proc/mounts").read_text(encoding="utf-8").splitlines():
        device, place, kind, options = line.split()[:4]
        inside = str(directory.resolve()).startswith(place.rstrip("/") + "/") or place == "/"
        if inside and len(place) >= len(best):
            best, found = place, f"{kind} on {device} ({options})"
    return found


def facts(directory: Path) -> dict[str, Any]:
    """Return what to note beside the figures; ``directory`` is where stores are made."""
    pages = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    space = shutil.disk_usage(directory)
    return {
        "processor": _processor(),
        "processors": os.cpu_count(),
        "memory_gib": round(pages / 2**30, 1),
        "kernel": platform.release(),
        "file_system": _file_system(directory),
        "disk_free_gib": round(space.free / 2**30, 1),
        "python": sys.version.split()[0],
        "compiler": _first_line([os.environ.get("CC", "cc"), "--version"]),
        "load_at_start": load(),
    }
