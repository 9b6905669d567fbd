"""Calls about topics and groups that only the writer makes: for itself, and for processes that share the store.

``CALLS`` names those that other processes may leave. Each may be applied twice: a writer that dies behind a call leaves
it to the next one.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

from cometmq._engine import StoreHandle
from cometmq.store.group_book import GroupBook
from cometmq.store.topic_book import TopicBook

__all__ = ["CALLS", "Books", "create_topic", "delete_topic"]


@dataclass(frozen=True, slots=True)
class Books:
    """A writer's parts that calls change."""

    handle: StoreHandle
    topics: TopicBook
    groups: GroupBook


def create_topic(
    books: Books, name: str, *, queues: int, perm: int, batch: bool, attributes: dict[str, str], exist_ok: bool
) -> None:
    """Make a topic, durably. Raises as :meth:`TopicBook.create`."""
    books.topics.create(name, queues=queues, perm=perm, batch=batch, attributes=attributes, exist_ok=exist_ok)
    if name in books.topics.batch_topics():
        books.handle.set_batch_topic(name)


def delete_topic(books: Books, name: str) -> None:
    """Forget a topic, its queues and the progress in it, durably; one that is not there is fine."""
    books.topics.remove(name)
    if books.handle.queues(name):
        books.handle.delete_topic(name)
    books.groups.forget_topic(name)


def _set_topic_queues(books: Books, name: str, queues: int) -> None:
    books.topics.resize(name, queues)


def _delete_group(books: Books, group: str) -> None:
    books.groups.forget_group(group)


def _flush(_: Books) -> None:
    """The applier flushes before each call."""


CALLS: Mapping[str, Callable[..., Any]] = MappingProxyType(
    {
        "create_topic": create_topic,
        "set_topic_queues": _set_topic_queues,
        "delete_topic": delete_topic,
        "delete_group": _delete_group,
        "flush": _flush,
    }
)
