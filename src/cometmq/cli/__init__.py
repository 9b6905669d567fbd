"""The ``cometmq`` command.

One module per command; each is a thin layer over functions of ``cometmq.store``, or of ``cometmq.admin`` where it
speaks with a cluster. Shared code is in ``arguments`` (options), ``failures`` (errors, exit codes), ``terminal``
(progress, text, JSON), for servers ``running`` and ``logs``, and for clusters ``remote`` and ``tables``.
``docs/cli.md`` is for users.
"""

from __future__ import annotations

import signal
from typing import Annotated, Any

import typer
from typer.core import TyperGroup

import cometmq
from cometmq.cli import bench, broker, cat, consume, export, inspect, namesrv, produce, put, repair, sql, verify
from cometmq.cli.cluster import cluster_commands
from cometmq.cli.group import group_commands
from cometmq.cli.message import message_commands
from cometmq.cli.offset import offset_commands
from cometmq.cli.terminal import open_standard_streams
from cometmq.cli.topic import topic_commands

__all__ = ["app", "main"]

_CHECKER = "Value error, "


class _Commands(TyperGroup):
    """All commands; errors in options are reported without the prefix of the library that checks them."""

    def invoke(self, ctx: Any) -> Any:
        try:
            return super().invoke(ctx)
        except typer.BadParameter as error:
            error.message = error.message.removeprefix(_CHECKER)
            raise


app = typer.Typer(
    name="cometmq",
    cls=_Commands,
    help="Inspect, verify, repair, query and serve RocketMQ-format stores.",
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
)
for command in (
    inspect.inspect,
    verify.verify,
    repair.repair,
    cat.cat,
    export.export,
    sql.sql,
    put.put,
    namesrv.namesrv,
    broker.broker,
    broker.serve,
    produce.produce,
    consume.consume,
    bench.bench,
):
    app.command()(command)
for commands in (topic_commands, group_commands, message_commands, offset_commands, cluster_commands):
    app.add_typer(commands)


def _print_version(wanted: bool) -> None:
    if wanted:
        typer.echo(cometmq.__version__)
        raise typer.Exit


@app.callback()
def _options(
    version: Annotated[
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Print the version and exit.")
    ] = False,
) -> None:
    """Take the options that stand before a command."""


def main() -> None:
    """Run the command line; the console script's entry point."""
    open_standard_streams()
    try:
        app(prog_name="cometmq")
    finally:
        # The exit code is decided: a further Ctrl-C, while the interpreter ends, must not replace it.
        signal.signal(signal.SIGINT, signal.SIG_IGN)
