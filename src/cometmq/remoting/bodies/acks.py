"""Acknowledgements of many POP messages at once: code 200151.

Source: remoting specification 5.11.
"""

from __future__ import annotations

import base64
import binascii
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from cometmq.remoting.bodies.body import Body, Codec, body_codec, int32, int64, list_of, text, value_of
from cometmq.store_config.errors import ConfigValueError
from cometmq.store_config.fastjson import JsonKey, JsonObject, JsonValue
from cometmq.store_config.fields import Fields

__all__ = ["BatchAck", "BatchAckMessageRequestBody", "BitSet"]

_BITS_MAX = 1 << 16


@dataclass(frozen=True, slots=True)
class BitSet:
    """A ``java.util.BitSet``; bit i of ``bits`` is bit i of the set."""

    bits: int = 0

    def __iter__(self) -> Iterator[int]:
        """Iterate over the numbers in the set, the least first."""
        return (number for number in range(self.bits.bit_length()) if self.bits >> number & 1)


class _Bits(Codec[BitSet]):
    """Base64 of the bytes, the lowest first, without the zeros at the end."""

    def read(self, fields: Fields, name: JsonKey) -> BitSet | None:
        if not fields.has(name):
            return None
        try:
            data = base64.b64decode(fields.text(name, ""), validate=True)
        except (binascii.Error, ValueError) as error:
            raise ConfigValueError(f"expected base64: {error}", member=fields.member(name)) from error
        if len(data) * 8 > _BITS_MAX:
            raise ConfigValueError(f"a set of more than {_BITS_MAX} bits", member=fields.member(name))
        return BitSet(int.from_bytes(data, "little"))

    def write(self, value: BitSet) -> JsonValue:
        data = value.bits.to_bytes((value.bits.bit_length() + 7) // 8, "little")
        return base64.b64encode(data).decode("ascii")


_LONG_NAMES: Mapping[str, str] = {
    "consumerGroup": "c",
    "topic": "t",
    "retry": "r",
    "startOffset": "so",
    "queueId": "q",
    "reviveQueueId": "rq",
    "popTime": "pt",
    "invisibleTime": "it",
    "bitSet": "b",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchAck(Body):
    """Messages of one queue that one POP gave.

    Attributes:
        consumer_group: the group.
        topic: the topic that was asked for, also for messages of its retry topic.
        retry: kind of topic: ``0`` normal, ``1`` and ``2`` retry topics of the two forms.
        start_offset: the queue offset that bit 0 stands for.
        queue_id: the queue.
        revive_queue_id: the revive queue of the POP.
        pop_time_ms: time of the POP.
        invisible_time_ms: how long the messages are hidden.
        acknowledged: offsets behind ``start_offset``.
    """

    consumer_group: str = text("c")
    topic: str = text("t")
    retry: str = text("r", "0")
    start_offset: int = int64("so")
    queue_id: int = int32("q")
    revive_queue_id: int = int32("rq")
    pop_time_ms: int = int64("pt")
    invisible_time_ms: int = int64("it")
    acknowledged: BitSet = value_of("b", _Bits(), BitSet())

    @classmethod
    def decode(cls, fields: Fields) -> BatchAck:
        """Read it by the short names, or by the long ones that Java takes as well."""
        members: JsonObject = {}
        for name in fields.names():
            members.setdefault(_LONG_NAMES.get(str(name), name), fields.value(name))
        return super(BatchAck, cls).decode(fields.renamed(members))


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchAckMessageRequestBody(Body):
    """All acknowledgements for one broker."""

    broker_name: str = text("brokerName")
    acks: tuple[BatchAck, ...] = list_of("acks", body_codec(BatchAck))
