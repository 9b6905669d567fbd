"""Tables for people: aligned columns, numbers to the right; never cut off where the output is no terminal."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Sequence

from cometmq.cli.terminal import safe_text

__all__ = ["print_pairs", "print_table"]

_LINE_CHARS_MAX = 10_000


def _cell(value: object) -> str:
    if value is None:
        return "-"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, int):
        return f"{value:,}"
    if isinstance(value, float):
        return f"{value:,.1f}"
    return safe_text(str(value))


def print_table(titles: Sequence[str], rows: Iterable[Sequence[object]]) -> None:
    """Print rows under their titles; a column whose values are all numbers is aligned to the right."""
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    known = [list(row) for row in rows]
    table = Table(box=None, pad_edge=False, header_style="bold")
    for at, title in enumerate(titles):
        values = [row[at] for row in known if row[at] is not None]
        is_number = bool(values) and all(isinstance(value, int | float) and value is not True for value in values)
        table.add_column(title, justify="right" if is_number else "left", overflow="fold")
    for row in known:
        table.add_row(*(Text(_cell(value)) for value in row))
    console = Console(width=None if sys.stdout.isatty() else _LINE_CHARS_MAX, highlight=False)
    with console.capture() as capture:
        console.print(table)
    for line in capture.get().splitlines():
        print(line.rstrip())


def print_pairs(pairs: Iterable[tuple[str, object]]) -> None:
    """Print names and values, a line each."""
    known = [(name, _cell(value)) for name, value in pairs]
    width = max((len(name) for name, _ in known), default=0)
    for name, value in known:
        print(f"{name:{width}}  {value}".rstrip())
