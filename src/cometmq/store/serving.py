"""The parts of a store that its broker needs beyond the store's calls: the shared books, and how it was opened.

The books' tables are the same objects that the store works with, so that an append of this process, handed-off work and
the broker see one state. The books' ``listener`` notifies the broker of changes that it did not make.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from cometmq.store.group_book import GroupBook
from cometmq.store.opening import Plan
from cometmq.store.options import Retention
from cometmq.store.store import Store
from cometmq.store.topic_book import TopicBook

__all__ = ["ServedParts", "served_parts"]


@dataclass(frozen=True, slots=True, kw_only=True)
class ServedParts:
    """A store's inside.

    Attributes:
        topics, groups: its books.
        plan: how it was opened.
        change_retention: makes it delete by other limits from now on.
    """

    topics: TopicBook
    groups: GroupBook
    plan: Plan
    change_retention: Callable[[Retention], None]


def served_parts(store: Store) -> ServedParts:
    """Return the inside of a store that was opened for writing.

    Raises:
        ReadOnlyStore: it was not.
    """
    return ServedParts(
        topics=store._writer(store._topic_book),
        groups=store._writer(store._group_book),
        plan=store._plan,
        change_retention=store._change_retention,
    )
