"""Figures as a table for people."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping, Sequence

from rich import box
from rich.console import Console
from rich.table import Table

from bench_goals import goal_of
from bench_support import Figure

_FILE_WIDTH = 160
"""Columns where nobody's window says how wide: in a file the widest table loses nothing."""

_LARGE = [(1e9, "G"), (1e6, "M"), (1e3, "k")]


def table_console(*, stderr: bool = False) -> Console:
    """Return what tables are printed on: as wide as the window, or wide enough for every column in a file."""
    to_window = (sys.stderr if stderr else sys.stdout).isatty() or "COLUMNS" in os.environ
    return Console(stderr=stderr, width=None if to_window else _FILE_WIDTH)


def number(value: float) -> str:
    """Return a number with three digits that count."""
    for size, letter in _LARGE:
        if abs(value) >= size:
            return f"{value / size:.3g} {letter}"
    return f"{value:.3g}"


def _amount(figure: Figure) -> str:
    unit = figure["unit"]
    return (
        f"{number(figure['value'])}{unit.removeprefix('msg')}"
        if unit == "msg/s"
        else f"{number(figure['value'])} {unit}"
    )


def _cpu(figure: Figure) -> str:
    ns = figure.get("cpu_ns") or figure.get("process_cpu_ns")
    return "" if ns is None else f"{number(ns)} ns"


def _floor(figure: Figure) -> tuple[str, str]:
    """The floor or rival in words, and the ratio to it."""
    if "ratio" not in figure:
        return "", ""
    return f"{figure['floor']}: {number(figure['floor_value'])}", f"{figure['ratio']:.2f}"


def _mode(figure: Figure) -> str:
    """Rivals' settings are sentences; they stand below the table."""
    flush = str(figure.get("flush", ""))
    return flush if len(flush) <= 5 else "durable" if "/durable/" in figure["name"] else "relaxed"


def _settings(figures: Sequence[Figure]) -> list[str]:
    found = {}
    for figure in figures:
        if figure["name"].startswith("rivals/"):
            _, mode, _, _, engine = figure["name"].split("/")
            found[engine, mode] = figure["flush"]
    return [f"{engine}, {mode}: {setting}" for (engine, mode), setting in sorted(found.items())]


def goal_cells(figure: Figure, by_name: Mapping[str, Figure]) -> tuple[str, str]:
    """Return the goal of a figure and whether it is reached; empty where there is none."""
    goal = goal_of(figure)
    if goal is None:
        return "", ""
    reached = goal.judge(figure, by_name)
    return goal.text, "" if reached is None else "[green]yes[/]" if reached else "[red]no[/]"


def print_table(console: Console, figures: Sequence[Figure], title: str) -> None:
    """Print one table with every figure, and the rivals' settings below it."""
    table = Table(title=title, box=box.SIMPLE_HEAD, title_justify="left")
    table.add_column("figure", overflow="fold")
    for column in ("value", "range", "CPU/msg"):
        table.add_column(column, justify="right", no_wrap=True)
    table.add_column("floor or rival", overflow="fold")
    table.add_column("ratio", justify="right", no_wrap=True)
    for column in ("flush", "keys", "goal", "reached"):
        table.add_column(column, no_wrap=column != "goal")
    by_name = {figure["name"]: figure for figure in figures}
    for figure in figures:
        spread = f"{number(figure['min'])} .. {number(figure['max'])}" if figure["repeats"] > 1 else ""
        keys = "" if "keys" not in figure else str(figure["keys"])
        row = [figure["name"], _amount(figure), spread, _cpu(figure), *_floor(figure), _mode(figure), keys]
        table.add_row(*row, *goal_cells(figure, by_name))
    console.print(table)
    for line in _settings(figures):
        console.print(line, highlight=False)
