"""The ``cometmq`` command.

One module per command; each is a thin layer over functions of ``cometmq.store``, or of ``cometmq.admin`` where it
speaks with a cluster. Shared code is in ``arguments`` (options), ``failures`` (errors, exit codes), ``terminal``
(progress, text, JSON), for servers ``running`` and ``logs``, and for clusters ``remote`` and ``tables``.
``docs/cli.md`` is for users.
"""

from __future__ import annotations

import signal
from collections.abc import Iterator, Mapping
from importlib import import_module
from typing import Annotated, Any

import typer
import typer.main
from typer.core import TyperGroup

import cometmq
from cometmq.cli.terminal import open_standard_streams

__all__ = ["app", "main"]

_CHECKER = "Value error, "

_SETTINGS: dict[str, Any] = {"add_completion": False, "rich_markup_mode": None, "pretty_exceptions_enable": False}

_MODULES = {
    "inspect": "inspect",
    "verify": "verify",
    "repair": "repair",
    "cat": "cat",
    "export": "export",
    "sql": "sql",
    "put": "put",
    "namesrv": "namesrv",
    "broker": "broker",
    "serve": "broker",
    "produce": "produce",
    "consume": "consume",
    "bench": "bench",
    "topic": "topic",
    "group": "group",
    "message": "message",
    "offset": "offset",
    "cluster": "cluster",
    "completion": "completion",
}
"""The module that defines each command, in the order of ``--help``."""


class _LoadedWhenUsed(Mapping[str, Any]):
    """The commands by name; a command's module is imported when the command is looked up."""

    def __init__(self) -> None:
        self._loaded: dict[str, Any] = {}

    def __getitem__(self, name: str) -> Any:
        if name not in self._loaded:
            self._loaded[name] = _load(name)
        return self._loaded[name]

    def __contains__(self, name: object) -> bool:
        return name in _MODULES

    def __iter__(self) -> Iterator[str]:
        return iter(_MODULES)

    def __len__(self) -> int:
        return len(_MODULES)


def _load(name: str) -> Any:
    """Import a command, or a group of commands, and build its parser.

    Raises:
        KeyError: no command has this name.
    """
    module = import_module(f"{__name__}.{_MODULES[name]}")
    alone = typer.Typer(**_SETTINGS)
    group = getattr(module, f"{name}_commands", None)
    if group is None:
        alone.command()(getattr(module, name))
    else:
        alone.add_typer(group)
    alone.callback()(_options)  # which makes it a group, whose one command is wanted
    return typer.main.get_command(alone).commands[name]  # type: ignore[attr-defined]


class _Commands(TyperGroup):
    """All commands; errors in options are reported without the prefix of the library that checks them."""

    def __init__(self, **attributes: Any) -> None:
        super().__init__(**attributes)
        self.commands: Any = _LoadedWhenUsed()

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
    **_SETTINGS,
)


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
