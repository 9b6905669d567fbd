"""fastjson's dialect of JSON, in and out: ``loads``, ``dumps`` and ``encode``, with the types that they share."""

from __future__ import annotations

from cometmq.store_config.fastjson_reader import loads
from cometmq.store_config.fastjson_writer import bean, dumps, encode
from cometmq.store_config.json_types import (
    BODY_LIMITS,
    DEFAULT_LIMITS,
    REQUEST_LIMITS,
    JavaList,
    JsonKey,
    JsonObject,
    JsonValue,
    Layout,
    Limits,
    ObjectKey,
)

__all__ = [
    "BODY_LIMITS",
    "DEFAULT_LIMITS",
    "REQUEST_LIMITS",
    "JavaList",
    "JsonKey",
    "JsonObject",
    "JsonValue",
    "Layout",
    "Limits",
    "ObjectKey",
    "bean",
    "dumps",
    "encode",
    "loads",
]
