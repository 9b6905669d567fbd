"""``cometmq repair``: rebuilds the files derived from the log."""

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
    """The requested repair, and the damaged places found."""

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
            help="Replace damaged bytes by filler records and keep them aside; implies --cut-tail.",
        ),
    ] = False,
    cut: Annotated[
        bool,
        typer.Option(
            "--cut",
            help="Cut the log at the first damage; readers lose the rest; implies --cut-tail.",
        ),
    ] = False,
    cut_tail: Annotated[
        bool,
        typer.Option("--cut-tail", help="Cut a torn tail now and keep it aside."),
    ] = False,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Print the plan without changing anything.")] = False,
    restore_removed: Annotated[
        str | None,
        typer.Option(
            "--restore-removed",
            metavar="NAME",
            help="Append the records kept in cometmq/removed/NAME again.",
        ),
    ] = None,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Skip the confirmation prompt.")] = False,
    json: Json = False,
    config: Config = None,
) -> None:
    """Rebuild queues and index from the commit log.

    Also rebuilds queue extensions. The store must not be open elsewhere.

    The log stays unchanged unless you ask for --fill or a cut: repair skips damage and keeps every whole message.
    --fill makes a store with a damaged log healthy again, for a RocketMQ broker too.
    Removed or overwritten bytes are kept under cometmq/removed in the store; delete them when you no longer need them.
    No file's length changes. The next repair, or the next writer, completes an interrupted repair.

    Exit codes: 0 done, 1 declined at the prompt, 2 usage error, 3 failed (stderr has the reason),
    130 stopped by Ctrl-C.

    \b
    Examples:
      cometmq repair data/ --dry-run
      cometmq repair data/
      cometmq repair data/ --fill --yes
      cometmq repair data/ --restore-removed 20261123T170000Z
    """
    if restore_removed is not None:
        if fill or cut or cut_tail or dry_run:
            raise typer.BadParameter("--restore-removed cannot be combined with other options")
        _restore(path, config, restore_removed, json)
        return
    if fill and cut:
        raise typer.BadParameter(
            "--fill and --cut exclude each other: --fill keeps the messages behind damage, --cut does not"
        )
    job = _Job(path=path, config=config, cut_tail=cut_tail or cut or fill, cut_damage=cut, fill_damage=fill)
    if not yes and not dry_run and (json or not _can_ask()):
        raise typer.BadParameter("not a terminal, cannot prompt: pass --yes, or --dry-run to see the plan")
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
        typer.echo(f"cometmq/removed/{name} has already been restored; nothing to do")
        return
    typer.echo(
        f"appended {counted(report.records, 'record')} of cometmq/removed/{name} again, at the ends of their queues"
    )
    if report.doubtful:
        typer.echo(f"{counted(report.doubtful, 'record')} skipped: topic or properties may have lost a sector")
    if report.unfinished:
        typer.echo(f"{counted(report.unfinished, 'record')} skipped: their transaction was never committed")
    if report.refused:
        typer.echo(f"{counted(report.refused, 'record')} skipped: {report.refusal}")


def _completed(report: RepairReport, json: bool) -> RepairReport:
    """Return the report, or end the command when the repair was stopped."""
    if report.complete:
        return report
    if json:
        print_json(report)
    typer.echo("cometmq: stopped; the store is unchanged", err=True)
    raise typer.Exit(ExitCode.INTERRUPTED)


def _damage_lines(job: _Job, report: RepairReport) -> list[str]:
    lines = [
        f"damaged at physical offset {at:,}: {counted(count, 'byte')}: {reason}"
        for at, count, reason in job.places[:_PLACES_SHOWN]
    ]
    if len(job.places) > _PLACES_SHOWN:
        lines.append(f"{counted(len(job.places) - _PLACES_SHOWN, 'more damaged place')}")
    if report.filled_bytes:
        tense = "will replace" if report.dry_run else "replace"
        lines.append(
            f"filler records {tense} {bytes_text(report.filled_bytes)} of damage, which "
            f"{'will be' if report.dry_run else 'is'} kept aside"
        )
    if not job.cut_damage and report.damaged_bytes > report.filled_bytes:
        lines.append(
            f"{bytes_text(report.damaged_bytes - report.filled_bytes)} of damage stay in the log and are skipped: "
            "`cometmq verify` reports them, and a RocketMQ broker whose recovery reads that far back would cut "
            "the log there"
            + ("" if job.fill_damage else "; --fill replaces them by filler records, which prevents both")
        )
    return lines


def _tail_line(report: RepairReport) -> str:
    return (
        f"{bytes_text(report.tail_bytes)} behind the last whole record, at physical offset {report.tail_at:,}, are a "
        "torn tail: the next writer blanks them; --cut-tail blanks them now and keeps a copy aside"
    )


def _print_plan(job: _Job, plan: RepairReport) -> None:
    typer.echo(
        f"{counted(plan.messages, 'message')} in {bytes_text(plan.log_end - plan.log_min)} of log, "
        f"{counted(plan.keys, 'key')}"
    )
    for line in _damage_lines(job, plan):
        typer.echo(line)
    typer.echo("will rebuild queues and index and keep the old ones under cometmq/removed")
    if plan.unwanted:
        typer.echo(f"{counted(plan.unwanted, 'record')} of deleted topics: no queues")
    if plan.finished_earlier:
        typer.echo("will first complete an interrupted repair")
    if plan.cut_at is not None and not plan.cut_messages and not job.cut_damage:
        typer.echo(f"will cut a torn tail of {bytes_text(plan.cut_bytes)} and keep it aside")
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
        typer.echo("completed an interrupted repair")
    for line in _damage_lines(job, done):
        typer.echo(line)
    kept = f", kept the offset of {counted(done.queues_kept, 'queue')} without a message" if done.queues_kept else ""
    gaps = f", {counted(done.gaps, 'queue offset')} without a message" if done.gaps else ""
    typer.echo(
        f"rebuilt {counted(done.queues, 'queue')} with {counted(done.messages, 'message')} and an index of "
        f"{counted(done.keys, 'key')}{kept}{gaps}"
    )
    if done.cut_at is not None and not done.cut_messages and not job.cut_damage:
        typer.echo(f"cut a torn tail of {bytes_text(done.cut_bytes)} and kept it aside")
    elif done.cut_at is not None:
        typer.echo(
            f"cut the log at physical offset {done.cut_at:,}: {counted(done.cut_messages, 'message')} behind it cut off"
        )
    elif done.tail_bytes:
        typer.echo(_tail_line(done))
    if done.kept is not None:
        typer.echo(f"the previous files are in {done.kept}")
