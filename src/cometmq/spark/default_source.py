"""The class that Spark registers: it reads the options and makes readers and writers."""

from __future__ import annotations

from collections.abc import Iterator, MutableMapping
from contextlib import contextmanager
from typing import TYPE_CHECKING

import pyspark
from pyspark.sql.datasource import DataSource

if TYPE_CHECKING:
    from pyspark.sql.datasource import (
        DataSourceReader,
        DataSourceStreamReader,
        DataSourceStreamWriter,
        DataSourceWriter,
    )
    from pyspark.sql.types import StructType

__all__ = ["CometMQSource", "RocketMQSource"]


@contextmanager
def _needing(what: str, version: str) -> Iterator[None]:
    """Name the version of PySpark that has the classes imported in the block.

    Raises:
        OptionError: this one lacks them.
    """
    from cometmq.spark.errors import OptionError

    try:
        yield
    except ImportError as error:
        if not (error.name or "").startswith("pyspark"):
            raise
        raise OptionError(
            "engine",
            f"{what} through Python needs PySpark {version} or newer; this is {pyspark.__version__}. "
            "The engine in Spark's JVM (engine=jvm) does it with Spark 4.0 and newer",
        ) from error


class CometMQSource(DataSource):
    """``format("cometmq")``. ``docs/spark.md`` teaches it."""

    def __init__(self, options: MutableMapping[str, str]) -> None:
        """Take the options over.

        Raises:
            OptionError: there is no such option.
        """
        from cometmq.spark.options import OptionMap

        super().__init__(options)
        self._checkpoint = dict(options).get("checkpointlocation") or dict(options).get("checkpointLocation")
        self._options = OptionMap(options)

    @classmethod
    def name(cls) -> str:
        """Return the format's name."""
        return "cometmq"

    def schema(self) -> str:
        """Return the columns that the options choose.

        Raises:
            OptionError: an option cannot be used.
        """
        from cometmq.spark.options import ReadOptions
        from cometmq.spark.schema import chosen_columns, ddl

        return ddl(chosen_columns(ReadOptions.of(self._options)))

    def reader(self, schema: StructType) -> DataSourceReader:
        """Return a batch reader; Spark gives the schema by that name."""
        from cometmq.spark.options import ReadOptions
        from cometmq.spark.source import BatchReader, PushingReader

        options = ReadOptions.for_batch(self._options)
        return (PushingReader if options.pushdown else BatchReader)(options, schema)

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:
        """Return a stream reader."""
        from cometmq.spark.options import ReadOptions

        with _needing("reading a stream", "4.2"):
            from cometmq.spark.stream import StreamReader

        return StreamReader(ReadOptions.for_stream(self._options), schema)

    def writer(self, schema: StructType, overwrite: bool) -> DataSourceWriter:
        """Return a batch writer."""
        from cometmq.spark.options import WriteOptions

        with _needing("writing", "4.1"):
            from cometmq.spark.wire_writer import WireBatchWriter
            from cometmq.spark.writer import BatchWriter

        options = WriteOptions.of(self._options, streaming=False)
        return (WireBatchWriter if options.name_servers else BatchWriter)(options, schema, overwrite)

    def streamWriter(self, schema: StructType, overwrite: bool) -> DataSourceStreamWriter:
        """Return a stream writer."""
        from cometmq.spark.options import WriteOptions

        with _needing("writing", "4.1"):
            from cometmq.spark.wire_writer import WireStreamWriter
            from cometmq.spark.writer import StreamWriter

        options = WriteOptions.of(self._options, streaming=True)
        if options.name_servers:
            return WireStreamWriter(options, schema, overwrite, self._checkpoint)
        return StreamWriter(options, schema, overwrite, self._checkpoint)


class RocketMQSource(CometMQSource):
    """The same as ``format("rocketmq")``, for those who register it: ``spark.dataSource.register(RocketMQSource)``."""

    @classmethod
    def name(cls) -> str:
        """Return the format's name."""
        return "rocketmq"
