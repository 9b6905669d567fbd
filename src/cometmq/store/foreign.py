"""Refusing what a store from elsewhere may hold: links, devices and FIFOs in the folders that Python reads and writes.

The engine follows no links (csrc/base/cmq_nofollow.h); this covers files below ``cometmq/`` and ``config/`` that Python
uses. It checks once, at the opening: it guards against a directory from an untrusted source, not against changes made
to it while it is open.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator
from pathlib import Path

from cometmq.errors import NotAStore

__all__ = ["refuse_links"]

_DELETED = "deleted"
"""Below ``cometmq/``: the engine removes all of it, links themselves too."""

_WAKE = os.path.join("cometmq", "handoff", "wake")  # noqa: PTH118 - compared with texts
_DEPTH_MAX = 8


def refuse_links(root: Path) -> None:
    """Look through the folders of a store, where there are any.

    Raises:
        NotAStore: something is a link, or neither a file nor a directory; the text says which.
    """
    base = os.path.realpath(root)
    for name in ("config", "cometmq"):
        path = os.path.join(base, name)  # noqa: PTH118 - there may be 100,000 staged files
        try:
            mode = os.lstat(path).st_mode
        except (FileNotFoundError, NotADirectoryError):
            continue
        if not stat.S_ISDIR(mode):
            raise _refused(path)
        if name == "cometmq":
            for found in _strange(path, _DEPTH_MAX):
                if found != os.path.join(base, _WAKE) or not stat.S_ISFIFO(os.lstat(found).st_mode):  # noqa: PTH118
                    raise _refused(found)


def _strange(folder: str, depth: int) -> Iterator[str]:
    try:
        with os.scandir(folder) as entries:
            for entry in entries:
                if entry.is_dir(follow_symlinks=False):
                    if depth == _DEPTH_MAX and entry.name == _DELETED:
                        continue
                    if depth == 0:
                        yield entry.path
                        continue
                    yield from _strange(entry.path, depth - 1)
                elif not entry.is_file(follow_symlinks=False):
                    yield entry.path
    except (FileNotFoundError, PermissionError):
        return  # removed meanwhile by its writer; or another user's, which this process does not enter either


def _refused(path: str) -> NotAStore:
    return NotAStore(
        f"{path} is a symbolic link, or no plain file or directory where one belongs: links inside a store are not "
        "followed. If nobody you know made it, do not trust the store"
    )
