#!/usr/bin/env python3
"""Messages as a Polars frame: bodies stay in the mapped log, also after the store is closed.

python examples/polars_frames.py [FOLDER]        the folder becomes a store; needs: pip install cometmq[polars]
"""

from __future__ import annotations

import sys

import polars as pl

import cometmq


def main(folder: str) -> None:
    with cometmq.open(folder) as store:
        store.create_topic("readings", queues=2, exist_ok=True)
        store.append_many(
            "readings",
            [b'{"sensor": %d, "celsius": %.1f}' % (number % 5, 15 + number % 10 / 2) for number in range(10_000)],
            tags=["roof" if number % 3 else "cellar" for number in range(10_000)],
        )

        frame = store.scan("readings", columns=["queue_id", "queue_offset", "tags", "body"]).to_polars()
        print(frame.group_by("tags").agg(pl.len(), pl.col("body").bin.size().sum().alias("bytes")).sort("tags"))

        # Structured bodies: a schema instead of the body column. Bodies that do not fit are null, and counted.
        scan = store.scan("readings", columns=["tags"], schema={"sensor": "int32", "celsius": "float64"})
        warmest = scan.to_polars().group_by("sensor").agg(pl.col("celsius").max()).sort("sensor")
        print(warmest)
        print(f"bodies that did not fit: {scan.report.bad_bodies}")

    # The frame points into the log's files, and keeps them mapped.
    print("longest body, read after closing:", frame["body"].bin.size().max(), "bytes")


if __name__ == "__main__":
    main(sys.argv[1] if len(sys.argv) > 1 else "data")
