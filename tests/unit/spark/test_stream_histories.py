"""Checks: a stream gives each message once, whatever happens to topics and to the driver meanwhile.

``CMQ_LONG=1`` runs 2,000 histories.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from support.stream_histories import SEEDS, each_message_comes_once

pytest.importorskip("pyspark", reason="pyspark is not installed")

from pyspark.sql.types import BinaryType, StructField, StructType

from cometmq.spark.default_source import CometMQSource
from cometmq.spark.stream import StreamReader
from unit.spark.test_stream import latest, through_json

BODY = StructType([StructField("body", BinaryType())])


class Driver:
    """A driver that may restart at any time; its checkpoint is kept as JSON."""

    def __init__(self, options: Mapping[str, str]) -> None:
        self._given = options
        self._reader = self._started()
        self.position: dict[str, Any] = through_json(self._reader.initialOffset())

    def _started(self) -> StreamReader:
        reader = CometMQSource(dict(self._given)).streamReader(BODY)
        assert isinstance(reader, StreamReader)
        return reader

    def stop(self) -> None:
        self._reader.stop()

    def restart(self) -> None:
        self._reader.stop()
        self._reader = self._started()

    def plan(self) -> dict[str, Any]:
        return through_json(latest(self._reader, self.position))

    def read(self, end: dict[str, Any]) -> Iterator[int]:
        for partition in self._reader.partitions(self.position, end):
            for batch in self._reader.read(partition):
                yield from (int(body) for body in batch.column("body").to_pylist())


@pytest.mark.parametrize("seed", SEEDS)
def test_any_history_of_topics_gives_each_message_once(tmp_path: Path, seed: int) -> None:
    each_message_comes_once(tmp_path / "store", seed, Driver)
