#!/usr/bin/env python3
"""Messages as pandas frames: by day, by tag, and batch by batch where all of it would be too much.

python examples/pandas_frames.py [FOLDER]        the folder becomes a store; needs: pip install pandas
"""

from __future__ import annotations

import sys

import pandas as pd

import cometmq


def main(folder: str) -> None:
    with cometmq.open(folder) as store:
        store.append_many(
            "visits",
            [b"page-%d,%d" % (number % 7, number % 300) for number in range(10_000)],
            tags=["mobile" if number % 3 else "desktop" for number in range(10_000)],
            properties=[{"country": ("de", "pe", "no")[number % 3]} for number in range(10_000)],
        )

        # pandas' usual types: a body becomes a Python bytes. Leave it out where it is not needed.
        frame = store.scan("visits", columns=["tags", "prop:country", "store_timestamp"]).to_pandas()
        print(frame.groupby(["tags", "prop:country"], observed=True).size())

        # Arrow's types in pandas: no body is copied.
        typed = store.scan("visits", columns=["queue_offset", "body"]).to_pandas(arrow_types=True)
        print(typed.dtypes)

        # CSV bodies as columns.
        scan = store.scan("visits", columns=["tags"], schema={"page": "string", "ms": "int64"}, body_format="csv")
        print(scan.to_pandas().groupby("page")["ms"].agg(["count", "mean"]).round(1).head(3))

        # A batch at a time: memory stays what a batch needs, however long the topic is.
        slow = 0
        for batch in store.scan("visits", columns=[], schema={"page": "string", "ms": "int64"}, body_format="csv"):
            part: pd.DataFrame = batch.to_pandas()
            slow += int((part["ms"] > 250).sum())
        print(f"{slow} visits took longer than 250 ms")


if __name__ == "__main__":
    main(sys.argv[1] if len(sys.argv) > 1 else "data")
