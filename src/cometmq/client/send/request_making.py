"""Requests of sends, made from messages: properties, compression, batches, and what the header says besides.

A request is of no queue yet; each attempt puts its own in.

Source: consumption specification 2.3, 2.6, 2.7.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from cometmq._engine import SendRequest
from cometmq.client.instance.namespaces import with_namespace
from cometmq.client.instance.unique_ids import UniqueIds
from cometmq.client.send.compressing import compress, compression_flag
from cometmq.client.send.outgoing import (
    BATCH_OVERHEAD_BYTES,
    REPLY_PROPERTIES,
    OutgoingMessage,
    batch_body,
    can_be_batched,
    check_body,
    check_topic,
    encode_message,
    own_properties,
    stored_properties,
)
from cometmq.client.send.producer_settings import ProducerSettings
from cometmq.errors import InvalidArgument, InvalidTopic, MessageTooLarge
from cometmq.remoting.codes import RequestCode
from cometmq.store_config.names import RETRY_PREFIX

__all__ = ["RequestMaker"]

_PREPARED_FLAG = 0x4
_ALONE = frozenset({"TRAN_MSG", "UNIQ_KEY", *REPLY_PROPERTIES})
"""Properties of messages that are no part of a batch."""


class RequestMaker:
    """Makes the requests of one producer.

    Thread safety: any thread.
    """

    def __init__(self, settings: ProducerSettings, *, group: str, now_ms: Callable[[], int]) -> None:
        """Keep the fields that all requests share.

        Args:
            settings: the producer's.
            group: its group as it stands on the wire.
            now_ms: the wall clock, milliseconds since 1970.
        """
        self._settings = settings
        self._group = group
        self._now_ms = now_ms
        self.ids = UniqueIds()
        # The fields that all sends to a topic share, so that each adds only its own.
        self._templates: dict[str, SendRequest] = {}

    def template(self, topic: str) -> SendRequest:
        """Return what all sends to a topic share; the name is looked at once.

        Raises:
            InvalidTopic: messages cannot go there.
        """
        template = self._templates.get(topic)
        if template is None:
            check_topic(topic)
            template = self._templates[topic] = self._request(topic, b"", b"", 0)
        return template

    def _request(self, topic: str, properties: bytes, body: bytes, now_ms: int, **given: Any) -> SendRequest:
        return SendRequest(
            **{
                "code": RequestCode.SEND_MESSAGE_V2,
                "producer_group": self._group,
                "topic": topic,
                "queue_id": -1,
                "properties": properties,
                "body": body,
                "born_timestamp_ms": now_ms,
                "unit_mode": self._settings.unit_mode,
                "default_topic": self._settings.create_topic_key,
                "default_topic_queues": self._settings.default_topic_queue_nums,
                **given,
            }
        )

    def single(self, message: OutgoingMessage, topic: str) -> tuple[SendRequest, str]:
        """Return the request of one message, of no queue yet, and its unique id."""
        stored, _ = stored_properties(message, is_again=topic.startswith(RETRY_PREFIX))
        named = message.properties
        unique_id = named.get("UNIQ_KEY") if named else None
        now_ms = self._now_ms()
        if unique_id is None:
            unique_id = self.ids.next(now_ms)
            stored += own_properties(unique_id, wait_stored=message.wait_stored)
        elif named is not None and "WAIT" not in named:
            stored += b"WAIT\x01true\x02" if message.wait_stored else b"WAIT\x01false\x02"
        body, sys_flag = self._packed(check_body(message.body, max_bytes=self._settings.max_message_size_bytes))
        if not named:
            return self.template(topic).message(None, -1, stored, body, now_ms, sys_flag, message.flag), unique_id
        given: dict[str, Any] = {"flag": message.flag, "sys_flag": sys_flag}
        if named.get("TRAN_MSG") == "true":
            given["sys_flag"] |= _PREPARED_FLAG
        if REPLY_PROPERTIES.items() <= named.items():
            given["code"] = RequestCode.SEND_REPLY_MESSAGE_V2
        if topic.startswith(RETRY_PREFIX):
            for member, name in (("reconsume_times", "RECONSUME_TIME"), ("max_reconsume_times", "MAX_RECONSUME_TIMES")):
                if name in named:
                    given[member] = _number(name, named[name])
        self.template(topic)
        return self._request(topic, stored, body, now_ms, **given), unique_id

    def _packed(self, body: bytes) -> tuple[bytes, int]:
        """Return a body as it is sent, and the bits that say how it is compressed."""
        settings = self._settings
        if len(body) >= settings.compress_msg_body_over_bytes:
            packed = compress(settings.compress_type, body, level=settings.compress_level)
            if len(packed) < len(body):
                return packed, compression_flag(settings.compress_type)
        return body, 0

    def batch(self, messages: Sequence[OutgoingMessage], topic: str) -> tuple[SendRequest, list[str]]:
        """Return the request of a batch, of no queue yet, and the unique ids of its messages."""
        if not messages:
            raise InvalidArgument("a batch needs at least one message")
        if not can_be_batched(topic):
            raise InvalidTopic(f"topic {topic} takes no batches; send its messages one by one")
        waits = {message.wait_stored for message in messages}
        if len(waits) != 1:
            raise InvalidArgument("messages of a batch have the same wait_stored")
        (wait_stored,) = waits
        limit = self._settings.max_message_size_bytes
        now_ms = self._now_ms()
        ids: list[str] = []
        records: list[tuple[bytes, bytes, int]] = []
        for message in messages:
            encoded = encode_message(message)
            if encoded.is_delayed:
                raise InvalidArgument("a message that is held back cannot be part of a batch; send it alone")
            ids.append(self.ids.next(now_ms))
            own = own_properties(ids[-1], wait_stored=wait_stored)
            records.append((check_body(message.body, max_bytes=limit), encoded.properties + own, message.flag))
        size = sum(BATCH_OVERHEAD_BYTES + len(body) + len(stored) for body, stored, _ in records)
        if size > limit:
            raise MessageTooLarge(f"the batch takes {size:,} bytes; max_message_size_bytes is {limit:,}: split it")
        return self.of_records(topic, batch_body(records), wait_stored=wait_stored), ids

    def record(self, message: OutgoingMessage) -> tuple[bytes, bytes] | None:
        """Return body and properties of a message for a batch, still without its id; None where it must go alone.

        Raises:
            InvalidArgument, MessageTooLarge: it cannot be sent at all.
        """
        named = message.properties
        if named and not _ALONE.isdisjoint(named):
            return None
        stored, is_delayed = stored_properties(message)
        if is_delayed:
            return None
        return check_body(message.body, max_bytes=self._settings.max_message_size_bytes), stored

    def of_records(self, topic: str, records: bytes, *, wait_stored: bool) -> SendRequest:
        """Return the request of a batch's bytes, of no queue yet."""
        now_ms = self._now_ms()
        own = own_properties(self.ids.next(now_ms), wait_stored=wait_stored)
        self.template(topic)
        return self._request(topic, own, records, now_ms, code=RequestCode.SEND_BATCH_MESSAGE, batch=True)

    def plain_body_bytes_max(self) -> int:
        """Return how long a body may be that is sent as it is."""
        return min(self._settings.max_message_size_bytes, self._settings.compress_msg_body_over_bytes - 1)

    def topic_of(self, messages: Sequence[OutgoingMessage], topic: str | None) -> str:
        """Return the one topic that messages go to, as it stands on the wire.

        Raises:
            InvalidArgument: there is not exactly one.
        """
        if len(messages) == 1:
            own = messages[0].topic
            if (topic is None) != (own is None) or (own is not None and own == topic):
                return with_namespace(self._settings.namespace, own or topic or "")
        topics = {message.topic for message in messages if message.topic is not None}
        if topic is not None:
            topics.add(topic)
        if len(topics) != 1:
            if not messages:
                raise InvalidArgument("a batch needs at least one message")
            if not topics and len(messages) == 1:
                raise InvalidArgument("the message has no topic: OutgoingMessage(body, topic=...)")
            named = f"more than one: {', '.join(sorted(topics))}" if topics else "none"
            raise InvalidArgument(f"messages that are sent together have one topic, and these have {named}")
        return with_namespace(self._settings.namespace, topics.pop())


def _number(name: str, text: str) -> int:
    if not text.isascii() or not text.isdigit() or len(text) > 9:
        raise InvalidArgument(f"the property {name} is {text!r}; it is a number of times")
    return int(text)
