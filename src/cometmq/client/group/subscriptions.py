"""A group's subscriptions, and the order in which all members of a group see queues and each other.

Members agree on the owner of each queue only where they sort alike, so texts are ordered as Java orders them: by UTF-16
code units, which differs from Python's order where a character lies beyond U+FFFF.

Threads: any. Doubtful tags and conditions that were logged are kept, so that each is logged once. Source: consumption
specification 0.3, 1.3.
"""

from __future__ import annotations

import functools
import logging

from cometmq._engine import Selector, java_hash
from cometmq._sql92 import ignored_tail
from cometmq.errors import InvalidArgument, LimitReached
from cometmq.remoting.bodies.heartbeat import SubscriptionData
from cometmq.remoting.bodies.message_queue import MessageQueue
from cometmq.store_config.names import condition_sign, doubtful_sign

__all__ = ["ALL", "SQL92", "TAG", "make_subscription", "next_version", "queue_order", "text_order"]

_log = logging.getLogger(__name__)

TAG = "TAG"
SQL92 = "SQL92"
ALL = "*"
_SEPARATOR = "||"
_JAVA_BLANKS = "".join(map(chr, range(0x21)))
"""The characters that Java's ``String.trim`` removes."""


def make_subscription(
    topic: str, expression: str | None, *, expression_type: str | None = TAG, now_ms: int
) -> SubscriptionData:
    """Return what a heartbeat says about one topic.

    Args:
        topic: the topic.
        expression: of type TAG: None, an empty text or ``*`` for everything, or tags with ``||`` between them; of
            another type the text as the broker is to compile it.
        expression_type: ``TAG``, ``SQL92``, or None, which counts as TAG.
        now_ms: wall clock, milliseconds since 1970; becomes the version, of which brokers take the newest.

    Raises:
        InvalidArgument: tags of separators alone, a condition, an empty expression of type SQL92, another type, or not
            a text.
    """
    if expression_type not in (None, TAG, SQL92):
        raise InvalidArgument(f"expression_type is {expression_type!r}: write {TAG!r} or {SQL92!r}")
    given: object = expression
    if given is not None and not isinstance(given, str):
        raise InvalidArgument(f"the expression for {topic!r} is {given!r}: it is one text, as 'tagA || tagB'")
    if expression_type == SQL92:
        if not expression:
            raise InvalidArgument(f"an {expression_type} subscription of {topic!r} needs an expression")
        _warn_of_condition(topic, expression)
        return SubscriptionData(topic=topic, sub_string=expression, sub_version=now_ms, expression_type=expression_type)
    if not expression or expression == ALL:
        return SubscriptionData(topic=topic, sub_string=ALL, sub_version=now_ms, expression_type=TAG)
    trimmed = (part.strip(_JAVA_BLANKS) for part in expression.split(_SEPARATOR))
    tags = tuple(dict.fromkeys(tag for tag in trimmed if tag))
    for tag in tags:
        if sign := condition_sign(tag):
            raise InvalidArgument(
                f"the expression {expression!r} for {topic!r} has {sign!r}, which has no meaning there and would match "
                "nothing: write 'tagA || tagB', or a condition with expression_type=\"SQL92\""
            )
        if doubtful_sign(tag):
            _warn_of(topic, tag)
    if not tags:
        raise InvalidArgument(
            f"the expression {expression!r} for {topic!r} names no tag: write 'tagA || tagB', or '*' for everything"
        )
    return SubscriptionData(
        topic=topic,
        sub_string=expression,
        tags=tags,
        codes=tuple(dict.fromkeys(map(java_hash, tags))),
        sub_version=now_ms,
        expression_type=TAG,
    )


@functools.lru_cache(maxsize=1024)
def _warn_of(topic: str, tag: str) -> None:
    _log.warning(
        "%r in the expression for %r is subscribed to as one tag: only || divides tags, and conditions need "
        'expression_type="SQL92"',
        tag,
        topic,
    )


@functools.lru_cache(maxsize=1024)
def _warn_of_condition(topic: str, expression: str) -> None:
    """Log what brokers of the versions that we know refuse or ignore; the broker decides."""
    try:
        tail = Selector(expression).tail
    except (InvalidArgument, LimitReached) as error:
        _log.warning("the condition for %r is refused by brokers like RocketMQ 5.3: %s", topic, error)
    else:
        if tail:
            _log.warning("a part of the condition for %r is ignored: %s", topic, ignored_tail(expression, tail))


def next_version(before: SubscriptionData | None, now_ms: int) -> int:
    """Return the version of a changed subscription: the wall clock's time, but newer than the one before.

    Brokers take the newest. After the clock was set back they would keep the expression before the change, for as long
    as it was set back.
    """
    return now_ms if before is None else max(now_ms, before.sub_version + 1)


def text_order(text: str) -> bytes:
    """Return a key that sorts texts by UTF-16 code units, as Java's ``String.compareTo`` does."""
    return text.encode("utf-16-be", "surrogatepass")


def queue_order(queue: MessageQueue) -> tuple[bytes, bytes, int]:
    """Return a key that sorts queues by topic, broker name and queue id, as Java's ``MessageQueue`` sorts."""
    return text_order(queue.topic), text_order(queue.broker_name), queue.queue_id
