"""A driver to be killed: a stream, in small micro-batches, into Parquet files. Arguments: options as JSON, folder."""

from __future__ import annotations

import json
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from support.spark import new_session


def main(options: str, folder: str) -> None:
    """Run to what is there now."""
    target = Path(folder)
    target.mkdir(parents=True, exist_ok=True)
    spark = new_session(target / "local")
    stream = (
        spark.readStream.format("cometmq")
        .options(**json.loads(options))
        .load()
        .selectExpr("CAST(body AS STRING) AS body")
    )
    query = (
        stream.writeStream.format("parquet")
        .option("checkpointLocation", str(target / "checkpoint"))
        .trigger(availableNow=True)
        .start(str(target / "files"))
    )
    query.awaitTermination()
    if query.exception() is not None:
        raise SystemExit(str(query.exception()))


main(*sys.argv[1:])
