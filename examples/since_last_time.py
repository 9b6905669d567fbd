#!/usr/bin/env python3
"""Copies the messages that came since the last run into a database, each exactly once, whatever interrupts it.

python examples/since_last_time.py [FOLDER]        the folder becomes a store; the database is FOLDER.sqlite beside it

Two ways. With a cursor, the sink keeps the place of reading in the transaction of its rows. With a group, the store
keeps it, where `cometmq group` and other tools see the lag; the sink ignores the rows that a crash between the two
commits repeats.
"""

from __future__ import annotations

import sqlite3
import sys
from contextlib import closing
from pathlib import Path

import cometmq

SCHEMA = {"id": "int64", "total": "double"}
COLUMNS = ["topic", "queue_id", "queue_offset"]
VALUES = "into orders values (:topic, :queue_id, :queue_offset, :id, :total)"


def prepare(sink: sqlite3.Connection) -> None:
    sink.executescript(
        """
        create table if not exists orders (
            topic, queue_id, queue_offset, id, total, primary key (topic, queue_id, queue_offset)
        );
        create table if not exists cursors (name primary key, cursor);
        """
    )


def append(store: cometmq.Store, first: int, count: int) -> None:
    numbers = range(first, first + count)
    store.append_many("orders", [b'{"id": %d, "total": %d.5}' % (number, number % 100) for number in numbers])


def copy_with_cursor(store: cometmq.Store, sink: sqlite3.Connection) -> int:
    """The rows and the cursor behind them are one transaction: both are there, or neither."""
    row = sink.execute("select cursor from cursors where name = 'orders'").fetchone()
    start = cometmq.Cursor() if row is None else cometmq.Cursor.from_json(row[0])
    scan = store.scan("orders", start=start, columns=COLUMNS, schema=SCHEMA)
    copied = 0
    for batch in scan:
        with sink:
            sink.executemany(f"insert {VALUES}", batch.to_pylist())
            sink.execute("insert or replace into cursors values ('orders', ?)", [scan.cursor.to_json()])
        copied += batch.num_rows
    return copied


def copy_with_group(store: cometmq.Store, sink: sqlite3.Connection) -> int:
    """The sink commits first. After a crash before the group's commit the same rows come again, and are ignored."""
    scan = store.scan("orders", group="etl", columns=COLUMNS, schema=SCHEMA)
    rows = scan.to_table().to_pylist()
    with sink:
        sink.executemany(f"insert or ignore {VALUES}", rows)
    scan.commit()
    return len(rows)


def main(folder: str) -> None:
    with cometmq.open(folder) as store, closing(sqlite3.connect(Path(folder).with_suffix(".sqlite"))) as sink:
        prepare(sink)
        for first in (0, 1_000, 2_000):
            append(store, first, 1_000)
            print("with a cursor:", copy_with_cursor(store, sink), "new messages")
        print("with a group:", copy_with_group(store, sink), "messages, all of them there already")
        print("with a group:", copy_with_group(store, sink), "new messages")
        print("rows:", sink.execute("select count(*), sum(total) from orders").fetchone())


if __name__ == "__main__":
    main(sys.argv[1] if len(sys.argv) > 1 else "data")
