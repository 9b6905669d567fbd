"""The driver's side of a write: begin a job, commit its files exactly once, or leave nothing.

A job's files are staged by tasks (:mod:`cometmq.spark.staging`). Committing leaves one piece of work in the store's
hand-off folder that names them; the store's writer appends them: this process where no other one holds the store, or
the user's own, whose store looks into that folder anyway. The log itself shows which rows were appended
(:mod:`cometmq.store.staged_apply`), so that work can be resumed after a writer dies half-way.

A key says what may be written once only: a batch's ``jobId``, or a stream's query and the number of its micro-batch.
"""

from __future__ import annotations

import hashlib
import os
import time
import uuid
from collections.abc import Iterable, Sequence
from pathlib import Path

import cometmq
from cometmq.errors import HandoffRejected, HandoffWaiting
from cometmq.spark.catalog import open_store
from cometmq.spark.options import WriteOptions
from cometmq.store.handoff_files import StagedFile, StagedWork
from cometmq.store.staged_client import body_bytes_max, check_writer, commit_staged, work_id_of
from cometmq.store.staged_files import Owner, StagedFolder, this_host

__all__ = [
    "BATCH_SCOPE",
    "abandon",
    "abandon_micro_batch",
    "batch_key",
    "begin",
    "commit",
    "sorted_files",
    "stream_key",
    "stream_scope",
]

BATCH_SCOPE = "batch"
"""Prefix of the names of batches' jobs."""


def stream_scope(checkpoint: str | None) -> str:
    """Return what the names of a stream's jobs begin with.

    A checkpoint without a scheme may be a local folder: another host has another stream under the same path.
    """
    if checkpoint is None:
        return "stream"
    is_everywhere = "://" in checkpoint and not checkpoint.startswith("file:")
    known_by = checkpoint if is_everywhere else f"{this_host()}\n{checkpoint}"
    return f"stream-{hashlib.sha256(known_by.encode()).hexdigest()[:16]}"


def batch_key(options: WriteOptions) -> str | None:
    """Return the key under which a batch is written once, or None where every run writes."""
    return None if options.job_id is None else f"job-{options.job_id}"


def stream_key(query_id: str) -> str:
    """Return the key under which a stream's micro-batches are written once, by their numbers."""
    return f"query-{query_id}"


def _root(options: WriteOptions) -> Path:
    assert options.path is not None
    return Path(options.path)


def begin(options: WriteOptions, scope: str) -> tuple[str, int]:
    """Make sure that the store can be written to, and make a job's folder.

    A directory that is not there, or empty, becomes a store.

    Returns:
        The job's name, which begins with ``scope``, and the largest body that the store takes.

    Raises:
        StoreLocked: a RocketMQ broker holds the store.
        OptionError: the path is not a store.
    """
    path = _root(options)
    if not path.exists() or (path.is_dir() and not any(path.iterdir())):
        cometmq.open(path, config=options.config, background=False).close()
    with open_store(str(path), options.config) as store:
        check_writer(store)
        largest = body_bytes_max(store)
    folder = StagedFolder(path)
    folder.sweep()
    job = f"{scope}-{uuid.uuid4().hex}"
    folder.begin(job, Owner(_driver_pid()))
    return job, largest


def _driver_pid(processes: Path = Path("/proc")) -> int:
    """Return the process whose end ends the job: the JVM above this Python process, or this one."""
    pid = os.getpid()
    for _ in range(16):
        try:
            name = (processes / str(pid) / "comm").read_text("utf-8", "replace").strip()
            parent = int((processes / str(pid) / "stat").read_text("utf-8", "replace").rpartition(")")[2].split()[1])
        except (OSError, ValueError, IndexError):
            break
        if name == "java":
            return pid
        if parent < 1:
            break  # 1 is the JVM in a container that runs nothing else
        pid = parent
    return os.getpid()


def commit(
    options: WriteOptions, job: str, files: Sequence[StagedFile], *, done_key: str | None, done_number: int
) -> bool:
    """Have a job's files appended, once, and wait for it. Returns False where it had been done before.

    Raises:
        HandoffWaiting: the store's writer has not taken the work in time. It is durable and will be appended.
        HandoffRejected: the writer cannot append it; nothing of it stays.
        StoreLocked: a RocketMQ broker has taken the store over.
    """
    folder = StagedFolder(_root(options))
    if not files:
        folder.remove(job)
        return True
    work = StagedWork(
        work_id=work_id_of(done_key, done_number),
        folder=job,
        files=files,
        topic=options.topic,
        topic_queues=options.topic_queues,
        done_key=done_key,
        done_number=done_number,
        born_timestamp_ms=time.time_ns() // 1_000_000,
    )
    with open_store(str(_root(options)), options.config) as store:
        try:
            return commit_staged(store, work, timeout_s=options.commit_timeout_ms / 1000)
        except HandoffWaiting as error:
            raise HandoffWaiting(
                f"{error} (option commitTimeoutMs; do not run the job again, it would write twice, unless it has a "
                "jobId or is a stream)"
            ) from None
        except HandoffRejected as error:
            raise HandoffRejected(f"{error} (columns topic and queue, options topic and topicQueues)") from None


def abandon(options: WriteOptions, job: str) -> None:
    """Remove what a job has staged; a job whose commit still waits for the store's writer stays."""
    StagedFolder(_root(options)).abandon(job)


def abandon_micro_batch(options: WriteOptions, jobs: Iterable[str], checkpoint: str | None) -> None:
    """Remove the jobs of a stream's micro-batch, as :func:`abandon` does: those known by name, and its others."""
    folder = StagedFolder(_root(options))
    # A stream has one micro-batch at a time, and its checkpoint is nobody else's.
    others = [] if checkpoint is None else folder.jobs(stream_scope(checkpoint))
    for job in {*jobs, *others}:
        folder.abandon(job)


def sorted_files(messages: Iterable[Sequence[StagedFile]]) -> list[StagedFile]:
    """Return all tasks' files in one fixed order, that of their names, which begin with the partition's number."""
    return sorted((file for files in messages for file in files), key=lambda file: file.name)
