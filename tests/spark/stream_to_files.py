"""A driver to be killed: a stream, in small micro-batches, into Parquet files, or into a store or broker.

Arguments: options as JSON, folder, and for the latter the options of writing as JSON.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from support.spark import new_session


def main(options: str, folder: str, sink: str | None = None) -> None:
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
    writer = stream.writeStream.option("checkpointLocation", str(target / "checkpoint")).trigger(availableNow=True)
    if sink is None:
        query = writer.format("parquet").start(str(target / "files"))
    else:
        query = writer.format("cometmq").options(**json.loads(sink)).start()
    query.awaitTermination()
    if query.exception() is not None:
        raise SystemExit(str(query.exception()))


main(*sys.argv[1:])
