"""SQL92 filters of consumer groups: registered by heartbeats, kept in ``consumerFilter.json``, given to the loops.

A newer subscription with another expression replaces a filter; one that does not compile removes it, and pulls are
answered with 27 then. A filter that nobody subscribes with is dead: it stays for a day, so that a consumer that
restarts finds it.

Threads: the event loop's; :meth:`persist` also others'. Source: specification transactions-filters, 3.4; upstream's
ConsumerFilterManager.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable
from dataclasses import replace
from functools import lru_cache
from pathlib import Path
from typing import Final

from cometmq._engine import Selector, bloom_positions
from cometmq.broker.registry import is_unreachable
from cometmq.errors import InvalidArgument, LimitReached
from cometmq.remoting.bodies.heartbeat import SubscriptionData
from cometmq.store_config.consumer_filters import ConsumerFilter, ConsumerFilters
from cometmq.store_config.file_ops import SYSTEM_FILE_OPS, FileOps

__all__ = ["EXPRESSION_CHARS_MAX", "BrokerFilters", "examine", "is_by_tag"]

_log = logging.getLogger("cometmq.broker.filters")

EXPRESSION_CHARS_MAX: Final = 4_194_304
"""Of the filters of all groups; compiled, an expression takes up to twelve times its text."""

_TRUSTED_DEAD_MS = 30_000
"""Filters that were alive when the broker stopped count as dead since so long before its start, as upstream has it."""


def is_by_tag(subscription: SubscriptionData) -> bool:
    """Return whether a subscription filters by tags, and not by SQL92."""
    return subscription.expression_type in (None, "", "TAG")


class BrokerFilters:
    """The filters of one broker."""

    def __init__(
        self,
        folder: Path,
        *,
        error_percent: int,
        groups_expected: int,
        clean_ms: Callable[[], int],
        now_ms: Callable[[], int],
        file_ops: FileOps = SYSTEM_FILE_OPS,
    ) -> None:
        """Read the file.

        Args:
            folder: the store's ``config`` folder.
            error_percent, groups_expected: of the Bloom filter (``maxErrorRateOfBloomFilter``,
                ``expectConsumerNumUseFilter``).
            clean_ms: how long dead filters stay.
            now_ms: the wall clock.
            file_ops: the file operations to use.
        """
        self._error_percent = error_percent
        self._expected = groups_expected
        self._clean_ms = clean_ms
        self._now_ms = now_ms
        bits, positions = self._bloom("", "")
        self._file = ConsumerFilters(folder, bits=bits, places=len(positions), file_ops=file_ops)
        warning = self._file.load().warning
        if warning is not None:
            _log.warning("filters not read as they were", extra={"error": warning})
        for one in self._file:
            if not _is_sound(one.topic, one.group, one.expression):
                self._file.remove(one.topic, one.group)
            elif one.dead_ms == 0:
                self._file.bury(one, max(one.born_ms, now_ms() - _TRUSTED_DEAD_MS))

    def _bloom(self, topic: str, group: str) -> tuple[int, tuple[int, ...]]:
        return bloom_positions(f"{group}#{topic}", self._error_percent, self._expected)

    def register(self, group: str, subscriptions: Iterable[SubscriptionData]) -> bool:
        """Note everything that a group subscribes to. Returns whether a filter came, changed or went."""
        named = set()
        changed = False
        for subscription in subscriptions:
            if not is_by_tag(subscription) and subscription.sub_string:
                named.add(subscription.topic)
                changed = self._register(group, subscription) or changed
        for one in self._file.of_group(group):
            if one.topic not in named and not one.is_dead:
                self._file.bury(one, self._now_ms())
        return changed

    def _register(self, group: str, wanted: SubscriptionData) -> bool:
        topic, now_ms = wanted.topic, self._now_ms()
        old = self._file.get(topic, group)
        is_same = old is not None and old.expression == wanted.sub_string
        if old is not None and not is_same and is_unreachable(old.client_version, wanted.sub_version, now_ms=now_ms):
            _log.warning(
                "SQL92 expression replaced: its version was too far in the future",
                extra={"group": group, "topic": topic},
            )
        elif old is not None and wanted.sub_version <= old.client_version:
            if not is_same:
                _log.warning(
                    "a member of a group subscribes with another SQL92 expression of an older version: it is ignored",
                    extra={"group": group, "topic": topic},
                )
            if not old.is_dead or wanted.sub_version < old.client_version:
                return False
            self._file.put(replace(old, dead_ms=0))
            return True
        if old is not None and is_same and old.expression_type == wanted.expression_type:
            self._file.put(replace(old, client_version=wanted.sub_version, dead_ms=0))
            return True
        if (
            wanted.expression_type != "SQL92"
            or not _is_sound(topic, group, wanted.sub_string)
            or not self._has_room(wanted, old)
        ):
            self._file.remove(topic, group)
            return old is not None
        bits, positions = self._bloom(topic, group)
        self._file.put(
            ConsumerFilter(
                topic=topic,
                group=group,
                expression=wanted.sub_string,
                client_version=wanted.sub_version,
                born_ms=now_ms,
                bits=bits,
                positions=positions,
            )
        )
        return True

    def _has_room(self, wanted: SubscriptionData, old: ConsumerFilter | None) -> bool:
        """Return whether an expression fits in the limit of all; the filters longest dead make room for it."""
        more = len(wanted.sub_string) - (0 if old is None else len(old.expression))
        if self._file.chars + more > EXPRESSION_CHARS_MAX:
            for one in sorted((one for one in self._file if one.is_dead and one != old), key=lambda one: one.dead_ms):
                self._file.remove(one.topic, one.group)
                if self._file.chars + more <= EXPRESSION_CHARS_MAX:
                    break
        if self._file.chars + more <= EXPRESSION_CHARS_MAX:
            return True
        _log.warning("SQL92 expression refused: the filters of all groups are too long", extra={"topic": wanted.topic})
        return False

    def unregister(self, group: str) -> None:
        """Note that nobody of a group is there."""
        for one in self._file.of_group(group):
            if not one.is_dead:
                self._file.bury(one, self._now_ms())

    def selector(self, topic: str, group: str) -> tuple[str, int] | None:
        """Return the expression in effect and its version; None where there is none."""
        one = self._file.get(topic, group)
        return None if one is None else (one.expression, one.client_version)

    def persist(self) -> None:
        """Write the file where something changed, without filters dead for long.

        Raises:
            StorageError: it could not be written; the next call tries again.
        """
        for one in self._file:
            if one.is_dead and self._now_ms() - one.dead_ms >= self._clean_ms():
                self._file.remove_same(one)
        self._file.persist()


@lru_cache(maxsize=64)
def examine(expression: str) -> tuple[str, str]:
    """Compile an expression; return the reason why it cannot be, and the part of it that is ignored.

    A long one takes a millisecond: call it outside the event loop first, which finds the result then.
    """
    try:
        return "", Selector(expression).tail
    except (InvalidArgument, LimitReached) as error:
        return str(error), ""


def _is_sound(topic: str, group: str, expression: str) -> bool:
    """Whether an expression compiles; log where it does not, and where a part of it is ignored."""
    extra = {"group": group, "topic": topic}
    reason, ignored = examine(expression)
    if reason:
        _log.warning("SQL92 expression refused", extra=extra | {"error": reason})
    elif ignored:
        _log.warning("a part of an SQL92 expression is ignored", extra=extra | {"ignored": ignored[:80]})
    return not reason
