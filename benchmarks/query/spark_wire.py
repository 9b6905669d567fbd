"""Spark through a broker, in a process of its own over the benchmark's store, beside Spark over the store's files."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from pyspark.sql import SparkSession

from query.data import TOPIC, Sources
from query.spark_reads import FIVE, HASH_FIVE, Ask, asking, from_log

__all__ = ["LIMITS", "served", "wire_asks"]

LIMITS: Mapping[str, Mapping[str, int]] = {
    "32 a pull": {},
    "4096 a pull": {
        "maxTransferCountOnMessageInMemory": 4096,
        "maxTransferBytesOnMessageInMemory": 1 << 20,
        "maxTransferCountOnMessageInDisk": 4096,
        "maxTransferBytesOnMessageInDisk": 1 << 20,
    },
}
"""How much the broker gives at a time: as it is set by default, and more."""

_START_S = 60.0
_STOP_S = 60.0


@contextmanager
def served(sources: Sources, settings: Mapping[str, int], log: Path) -> Iterator[str]:
    """Run `cometmq serve` over the store; yields the name server's address."""
    command = [sys.executable, "-m", "cometmq", "serve", str(sources.store), "--json"]
    command += ["--listen", "127.0.0.1:0", "--namesrv-listen", "127.0.0.1:0"]
    for name, value in settings.items():
        command += ["--set", f"{name}={value}"]
    with log.open("w") as output, subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=output) as process:
        try:
            yield _started(process, log)
        finally:
            process.send_signal(signal.SIGTERM)
            code = process.wait(_STOP_S)
    if code != 0:
        raise SystemExit(f"the servers ended with code {code}: {log.read_text()[-2000:]}")


def _started(process: subprocess.Popen[bytes], log: Path) -> str:
    end = time.monotonic() + _START_S
    while process.poll() is None and time.monotonic() < end:
        for line in log.read_text().splitlines(keepends=True):
            event = json.loads(line) if line.endswith("\n") else {}
            if event.get("event") == "broker started":
                return str(event["name_servers"])
        time.sleep(0.02)
    raise SystemExit(f"the servers did not start: {log.read_text()[-2000:]}")


def wire_asks(spark: SparkSession, sources: Sources, name_server: str) -> tuple[Ask, Ask]:
    """The five columns of everything, as (through the broker, from the files)."""
    frame = spark.read.format("cometmq").options(nameServer=name_server, topic=TOPIC, columns=FIVE).load()
    return asking(frame, HASH_FIVE), asking(from_log(spark, sources, columns=FIVE), HASH_FIVE)
