#!/usr/bin/env python3
"""SQL over a topic while it is being written: DuckDB reads the log itself, without an export.

python examples/duckdb_sql.py [FOLDER]        the folder becomes a store; needs: pip install cometmq[duckdb]
"""

from __future__ import annotations

import sys

import duckdb

import cometmq

CITIES = ("Kiel", "Lima", "Oslo")


def write_orders(store: cometmq.Store, first: int, count: int) -> None:
    numbers = range(first, first + count)
    store.append_many(
        "orders",
        [f'{{"id": {number}, "city": "{CITIES[number % 3]}", "total": {number % 100}}}'.encode() for number in numbers],
        tags=["paid" if number % 4 else "refused" for number in numbers],
        keys=[f"order-{number}" for number in numbers],
    )


def main(folder: str) -> None:
    with cometmq.open(folder) as store, duckdb.connect() as connection:
        write_orders(store, 0, 10_000)

        # A scan is a table for DuckDB. Only the columns that are asked for are read; bodies are not copied.
        orders = store.scan("orders", columns=["tags", "body"])
        connection.register("orders", orders)
        query = "select tags, count(*), sum(octet_length(body)) from orders group by tags order by tags"
        for tag, count, size in connection.sql(query).fetchall():
            print(f"{tag}: {count} orders, {size} bytes")

        # Each query is a pass of its own: what has come meanwhile is there.
        write_orders(store, 10_000, 5_000)
        print("orders now:", connection.sql("select count(*) from orders").fetchall()[0][0])

        # JSON bodies as columns: decoded by Arrow's reader, batch by batch.
        connection.register("totals", store.scan("orders", columns=[], schema={"city": "string", "total": "int64"}))
        query = "select city, count(*), sum(total) from totals group by city order by city"
        for city, count, total in connection.sql(query).fetchall():
            print(f"{city}: {count} orders, {total} in total")

        # Messages that the scan excludes are never read: a tag by its hash in the queue, a key through the index.
        connection.register("refused", store.scan("orders", tags="refused", columns=["queue_offset"]))
        print("refused:", connection.sql("select count(*), max(queue_offset) from refused").fetchall()[0])
        connection.register("one", store.scan("orders", keys="order-17", columns=["body"]))
        print("order-17:", connection.sql("select decode(body) from one").fetchall()[0][0])


if __name__ == "__main__":
    main(sys.argv[1] if len(sys.argv) > 1 else "data")
