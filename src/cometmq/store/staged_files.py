"""Files of messages on their way into the store, left by programs that are not its writer (Spark's tasks).

Under ``<store>/cometmq/staged/``, which no RocketMQ looks into::

    <job>/owner.json        which process of which host the job belongs to, or that it came over the wire
    <job>/<name>.arrow      messages, in Arrow's IPC file format; <name>.tmp while being written
    done/<key>.json         the number applied last under a key

Nothing here is in the log until a piece of work (:class:`~cometmq.store.handoff_files.StagedWork`) names the files.
From then on they are the writer's, which removes the folder when they are applied.

Nobody has to clean up for a job that dies: :meth:`StagedFolder.sweep` removes folders whose owner is gone, at each
opening for writing and when the next job begins. A folder whose owner is on another host goes when nothing was written
to it for a day.
"""

from __future__ import annotations

import json
import logging
import os
import re
import shutil
import socket
import time
import uuid
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path

from cometmq.errors import CorruptRecord
from cometmq.store.handoff_files import HandoffFolder, NewerWork, StagedWork
from cometmq.store_config.file_ops import SYSTEM_FILE_OPS, FileOps
from cometmq.store_config.own_json import loads_own

__all__ = ["Owner", "StagedFolder", "WireOwner", "is_done_key", "this_host"]

_log = logging.getLogger("cometmq.staged")

STALE_S = 86_400.0
"""A job on another host, in whose folder nothing has changed for so long, is taken for dead."""

_DONE = "done"
_DONE_KEY = re.compile(r"[A-Za-z0-9_:-][A-Za-z0-9_.:-]{0,219}")
_OWNER_BYTES_MAX = 1 << 16


class Owner:
    """A process, known beyond the reuse of its number and the restart of its host."""

    def __init__(self, pid: int) -> None:
        """Note what is known of a process that lives."""
        self.content = {**_place(), "boot": _boot_id(), "pid": pid, "started": _started(pid)}

    def encoded(self) -> bytes:
        """Return the file's content."""
        return json.dumps(self.content).encode()


class WireOwner:
    """A process that is known by its connection alone. Whether it still runs is unknown."""

    def __init__(self, peer: str) -> None:
        """``peer`` is the connection's other end, ``ip:port``."""
        self.content = {"wire": peer}

    def encoded(self) -> bytes:
        """Return the file's content."""
        return json.dumps(self.content).encode()


def is_done_key(key: str) -> bool:
    """Return whether work can be applied once under this key, which names a file."""
    return _DONE_KEY.fullmatch(key) is not None


def is_gone(owner: bytes | None) -> bool | None:
    """Return whether the process of an owner file is gone; None where this host cannot know."""
    try:
        content = loads_own(owner or b"")
        if {name: content[name] for name in _place()} != _place():
            return None
        return bool(content["boot"] != _boot_id() or content["started"] != _started(int(content["pid"])))
    except (ValueError, KeyError, TypeError):
        return None


def _place() -> dict[str, str]:
    """Return where process numbers mean what they mean here: containers share a host's name, and not its numbers."""
    try:
        namespace = os.readlink("/proc/self/ns/pid")  # noqa: PTH115 - its target is not a path
    except OSError:
        namespace = ""
    return {"host": socket.gethostname(), "processes": namespace}


def this_host() -> str:
    """Return an identity of this host until it restarts, unique also where host names are not."""
    return f"{socket.gethostname()} {_boot_id()}"


def _boot_id() -> str:
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text("ascii").strip()
    except OSError:
        return ""


def _started(pid: int) -> int:
    """Return when a process began, in ticks since the host's start; 0 where there is none."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text("utf-8", "replace")
    except OSError:
        return 0
    return int(stat.rpartition(")")[2].split()[19])


def _is_own(folder: Path) -> bool:
    """Return whether a folder belongs to this process's user."""
    with suppress(FileNotFoundError):
        return folder.lstat().st_uid == os.geteuid()
    return False


class StagedFolder:
    """The files. Threads and processes: any; a job's folder belongs to the job."""

    def __init__(self, root: Path, *, file_ops: FileOps = SYSTEM_FILE_OPS) -> None:
        """Nothing is made yet. ``root`` is the store's directory."""
        self._root = root
        self.path = root / "cometmq" / "staged"
        self._handoff = HandoffFolder(root)
        self._ops = file_ops

    # --- Jobs

    def begin(self, job: str, owner: Owner | WireOwner) -> Path:
        """Make a job's folder and return it."""
        folder = self.path / job
        self._ops.make_folder(folder, root=self._root)
        self._ops.write_synced(folder / "owner.json", owner.encoded())
        return folder

    def put_piece(self, job: str, file: str, position: int, data: bytes) -> None:
        """Write a part of a job's file, durably. The file is made where it is not there; the folder is not.

        Raises:
            FileNotFoundError: the job's folder is gone.
        """
        flags = os.O_WRONLY | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC
        descriptor = os.open(self.path / job / file, flags, 0o644)
        try:
            left = memoryview(data)
            while left:
                count = os.pwrite(descriptor, left, position)
                left, position = left[count:], position + count
            os.fsync(descriptor)
        finally:
            os.close(descriptor)

    def sizes(self, job: str) -> dict[str, int]:
        """Return the bytes of each staged file of a job."""
        with suppress(FileNotFoundError):
            return {file.name: file.lstat().st_size for file in (self.path / job).glob("*.arrow")}
        return {}

    def settle(self, job: str) -> None:
        """Make the names of a job's files durable. Their bytes are synced by the tasks."""
        with suppress(FileNotFoundError):
            self._ops.sync_folder(self.path / job)

    def jobs(self, prefix: str) -> list[str]:
        """Return the names of jobs that begin with ``prefix-``."""
        try:
            return sorted(entry.name for entry in self.path.iterdir() if entry.name.startswith(f"{prefix}-"))
        except FileNotFoundError:
            return []

    def remove(self, job: str) -> None:
        """Remove a job's folder, whole: under another name first, so that nobody finds a part of it.

        A task that is still writing, or only begins, fails then: it finds no folder and makes none.
        """
        doomed = self.path / f".removed-{uuid.uuid4().hex}"
        try:
            (self.path / job).rename(doomed)
        except FileNotFoundError:
            return
        except OSError as error:  # another user's, or a disk that fails: it is in nobody's way
            _log.warning("the staged files of %s are not needed any more and cannot be removed: %s", job, error)
            return
        shutil.rmtree(doomed, ignore_errors=True)

    def abandon(self, job: str) -> None:
        """Remove a job's folder, unless work that waits names it: committed files stay, and will be applied."""
        if job not in self.waiting():
            self.remove(job)

    def sweep(self, *, besides: Iterable[str] = ()) -> None:
        """Remove what jobs left that are gone, but not what waits to be applied.

        Args:
            besides: further folders to keep.
        """
        try:
            entries = sorted(
                entry
                for entry in self.path.iterdir()
                if not entry.is_symlink() and entry.is_dir() and entry.name != _DONE
            )
        except FileNotFoundError:
            return
        stale = [entry for entry in entries if entry.name.startswith(".removed-") or self._is_stale(entry)]
        if not stale:
            return
        # Looked at after the owners: a process that is gone by now leaves no more work.
        waiting, all_known = self._waiting()
        kept = {*besides, *waiting}
        for entry in stale:
            if entry.name.startswith(".removed-"):
                shutil.rmtree(entry, ignore_errors=True)
            elif entry.name not in kept and (all_known or _is_own(entry)):
                self.remove(entry.name)

    def waiting(self) -> set[str]:
        """Return the jobs that were committed and wait to be applied, as far as this process may read."""
        return self._waiting()[0]

    def _waiting(self) -> tuple[set[str], bool]:
        """Return the jobs that wait; and False where some are another user's, whose names cannot be read."""
        found, all_known = set(), True
        for name in self._handoff.waiting():
            if "-s-" in name:
                try:
                    work = self._handoff.read(name)
                except (CorruptRecord, NewerWork):
                    continue
                except PermissionError:
                    all_known = False
                    continue
                if isinstance(work, StagedWork):
                    found.add(work.folder)
        return found, all_known

    def _is_stale(self, folder: Path) -> bool:
        try:
            gone = is_gone(self._ops.read(folder / "owner.json", bytes_max=_OWNER_BYTES_MAX))
            if gone is not None:
                return gone
            newest = 0.0
            with suppress(FileNotFoundError):
                newest = max(entry.lstat().st_mtime for entry in (folder, *folder.iterdir()))
        except PermissionError:
            return False  # another user's, swept by that user's processes
        return newest < time.time() - STALE_S

    # --- Applied work

    def is_done(self, work: StagedWork) -> bool:
        """Return whether work was applied before, under its key."""
        return work.done_key is not None and self.done_number(work.done_key) >= work.done_number

    def done_number(self, key: str) -> int:
        """Return the number applied last under a key; -1 where nothing was.

        Raises:
            CorruptRecord: the note is damaged.
        """
        file = self._done_file(key)
        data = self._ops.read(file, bytes_max=_OWNER_BYTES_MAX)
        if data is None:
            return -1
        try:
            return int(loads_own(data)["number"])
        except (ValueError, KeyError, TypeError) as error:
            raise CorruptRecord(f"{file} is damaged: {error!r}; it says what was written once already") from error

    def set_done(self, work: StagedWork, log_end: int) -> None:
        """Note, durably, that work was applied, before the log's end. Work without a key needs no note."""
        if work.done_key is None:
            return
        file = self._done_file(work.done_key)
        self._ops.make_folder(file.parent, root=self._root)
        text = json.dumps(
            {"number": work.done_number, "rows": work.rows, "work": work.work_id, "end": log_end}
        ).encode()
        temporary = file.with_name(f".{file.name}.{os.getpid()}.tmp")
        self._ops.write_synced(temporary, text)
        self._ops.rename(temporary, file)
        self._ops.sync_folder(file.parent)

    def bound_done(self, log_end: int) -> None:
        """Forget, durably, work applied past the log's end: it was cut off, and may be written again."""
        for file in sorted((self.path / _DONE).glob("*.json")):
            data = self._ops.read(file, bytes_max=_OWNER_BYTES_MAX)
            try:
                note = loads_own(data or b"{}")
                end = int(note.get("end", 0))
            except (ValueError, TypeError, AttributeError):
                continue  # said where somebody asks for it
            if end > log_end:
                _log.warning(
                    "number %s under the key %s ended at %d, past the log's end at %d: it may be written again",
                    note.get("number"),
                    file.stem,
                    end,
                    log_end,
                )
                self._ops.remove(file)
                self._ops.sync_folder(file.parent)

    def done_ages(self, prefix: str) -> dict[str, float]:
        """Return the keys of applied work that begin with ``prefix``, and the seconds since each was noted."""
        ages = {}
        for file in (self.path / _DONE).glob(f"{prefix}*.json"):
            if not is_done_key(file.stem):
                continue
            with suppress(FileNotFoundError):
                ages[file.stem] = time.time() - file.stat().st_mtime
        return ages

    def forget_done(self, key: str) -> None:
        """Forget that work was applied under a key."""
        self._ops.remove(self._done_file(key))

    def _done_file(self, key: str) -> Path:
        if not is_done_key(key):
            raise ValueError(f"the key {key!r} cannot name a file")
        return self.path / _DONE / f"{key}.json"
