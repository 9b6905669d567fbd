"""One topic's configuration as ``topics.json`` has it, and the rules of its attributes."""

from __future__ import annotations

import enum
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TypeVar, cast

from cometmq.errors import InvalidArgument
from cometmq.store_config.errors import ConfigValueError
from cometmq.store_config.fastjson import JsonKey, JsonObject, JsonValue, bean
from cometmq.store_config.fields import INT64_MAX, Fields

__all__ = ["CleanupPolicy", "MessageType", "Perm", "QueueType", "TopicConfig", "alter_attributes"]

E = TypeVar("E", bound=enum.Enum)


class Perm(enum.IntFlag):
    """Permitted operations on a topic or broker."""

    INHERIT = 1
    WRITE = 2
    READ = 4
    PRIORITY = 8


class QueueType(enum.Enum):
    """Attribute ``queue.type``: which consume queue files the topic has. Fixed when the topic is made."""

    SIMPLE = "SimpleCQ"
    BATCH = "BatchCQ"


class CleanupPolicy(enum.Enum):
    """Attribute ``cleanup.policy``. Fixed when the topic is made."""

    DELETE = "DELETE"
    COMPACTION = "COMPACTION"


class MessageType(enum.Enum):
    """Attribute ``message.type``: the messages that a 5.x proxy lets clients send."""

    UNSPECIFIED = "UNSPECIFIED"
    NORMAL = "NORMAL"
    FIFO = "FIFO"
    DELAY = "DELAY"
    TRANSACTION = "TRANSACTION"
    MIXED = "MIXED"


_KNOWN = (
    "attributes",
    "order",
    "perm",
    "readQueueNums",
    "topicFilterType",
    "topicName",
    "topicSysFlag",
    "writeQueueNums",
)


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicConfig:
    """A topic. Immutable: change it with ``dataclasses.replace`` and :meth:`Topics.put`.

    Attributes:
        topic_name: the name.
        read_queue_nums: queues offered to consumers.
        write_queue_nums: queues offered to producers.
        perm: permissions, bits of :class:`Perm`; unknown bits are kept.
        topic_filter_type: a left-over of early versions, ``SINGLE_TAG`` or ``MULTI_TAG``.
        topic_sys_flag: bit 0 unit, bit 1 unit subscription.
        order: True for a topic whose order across queues is kept through the name server.
        attributes: 5.x attributes, keys without prefix. Do not change it in place.
        unknown: members that this version of CometMQ does not know; kept when the file is written again.
    """

    topic_name: str
    read_queue_nums: int = 16
    write_queue_nums: int = 16
    perm: int = Perm.READ | Perm.WRITE
    topic_filter_type: str = "SINGLE_TAG"
    topic_sys_flag: int = 0
    order: bool = False
    attributes: Mapping[str, str] = field(default_factory=dict)
    unknown: Mapping[JsonKey, JsonValue] = field(default_factory=dict, compare=False)

    @property
    def queue_type(self) -> QueueType:
        """Which consume queue files the topic has. ConfigValueError where the attribute has another value."""
        return self._attribute("queue.type", QueueType.SIMPLE)

    @property
    def cleanup_policy(self) -> CleanupPolicy:
        """How old messages go. ConfigValueError where the attribute has another value."""
        return self._attribute("cleanup.policy", CleanupPolicy.DELETE)

    @property
    def message_type(self) -> MessageType:
        """The type of the topic's messages. ConfigValueError where the attribute has another value."""
        return self._attribute("message.type", MessageType.NORMAL)

    def _attribute(self, name: str, default: E) -> E:
        value = self.attributes.get(name)
        if value is None:
            return default
        for choice in type(default):
            if choice.value == value:
                return choice
        member = f"topicConfigTable.{self.topic_name}.attributes.{name}"
        raise ConfigValueError(f"{value!r} is none of {_choices(type(default))}", member=member)

    @property
    def is_readable(self) -> bool:
        """True when consumers may read."""
        return bool(self.perm & Perm.READ)

    @property
    def is_writable(self) -> bool:
        """True when producers may send."""
        return bool(self.perm & Perm.WRITE)

    @staticmethod
    def decode(fields: Fields, *, name: str) -> TopicConfig:
        """Read one entry of ``topicConfigTable``; ``name`` is its key, used where the entry has no name of its own."""
        return TopicConfig(
            topic_name=fields.text("topicName", name),
            read_queue_nums=fields.int32("readQueueNums", 16),
            write_queue_nums=fields.int32("writeQueueNums", 16),
            perm=fields.int32("perm", Perm.READ | Perm.WRITE),
            topic_filter_type=fields.text("topicFilterType", "SINGLE_TAG"),
            topic_sys_flag=fields.int32("topicSysFlag", 0),
            order=fields.boolean("order", False),
            attributes=fields.texts("attributes"),
            unknown=fields.others(_KNOWN),
        )

    def encode(self) -> JsonObject:
        """Return the entry as upstream's 5.3 line writes it."""
        known: dict[str, JsonValue] = {
            "attributes": cast(JsonObject, dict(self.attributes)),
            "order": self.order,
            "perm": int(self.perm),
            "readQueueNums": self.read_queue_nums,
            "topicFilterType": self.topic_filter_type,
            "topicName": self.topic_name,
            "topicSysFlag": self.topic_sys_flag,
            "writeQueueNums": self.write_queue_nums,
        }
        return bean(known, self.unknown)


def _choices(kind: type[enum.Enum]) -> str:
    return ", ".join(str(choice.value) for choice in kind)


_ENUM_ATTRIBUTES: dict[str, type[enum.Enum]] = {
    "queue.type": QueueType,
    "cleanup.policy": CleanupPolicy,
    "message.type": MessageType,
}
_FIXED_ATTRIBUTES = frozenset({"queue.type", "cleanup.policy"})
_RESERVE_TIME = "reserve.time"


def alter_attributes(current: Mapping[str, str] | None, changes: Mapping[str, str]) -> dict[str, str]:
    """Apply a request's attribute changes as upstream does.

    Args:
        current: the topic's attributes, or None for a topic that is being made.
        changes: ``+name`` to set, ``-name`` to delete (the value is not looked at).

    Raises:
        InvalidArgument: no or a wrong prefix, an unknown name, a name given twice, a fixed attribute changed, a value
            outside the attribute's range, a deletion of what is not there, or compaction, which is not supported.
    """
    result = dict(current or {})
    seen: set[str] = set()
    for key, value in changes.items():
        sign, name = key[:1], key[1:]
        _check_change(sign, name, creating=current is None)
        if name in seen:
            raise InvalidArgument(f"the attribute {name} is changed twice in one request")
        seen.add(name)
        if sign == "+":
            _check_value(name, value)
            result[name] = value
        elif name not in result:
            raise InvalidArgument(f"the topic has no attribute {name} to delete")
        else:
            del result[name]
    return result


def _check_change(sign: str, name: str, *, creating: bool) -> None:
    if sign not in ("+", "-") or (creating and sign == "-"):
        allowed = "+name" if creating else "+name or -name"
        raise InvalidArgument(f"an attribute change is written {allowed}, not {sign + name!r}")
    if name not in _ENUM_ATTRIBUTES and name != _RESERVE_TIME:
        known = ", ".join((*_ENUM_ATTRIBUTES, _RESERVE_TIME))
        raise InvalidArgument(f"there is no topic attribute {name!r}; known are {known}")
    if not creating and name in _FIXED_ATTRIBUTES:
        raise InvalidArgument(f"the attribute {name} is fixed when the topic is made")


def _check_value(name: str, value: str) -> None:
    kind = _ENUM_ATTRIBUTES.get(name)
    if kind is not None:
        if value not in {choice.value for choice in kind}:
            raise InvalidArgument(f"the attribute {name} is one of {_choices(kind)}, not {value!r}")
        if value == CleanupPolicy.COMPACTION.value:
            raise InvalidArgument(f"{name}={value} is not supported: every version of a key would stay. Use DELETE")
        return
    digits = value.removeprefix("-")
    if not (digits.isascii() and digits.isdigit() and len(digits) < 20 and -1 <= int(value) <= INT64_MAX):
        raise InvalidArgument(f"the attribute {name} is a number of milliseconds, or -1, not {value!r}")
