"""A broker's registration with a name server (code 103), in its two forms.

The compressed form is one zlib stream of lengths and texts; a topic stands in it as
``name readQueues writeQueues perm filterType attributes``, so that its order and system flag are lost.

Source: remoting specification 5.4.
"""

from __future__ import annotations

import struct
import zlib
from dataclasses import dataclass, replace
from typing import cast

from cometmq.errors import MalformedBody
from cometmq.remoting.bodies.body import REQUEST_LIMITS, TEXT, Body, decode_body, list_of, nested
from cometmq.remoting.bodies.config_tables import (
    TopicConfigAndMappingSerializeWrapper,
    TopicConfigSerializeWrapper,
    decode_data_version,
)
from cometmq.remoting.bodies.routes import TopicQueueMappingInfo
from cometmq.store_config.data_version import DataVersion
from cometmq.store_config.fastjson import JsonObject, Layout, dumps, encode
from cometmq.store_config.fields import INT32_MAX, INT32_MIN, Fields, as_int
from cometmq.store_config.topic_config import TopicConfig

__all__ = [
    "INFLATED_BYTES_MAX",
    "REGISTERED_OTHERS_MAX",
    "REGISTERED_TOPICS_MAX",
    "RegisterBrokerBody",
    "body_checksum",
]

INFLATED_BYTES_MAX = 32 << 20
"""Longest compressed body once inflated."""
REGISTERED_TOPICS_MAX = 200_000
"""Topics of one registration; 200,000 inflate to about 12 MiB."""
REGISTERED_OTHERS_MAX = 10_000
"""Filter servers of one registration, and mappings of static topics."""

_LIMITS = replace(REQUEST_LIMITS, parts=1_000_000)
_STRICT = replace(REQUEST_LIMITS, lenient_chars=0)
_LENIENT_BYTES_MAX = 1 << 20
"""All mappings of one registration together: fastjson writes them with bare keys, which takes the lenient reader."""

_ZLIB_FIRST_BYTE = 0x78
_WHOLE_BODY_VERSION = 37
_MAPPINGS_VERSION = 413
_LENGTH = struct.Struct(">i")
_TOPIC_FIELDS_MIN = 5
_FILTER_TYPES = ("SINGLE_TAG", "MULTI_TAG")


def body_checksum(body: bytes) -> int:
    """Return what ``bodyCrc32`` says of a body as it is transmitted: the CRC without its highest bit."""
    return zlib.crc32(body) & 0x7FFFFFFF


@dataclass(frozen=True, slots=True, kw_only=True)
class RegisterBrokerBody(Body):
    """A broker's topics, and its filter servers, which no broker has any more."""

    wrapper: TopicConfigAndMappingSerializeWrapper = nested(
        "topicConfigSerializeWrapper", TopicConfigAndMappingSerializeWrapper()
    )
    filter_servers: tuple[str, ...] = list_of("filterServerList", TEXT)

    @staticmethod
    def from_wire(body: bytes, *, version: int) -> RegisterBrokerBody:
        """Read the body of a registration, compressed or not: a compressed one begins with a byte that no JSON has.

        5.x brokers say ``compressed=false`` also of a compressed body, so that the header is not asked.

        Args:
            body: the body.
            version: the request's; before 37 (3.0.11) there is nothing but the table of topics, and 413 (5.0.0) and
                later have mappings of static topics behind the topics of a compressed body.

        Raises:
            MalformedBody: it is neither, a length in it lies, it inflates to more than :data:`INFLATED_BYTES_MAX`, or
                it has too many topics, filter servers or mappings.
        """
        if version < _WHOLE_BODY_VERSION:
            alone = decode_body("TopicConfigSerializeWrapper", body, TopicConfigSerializeWrapper.decode, limits=_LIMITS)
            _check_count("topics", len(alone.topics), REGISTERED_TOPICS_MAX)
            return RegisterBrokerBody(
                wrapper=TopicConfigAndMappingSerializeWrapper(topics=alone.topics, data_version=alone.data_version)
            )
        if body[:1] == bytes([_ZLIB_FIRST_BYTE]):
            return _Inflated(_inflate(body)).read(with_mappings=version >= _MAPPINGS_VERSION)
        read = decode_body("RegisterBrokerBody", body, RegisterBrokerBody.decode, limits=_LIMITS)
        _check_count("topics", len(read.wrapper.topics), REGISTERED_TOPICS_MAX)
        _check_count("filter servers", len(read.filter_servers), REGISTERED_OTHERS_MAX)
        _check_count("mappings", len(read.wrapper.queue_mappings), REGISTERED_OTHERS_MAX)
        return read

    def to_compressed(self) -> bytes:
        """Return the compressed form."""
        wrapper = self.wrapper
        parts = [
            _counted(encode(wrapper.data_version.encode(), layout=Layout.COMPACT)),
            _LENGTH.pack(len(wrapper.topics)),
            *(_counted(_topic_text(topic)) for topic in wrapper.topics.values()),
            _counted(encode(list(self.filter_servers), layout=Layout.COMPACT)),
            _LENGTH.pack(len(wrapper.queue_mappings)),
            *(_counted(mapping.to_json()) for mapping in wrapper.queue_mappings.values()),
        ]
        return zlib.compress(b"".join(parts), zlib.Z_BEST_COMPRESSION)


def _check_count(kind: str, count: int, most: int) -> None:
    if count > most:
        raise MalformedBody(f"RegisterBrokerBody: {count} {kind}; at most {most}")


def _counted(data: bytes) -> bytes:
    return _LENGTH.pack(len(data)) + data


def _topic_text(topic: TopicConfig) -> bytes:
    attributes = cast(JsonObject, dict(topic.attributes))
    words = (
        topic.topic_name,
        str(topic.read_queue_nums),
        str(topic.write_queue_nums),
        str(int(topic.perm)),
        topic.topic_filter_type,
        dumps(attributes, layout=Layout.COMPACT),
    )
    return " ".join(words).encode("utf-8", "replace")


def _inflate(body: bytes) -> bytes:
    stream = zlib.decompressobj()
    try:
        data = stream.decompress(body, INFLATED_BYTES_MAX + 1)
    except zlib.error as error:
        raise MalformedBody(f"RegisterBrokerBody: not a zlib stream: {error}") from error
    if len(data) > INFLATED_BYTES_MAX:
        raise MalformedBody(f"RegisterBrokerBody: it inflates to more than {INFLATED_BYTES_MAX} bytes")
    if not stream.eof:
        raise MalformedBody("RegisterBrokerBody: the zlib stream ends in the middle")
    return data


class _Inflated:
    """One pass over the inflated form."""

    def __init__(self, data: bytes) -> None:
        self._data = data
        self._at = 0

    def read(self, *, with_mappings: bool) -> RegisterBrokerBody:
        version = self._data_version()
        count = self._count("topics", REGISTERED_TOPICS_MAX)
        topics = {topic.topic_name: topic for topic in (self._topic() for _ in range(count))}
        servers = self._filter_servers()
        mappings: dict[str, TopicQueueMappingInfo] = {}
        if with_mappings:
            begin = self._at
            for _ in range(self._count("mappings", REGISTERED_OTHERS_MAX)):
                mapping = TopicQueueMappingInfo.from_request(self._piece("a mapping"))
                if self._at - begin > _LENIENT_BYTES_MAX:
                    raise MalformedBody(f"RegisterBrokerBody: the mappings have more than {_LENIENT_BYTES_MAX} bytes")
                mappings[mapping.topic] = mapping
        wrapper = TopicConfigAndMappingSerializeWrapper(topics=topics, data_version=version, queue_mappings=mappings)
        return RegisterBrokerBody(wrapper=wrapper, filter_servers=servers)

    def _data_version(self) -> DataVersion:
        return decode_body("RegisterBrokerBody", self._piece("the data version"), decode_data_version, limits=_STRICT)

    def _filter_servers(self) -> tuple[str, ...]:
        # As a member of an object, so that the one reader of bodies takes it.
        wrapped = b'{"filterServerList":' + self._piece("the filter servers") + b"}"
        servers = decode_body("RegisterBrokerBody", wrapped, RegisterBrokerBody.decode, limits=_STRICT).filter_servers
        _check_count("filter servers", len(servers), REGISTERED_OTHERS_MAX)
        return servers

    def _topic(self) -> TopicConfig:
        words = _utf8(self._piece("a topic")).split(" ", _TOPIC_FIELDS_MIN)
        if len(words) < _TOPIC_FIELDS_MIN:
            raise MalformedBody(f"RegisterBrokerBody: a topic has {len(words)} words, not {_TOPIC_FIELDS_MIN}")
        name, read_nums, write_nums, perm, filter_type = words[:_TOPIC_FIELDS_MIN]
        if filter_type not in _FILTER_TYPES:
            raise MalformedBody(f"RegisterBrokerBody: topic {name:.60}: {filter_type!r:.60} is not a filter type")

        def decode(fields: Fields) -> TopicConfig:
            return TopicConfig(
                topic_name=name,
                read_queue_nums=_int32(read_nums, name),
                write_queue_nums=_int32(write_nums, name),
                perm=_int32(perm, name),
                topic_filter_type=filter_type,
                attributes=fields.texts("attributes"),
            )

        attributes = words[_TOPIC_FIELDS_MIN] if len(words) > _TOPIC_FIELDS_MIN else ""
        # Nearly no topic has any: reading none is a tenth of the time.
        text = b"{}" if attributes in ("", "{}", "null") else f'{{"attributes":{attributes}}}'.encode()
        return decode_body("RegisterBrokerBody", text, decode, limits=_STRICT)

    def _count(self, what: str, most: int) -> int:
        count = self._length(what)
        _check_count(what, count, most)
        # Each takes at least the four bytes of its own length, so that a lying count ends here.
        if count > (len(self._data) - self._at) // _LENGTH.size:
            raise MalformedBody(f"RegisterBrokerBody: {count} {what} do not fit what is left")
        return count

    def _piece(self, what: str) -> bytes:
        length = self._length(what)
        if length > len(self._data) - self._at:
            raise MalformedBody(f"RegisterBrokerBody: {what} says {length} bytes, more than are left")
        piece = self._data[self._at : self._at + length]
        self._at += length
        return piece

    def _length(self, what: str) -> int:
        if len(self._data) - self._at < _LENGTH.size:
            raise MalformedBody(f"RegisterBrokerBody: the data ends before {what}")
        (length,) = _LENGTH.unpack_from(self._data, self._at)
        self._at += _LENGTH.size
        if length < 0:
            raise MalformedBody(f"RegisterBrokerBody: {what} has the length {length}")
        return int(length)


def _utf8(data: bytes) -> str:
    try:
        return data.decode("utf-8")
    except UnicodeDecodeError as error:
        raise MalformedBody(f"RegisterBrokerBody: a topic is not UTF-8: {error.reason}") from error


def _int32(word: str, topic: str) -> int:
    return as_int(word, minimum=INT32_MIN, maximum=INT32_MAX, member=topic[:60])
