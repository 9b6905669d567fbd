"""Where reading begins and ends: offsets as JSON, and their meaning for the queues that are there.

A position is a queue's *next* offset to read, so an end is exclusive. In JSON::

    {"orders": {"0": 23, "1": -2}}                topic, queue, offset; -2 is earliest, -1 latest
    {"orders": {"broker-a": {"0": 23}}}           the same with the broker between, as rocketmq-spark has it

A stream's offset is ``{"orders/0": 23}``, of brokers ``{"orders/broker-a/0": 23}``: one text per queue, since Spark
keeps it as JSON, whose names are texts. Beside it stands the *mark* of the queue, ``"orders/0@": 1700000000000``: when
the last message before the position was stored. It distinguishes a queue that was deleted and made again from one that
grew.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple, TypeAlias

from cometmq.spark.errors import OptionError
from cometmq.store.options import INT32_MAX, INT64_MAX

__all__ = [
    "EARLIEST",
    "LATEST",
    "Marks",
    "Position",
    "QueueKey",
    "decode_marks",
    "decode_stream_offset",
    "encode_stream_offset",
    "parse_assigned",
    "parse_offsets",
]


class QueueKey(NamedTuple):
    """A queue; ``broker`` is empty in a store, which does not know whose it is."""

    topic: str
    queue_id: int
    broker: str = ""

    def __str__(self) -> str:
        """Name it as a stream's offset does."""
        return f"{self.topic}/{self.broker}/{self.queue_id}" if self.broker else f"{self.topic}/{self.queue_id}"

    @property
    def named(self) -> str:
        """The queue as part of a sentence."""
        where = f" at {self.broker}" if self.broker else ""
        return f"queue {self.queue_id} of {self.topic!r}{where}"


Position: TypeAlias = dict[QueueKey, int]

EARLIEST = -2
LATEST = -1
_WORDS = {"earliest": EARLIEST, "latest": LATEST}


def parse_offsets(text: str, option: str, *, lowest: int = EARLIEST) -> int | Position:
    """Return EARLIEST or LATEST for a word, or each queue's number for JSON, with its broker where that is said.

    Args:
        text: the option's value.
        option: its name, for errors.
        lowest: smallest number allowed: EARLIEST, or 0 for timestamps, which have no words either.

    Raises:
        OptionError: neither a word nor such a JSON.
    """
    if lowest == EARLIEST and text.lower() in _WORDS:
        return _WORDS[text.lower()]
    topics = _json_object(text, option, words=lowest == EARLIEST)
    found: Position = {}
    for topic, queues in topics.items():
        if not isinstance(queues, dict):
            raise OptionError(option, f"the topic {topic!r} needs its queues: {json.dumps({topic: {'0': 23}})}")
        for name, value in queues.items():
            broker, pairs = (name, value.items()) if isinstance(value, dict) else ("", ((name, value),))
            for queue, number in pairs:
                key = QueueKey(topic, _queue_id(queue, topic, option), broker)
                found[key] = _number(number, key, option, lowest)
    return found


def _json_object(text: str, option: str, *, words: bool) -> dict[str, Any]:
    try:
        content = json.loads(text)
    except ValueError as error:
        either = "neither earliest nor latest nor JSON" if words else "not JSON"
        raise OptionError(option, f"{text!r} is {either} ({error})") from None
    if not isinstance(content, dict):
        raise OptionError(option, f'{text!r} is not a JSON object such as {{"orders": {{"0": 23}}}}')
    return content


def _queue_id(name: object, topic: str, option: str) -> int:
    text = str(name)
    if not (text.isascii() and text.isdigit() and int(text) <= INT32_MAX):
        raise OptionError(option, f"{name!r} is not a queue of {topic!r}: queues are numbers from 0 up, as texts")
    return int(text)


def _number(value: object, key: QueueKey, option: str, lowest: int) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or not lowest <= value <= INT64_MAX:
        what = "an offset from 0 up, -2 (earliest) or -1 (latest)" if lowest < 0 else "a time in milliseconds"
        raise OptionError(option, f"{value!r} for {key.named} is not {what}")
    return value


def parse_assigned(text: str) -> dict[str, frozenset[int]]:
    """Return topics and their queues: ``{"orders": [0, 1]}``.

    Raises:
        OptionError: the text is not of that form.
    """
    option = "assign"
    found = {}
    for topic, queues in _json_object(text, option, words=False).items():
        if not isinstance(queues, list) or not queues:
            example = json.dumps({topic: [0, 1]})
            raise OptionError(option, f"the topic {topic!r} needs a list of its queues: {example}")
        found[topic] = frozenset(_queue_id(queue, topic, option) for queue in queues)
    if not found:
        raise OptionError(option, "names no topic")
    return found


# --- Streams


Marks: TypeAlias = dict[QueueKey, int]
"""Store time of the last message before a position, in milliseconds, of the queues where it is known."""

_MARK = "@"


def encode_stream_offset(position: Position, marks: Marks | None = None) -> dict[str, int]:
    """Return a position as Spark keeps it. Equal positions give equal JSON."""
    encoded = {str(key): position[key] for key in sorted(position)}
    return encoded | {f"{key}{_MARK}": mark for key, mark in sorted((marks or {}).items())}


def decode_stream_offset(offset: Mapping[str, Any]) -> Position:
    """Return the position that :func:`encode_stream_offset` wrote."""
    return {_queue_key(name): int(value) for name, value in offset.items() if not name.endswith(_MARK)}


def decode_marks(offset: Mapping[str, Any]) -> Marks:
    """Return the marks beside a position; none in a checkpoint of an earlier version."""
    return {_queue_key(name[: -len(_MARK)]): int(value) for name, value in offset.items() if name.endswith(_MARK)}


def _queue_key(name: str) -> QueueKey:
    # No topic has a slash; a broker's name might.
    rest, _, queue = name.rpartition("/")
    topic, _, broker = rest.partition("/")
    return QueueKey(topic, int(queue), broker)


def queue_names(keys: Iterable[QueueKey], *, most: int = 5) -> str:
    """Return queues as a text for people."""
    listed = sorted(keys)
    names = ", ".join(map(str, listed[:most]))
    return names if len(listed) <= most else f"{names} and {len(listed) - most} more"
