"""The ``cometmq`` command. Commands live in modules of their own beside this file and are loaded when called."""

from __future__ import annotations

from typing import Annotated

import typer

import cometmq

__all__ = ["app", "main"]

app = typer.Typer(name="cometmq", help="Look into, check, mend and use CometMQ stores.", no_args_is_help=True)


def _print_version(wanted: bool) -> None:
    if wanted:
        typer.echo(cometmq.__version__)
        raise typer.Exit


@app.callback()
def _options(
    version: Annotated[
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Print the version and stop.")
    ] = False,
) -> None:
    """Take the options that stand before a command."""


def main() -> None:
    """Run the command line; what the console script calls."""
    app()
