"""Columns of the source: their names, Spark types, and their columns in the scan.

Spark takes exactly one Arrow type per Spark type, and compares the first batch's schema with its own for equality,
order and nullability included. So one table says all of it.
"""

from __future__ import annotations

import difflib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from cometmq.spark.errors import OptionError

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql.types import StructType

    from cometmq.spark.options import ReadOptions

__all__ = ["Column", "DEFAULT_COLUMNS", "chosen_columns", "columns_of_schema", "ddl", "spark_arrow_schema"]

PROPERTY_PREFIX = "prop:"


@dataclass(frozen=True, slots=True)
class Column:
    """A column.

    Attributes:
        name: name in Spark.
        spark_type: its Spark type, as ``simpleString`` writes it.
        kind: its content: a name of ``cmq_scan_kind`` in lower case.
        property: the property that it is, or the constant.
        nullable: as Spark's schema says.
    """

    name: str
    spark_type: str
    kind: str
    property: str | None = None
    nullable: bool = True


_HEADERS = "array<struct<key:string,value:binary>>"

_NATIVE = {
    column.name: column
    for column in (
        Column("topic", "string", "topic"),
        Column("queueId", "int", "queue_id"),
        Column("queueOffset", "bigint", "queue_offset"),
        Column("body", "binary", "body"),
        Column("tags", "string", "tags"),
        Column("keys", "string", "keys"),
        Column("bornTimestamp", "timestamp", "born_timestamp"),
        Column("storeTimestamp", "timestamp", "store_timestamp"),
        Column("properties", "map<string,string>", "properties"),
        Column("bodyBytes", "bigint", "body_bytes"),
        Column("flag", "int", "flag"),
        Column("sysFlag", "int", "sys_flag"),
        Column("reconsumeTimes", "int", "reconsume_times"),
        Column("msgId", "string", "message_id"),
        Column("uniqueId", "string", "unique_id"),
        Column("commitLogOffset", "bigint", "physical_offset"),
        Column("bornHost", "string", "born_host"),
        Column("storeHost", "string", "store_host"),
        Column("brokerName", "string", "constant"),
        Column("bodyCrc", "int", "body_crc"),
        Column("preparedTransactionOffset", "bigint", "prepared_offset"),
    )
}

_KAFKA = {
    column.name: column
    for column in (
        Column("key", "binary", "keys"),
        Column("value", "binary", "body"),
        Column("topic", "string", "topic"),
        Column("partition", "int", "queue_id"),
        Column("offset", "bigint", "queue_offset"),
        Column("timestamp", "timestamp", "store_timestamp"),
        Column("timestampType", "int", "timestamp_type"),
        Column("headers", _HEADERS, "properties"),
    )
}

_MAY_BE_NULL = frozenset({"tags", "keys", "property", "unique_id"})
"""Kinds of columns that a message need not have. Of a column that is declared without nulls Spark looks for none."""

DEFAULT_COLUMNS = (
    "topic",
    "queueId",
    "queueOffset",
    "body",
    "tags",
    "keys",
    "bornTimestamp",
    "storeTimestamp",
)


def chosen_columns(options: ReadOptions) -> tuple[Column, ...]:
    """Return the columns that the options ask for.

    Raises:
        OptionError: one is unknown.
    """
    if options.kafka_schema:
        return tuple(column for name, column in _KAFKA.items() if options.include_properties or name != "headers")
    names = options.columns or DEFAULT_COLUMNS
    columns = [_named(name, "columns", options) for name in names]
    if options.include_properties and "properties" not in names:
        columns.append(_NATIVE["properties"])
    return tuple(columns)


def columns_of_schema(schema: StructType, options: ReadOptions) -> tuple[Column, ...]:
    """Return the columns of the schema that Spark has: ours, or what ``.schema(…)`` narrowed it to.

    Raises:
        OptionError: a field is unknown or of another type, or may be null and is declared not to be.
    """
    columns = []
    for field in schema.fields:
        column = _named(field.name, "schema", options)
        given = field.dataType.simpleString()
        if given != column.spark_type:
            raise OptionError("schema", f"the column {field.name} is {column.spark_type}, not {given}")
        if not field.nullable and column.kind in _MAY_BE_NULL:
            raise OptionError("schema", f"the column {field.name} may have nulls: leave NOT NULL out")
        columns.append(Column(column.name, column.spark_type, column.kind, column.property, field.nullable))
    return tuple(columns)


def _named(name: str, option: str, options: ReadOptions) -> Column:
    if options.kafka_schema:
        known = _KAFKA
    else:
        known = _NATIVE
        if name.startswith(PROPERTY_PREFIX) and len(name) > len(PROPERTY_PREFIX):
            return Column(name, "string", "property", name[len(PROPERTY_PREFIX) :])
        if name == "brokerName":
            if options.name_servers:
                return Column(name, "string", "constant", "")
            if options.broker_name is None:
                raise OptionError("brokerName", "a store does not know its broker's name: give it for this column")
            return Column(name, "string", "constant", options.broker_name)
    found = known.get(name)
    if found is None:
        lower = {one.lower(): one for one in known}
        close = difflib.get_close_matches(name.lower(), lower, n=1)
        hint = f"did you mean {lower[close[0]]}?" if close else f"there are {', '.join(known)}"
        more = "" if options.kafka_schema else ", and prop:NAME for a property"
        raise OptionError(option, f"there is no column {name!r}; {hint}{'' if close else more}")
    return found


def ddl(columns: Sequence[Column]) -> str:
    """Return the schema as Spark's DDL."""
    return ", ".join(f"`{column.name.replace('`', '``')}` {column.spark_type}" for column in columns)


def spark_arrow_schema(columns: Sequence[Column]) -> pa.Schema:
    """Return the Arrow schema that Spark derives from its own, to which batches must be equal."""
    import pyarrow as pa

    types: dict[str, Any] = {
        "string": pa.string(),
        "int": pa.int32(),
        "bigint": pa.int64(),
        "binary": pa.binary(),
        "timestamp": pa.timestamp("us", tz="UTC"),
        "map<string,string>": pa.map_(pa.string(), pa.string()),
        _HEADERS: pa.list_(pa.struct([pa.field("key", pa.string()), pa.field("value", pa.binary())])),
    }
    return pa.schema([pa.field(column.name, types[column.spark_type], column.nullable) for column in columns])
