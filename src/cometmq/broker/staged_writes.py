"""Staged writes over the wire: the door by which Spark's tasks bring files of messages that are appended once.

    31001 a driver begins a job, or only asks whether it might         31003 the driver commits it under a key
    31002 a task brings a piece of a file, durable when answered       31004 the driver gives it up

The files lie where those of local writers do (:mod:`cometmq.store.staged_files`), under ``wire-<job>``, and a commit is
the same piece of work in the hand-off folder. The store's own thread appends it with the same code, even if this
process dies; so a repeated request gets the same answer: after a lost answer, a driver's death, or a restart.

Invariants: a piece begins at or below its file's end, so files have no holes; all jobs together never hold more than
``stagedBytesMax``, since room is reserved before a piece is written; no piece is taken for a job that was committed.

Threads: the event loop's; the disk is waited for in the lanes, where each connection has a share.
Source: decision 0017.
"""

from __future__ import annotations

import asyncio
import re
import threading
import time
import zlib
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final, TypeVar

from cometmq.broker.topics import BrokerTopics
from cometmq.errors import LimitReached, MessageTooLarge
from cometmq.remoting.answers import Caller, Refusal, Table, ok, read_apart
from cometmq.remoting.bodies.staged_writes import CommitStagedJobRequestBody, StagedFileEntry
from cometmq.remoting.codes import RequestCode, ResponseCode
from cometmq.remoting.command import Command
from cometmq.remoting.members import Members
from cometmq.store.disk_space import disk_space
from cometmq.store.handoff_files import HandoffFolder, StagedFile, StagedWork
from cometmq.store.options import Retention
from cometmq.store.staged_client import leave_once, work_id_of
from cometmq.store.staged_files import StagedFolder, WireOwner, is_done_key
from cometmq.store.store import Store
from cometmq.store.topic_book import check_queues
from cometmq.store_config.broker_settings import BrokerSettings
from cometmq.store_config.names import validate_topic
from cometmq.store_config.topic_config import Perm

__all__ = ["FILES_MAX", "FILES_OF_JOB_MAX", "PIECE_BYTES_MAX", "StagedWrites"]

T = TypeVar("T")

PIECE_BYTES_MAX = 4 << 20
FILES_OF_JOB_MAX: Final = 50_000
"""Most files of a job: a commit that names them is a request of that many values."""
FILES_MAX: Final = 200_000
"""Most files of all jobs; each may hold a single byte."""
_WAIT_S = 5.0
"""So long a commit is held; then the answer is that it waits, and the driver asks again."""
_LOOK_EVERY_S_MIN = 0.005
_LOOK_EVERY_S_MAX = 0.1
_CRC_MAX = (1 << 32) - 1
_WIRE = "wire"
_ONCE = "once-"
"""Keys of batches that have no name of their own: nobody asks for them once their job is forgotten."""
_NAME = re.compile(r"[A-Za-z0-9_-][A-Za-z0-9_.:-]{0,150}")
_FILE = re.compile(r"[A-Za-z0-9_-][A-Za-z0-9_.:-]{0,150}\.arrow")


@dataclass(slots=True)
class _Job:
    """A job that was begun and is not appended yet.

    Attributes:
        changed_ms: when it was last heard of.
        ends: bytes of each file, room that is reserved for pieces under way counted in.
        size: bytes of all of them.
        busy: requests that work on its folder now, commits left out.
        commits: requests that commit it now.
        is_committed: its work was left for the store's writer.
    """

    changed_ms: int
    ends: dict[str, int] = field(default_factory=dict)
    size: int = 0
    busy: int = 0
    commits: int = 0
    is_committed: bool = False

    @property
    def sealed(self) -> bool:
        """Nothing is added any more: it was committed, or a commit is under way."""
        return self.is_committed or self.commits > 0


class StagedWrites:
    """The staged writes of one broker."""

    def __init__(
        self, store: Store, *, topics: BrokerTopics, settings: Callable[[], BrokerSettings], now_ms: Callable[[], int]
    ) -> None:
        """Know of no job before :meth:`start`.

        Args:
            store: the store that is served, opened for writing.
            topics: its topics.
            settings: the settings as they are now.
            now_ms: a clock that is never set.
        """
        self._store = store
        self._topics = topics
        self._settings = settings
        self._now_ms = now_ms
        self._folder = StagedFolder(store.path)
        self._handoff = HandoffFolder(store.path)
        self._jobs: dict[str, _Job] = {}
        # When each note of applied work was written.
        self._noted_ms: dict[str, int] = {}
        # Between the look whether work was left before and leaving it nobody else may leave it, or give it up.
        self._leaving = threading.Lock()

    # --- Life

    def start(self) -> None:
        """Take over what the broker's last run had. Blocks."""
        waiting = self._folder.waiting()
        for name in self._folder.jobs(_WIRE):
            ends = self._folder.sizes(name)
            self._jobs[name] = _Job(self._now_ms(), ends, sum(ends.values()), is_committed=name in waiting)
        # The last run's notes have the wall clock's age once; from then on the wall clock may be set.
        ages = self._folder.done_ages(_ONCE).items()
        self._noted_ms = {key: self._now_ms() - max(int(age_s * 1000), 0) for key, age_s in ages}

    async def sweep(self) -> None:
        """Give up jobs that nobody has been heard of for, and forget those that are gone."""
        expire_ms = self._settings().staged_job_expire_time_ms
        idle = {name: job for name, job in self._jobs.items() if not job.busy}
        now_ms = self._now_ms()
        expired = [name for name, job in idle.items() if now_ms - job.changed_ms >= expire_ms]

        def look() -> list[str]:
            self._abandon_all(expired)
            self._forget_done(now_ms, expire_ms)
            return self._gone(list(idle))

        for name in await asyncio.get_running_loop().run_in_executor(None, look):
            if self._jobs.get(name) is idle[name] and not idle[name].busy:
                del self._jobs[name]

    def _forget_done(self, now_ms: int, expire_ms: int) -> None:
        noted = {key: self._noted_ms.get(key, now_ms) for key in self._folder.done_ages(_ONCE)}
        for key in [key for key, noted_ms in noted.items() if now_ms - noted_ms >= expire_ms]:
            self._folder.forget_done(key)
            del noted[key]
        self._noted_ms = noted

    def _gone(self, names: list[str]) -> list[str]:
        return [name for name in names if not (self._folder.path / name).is_dir()]

    def _abandon_all(self, names: list[str]) -> None:
        with self._leaving:
            for name in names:
                self._folder.abandon(name)

    @staticmethod
    async def _on_disk(caller: Caller, work: Callable[[], T]) -> T:
        try:
            return await caller.store_apart(work)
        except LimitReached as error:
            raise Refusal(ResponseCode.SYSTEM_BUSY, str(error)) from error
        except MessageTooLarge as error:
            raise Refusal(ResponseCode.MESSAGE_ILLEGAL, str(error)) from error
        except OSError as error:
            raise Refusal(ResponseCode.SERVICE_NOT_AVAILABLE, f"the disk fails: {error}") from error

    # --- Requests

    def handlers(self) -> Table:
        """Return what this part serves."""
        return {
            RequestCode.BEGIN_STAGED_JOB: self._begin,
            RequestCode.PUT_STAGED_PIECE: self._put,
            RequestCode.COMMIT_STAGED_JOB: self._commit,
            RequestCode.ABANDON_STAGED_JOB: self._abandon,
        }

    def _check_enabled(self) -> None:
        if not self._settings().staged_writes_enable:
            raise Refusal(ResponseCode.NO_PERMISSION, "staged writes are off: set stagedWritesEnable=true")

    def _check_writable(self) -> None:
        if not self._settings().broker_permission & Perm.WRITE:
            raise Refusal(ResponseCode.NO_PERMISSION, "the broker's permission forbids writing (brokerPermission)")

    async def _begin(self, request: Command, caller: Caller) -> Command:
        self._check_enabled()
        self._check_writable()
        settings = self._settings()
        given = request.fields.get("job")
        if given is not None:
            await self._begin_job(_folder_of(given), caller, settings.staged_jobs_max)
        fields = {"bodyBytesMax": str(settings.max_message_size_bytes), "pieceBytesMax": str(PIECE_BYTES_MAX)}
        return ok(request, fields=fields)

    async def _begin_job(self, name: str, caller: Caller, jobs_max: int) -> None:
        job = self._jobs.get(name)
        is_new = job is None
        if job is None:
            if len(self._jobs) >= jobs_max:
                raise Refusal(ResponseCode.SYSTEM_BUSY, f"{jobs_max} staged writes are under way (stagedJobsMax)")
            job = self._jobs[name] = _Job(self._now_ms())
        job.changed_ms = self._now_ms()
        if job.sealed:
            return
        job.busy += 1
        try:
            # Also where it is known: a repeated request must not be answered before the folder is there.
            await self._on_disk(caller, lambda: self._folder.begin(name, WireOwner(caller.peer)))
        except BaseException:
            if is_new and job.busy == 1 and self._jobs.get(name) is job:
                del self._jobs[name]
            raise
        finally:
            job.busy -= 1

    async def _put(self, request: Command, caller: Caller) -> Command:
        self._check_enabled()
        members, body = Members(request.fields), request.body
        name, file = _folder_of(members.required("job")), _checked_file(members.required("file"))
        position, crc = members.required_int64("position"), members.required_int64("crc")
        if not 0 < len(body) <= PIECE_BYTES_MAX:
            raise _wrong(f"a piece has 1 to {PIECE_BYTES_MAX} bytes, not {len(body)}")
        job = self._jobs.get(name)
        if job is None:
            raise _no_job(name)
        if job.sealed:
            raise _wrong(f"the job {name} was committed and takes no more")
        before = job.ends.get(file, 0)
        if not 0 <= position <= before:
            raise _wrong(f"the piece begins at {position}, and the file {file} has {before} bytes")
        if file not in job.ends:
            self._check_files(name, job)
        after = max(before, position + len(body))
        most = self._settings().staged_bytes_max
        if sum(one.size for one in self._jobs.values()) + after - before > most:
            raise Refusal(ResponseCode.SYSTEM_BUSY, f"staged writes hold {most} bytes already (stagedBytesMax)")
        job.ends[file] = after
        job.size += after - before
        job.busy += 1
        job.changed_ms = self._now_ms()
        try:
            await self._on_disk(caller, lambda: self._write(name, file, position, crc, body))
        except BaseException:
            # Pieces behind it lie behind a gap now, so the file ends before it; its task sends them again, or runs
            # again. So it does where the same piece was sent twice and the other one was written.
            if job.ends[file] > before:
                job.size -= job.ends[file] - before
                job.ends[file] = before
            raise
        finally:
            job.busy -= 1
        return ok(request)

    def _check_files(self, name: str, job: _Job) -> None:
        if len(job.ends) >= FILES_OF_JOB_MAX:
            raise Refusal(ResponseCode.SYSTEM_BUSY, f"the job {name} has {FILES_OF_JOB_MAX} files")
        if sum(len(one.ends) for one in self._jobs.values()) >= FILES_MAX:
            raise Refusal(ResponseCode.SYSTEM_BUSY, f"staged writes have {FILES_MAX} files already")

    def _write(self, name: str, file: str, position: int, crc: int, body: bytes) -> None:
        if zlib.crc32(body) != crc:
            raise _wrong("the piece's checksum is wrong")
        self._check_room()
        try:
            self._folder.put_piece(name, file, position, body)
        except FileNotFoundError:
            raise _no_job(name) from None

    def _check_room(self) -> None:
        most = Retention.from_settings(self._settings()).warning_ratio
        if disk_space(self._store.path).used_ratio > most:
            raise Refusal(ResponseCode.SERVICE_NOT_AVAILABLE, f"the disk is more than {most:.0%} full")

    async def _commit(self, request: Command, caller: Caller) -> Command:
        self._check_enabled()
        settings = self._settings()
        may_make = settings.auto_create_topic_enable and len(self._topics.all()) < settings.auto_create_topic_max
        queues = settings.default_topic_queue_nums if may_make else 0
        work = await read_apart(request, caller, lambda body: _work_of(body, queues))
        job = self._jobs.get(work.folder)
        if job is not None:
            if job.busy:
                raise Refusal(ResponseCode.SYSTEM_BUSY, f"pieces of {work.folder} are still being written")
            job.commits += 1
            job.changed_ms = self._now_ms()
        try:
            name, is_new = await self._on_disk(caller, lambda: self._leave(work, job))
            if job is not None:
                job.is_committed = True
        finally:
            if job is not None:
                job.commits -= 1
        if name is not None and not await self._applied(caller, name):
            return ok(request, fields={"outcome": "waiting"})
        reason = None if name is None else await self._on_disk(caller, lambda: self._failure(name, work))
        self._jobs.pop(work.folder, None)
        if reason is not None:
            raise Refusal(ResponseCode.MESSAGE_ILLEGAL, reason)
        return ok(request, fields={"outcome": "done" if is_new else "before"})

    def _leave(self, work: StagedWork, job: _Job | None) -> tuple[str | None, bool]:
        with self._leaving:
            return leave_once(self._folder, self._handoff, work, lambda fresh: self._leave_new(fresh, job))

    def _leave_new(self, work: StagedWork, job: _Job | None) -> str:
        self._check_writable()
        reason = self._handoff.staged_rejection(work)
        if reason is not None:
            raise Refusal(ResponseCode.MESSAGE_ILLEGAL, reason)
        if job is None:
            raise _no_job(work.folder)
        sizes = self._folder.sizes(work.folder)
        for file in work.files:
            if sizes.get(file.name) != file.size_bytes:
                there = sizes.get(file.name, "none of its")
                raise _wrong(f"the file {file.name} has {file.size_bytes} bytes, and {there} bytes are here")
        return self._handoff.leave(work)

    async def _applied(self, caller: Caller, name: str) -> bool:
        """Wait for the store's writer; False where it takes longer than a request may."""
        deadline = time.monotonic() + _WAIT_S
        pause_s = _LOOK_EVERY_S_MIN
        while await self._on_disk(caller, lambda: self._handoff.is_waiting(name)):
            if time.monotonic() >= deadline:
                return False
            await asyncio.sleep(pause_s)
            pause_s = min(pause_s * 2, _LOOK_EVERY_S_MAX)
        return True

    def _failure(self, name: str, work: StagedWork) -> str | None:
        reason = self._handoff.rejection(name)
        if reason is None and not self._folder.is_done(work):
            return f"the store's writer did not append {name}; see {self._handoff.rejected}"
        return reason

    async def _abandon(self, request: Command, caller: Caller) -> Command:
        self._check_enabled()
        given, scope = request.fields.get("job"), request.fields.get("scope")
        if (given is None) == (scope is None):
            raise _wrong("give up a job, or all of a scope")
        if given is not None:
            names = [_folder_of(given)]
        else:
            prefix = f"{_folder_of(scope or '')}-"
            names = [name for name in self._jobs if name.startswith(prefix)]

        def give_up() -> list[str]:
            self._abandon_all(names)
            return self._gone(names)

        for name in await self._on_disk(caller, give_up):
            self._jobs.pop(name, None)
        return ok(request)


def _work_of(data: bytes, queues: int) -> StagedWork:
    """Return the work that a commit asks for; ``queues``: of a topic that it makes, 0: it makes none. Any thread."""
    body = CommitStagedJobRequestBody.from_request(data)
    names = [_checked_file(file.name) for file in body.files]
    if not names or len(set(names)) != len(names):
        raise _wrong("a commit names each of its files once, and at least one")
    if not is_done_key(body.done_key) or body.done_number < 0:
        raise _wrong(f"nothing can be done once under {body.done_key[:250]!r} and {body.done_number}")
    if body.born_timestamp_ms < 0:
        raise _wrong(f"messages made at {body.born_timestamp_ms} ms")
    if body.topic is not None:
        validate_topic(body.topic)
    if body.topic_queues:
        check_queues(body.topic_queues)
    return StagedWork(
        work_id=work_id_of(body.done_key, body.done_number),
        folder=_folder_of(body.job),
        files=tuple(_staged_file(file) for file in body.files),
        topic=body.topic,
        topic_queues=queues and (body.topic_queues or queues),
        done_key=body.done_key,
        done_number=body.done_number,
        born_timestamp_ms=body.born_timestamp_ms,
    )


def _folder_of(job: str) -> str:
    if not _NAME.fullmatch(job):
        raise _wrong(f"{job[:200]!r} is not a job name: letters, digits, and . _ : -, at most 151 of them")
    return f"{_WIRE}-{job}"


def _checked_file(name: str) -> str:
    if not _FILE.fullmatch(name):
        raise _wrong(f"{name[:200]!r} is not a staged file name: letters, digits, and . _ : -, and .arrow at its end")
    return name


def _staged_file(file: StagedFileEntry) -> StagedFile:
    if file.rows < 1 or file.size_bytes < 1 or not 0 <= file.crc32 <= _CRC_MAX:
        raise _wrong(f"the file {file.name} has {file.rows} rows, {file.size_bytes} bytes and checksum {file.crc32}")
    return StagedFile(name=file.name, rows=file.rows, size_bytes=file.size_bytes, crc32=file.crc32)


def _wrong(text: str) -> Refusal:
    return Refusal(ResponseCode.SYSTEM_ERROR, text)


def _no_job(name: str) -> Refusal:
    return _wrong(f"there is no job {name}: it was never begun, or has been given up")
