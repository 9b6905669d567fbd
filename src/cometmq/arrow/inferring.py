"""The schema of JSON bodies, from a sample of them: the oldest and the newest of each queue.

A field gets the narrowest type that holds all its values of the sample: ``double`` where any number has a fraction.
Texts stay texts, also those that look like times. Fields that no type holds (an object here, a number there) are left
out, and those whose names no column can have: the empty one, and halves of surrogate pairs, which are not UTF-8.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from cometmq.arrow.columns import Column
from cometmq.arrow.count import offsets_of
from cometmq.arrow.libraries import library
from cometmq.arrow.scan import Query, ScanPass
from cometmq.errors import InvalidArgument

if TYPE_CHECKING:
    from cometmq._engine import StoreHandle

__all__ = ["infer_schema", "schema_of"]

_SAMPLE = 2000
_DEEPEST = 20


def infer_schema(handle: StoreHandle, topics: tuple[str, ...], queue_ids: tuple[int, ...] = ()) -> Any:
    """Return the ``pyarrow.Schema`` of topics whose bodies are JSON objects.

    Raises:
        InvalidArgument: no body of the sample is an object with a field.
    """
    column = Column("body", "plain", "body")
    query = Query(columns=(column,), topics=topics, queue_ids=queue_ids, skip_corrupt=True)
    queues = [(topic, queue, low, high) for topic, queue, low, high in offsets_of(handle, query) if low < high]
    half = max(_SAMPLE // 2 // max(len(queues), 1), 1)
    ranges = []
    for topic, queue, low, high in queues:
        middle = min(low + half, high)
        ranges += [(topic, queue, low, middle), (topic, queue, max(high - half, middle), high)]
    bodies: list[bytes] = []
    with ScanPass(handle, replace(query, topics=(), queue_ids=(), ranges=tuple(ranges))) as run:
        while len(bodies) < 2 * _SAMPLE and (batch := run.next()) is not None:
            bodies += batch.column("body").to_pylist()
    found = schema_of(bodies)
    if found is None:
        names = " and ".join(topics) or "all topics"
        raise InvalidArgument(
            f"cannot infer a schema of {names}: none of the {len(bodies):,} bodies of the sample is a JSON object with "
            "fields; give the schema"
        )
    return found


def schema_of(bodies: Iterable[bytes]) -> Any | None:
    """Return the schema of the bodies that are JSON objects; None where none has a field that a type holds."""
    merged: dict[str, Any] = {}
    for body in bodies:
        try:
            value = json.loads(body)
        except (ValueError, RecursionError):
            continue
        if isinstance(value, dict):
            _merge_fields(merged, value, 0)
    fields = [(name, kind) for name, one in merged.items() if (kind := _type_of(one)) is not None]
    return library("pyarrow").schema(fields) if fields else None


_MIXED = "mixed"
_SURROGATE = re.compile("[\ud800-\udfff]")


def _merge_fields(into: dict[str, Any], value: dict[str, Any], depth: int) -> None:
    for name, one in value.items():
        if name and not _SURROGATE.search(name):
            into[name] = _merge(into.get(name), one, depth)


def _merge(known: Any, value: Any, depth: int) -> Any:
    """Return the kind of both: None (only null), a type's name, a dict of fields, or a list of the elements' kind."""
    if value is None or known == _MIXED:
        return known
    if isinstance(value, (dict, list)):
        if depth == _DEEPEST or (known is not None and type(known) is not type(value)):
            return _MIXED
        if isinstance(value, dict):
            fields: dict[str, Any] = known if isinstance(known, dict) else {}
            _merge_fields(fields, value, depth + 1)
            return fields
        element = known[0] if isinstance(known, list) else None
        for one in value:
            element = _merge(element, one, depth + 1)
        return [element]
    if isinstance(known, (dict, list)):
        return _MIXED
    kind = _scalar(value)
    if known in (None, kind):
        return kind
    return (
        "float64"
        if {known, kind} == {"int64", "float64"}
        else "string"
        if {known, kind} == {"int64", "string"}
        else _MIXED
    )


def _scalar(value: Any) -> str:
    if isinstance(value, bool):
        return "bool"
    if isinstance(value, int):
        return "int64" if -(1 << 63) <= value < 1 << 63 else "float64"
    return "float64" if isinstance(value, float) else "string"


def _type_of(kind: Any) -> Any | None:
    pa = library("pyarrow")
    if kind is None:
        return pa.string()  # only null so far
    if kind == _MIXED:
        return None
    if isinstance(kind, list):
        element = _type_of(kind[0])
        return None if element is None else pa.list_(element)
    if isinstance(kind, dict):
        fields = [(name, found) for name, one in kind.items() if (found := _type_of(one)) is not None]
        return pa.struct(fields) if fields else None
    return pa.type_for_alias(kind)
