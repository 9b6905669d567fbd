"""``cometmq repair``: what is derived from the log, built anew."""

from __future__ import annotations

import sys
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from cometmq._plural import counted
from cometmq.cli.arguments import Config, Json, StorePath
from cometmq.cli.failures import ExitCode, reported
from cometmq.cli.terminal import byte_progress, bytes_text, interruptible, print_json

if TYPE_CHECKING:
    from cometmq.store.repairing import RepairReport

__all__ = ["repair"]

_PLACES_SHOWN = 20


@dataclass(slots=True)
class _Job:
    """What was asked for, and the damaged places that were met."""

    path: Path
    config: Path | None
    cut_tail: bool
    cut_damage: bool
    fill_damage: bool
    places: list[tuple[int, int, str]] = field(default_factory=list)

    def run(self, *, dry_run: bool) -> RepairReport:
        """Run the repair with a progress bar. Ctrl-C stops it while the store is still as it was."""
        from cometmq.store import repairing

        self.places.clear()
        with interruptible() as interrupted, byte_progress("reading the log" if dry_run else "repairing") as bar:

            def progress(done: int, total: int) -> bool:
                bar(done, total)
                return not interrupted.is_set()

            return repairing.repair(
                self.path,
                config=self.config,
                cut_tail=self.cut_tail,
                cut_damage=self.cut_damage,
                fill_damage=self.fill_damage,
                dry_run=dry_run,
                on_progress=progress,
                on_damage=lambda offset, count, reason: self.places.append((offset, count, reason)),
            )


def _can_ask() -> bool:
    return sys.stdin.isatty()


@reported()
def repair(
    path: StorePath,
    fill: Annotated[
        bool,
        typer.Option(
            "--fill",
            help="Keep damaged bytes aside and put records without a message in their place. With --cut-tail.",
        ),
    ] = False,
    cut: Annotated[
        bool,
        typer.Option(
            "--cut",
            help="End the log at the first damage: what lies behind is kept, but lost to readers. With --cut-tail.",
        ),
    ] = False,
    cut_tail: Annotated[
        bool,
        typer.Option(
            "--cut-tail", help="Keep a torn tail aside and blank it, instead of leaving it to the next opening."
        ),
    ] = False,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only say what would be done.")] = False,
    restore_removed: Annotated[
        str | None,
        typer.Option(
            "--restore-removed",
            metavar="NAME",
            help="Append the whole records kept in cometmq/removed/NAME again.",
        ),
    ] = None,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")] = False,
    json: Json = False,
    config: Config = None,
) -> None:
    """Build queues and index anew from the commit log.

    And extensions, where there are some. Nobody may have the store open.

    The log is not touched, unless --fill or a cut is asked for: damage in it is passed over, and every whole message
    stays. --fill makes a store with a damaged log healthy again, for a RocketMQ broker too.
    What is removed or overwritten is kept under cometmq/removed in the store; delete it when you need it no more.
    No file's length is changed. An interrupted repair is completed by the next one, or by the next opening for writing.

    Exit codes: 0 done, 1 the answer was no, 2 usage, 3 it could not be done (stderr says why), 130 stopped by Ctrl-C.

    \b
    Examples:
      cometmq repair data/ --dry-run
      cometmq repair data/
      cometmq repair data/ --fill --yes
      cometmq repair data/ --restore-removed 20261123T170000Z
    """
    if restore_removed is not None:
        if fill or cut or cut_tail or dry_run:
            raise typer.BadParameter("--restore-removed goes alone")
        _restore(path, config, restore_removed, json)
        return
    if fill and cut:
        raise typer.BadParameter("--fill keeps what lies behind damage, --cut does not: give one of them")
    job = _Job(path=path, config=config, cut_tail=cut_tail or cut or fill, cut_damage=cut, fill_damage=fill)
    if not yes and not dry_run and (json or not _can_ask()):
        raise typer.BadParameter("nobody can be asked here: give --yes, or --dry-run to see what would be done")
    if not yes or dry_run:
        plan = _completed(job.run(dry_run=True), json)
        if json:
            print_json(plan)
        else:
            _print_plan(job, plan)
        if dry_run:
            return
        if not typer.confirm("Repair now?"):
            raise typer.Exit(ExitCode.REPAIRABLE)
    done = _completed(job.run(dry_run=False), json)
    if json:
        print_json(done)
    else:
        _print_done(job, done)


def _restore(path: Path, config: Path | None, name: str, json: bool) -> None:
    import cometmq

    with cometmq.open(path, config=config, create=False, background=False) as store:
        report = store.restore_removed(name)
    if json:
        print_json(report)
        return
    if report.already:
        typer.echo(f"cometmq/removed/{name} was restored before: nothing was done")
        return
    typer.echo(
        f"appended {counted(report.records, 'record')} of cometmq/removed/{name} again, at the ends of their queues"
    )
    if report.doubtful:
        typer.echo(f"{counted(report.doubtful, 'record')} left out: topic or properties may have lost a sector")
    if report.refused:
        typer.echo(f"{counted(report.refused, 'record')} left out: {report.refusal}")


def _completed(report: RepairReport, json: bool) -> RepairReport:
    """Return the report, or end the command when the repair was stopped."""
    if report.complete:
        return report
    if json:
        print_json(report)
    typer.echo("cometmq: stopped; the store is as it was", err=True)
    raise typer.Exit(ExitCode.INTERRUPTED)


def _damage_lines(job: _Job, report: RepairReport) -> list[str]:
    lines = [
        f"damaged at physical offset {at:,}: {counted(count, 'byte')}: {reason}"
        for at, count, reason in job.places[:_PLACES_SHOWN]
    ]
    if len(job.places) > _PLACES_SHOWN:
        lines.append(f"{counted(len(job.places) - _PLACES_SHOWN, 'more damaged place')}")
    if report.filled_bytes:
        tense = "will be put" if report.dry_run else "are"
        lines.append(
            f"records without a message {tense} in the place of {bytes_text(report.filled_bytes)} of damage, which "
            f"{'will be' if report.dry_run else 'is'} kept aside"
        )
    if not job.cut_damage and report.damaged_bytes > report.filled_bytes:
        lines.append(
            f"{bytes_text(report.damaged_bytes - report.filled_bytes)} of damage stay in the log and are passed over: "
            "`cometmq verify` goes on naming them, and a RocketMQ broker whose recovery reads that far back would cut "
            "the log there"
            + ("" if job.fill_damage else ". --fill puts records without a message in their place, and nobody does")
        )
    return lines


def _tail_line(report: RepairReport) -> str:
    return (
        f"{bytes_text(report.tail_bytes)} behind the last whole record, at physical offset {report.tail_at:,}, are a "
        "torn tail: the next opening for writing blanks them; --cut-tail keeps them aside and blanks them"
    )


def _print_plan(job: _Job, plan: RepairReport) -> None:
    typer.echo(
        f"{counted(plan.messages, 'message')} in {bytes_text(plan.log_end - plan.log_min)} of log, "
        f"{counted(plan.keys, 'key')}"
    )
    for line in _damage_lines(job, plan):
        typer.echo(line)
    typer.echo("will build queues and index anew, and keep the old ones under cometmq/removed")
    if plan.unwanted:
        typer.echo(f"{counted(plan.unwanted, 'record')} of deleted topics: no queue is built for them")
    if plan.finished_earlier:
        typer.echo("will first complete a repair that was interrupted")
    if plan.cut_at is not None and not plan.cut_messages and not job.cut_damage:
        typer.echo(f"will keep a torn tail of {bytes_text(plan.cut_bytes)} aside and blank it")
    elif plan.cut_at is not None:
        files = f" and {counted(plan.cut_files, 'log file')}" if plan.cut_files else ""
        typer.echo(
            f"will cut the log at physical offset {plan.cut_at:,}, keeping {bytes_text(plan.cut_bytes)}{files} aside: "
            f"{counted(plan.cut_messages, 'message')} behind it will be lost to readers"
        )
    elif plan.tail_bytes:
        typer.echo(_tail_line(plan))


def _print_done(job: _Job, done: RepairReport) -> None:
    if done.finished_earlier:
        typer.echo("completed a repair that was interrupted")
    for line in _damage_lines(job, done):
        typer.echo(line)
    kept = f", kept the offset of {counted(done.queues_kept, 'queue')} without a message" if done.queues_kept else ""
    gaps = f", {counted(done.gaps, 'queue offset')} without a message" if done.gaps else ""
    typer.echo(
        f"built {counted(done.queues, 'queue')} of {counted(done.messages, 'message')} and an index of "
        f"{counted(done.keys, 'key')}{kept}{gaps}"
    )
    if done.cut_at is not None and not done.cut_messages and not job.cut_damage:
        typer.echo(f"kept a torn tail of {bytes_text(done.cut_bytes)} aside and blanked it")
    elif done.cut_at is not None:
        typer.echo(
            f"cut the log at physical offset {done.cut_at:,}: {counted(done.cut_messages, 'message')} behind it cut off"
        )
    elif done.tail_bytes:
        typer.echo(_tail_line(done))
    if done.kept is not None:
        typer.echo(f"what was there before is in {done.kept}")
