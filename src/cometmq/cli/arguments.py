"""Arguments and options that several commands have, and the values behind them."""

from __future__ import annotations

import re
import time
from datetime import datetime
from pathlib import Path
from typing import Annotated, TypeAlias

import typer

__all__ = ["Config", "Json", "StorePath", "parse_time"]

StorePath: TypeAlias = Annotated[
    Path,
    typer.Argument(help="The store's directory: the one that holds commitlog.", show_default=False),
]
Config: TypeAlias = Annotated[
    Path | None,
    typer.Option(
        "--config",
        metavar="FILE",
        help="A broker's broker.properties, or a cometmq.toml: sizes that the directory does not tell.",
        show_default=False,
    ),
]
Json: TypeAlias = Annotated[bool, typer.Option("--json", help="Print JSON, for scripts.")]

_AGO = re.compile(r"(\d+)(ms|s|m|h|d)")
_UNITS_MS = {"ms": 1, "s": 1_000, "m": 60_000, "h": 3_600_000, "d": 86_400_000}


def parse_time(text: str) -> int:
    """Return a time in milliseconds since 1970.

    Args:
        text: ISO 8601 (``2026-11-21``, ``2026-11-21T14:00``, with ``Z`` or an offset; else local time), milliseconds
            since 1970, or how long ago (``90s``, ``10m``, ``2h``, ``1d``).

    Raises:
        typer.BadParameter: none of these.
    """
    if text.isdecimal():
        return int(text)
    ago = _AGO.fullmatch(text)
    if ago is not None:
        return int(time.time() * 1000) - int(ago[1]) * _UNITS_MS[ago[2]]
    try:
        moment = datetime.fromisoformat(re.sub("[zZ]$", "+00:00", text))
        return int(moment.timestamp() * 1000)
    except (ValueError, OverflowError):
        raise typer.BadParameter(
            f"{text!r} is no time: give 2026-11-21T14:00, milliseconds since 1970, or how long ago (10m)"
        ) from None
