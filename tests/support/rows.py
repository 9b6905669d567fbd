"""A scan's rows as a reader of messages gives them: the expected result of a scan."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from datetime import datetime, timedelta, timezone
from typing import Any

import cometmq

__all__ = ["ALL_COLUMNS", "row_of", "rows_of", "table_rows"]

ALL_COLUMNS = (
    "topic",
    "queue_id",
    "queue_offset",
    "body",
    "tags",
    "keys",
    "born_timestamp",
    "store_timestamp",
    "properties",
    "flag",
    "sys_flag",
    "reconsume_times",
    "message_id",
    "unique_id",
    "physical_offset",
    "born_host",
    "store_host",
    "body_crc",
    "body_bytes",
    "prepared_transaction_offset",
    "prop:region",
)

_EPOCH = datetime(1970, 1, 1, tzinfo=timezone.utc)


def _host(host: tuple[str, int]) -> str:
    address, port = host
    return f"[{address}]:{port}" if ":" in address else f"{address}:{port}"


def _time(timestamp_ms: int) -> datetime:
    return _EPOCH + timedelta(milliseconds=timestamp_ms)


def row_of(message: cometmq.Message, *, raw: bool = False) -> dict[str, Any]:
    """Return what a scan with :data:`ALL_COLUMNS` must say of a message."""
    crc = message.body_crc
    return {
        "topic": message.topic,
        "queue_id": message.queue_id,
        "queue_offset": message.queue_offset,
        "body": bytes(message.raw_body if raw else message.body),
        "tags": message.tags,
        "keys": message.properties.get("KEYS"),
        "born_timestamp": _time(message.born_timestamp_ms),
        "store_timestamp": _time(message.store_timestamp_ms),
        "properties": list(message.properties.items()),
        "flag": message.flag,
        "sys_flag": message.sys_flag,
        "reconsume_times": message.reconsume_times,
        "message_id": message.message_id,
        "unique_id": message.unique_id,
        "physical_offset": message.physical_offset,
        "born_host": _host(message.born_host),
        "store_host": _host(message.store_host),
        "body_crc": crc - (1 << 32) if crc >= 1 << 31 else crc,
        "body_bytes": len(message.raw_body),
        "prepared_transaction_offset": message.prepared_transaction_offset,
        "prop:region": message.properties.get("region"),
    }


def rows_of(messages: Iterable[cometmq.Message], *, raw: bool = False) -> list[dict[str, Any]]:
    """Return :func:`row_of` of messages."""
    return [row_of(message, raw=raw) for message in messages]


def table_rows(table: Any) -> list[dict[str, Any]]:
    """Return a table as dictionaries, after Arrow has looked through all of it."""
    table.validate(full=True)
    return list(_rows(table))


def _rows(table: Any) -> Iterator[dict[str, Any]]:
    for batch in table.to_batches():
        yield from batch.to_pylist()
