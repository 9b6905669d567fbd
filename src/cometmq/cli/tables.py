"""Tables for people: aligned columns, numbers to the right.

No cell is cut, and no address, name or time broken in two: a table that a terminal has no room for is printed row by
row.
"""

from __future__ import annotations

import sys
from collections.abc import Collection, Iterable, Sequence

from cometmq.cli.terminal import safe_text

__all__ = ["print_pairs", "print_table"]

_LINE_CHARS_MAX = 10_000
_BETWEEN = "  "


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


def print_table(
    titles: Sequence[str],
    rows: Iterable[Sequence[object]],
    *,
    wrapping: Collection[str] = (),
    width_chars: int | None = None,
) -> None:
    """Print rows under their titles; a column whose values are all numbers is aligned to the right.

    Args:
        titles: of the columns.
        rows: a value for each column.
        wrapping: columns that may be broken between words.
        width_chars: room for a line; None for the terminal's, and no limit where the output is not a terminal.
    """
    from rich.cells import cell_len
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    known = [list(row) for row in rows]
    if width_chars is None and sys.stdout.isatty():
        width_chars = Console().width
    width_chars = _LINE_CHARS_MAX if width_chars is None else width_chars
    needed_chars = -len(_BETWEEN)
    for at, title in enumerate(titles):
        cells = [title, *(_cell(row[at]) for row in known)]
        parts = [word for cell in cells for word in cell.split()] if title in wrapping else cells
        needed_chars += len(_BETWEEN) + max((cell_len(part) for part in parts), default=0)
    if known and needed_chars > width_chars:
        for row in known:
            print_pairs(zip(titles, row, strict=True))
            print()
        return
    table = Table(box=None, pad_edge=False, header_style="bold")
    for at, title in enumerate(titles):
        values = [row[at] for row in known if row[at] is not None]
        is_number = bool(values) and all(isinstance(value, int | float) and value is not True for value in values)
        table.add_column(
            title, justify="right" if is_number else "left", overflow="fold", no_wrap=title not in wrapping
        )
    for row in known:
        table.add_row(*(Text(_cell(value)) for value in row))
    console = Console(width=width_chars, highlight=False)
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
