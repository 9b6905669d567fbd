"""How messages are written for people and scripts: as a line, as JSON, as their body alone, or by a template.

Threads: any; the encoders have no state.
"""

from __future__ import annotations

import base64
import enum
import json
import string
from collections.abc import Callable
from typing import Any, TypeAlias

import typer

import cometmq
from cometmq._engine import ReceivedMessage
from cometmq.cli.terminal import safe_text, time_text
from cometmq.errors import DecompressionError, Error

__all__ = ["Encoder", "Format", "delimiter_of", "encoder_of", "message_fields", "template_of"]

Encoder: TypeAlias = Callable[[cometmq.Message], bytes]
"""Makes of a message what is written of it."""


class Format(enum.Enum):
    """How messages are written."""

    TEXT = "text"
    JSON = "json"
    RAW = "raw"


def delimiter_of(text: str) -> bytes:
    """Return what stands behind each raw body; ``\\n``, ``\\t``, ``\\r`` and ``\\0`` are understood."""
    return _with_escapes(text).encode("utf-8", "surrogateescape")


def _with_escapes(text: str) -> str:
    for escape, meaning in (("\\n", "\n"), ("\\t", "\t"), ("\\r", "\r"), ("\\0", "\0")):
        text = text.replace(escape, meaning)
    return text


def encoder_of(output: Format, *, delimiter: bytes, with_body: bool = True) -> Encoder:
    """Return what writes messages in a format.

    Args:
        output: the format.
        delimiter: stands behind each raw body.
        with_body: False leaves bodies out of text and JSON.
    """
    if output is Format.RAW:
        return lambda message: _body(message)[0] + delimiter
    if output is Format.JSON:
        return lambda message: (
            json.dumps(message_fields(message, with_body=with_body), ensure_ascii=False) + "\n"
        ).encode("utf-8", "replace")
    return lambda message: (_text_line(message, with_body=with_body) + "\n").encode("utf-8", "replace")


def _body(message: cometmq.Message) -> tuple[bytes, str | None]:
    """Return the body, decompressed, or the stored bytes and why they cannot be decompressed."""
    try:
        return message.body_bytes, None
    except (DecompressionError, Error) as error:
        return bytes(message.raw_body), str(error)


def _host_text(host: tuple[str, int]) -> str:
    address, port = host
    return f"[{address}]:{port}" if ":" in address else f"{address}:{port}"


def message_fields(message: cometmq.Message, *, with_body: bool = True) -> dict[str, Any]:
    """Return everything about a message, as ``--format json`` prints it."""
    body, problem = _body(message)
    fields: dict[str, Any] = {
        "topic": message.topic,
        "queue_id": message.queue_id,
        "queue_offset": message.queue_offset,
        "physical_offset": message.physical_offset,
        "record_bytes": message.record_bytes,
        "message_id": message.message_id,
        "unique_id": message.unique_id,
        "tags": message.tags,
        "keys": list(message.keys),
        "properties": dict(message.properties),
        "store_timestamp_ms": message.store_timestamp_ms,
        "born_timestamp_ms": message.born_timestamp_ms,
        "store_host": _host_text(message.store_host),
        "born_host": _host_text(message.born_host),
        "flag": message.flag,
        "sys_flag": message.sys_flag,
        "reconsume_times": message.reconsume_times,
        "prepared_transaction_offset": message.prepared_transaction_offset,
        "body_crc": message.body_crc,
        "body_bytes": len(body),
    }
    if isinstance(message, ReceivedMessage):
        fields["broker_name"] = message.broker_name
    if with_body:
        fields["body_encoding"], fields["body"] = _body_text(body)
    if problem is not None:
        fields["body_problem"] = problem
    return fields


def _body_text(body: bytes) -> tuple[str, str]:
    """Return a body as text, behind how it is encoded."""
    try:
        return "utf-8", body.decode("utf-8")
    except UnicodeDecodeError:
        return "base64", base64.b64encode(body).decode("ascii")


def _text_line(message: cometmq.Message, *, with_body: bool) -> str:
    body, problem = _body(message)
    text = ""
    if with_body:
        encoding, text = _body_text(body)
        text = " " + (safe_text(text) if encoding == "utf-8" else f"base64:{text}")
    place = f"{safe_text(message.topic)}/{message.queue_id}@{message.queue_offset}"
    tags = f" [{safe_text(message.tags)}]" if message.tags else ""
    keys = f" ({safe_text(' '.join(message.keys))})" if message.keys else ""
    note = f" <{safe_text(problem)}>" if problem is not None else ""
    return f"{time_text(message.store_timestamp_ms)} {place}{tags}{keys}{text}{note}"


# --- Templates --------------------------------------------------------------------------------------------------------

_FIELDS: dict[str, Callable[[cometmq.Message], object]] = {
    "topic": lambda message: message.topic,
    "queue": lambda message: message.queue_id,
    "offset": lambda message: message.queue_offset,
    "broker": lambda message: message.broker_name if isinstance(message, ReceivedMessage) else "",
    "tags": lambda message: message.tags or "",
    "keys": lambda message: " ".join(message.keys),
    "id": lambda message: message.unique_id or message.message_id,
    "time": lambda message: time_text(message.store_timestamp_ms),
    "time_ms": lambda message: message.store_timestamp_ms,
    "born": lambda message: time_text(message.born_timestamp_ms),
    "born_ms": lambda message: message.born_timestamp_ms,
    "retries": lambda message: message.reconsume_times,
    "bytes": lambda message: len(_body(message)[0]),
    "properties": lambda message: json.dumps(dict(message.properties), ensure_ascii=False),
}
_BODY = "body"
_PROPERTY = "property."


def template_of(text: str) -> Encoder:
    """Return what writes messages by a template such as ``{topic}/{queue}@{offset} {body}\\n``.

    Names in braces are fields, ``{property.NAME}`` is a property, ``{offset:>8}`` is Python's format; braces are
    doubled to stand for themselves. The body goes out as its bytes, all else as UTF-8. A line end has to be written.

    Raises:
        typer.BadParameter: there is no such field, or the braces do not match.
    """
    try:
        pieces = [_piece(*parts) for parts in string.Formatter().parse(_with_escapes(text))]
    except ValueError as error:
        raise typer.BadParameter(f"invalid template {text!r}: {error}") from None
    return lambda message: b"".join([piece(message) for piece in pieces])


def _piece(literal: str, name: str | None, spec: str | None, conversion: str | None) -> Encoder:
    before = literal.encode("utf-8", "surrogateescape")
    if name is None:
        return lambda message: before
    if conversion is not None:
        raise typer.BadParameter(f"templates do not support conversions: {{{name}!{conversion}}}")
    if name == _BODY:
        if spec:
            raise typer.BadParameter("{body} is written as bytes and takes no format")
        return lambda message: before + _body(message)[0]
    value = _value_of(name)
    form = spec or ""
    for sample in ("", 0):  # a text or a number: one of them has to take the format
        try:
            format(sample, form)
            break
        except ValueError:
            continue
    else:
        raise typer.BadParameter(f"{{{name}:{form}}} is not a format for text or numbers")
    return lambda message: before + _formatted(value(message), form)


def _formatted(value: object, form: str) -> bytes:
    try:
        text = format(value, form)
    except ValueError:  # a number's format for a value that is not a number
        text = str(value)
    return text.encode("utf-8", "replace")


def _value_of(name: str) -> Callable[[cometmq.Message], object]:
    if name.startswith(_PROPERTY):
        wanted = name.removeprefix(_PROPERTY)
        return lambda message: message.properties.get(wanted, "")
    value = _FIELDS.get(name)
    if value is None:
        known = ", ".join([*_FIELDS, _BODY, f"{_PROPERTY}NAME"])
        raise typer.BadParameter(f"unknown template field {{{name}}}; known fields: {known}")
    return value
