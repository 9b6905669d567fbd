"""Settings of producers: upstream's, under their names in snake case, units at the end.

Threads: any. Settings are immutable. Source: consumption specification 2.1, 2.7, 2.8.
"""

from __future__ import annotations

from dataclasses import dataclass

from cometmq._compression import CompressionType
from cometmq.client.send.outgoing import BODY_BYTES_MAX, TEMPLATE_QUEUES, TEMPLATE_TOPIC, check_topic
from cometmq.client.settings import ClientOptions, ClientSettings, check_client_group, check_fields, number
from cometmq.errors import InvalidArgument
from cometmq.remoting.codes import ResponseCode
from cometmq.remoting.command import FRAME_BYTES_MAX

__all__ = [
    "DEFAULT_PRODUCER_GROUP",
    "RETRY_RESPONSE_CODES",
    "ProducerOptions",
    "ProducerSettings",
]

DEFAULT_PRODUCER_GROUP = "DEFAULT_PRODUCER"

RETRY_RESPONSE_CODES = frozenset(
    {
        ResponseCode.TOPIC_NOT_EXIST,
        ResponseCode.SERVICE_NOT_AVAILABLE,
        ResponseCode.SYSTEM_ERROR,
        ResponseCode.SYSTEM_BUSY,
        ResponseCode.NO_PERMISSION,
        ResponseCode.NO_BUYER_ID,
        ResponseCode.NOT_IN_CURRENT_UNIT,
        ResponseCode.GO_AWAY,
    }
)
"""Refusals after which a blocking send is tried again."""

_FRAME_ROOM_BYTES = 64 * 1024  # header and properties of a send, which stand beside its body in a frame


@dataclass(frozen=True, slots=True, kw_only=True)
class ProducerSettings(ClientSettings):
    """Settings of a producer.

    Attributes:
        group: the producer group.
        topics: topics whose routes are fetched at the start, so that the first send need not wait.
        create_topic_key: the topic after which a broker makes one that is not there.
        default_topic_queue_nums: how many queues it makes it with, at most.
        send_msg_timeout_ms: how long a send may take with all its attempts.
        send_msg_max_timeout_per_request_ms: how long one attempt may take while others are left; -1 for no such limit.
        compress_msg_body_over_bytes: bodies from this length on are compressed; batches never are.
        compress_level: 1 for quick to 9 for small.
        compress_type: zlib, LZ4 or ZSTD.
        retry_times_when_send_failed: how often a send that somebody waits for is tried again.
        retry_times_when_send_async_failed: how often one is that nobody waits for, when no answer came.
        retry_another_broker_when_not_store_ok: try another broker also when the message was stored, but not as safely
            as asked; it may then be stored twice.
        max_message_size_bytes: longest body before compression, and longest batch.
        retry_response_codes: a broker's refusals after which a send that somebody waits for is tried again.
        enable_backpressure_for_async_mode: asynchronous sends wait for room, as the two limits below say.
        back_pressure_for_async_send_num: most asynchronous sends under way.
        back_pressure_for_async_send_size_bytes: most bytes of bodies under way in them.
        accumulate: put messages of a topic that follow each other closely into batches; upstream's ``autoBatch``.
        batch_max_delay_ms: how long a message waits for others at most.
        batch_max_bytes: a batch that has grown beyond this goes at once.
        total_batch_max_bytes: when so much waits in all batches, messages go alone.
    """

    group: str = ""
    topics: tuple[str, ...] = ()
    create_topic_key: str = TEMPLATE_TOPIC
    default_topic_queue_nums: int = number(TEMPLATE_QUEUES, minimum=1, maximum=65_535)
    send_msg_timeout_ms: int = number(3_000, minimum=1)
    send_msg_max_timeout_per_request_ms: int = number(-1, minimum=1, unset=-1)
    compress_msg_body_over_bytes: int = number(4_096, minimum=1)
    compress_level: int = number(5, minimum=1, maximum=9)
    compress_type: CompressionType = CompressionType.ZLIB
    retry_times_when_send_failed: int = number(2, maximum=1_000)
    retry_times_when_send_async_failed: int = number(2, maximum=1_000)
    retry_another_broker_when_not_store_ok: bool = False
    max_message_size_bytes: int = number(BODY_BYTES_MAX, minimum=1, maximum=FRAME_BYTES_MAX - _FRAME_ROOM_BYTES)
    retry_response_codes: frozenset[int] = RETRY_RESPONSE_CODES
    enable_backpressure_for_async_mode: bool = False
    back_pressure_for_async_send_num: int = number(1_024, minimum=10)
    back_pressure_for_async_send_size_bytes: int = number(100 << 20, minimum=1 << 20)
    accumulate: bool = False
    batch_max_delay_ms: int = number(10, minimum=1, maximum=30_000)
    batch_max_bytes: int = number(32 << 10, minimum=1, maximum=2 << 20)
    total_batch_max_bytes: int = number(32 << 20, minimum=1)

    def check(self) -> None:
        """Check every setting.

        Raises:
            InvalidArgument: one cannot be used; the text names it, its value and its range.
        """
        check_client_group(self.group, reserved=DEFAULT_PRODUCER_GROUP)
        check_fields(self)
        for topic in self.topics:
            check_topic(topic)
        if not all(isinstance(code, int) for code in self.retry_response_codes):
            raise InvalidArgument(
                f"retry_response_codes is {self.retry_response_codes!r}: give response codes, numbers"
            )
        self._check_name_servers()


class ProducerOptions(ClientOptions, total=False):
    """The settings of :class:`ProducerSettings` as keywords."""

    topics: tuple[str, ...]
    create_topic_key: str
    default_topic_queue_nums: int
    send_msg_timeout_ms: int
    send_msg_max_timeout_per_request_ms: int
    compress_msg_body_over_bytes: int
    compress_level: int
    compress_type: CompressionType
    retry_times_when_send_failed: int
    retry_times_when_send_async_failed: int
    retry_another_broker_when_not_store_ok: bool
    max_message_size_bytes: int
    retry_response_codes: frozenset[int]
    enable_backpressure_for_async_mode: bool
    back_pressure_for_async_send_num: int
    back_pressure_for_async_send_size_bytes: int
    accumulate: bool
    batch_max_delay_ms: int
    batch_max_bytes: int
    total_batch_max_bytes: int
