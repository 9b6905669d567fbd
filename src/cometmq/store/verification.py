"""Verification: every record, queue unit and index entry of a store held against each other, without a change.

The engine finds the problems (``csrc/store/check/cmq_verify.h``). This module adds the facts of ``config/topics.json``:
records without a queue belong to a deleted topic, which is not a problem.
"""

from __future__ import annotations

import enum
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from cometmq._engine import verify_store
from cometmq._plural import counted, verb
from cometmq.store.newer import unread_parts
from cometmq.store.removed import removed_cuts
from cometmq.store_config.config_file import Origin
from cometmq.store_config.errors import ConfigError
from cometmq.store_config.names import is_light_queue, is_system_topic
from cometmq.store_config.topics import Topics

if TYPE_CHECKING:
    from pathlib import Path

    from cometmq._engine import _Problem
    from cometmq.store.store import Store

__all__ = ["KnownTopics", "Problem", "Severity", "Verification", "verify"]


class Severity(enum.Enum):
    """How bad a problem is; a verification's verdict is the worst of its problems.

    ``NOTE``: worth knowing; the store is healthy.
    ``REPAIRABLE``: something that is derived from the log is wrong, or its tail is torn: ``cometmq repair``.
    ``DAMAGED``: the log itself is: messages are lost.
    """

    NOTE = "note"
    REPAIRABLE = "repairable"
    DAMAGED = "damaged"

    @property
    def rank(self) -> int:
        """0, 1 or 2: larger is worse."""
        return _RANKS[self]


_RANKS = {Severity.NOTE: 0, Severity.REPAIRABLE: 1, Severity.DAMAGED: 2}


@dataclass(frozen=True, slots=True, kw_only=True)
class Problem:
    """Something found.

    Attributes:
        kind: ``record``, ``tail``, ``queue-missing``, ``unit-missing``, ``unit-wrong``, ``unit-dangling``, ``gap``,
            ``index-entry``, ``index-missing``, ``index-chain``, ``index-unknown``, ``time``,
            ``unread-part`` or ``removed``.
        severity: how bad it is.
        physical_offset: where in the commit log, or None.
        topic: topic, or None.
        queue_id: queue, or None.
        queue_offset: number of the message in its queue, or None.
        count: how many in a row this stands for.
        text: the problem, for people.
    """

    kind: str
    severity: Severity
    physical_offset: int | None
    topic: str | None
    queue_id: int | None
    queue_offset: int | None
    count: int
    text: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Verification:
    """The extent and the findings of a verification.

    Attributes:
        verdict: the worst severity; NOTE stands for healthy.
        complete: False when it was stopped.
        log_min: physical offset of the oldest record.
        log_end: physical offset up to which records were looked at.
        records: whole records.
        body_bytes: bytes of their bodies, as stored.
        units: queue units that were held against a record.
        queues: queues.
        keys: keys of the records.
        index_entries: index entries that were held against them.
        keys_missing: keys that are not in the index.
        notes: problems of each severity …
        repairable: …
        damaged: …
        elapsed_s: seconds that it took.
    """

    verdict: Severity
    complete: bool
    log_min: int
    log_end: int
    records: int
    body_bytes: int
    units: int
    queues: int
    keys: int
    index_entries: int
    keys_missing: int
    notes: int
    repairable: int
    damaged: int
    elapsed_s: float


class KnownTopics:
    """Which queues a store should have, by its ``topics.json``; every one where there is no such file."""

    def __init__(self, config_folder: Path) -> None:
        """Read the file."""
        self._topics: Topics | None = None
        topics = Topics(config_folder)
        try:
            if topics.load().origin is not Origin.NONE:
                self._topics = topics
        except ConfigError:
            return  # a file that cannot be read knows of no deletion either

    def has(self, topic: str, queue_id: int = 0) -> bool:
        """Return whether messages of this queue belong to a topic that was not deleted."""
        if self._topics is None or is_system_topic(topic) or is_light_queue(topic):
            return True
        found = self._topics.get(topic)
        return found is not None and queue_id < max(found.read_queue_nums, found.write_queue_nums, 1)


def _note(kind: str, physical_offset: int | None, text: str) -> _Problem:
    return {
        "kind": kind,
        "severity": "note",
        "physical_offset": physical_offset,
        "topic": None,
        "queue_id": None,
        "queue_offset": None,
        "count": 1,
        "text": text,
    }


def verify(
    store: Store,
    *,
    on_problem: Callable[[Problem], object] | None = None,
    on_progress: Callable[[int, int], bool] | None = None,
) -> Verification:
    """Verify an open store; beside a writer what was confirmed when the call began.

    Args:
        store: opened in either mode. A reader's look is the more thorough: nothing was mended by opening.
        on_problem: called for each problem, in order of finding.
        on_progress: called every few MiB with bytes of the log done and in all; False stops the verification.

    Raises:
        Error: something could not be read.

    An exception of a callback ends the verification and is raised again. Closing the store inside one raises StoreBusy.
    """
    began = time.monotonic()
    known = KnownTopics(store.path / "config")
    counts = dict.fromkeys(Severity, 0)

    def take(found: _Problem) -> None:
        severity = Severity(found["severity"])
        problem = Problem(
            kind=found["kind"],
            severity=severity,
            physical_offset=found["physical_offset"],
            topic=found["topic"],
            queue_id=found["queue_id"],
            queue_offset=found["queue_offset"],
            count=found["count"],
            text=found["text"],
        )
        if problem.kind == "queue-missing" and not known.has(problem.topic or "", problem.queue_id or 0):
            records = f"{counted(problem.count, 'record')} {verb(problem.count)}"
            text = f"{records} of a topic or queue that was deleted; the log keeps what it has until it expires"
            problem = replace(problem, severity=Severity.NOTE, text=text)
        counts[problem.severity] += 1
        if on_problem is not None:
            on_problem(problem)

    result = verify_store(store.handle, take, on_progress)
    for part in unread_parts(store.path) if result["complete"] else ():
        take(_note("unread-part", None, f"{part}, which CometMQ does not read"))
    for cut in removed_cuts(store.path) if result["complete"] else ():
        if not cut.restored:
            text = f"{cut.text}; `cometmq repair --restore-removed {cut.name}` appends them again"
            take(_note("removed", cut.physical_offset, text))
    found_severities = [severity for severity in Severity if counts[severity]]
    return Verification(
        verdict=max(found_severities, key=lambda severity: severity.rank, default=Severity.NOTE),
        complete=result["complete"],
        log_min=result["log_min"],
        log_end=result["log_end"],
        records=result["records"],
        body_bytes=result["body_bytes"],
        units=result["units"],
        queues=result["queues"],
        keys=result["keys"],
        index_entries=result["index_entries"],
        keys_missing=result["keys_missing"],
        notes=counts[Severity.NOTE],
        repairable=counts[Severity.REPAIRABLE],
        damaged=counts[Severity.DAMAGED],
        elapsed_s=time.monotonic() - began,
    )
