"""Draws the path of a message, ``docs/pictures/message_path.svg``: part of ``make plots``."""

from __future__ import annotations

from pathlib import Path

from svg_page import Page

ROOT = Path(__file__).resolve().parent.parent
PICTURE = "docs/pictures/message_path.svg"

_ROWS = (96, 192, 288)
"""Middles of the three rows: embedded, served, from other processes."""
_LEFT = (
    ("embed: your process", "store.append_many(…)"),
    ("RocketMQ clients", "Python, Java, mqadmin"),
    ("other processes", "cometmq put, Spark writes"),
)
_RIGHT = (
    ("read in process", "store.read, consumers"),
    ("RocketMQ clients", "push, pull, POP"),
    ("query: live columns", "DuckDB, Polars, Spark"),
)


def _pair(page: Page, x: float, y: float, width: float, head: str, note: str) -> None:
    page.box(x, y - 28, width, 56)
    page.words(x + width / 2, y - 5, head, "head", "middle")
    page.words(x + width / 2, y + 15, note, "note", "middle")


def draw() -> str:
    """Return the picture."""
    page = Page(
        960,
        352,
        "The path of a message",
        "Messages from the embedding process, from RocketMQ clients through the broker, and from other processes are "
        "appended to one commit log, which is synced once for all waiting appends. Consume queues and the key index "
        "are built from the log. Consumers and query engines read the same mapped files.",
    )
    page.words(24, 34, "The path of a message", "title")
    page.words(936, 34, "producers on the left, consumers on the right, one directory between them", "note", "end")
    for y, (head, note) in zip(_ROWS, _LEFT, strict=True):
        _pair(page, 24, y, 186, head, note)
    for y, (head, note) in zip(_ROWS, _RIGHT, strict=True):
        _pair(page, 750, y, 186, head, note)
    top, middle, bottom = _ROWS
    for x, note in ((246, "sends"), (638, "pulls, POP")):
        _pair(page, x, middle, 78, "broker", note)

    page.box(360, 56, 242, 276)
    page.words(481, 78, "data/, in RocketMQ's format", "head", "middle")
    page.box(376, 90, 210, 92, "core")
    page.words(481, 114, "commit log", "head", "middle")
    page.words(481, 134, "every message, once;", "note", "middle")
    page.words(481, 151, "one write and one fdatasync", "note", "middle")
    page.words(481, 168, "for all waiting appends", "note", "middle")
    for x, head, note in ((376, "queues", "by tag, time"), (486, "index", "by key")):
        page.arrow([(x + 50, 182), (x + 50, 206)])
        page.box(x, 206, 100, 52)
        page.words(x + 50, 228, head, "head", "middle")
        page.words(x + 50, 246, note, "note", "middle")
    page.words(481, 288, "group offsets, timers, POP state", "note", "middle")
    page.words(481, 308, "hand-off folder: work left by", "note", "middle")
    page.words(481, 324, "other processes, appended once", "note", "middle")

    page.arrow([(210, top), (360, top)])
    page.arrow([(210, middle), (246, middle)])
    page.arrow([(324, middle), (360, middle)])
    page.arrow([(210, bottom), (360, bottom)])
    page.words(285, top - 10, "in C, GIL released", "note", "middle")
    page.words(285, bottom - 10, "hand-off", "note", "middle")
    page.arrow([(602, top), (750, top)])
    page.arrow([(602, middle), (638, middle)])
    page.arrow([(716, middle), (750, middle)])
    page.arrow([(602, bottom), (750, bottom)])
    page.words(676, top - 10, "mapped, no copy", "note", "middle")
    page.words(676, bottom - 10, "live, no export", "note", "middle")
    return page.text()


def main() -> None:
    """Write the picture."""
    (ROOT / PICTURE).write_text(draw(), "utf-8")
    print(f"plots: wrote {PICTURE}")


if __name__ == "__main__":
    main()
