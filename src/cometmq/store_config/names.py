"""Names of topics and groups: which are allowed, which are the system's, and how derived names are made.

The rules are upstream's TopicValidator. Names read from a store are not checked against them: a broker may have made
others (``%RETRY%group+topic``). Check what a user gives.
"""

from __future__ import annotations

import re

from cometmq.errors import InvalidArgument, InvalidTopic, WrongType

__all__ = [
    "DLQ_PREFIX",
    "GROUP_CHARS_MAX",
    "LMQ_PREFIX",
    "RETRY_PREFIX",
    "SYSTEM_GROUP_PREFIX",
    "SYSTEM_TOPICS",
    "SYSTEM_TOPIC_PREFIX",
    "TOPIC_CHARS_MAX",
    "USED_GROUP_CHARS_MAX",
    "condition_sign",
    "dead_letter_topic",
    "doubtful_sign",
    "is_light_queue",
    "is_system_topic",
    "is_topic_name",
    "list_sign",
    "may_send_to",
    "retry_topic",
    "validate_group",
    "validate_made_topic",
    "validate_topic",
    "validate_used_group",
]

RETRY_PREFIX = "%RETRY%"
DLQ_PREFIX = "%DLQ%"
LMQ_PREFIX = "%LMQ%"
SYSTEM_TOPIC_PREFIX = "rmq_sys_"
SYSTEM_GROUP_PREFIX = "CID_RMQ_SYS_"

TOPIC_CHARS_MAX = 127
_DERIVED_TOPIC_CHARS_MAX = 255
GROUP_CHARS_MAX = 120
"""Shorter than a topic, since ``%RETRY%<group>_<topic>`` is made from it."""
USED_GROUP_CHARS_MAX = _DERIVED_TOPIC_CHARS_MAX - len(RETRY_PREFIX)
"""Longest name of a group that clients use: upstream checks the length only when a group is created."""

_ALLOWED = re.compile(r"[%|a-zA-Z0-9_-]+")
_ALLOWED_TEXT = "letters, digits, %, |, - and _"

SYSTEM_TOPICS = frozenset(
    {
        "TBW102",
        "SCHEDULE_TOPIC_XXXX",
        "BenchmarkTest",
        "RMQ_SYS_TRANS_HALF_TOPIC",
        "RMQ_SYS_TRACE_TOPIC",
        "RMQ_SYS_TRANS_OP_HALF_TOPIC",
        "TRANS_CHECK_MAX_TIME_TOPIC",
        "SELF_TEST_TOPIC",
        "OFFSET_MOVED_EVENT",
        "CHECKPOINT_TOPIC",
    }
)
"""Upstream's list, as code 305 shows it."""
_TRACE_PREFIX = "rmq_sys_TRACE_DATA_"
_NOT_FOR_SENDERS = frozenset(
    {
        "SCHEDULE_TOPIC_XXXX",
        "RMQ_SYS_TRANS_HALF_TOPIC",
        "RMQ_SYS_TRANS_OP_HALF_TOPIC",
        "TRANS_CHECK_MAX_TIME_TOPIC",
        "SELF_TEST_TOPIC",
        "OFFSET_MOVED_EVENT",
    }
)


_QUOTED = r"""(?:'[^']*'|"[^"]*")"""
_CONDITION = re.compile(
    "|".join(
        (
            r"\S\s+(&&)\s+\S",
            rf"\w\s*(<>|[<>=!]=|[<>=])\s*{_QUOTED}",
            r"\w\s+(<>|[<>=!]=|[<>=])\s+[-+]?\d+(?:\.\d+)?(?!\w)",
            r"[<>=]\s*\S+\s+(and|or)\s+[^<>=]+[<>=]",
            r"\s(in)\s*\(\s*(?:['\"]|\d+\s*,)",
            rf"\s(like)\s+{_QUOTED}",
            rf"\s(between)\s+(?:{_QUOTED}|[-+]?\d\S*)\s+and\s",
            r"\s(is)\s+(?:not\s+)?null\b",
        )
    ),
    re.IGNORECASE,
)
"""Conditions as SQL and Python write them, and nobody a tag."""
_LIST = re.compile(r"[,;]|\s\|\s|\sor\s", re.IGNORECASE)
_DOUBTFUL = re.compile(rf"{_LIST.pattern}|&&|[=<>]|\sand\s", re.IGNORECASE)


def condition_sign(tag: str) -> str | None:
    """Return the operator in an asked-for tag that is unmistakably a condition in another syntax, or None."""
    found = _CONDITION.search(tag)
    return None if found is None else found[found.lastindex or 0]


def list_sign(tag: str) -> str | None:
    """Return the sign in an asked-for tag that divides the elements of a list in another syntax, or None."""
    found = _LIST.search(tag)
    return None if found is None else found[0].strip()


def doubtful_sign(tag: str) -> bool:
    """Whether an asked-for tag may be meant as a condition or a list; it may also be a tag."""
    return _DOUBTFUL.search(tag) is not None


def validate_topic(topic: str) -> str:
    """Return ``topic`` when upstream would accept it from a client.

    Raises:
        InvalidTopic: empty, over-long (127 characters; 255 for retry and dead-letter topics) or with other characters;
            or no text.
    """
    given: object = topic
    if not isinstance(given, str):
        raise InvalidTopic(f"the topic is {given!r}: a topic is text")
    problem = _problem(topic, _topic_chars_max(topic))
    if problem is not None:
        raise InvalidTopic(f"the topic name {_shown(topic)} {problem}")
    return topic


def validate_made_topic(topic: str) -> str:
    """Return ``topic`` when a broker may create it unasked: as :func:`validate_topic`, or ``%RETRY%group+topic``.

    Raises:
        InvalidTopic: as there.
    """
    group, mark, popped = topic.partition("+")
    if not mark or not topic.startswith(RETRY_PREFIX) or group == RETRY_PREFIX:
        return validate_topic(topic)
    problem = _problem(group + popped, _DERIVED_TOPIC_CHARS_MAX - 1) if popped else "ends with +"
    if problem is not None:
        raise InvalidTopic(f"the topic name {_shown(topic)} {problem}")
    return topic


def is_topic_name(topic: str) -> bool:
    """Whether :func:`validate_topic` takes it."""
    return _problem(topic, _topic_chars_max(topic)) is None


def _topic_chars_max(topic: str) -> int:
    return _DERIVED_TOPIC_CHARS_MAX if topic.startswith((RETRY_PREFIX, DLQ_PREFIX)) else TOPIC_CHARS_MAX


def validate_group(group: str) -> str:
    """Return ``group`` when upstream would accept it from a client.

    Raises:
        InvalidArgument: empty, over 120 characters, or with other characters than topics may have.
    """
    given: object = group
    if not isinstance(given, str):
        raise WrongType(f"group must be a str, not {type(given).__name__} ({given!r:.60})")
    problem = _problem(group, GROUP_CHARS_MAX)
    if problem is not None:
        raise InvalidArgument(f"the group name {_shown(group)} {problem}")
    return group


def validate_used_group(group: str) -> str:
    """Return ``group`` when a broker would take it from a client that uses it; clients of 5.x check less than 4.9's.

    Raises:
        InvalidArgument: empty, over 248 characters, or with other characters than topics may have.
    """
    problem = _problem(group, USED_GROUP_CHARS_MAX)
    if problem is not None:
        raise InvalidArgument(f"the group name {_shown(group)} {problem}")
    return group


def _problem(name: str, chars_max: int) -> str | None:
    if not name:
        return "is empty"
    if not _ALLOWED.fullmatch(name):
        return f"has characters other than {_ALLOWED_TEXT}"
    if len(name) > chars_max:
        return f"has {len(name)} characters; at most {chars_max} are allowed"
    return None


def _shown(name: str) -> str:
    return repr(name if len(name) <= 60 else name[:57] + "...")


def is_system_topic(topic: str) -> bool:
    """Return whether the topic is the system's own, which clean-up must spare.

    The broker's own topics named after cluster and broker are not in the list; :func:`system_topics` has those.
    """
    return topic in SYSTEM_TOPICS or topic.startswith(SYSTEM_TOPIC_PREFIX)


def may_send_to(topic: str) -> bool:
    """Return whether a client may send to the topic.

    The engine has the same rule (``cmq_topic_is_reserved``): timers, checkpoints of pops and undeliverable messages are
    the broker's own. Traces are the clients'.
    """
    if topic.startswith(SYSTEM_TOPIC_PREFIX):
        return topic.startswith(_TRACE_PREFIX)
    return topic not in _NOT_FOR_SENDERS


def is_light_queue(name: str) -> bool:
    """Return whether a topic or group names a light message queue, which has no configuration of its own."""
    return name.startswith(LMQ_PREFIX)


def retry_topic(group: str) -> str:
    """Return the topic that holds the group's messages to be tried again."""
    return RETRY_PREFIX + group


def dead_letter_topic(group: str) -> str:
    """Return the topic that holds the group's messages given up."""
    return DLQ_PREFIX + group
