"""``cometmq verify``: everything held against everything."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Annotated

import typer

import cometmq
from cometmq._plural import counted
from cometmq.cli.arguments import Config, Json, StorePath
from cometmq.cli.failures import ExitCode, fail, reported
from cometmq.cli.terminal import (
    Bar,
    Interruption,
    byte_progress,
    bytes_text,
    interruptible,
    print_json,
    safe_text,
)
from cometmq.errors import CorruptRecord, SettingConflict, SettingNeeded

if TYPE_CHECKING:
    from pathlib import Path

    from cometmq.store.verification import Problem, Verification

__all__ = ["verify"]

_SHOWN_PER_KIND = 20
_KEPT_MAX = 100_000
_VERDICTS = {"note": "healthy", "repairable": "repairable", "damaged": "damaged"}


@dataclass(slots=True)
class _Findings:
    """Problems as they come; with very many, the first of each kind and the numbers of the others."""

    kept: list[Problem] = field(default_factory=list)
    left_out: Counter[str] = field(default_factory=Counter)
    seen: Counter[str] = field(default_factory=Counter)
    repairable: set[str] = field(default_factory=set)
    kept_per_kind: int = _KEPT_MAX

    def take(self, problem: Problem) -> None:
        """Keep it, or count it."""
        self.seen[problem.kind] += 1
        if problem.severity.value == "repairable":
            self.repairable.add(problem.kind)
        if self.seen[problem.kind] > self.kept_per_kind or len(self.kept) >= _KEPT_MAX:
            self.left_out[problem.kind] += 1
        else:
            self.kept.append(problem)


@reported()
def verify(
    path: StorePath,
    show_all: Annotated[
        bool, typer.Option("--all", help=f"List every problem (default: {_SHOWN_PER_KIND} of each kind).")
    ] = False,
    json: Json = False,
    config: Config = None,
) -> None:
    """Verify every record, queue unit and index entry.

    Checks each record's CRC, and each queue unit and index entry against the log. Changes nothing.
    Works beside a writer, up to the end confirmed at the start. Names the offset of each problem.

    \b
    Exit codes:
      0   healthy (may print notes)
      1   repairable: no message is lost; the last lines name the command
      2   usage error
      3   failed; stderr has the reason
      4   damaged: messages in the log are lost; the last lines name the options
      130 stopped by Ctrl-C; prints the problems found so far

    \b
    Examples:
      cometmq verify data/
      cometmq verify data/ --json > report.json
    """
    from cometmq.store.verification import Severity

    findings = _Findings(kept_per_kind=_KEPT_MAX if show_all or json else _SHOWN_PER_KIND)
    with (
        interruptible() as interrupted,
        _opened(path, config) as store,
        byte_progress("verifying") as bar,
    ):
        result = _run(store, findings, bar, interrupted)
    if json:
        _print_json(result, findings)
    else:
        _print_text(result, findings)
    if not result.complete:
        raise typer.Exit(ExitCode.INTERRUPTED)
    codes = {Severity.REPAIRABLE: ExitCode.REPAIRABLE, Severity.DAMAGED: ExitCode.DAMAGED}
    raise typer.Exit(codes.get(result.verdict, ExitCode.OK))


def _opened(path: Path, config: Path | None) -> cometmq.Store:
    try:
        return cometmq.open(path, mode="r", config=config)
    except (SettingNeeded, SettingConflict) as error:
        fail(str(error))
        fail("if a queue or index file has changed its length, run `cometmq repair` to rebuild all of them")
        raise typer.Exit(ExitCode.FAILED) from None
    except CorruptRecord as error:  # the whole log is gone
        fail(str(error))
        raise typer.Exit(ExitCode.DAMAGED) from None


def _run(store: cometmq.Store, findings: _Findings, bar: Bar, interrupted: Interruption) -> Verification:
    from cometmq.store import verification

    def progress(done: int, total: int) -> bool:
        bar(done, total)
        return not interrupted.is_set()

    return verification.verify(store, on_problem=findings.take, on_progress=progress)


def _print_json(result: Verification, findings: _Findings) -> None:
    print_json(
        {
            "verdict": _VERDICTS[result.verdict.value],
            "complete": result.complete,
            "log_min": result.log_min,
            "log_end": result.log_end,
            "records": result.records,
            "body_bytes": result.body_bytes,
            "queues": result.queues,
            "units": result.units,
            "keys": result.keys,
            "index_entries": result.index_entries,
            "keys_missing": result.keys_missing,
            "notes": result.notes,
            "repairable": result.repairable,
            "damaged": result.damaged,
            "elapsed_s": round(result.elapsed_s, 3),
            "problems": findings.kept,
            "problems_left_out": dict(findings.left_out),
        }
    )


def _line(problem: Problem) -> str:
    where = []
    if problem.topic is not None:
        where.append(f"{safe_text(problem.topic)}/{problem.queue_id}")
    if problem.queue_offset is not None:
        where.append(f"queue offset {problem.queue_offset:,}")
    if problem.physical_offset is not None:
        where.append(f"physical offset {problem.physical_offset:,}")
    place = ", ".join(where)
    return f"{problem.severity.value:<10} {problem.kind}{' at ' if place else ''}{place}: {safe_text(problem.text)}"


def _print_text(result: Verification, findings: _Findings) -> None:
    for problem in findings.kept:
        typer.echo(_line(problem))
    for kind, count in findings.left_out.items():
        typer.echo(f"{count:,} more of kind {kind} (use --all to list them)")
    looked_at = (
        f"{counted(result.records, 'record')} ({bytes_text(result.log_end - result.log_min)} of log), "
        f"{counted(result.units, 'unit')} in {counted(result.queues, 'queue')}, "
        f"{counted(result.index_entries, 'index entry')}, in {result.elapsed_s:.1f} s"
    )
    if not result.complete:
        typer.echo(f"stopped: {_tally(result)} so far in {looked_at}")
        return
    typer.echo(f"{_VERDICTS[result.verdict.value]}: {_tally(result)} in {looked_at}")
    for line in _advice(result, findings):
        typer.echo(line)


def _tally(result: Verification) -> str:
    counts = [
        f"{count:,} {name}" for count, name in ((result.damaged, "damaged"), (result.repairable, "repairable")) if count
    ]
    if result.notes:
        counts.append(counted(result.notes, "note"))
    return ", ".join(counts) or "no problem"


def _advice(result: Verification, findings: _Findings) -> Iterator[str]:
    """Advice by the findings: a repair without options leaves damage and a torn tail in the log."""
    if result.damaged:
        yield (
            "Damaged messages are lost; all others can be read. `cometmq repair --fill` keeps the damaged bytes "
            "aside and puts filler records in their place, which makes the store healthy for CometMQ and RocketMQ "
            "brokers. Without --fill they stay in the log: readers skip them, and verify reports them again."
        )
    if findings.repairable - {"tail"}:
        yield "`cometmq repair` rebuilds queues and index from the log; no message is lost."
    if "tail" in findings.repairable:
        yield (
            "The tail is an incomplete write of a writer that died. The next writer blanks "
            "it; `cometmq repair --cut-tail` blanks it now and keeps a copy aside."
        )
