"""Namespaces of the first kind: a prefix that the client puts before names and takes away again.

``NS%Topic``, ``%RETRY%NS%Group``, ``%DLQ%NS%Group``. The system's own names have none. Servers only see longer names.

Source: remoting specification 7.8.
"""

from __future__ import annotations

from cometmq.store_config.names import DLQ_PREFIX, RETRY_PREFIX, SYSTEM_GROUP_PREFIX, is_system_topic

__all__ = ["with_namespace", "without_namespace"]

_SEPARATOR = "%"


def with_namespace(namespace: str | None, name: str) -> str:
    """Return a topic or group as it stands on the wire; a name that has the namespace already stays as it is."""
    if not namespace or not name or is_system_topic(name) or name.startswith(SYSTEM_GROUP_PREFIX):
        return name
    head, rest = _split(name)
    own = namespace + _SEPARATOR
    return name if rest.startswith(own) else head + own + rest


def without_namespace(namespace: str | None, name: str) -> str:
    """Return a topic or group as the user calls it; a name of another namespace stays as it is."""
    if not namespace:
        return name
    head, rest = _split(name)
    return head + rest.removeprefix(namespace + _SEPARATOR)


def _split(name: str) -> tuple[str, str]:
    """Return the mark of a retry or dead-letter topic, and what follows it."""
    for mark in (RETRY_PREFIX, DLQ_PREFIX):
        if name.startswith(mark):
            return mark, name.removeprefix(mark)
    return "", name
