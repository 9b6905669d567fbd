"""Settings of simple consumers.

Threads: any. Settings are immutable. Source: consumption specification 1.18, 4.4.
"""

from __future__ import annotations

from dataclasses import dataclass

from cometmq.client.settings import (
    DEFAULT_CONSUMER_GROUP,
    ClientOptions,
    ClientSettings,
    check_client_group,
    check_fields,
    number,
)
from cometmq.errors import InvalidArgument
from cometmq.remoting.bodies.heartbeat import ConsumeFromWhere

__all__ = ["INVISIBLE_MS_MAX", "INVISIBLE_MS_MIN", "RECEIVE_MAX", "SimpleOptions", "SimpleSettings"]

INVISIBLE_MS_MIN = 1_000
INVISIBLE_MS_MAX = 43_200_000
"""Twelve hours, as upstream's proxy allows."""
RECEIVE_MAX = 1_024
"""Most messages that one receive returns; brokers give 32 for each request."""

_BEGINNINGS = (ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET, ConsumeFromWhere.CONSUME_FROM_LAST_OFFSET)


@dataclass(frozen=True, slots=True, kw_only=True)
class SimpleSettings(ClientSettings):
    """Settings of a simple consumer.

    Attributes:
        group: the consumer group.
        consume_from_where: where a group without progress begins: at each queue's first message, or at its end.
        invisible_time_ms: how long others do not get a message that was received.
        receive_wait_ms: how long a receive waits for messages by default.
        receive_max_messages: how many it returns at most by default, and the most that a loop takes at a
            time: it takes as many as it handles in a quarter of a second, slow work one by one.
        extend_for_ms: how long a message being worked on is hidden again and again before it is redelivered.
        orderly: receive each queue's messages in order: no member of the group gets further ones of a queue before
            those received are acknowledged, or visible again. For groups whose members all do so.
    """

    group: str = ""
    consume_from_where: ConsumeFromWhere = ConsumeFromWhere.CONSUME_FROM_LAST_OFFSET
    invisible_time_ms: int = number(60_000, minimum=INVISIBLE_MS_MIN, maximum=INVISIBLE_MS_MAX)
    receive_wait_ms: int = number(15_000)
    receive_max_messages: int = number(32, minimum=1, maximum=RECEIVE_MAX)
    extend_for_ms: int = number(3_600_000, minimum=1)
    orderly: bool = False

    def check(self) -> None:
        """Check every setting.

        Raises:
            InvalidArgument: one cannot be used; the text names it, its value and its range.
        """
        check_client_group(self.group, reserved=DEFAULT_CONSUMER_GROUP)
        where = self.consume_from_where
        if where not in _BEGINNINGS:
            given = where.name if isinstance(where, ConsumeFromWhere) else repr(where)
            raise InvalidArgument(
                f"consume_from_where is {given}: POP begins at the first message or at the end, "
                f"{' or '.join(each.name for each in _BEGINNINGS)}"
            )
        check_fields(self)
        self._check_name_servers()


class SimpleOptions(ClientOptions, total=False):
    """The settings of :class:`SimpleSettings` as keywords."""

    consume_from_where: ConsumeFromWhere | str
    invisible_time_ms: int
    receive_wait_ms: int
    receive_max_messages: int
    extend_for_ms: int
    orderly: bool
