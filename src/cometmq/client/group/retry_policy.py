"""The fate of a message that its listener failed: sent back, sent again, or kept and retried here.

Consumers that share their messages send a failed one back to its broker, which puts it on ``%RETRY%group`` after a
delay that grows, and after the last try on ``%DLQ%group``. Where the broker does not take it back, the same message is
sent to ``%RETRY%group`` as any other is; where that fails too, it is tried again here. Plain functions, no clock.

Source: consumption specification 1.10, 1.12, 3.7; remoting specification 2.3.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final, Protocol

from cometmq.remoting.codes import RequestCode
from cometmq.remoting.command import Command
from cometmq.remoting.members import request
from cometmq.remoting.properties import properties_that_fit
from cometmq.store_config.fields import INT32_MAX
from cometmq.store_config.names import RETRY_PREFIX, retry_topic

__all__ = [
    "EXPIRED_DELAY_LEVEL",
    "GIVE_UP",
    "LOCAL_RETRY_MS",
    "ORDERLY_SUSPEND_MAX_MS",
    "ORDERLY_SUSPEND_MIN_MS",
    "SEND_BACK_TIMEOUT_MS",
    "FailedMessage",
    "Resend",
    "is_logical_broker",
    "most_tries",
    "resend_of",
    "send_back_command",
    "suspend_ms",
]

_log = logging.getLogger(__name__)

SEND_BACK_TIMEOUT_MS: Final = 5_000
GIVE_UP: Final = -1
"""The delay level of a dead letter."""
LOCAL_RETRY_MS: Final = 5_000
"""How long messages wait here that nobody took back."""
EXPIRED_DELAY_LEVEL: Final = 3
"""The delay of messages that are sent back because their listener hangs."""
ORDERLY_SUSPEND_MIN_MS: Final = 10
ORDERLY_SUSPEND_MAX_MS: Final = 30_000

_TRIES = 16
_LEVEL_OF_FIRST_TRY = 3
_LOGICAL_BROKERS = "__syslo__"


class FailedMessage(Protocol):
    """The fields of a failed message that are read."""

    @property
    def stored_topic(self) -> str:
        """The topic under which its broker keeps it, with the namespace."""

    @property
    def physical_offset(self) -> int:
        """Its place in the broker's log."""

    @property
    def message_id(self) -> str:
        """Host and place where it is stored."""

    @property
    def unique_id(self) -> str | None:
        """The id that its sender gave it."""

    @property
    def reconsume_times(self) -> int:
        """How often it was tried again before."""

    @property
    def properties(self) -> dict[str, str]:
        """Its properties."""

    @property
    def body_bytes(self) -> bytes:
        """Its body, decompressed."""

    @property
    def flag(self) -> int:
        """Its sender's own number."""


def most_tries(setting: int, *, orderly: bool = False) -> int:
    """Return how often a message is tried again before it is a dead letter.

    Args:
        setting: ``max_reconsume_times``; -1 for the default.
        orderly: the listener is orderly, where the default is no limit.
    """
    if setting != -1:
        return setting
    return INT32_MAX if orderly else _TRIES


def is_logical_broker(broker_name: str) -> bool:
    """Whether the name stands for no broker of its own, so that nothing can be sent back to it."""
    return broker_name.startswith(_LOGICAL_BROKERS)


def send_back_command(
    message: FailedMessage, *, group: str, delay_level: int, most: int, unit_mode: bool, broker_name: str
) -> Command:
    """Return the request that gives a message back to its broker (code 36).

    Args:
        message: the failed message.
        group: the group in which it did.
        delay_level: -1 makes it a dead letter now, 0 lets the broker choose, more is that level.
        most: how often it may be tried, see :func:`most_tries`.
        unit_mode: the group's clients are spread over units.
        broker_name: the broker that stores it.
    """
    return request(
        RequestCode.CONSUMER_SEND_MSG_BACK,
        offset=message.physical_offset,
        group=group,
        delayLevel=delay_level,
        originMsgId=message.unique_id or message.message_id,
        originTopic=_published_topic(message),
        unitMode=unit_mode,
        maxReconsumeTimes=most,
        bname=broker_name,
    )


def _published_topic(message: FailedMessage) -> str:
    """Return the topic that its sender named, as brokers know it: with the namespace, which users do not see."""
    stored = message.stored_topic
    return message.properties.get("RETRY_TOPIC", stored) if stored.startswith(RETRY_PREFIX) else stored


@dataclass(frozen=True, slots=True, kw_only=True)
class Resend:
    """A failed message as it is sent once more.

    Attributes:
        topic: the group's retry topic.
        body: the old body.
        properties: the old properties, as far as there is room, and those of the retry.
        flag: the old sender's own number.
    """

    topic: str
    body: bytes
    properties: Mapping[str, str]
    flag: int


def resend_of(message: FailedMessage, *, group: str, most: int) -> Resend:
    """Return the message that takes the place of one that could not be given back.

    Args:
        message: the failed message.
        group: the group in which it did.
        most: how often it may be tried.
    """
    times = message.reconsume_times
    properties = dict(message.properties)
    # The sender's wish to be answered after the flush, and his transaction, are of the first message only.
    for name in ("WAIT", "TRAN_MSG"):
        properties.pop(name, None)
    properties["RETRY_TOPIC"] = _published_topic(message)
    properties.setdefault("ORIGIN_MESSAGE_ID", message.unique_id or message.message_id)
    properties["RECONSUME_TIME"] = str(times + 1)
    properties["MAX_RECONSUME_TIMES"] = str(most)
    properties["DELAY"] = str(_LEVEL_OF_FIRST_TRY + times)
    properties, gone = properties_that_fit(properties)
    if gone:
        _log.warning("group %s: %s is sent again without its properties %s: there is no room", group, message, gone)
    return Resend(topic=retry_topic(group), body=message.body_bytes, properties=properties, flag=message.flag)


def suspend_ms(wanted_ms: int, *, default_ms: int) -> int:
    """Return how long an orderly queue waits.

    Args:
        wanted_ms: the listener's wish, -1 for none.
        default_ms: the setting ``suspend_current_queue_time_ms``.
    """
    chosen = default_ms if wanted_ms == -1 else wanted_ms
    return min(max(chosen, ORDERLY_SUSPEND_MIN_MS), ORDERLY_SUSPEND_MAX_MS)
