"""Connected producers and consumers by group and connection, with each group's subscriptions.

Both registries are plain tables. They report changes that concern others (code 40, the loops' tables) to a listener, in
the order in which they happened, and send and write nothing themselves.

Invariant: a connection is in a group at most once, under the client id of its last heartbeat; a consumer group without
connections does not exist.
Threads: one, the control plane's.
Source: consumption specification 3.4, upstream's ConsumerManager and ProducerManager.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Iterator, Mapping, Set
from dataclasses import dataclass, field
from typing import Protocol

from cometmq.broker.log_lists import listed_names
from cometmq.remoting.bodies.heartbeat import ConsumeFromWhere, ConsumeType, MessageModel, SubscriptionData
from cometmq.remoting.command import Language
from cometmq.store_config.names import RETRY_PREFIX

__all__ = [
    "ClientConnection",
    "ConsumerGroup",
    "ConsumerListener",
    "ConsumerRegistry",
    "ProducerRegistry",
    "is_unreachable",
]

_log = logging.getLogger("cometmq.broker.clients")

_WARN_EVERY_MS = 600_000
_AHEAD_MS = 86_400_000


@dataclass(slots=True)
class ClientConnection:
    """One client's connection as a member of a group.

    Attributes:
        conn: the connection's id.
        client_id: the client's id; one client may have several groups on one connection.
        language, version: from its heartbeat.
        peer: ``ip:port``.
        seen_ms: time of the last heartbeat.
    """

    conn: int
    client_id: str
    language: Language
    version: int
    peer: str
    seen_ms: int


@dataclass(slots=True)
class ConsumerGroup:
    """One consumer group that is online.

    Attributes:
        name: the group.
        consume_type, message_model, consume_from_where: as its last heartbeat said.
        members: by connection id, in the order of their first heartbeat.
        subscriptions: by topic.
        changed_ms: time of the last heartbeat or change.
        warned_ms: time of the last warning that members subscribe differently; None before the first.
    """

    name: str
    consume_type: ConsumeType
    message_model: MessageModel
    consume_from_where: ConsumeFromWhere
    members: dict[int, ClientConnection] = field(default_factory=dict)
    subscriptions: dict[str, SubscriptionData] = field(default_factory=dict)
    changed_ms: int = 0
    warned_ms: int | None = None

    def client_ids(self) -> list[str]:
        """Return every member's id, without repeats."""
        return list(dict.fromkeys(member.client_id for member in self.members.values()))

    def find(self, client_id: str) -> ClientConnection | None:
        """Return a member by its id."""
        return next((member for member in self.members.values() if member.client_id == client_id), None)


class ConsumerListener(Protocol):
    """The listener of a consumer registry."""

    def members_changed(self, group: ConsumerGroup) -> None:
        """Members came or went, or topics did: the group's members should look again."""

    def subscriptions_changed(self, group: ConsumerGroup, *, end_holds: bool) -> None:
        """The loops' filters and checks changed. ``end_holds``: held pulls were made for other ones."""

    def group_gone(self, name: str) -> None:
        """The last member has left."""


class ConsumerRegistry:
    """Consumer groups that are online."""

    def __init__(self, listener: ConsumerListener, *, now_ms: Callable[[], int]) -> None:
        """Nobody is there. ``now_ms`` is the clock."""
        self._listener = listener
        self._now_ms = now_ms
        self._groups: dict[str, ConsumerGroup] = {}
        self._groups_of: dict[int, set[str]] = {}

    def get(self, group: str) -> ConsumerGroup | None:
        """Return a group, or None where nobody of it is there."""
        return self._groups.get(group)

    def groups(self) -> Iterator[ConsumerGroup]:
        """Return every group that is online."""
        return iter(list(self._groups.values()))

    def groups_of_conn(self, conn: int) -> Set[str]:
        """Return the groups that a connection is in."""
        return self._groups_of.get(conn, frozenset())

    def groups_of_topic(self, topic: str) -> list[str]:
        """Return the groups that subscribe to a topic."""
        return [group.name for group in self._groups.values() if topic in group.subscriptions]

    def register(
        self,
        name: str,
        client: ClientConnection,
        *,
        consume_type: ConsumeType,
        message_model: MessageModel,
        consume_from_where: ConsumeFromWhere,
        subscriptions: Iterable[SubscriptionData] | None,
        notify: bool,
    ) -> bool:
        """Note a heartbeat.

        Args:
            subscriptions: everything the client subscribes to; None: as before (a heartbeat without them).
            notify: whether the group wants its members notified.

        Returns:
            True where members or topics changed.

        Raises:
            Exception: the listener did not take the group's subscriptions; everything is as before.
        """
        group = self._groups.get(name)
        is_first = group is None
        if group is None:
            group = ConsumerGroup(name, consume_type, message_model, consume_from_where)
        known = (group.consume_type, group.message_model)
        before = dict(group.subscriptions)
        group.consume_type, group.message_model = consume_type, message_model
        found = _Changes()
        if subscriptions is not None:
            found = _subscribe(group.subscriptions, subscriptions, now_ms=self._now_ms())
        # The loops' tables come first: a notified member pulls with the new subscriptions at once.
        if is_first or found.versions or found.topics or known != (consume_type, message_model):
            try:
                self._listener.subscriptions_changed(group, end_holds=found.filters or found.topics)
            except Exception:
                # Kept, it would count as reported, and the next heartbeat would not report it again.
                group.consume_type, group.message_model = known
                group.subscriptions = before
                raise
        # A changed client id on the connection replaces the old one, and is not a new member.
        is_new = client.conn not in group.members
        self._groups[name] = group
        group.members[client.conn] = client
        self._groups_of.setdefault(client.conn, set()).add(name)
        group.consume_from_where = consume_from_where
        group.changed_ms = self._now_ms()
        # Members that pull of their own accord may have been assigned queues by hand, which nobody shares out.
        shares_queues = consume_type is ConsumeType.CONSUME_PASSIVELY
        others = any(member.client_id != client.client_id for member in group.members.values())
        if found.differing and shares_queues and others:
            _warn_of_differences(group, found.differing)
        if (is_new or found.topics) and notify and message_model is not MessageModel.BROADCASTING:
            self._listener.members_changed(group)
        return is_new or found.topics

    def unregister(self, name: str, conn: int, *, notify: bool) -> None:
        """Take a connection out of a group, at its own wish or because it is gone."""
        group = self._groups.get(name)
        if group is None or group.members.pop(conn, None) is None:
            return
        names = self._groups_of.get(conn, set())
        names.discard(name)
        if not names:
            self._groups_of.pop(conn, None)
        if not group.members:
            del self._groups[name]
            self._listener.group_gone(name)
        elif notify and group.message_model is not MessageModel.BROADCASTING:
            self._listener.members_changed(group)

    def close(self, conn: int, notify: Callable[[str], bool]) -> None:
        """Take a connection that is gone out of all its groups. ``notify`` returns whether to notify a group."""
        for name in sorted(self._groups_of.get(conn, ())):
            self.unregister(name, conn, notify=notify(name))

    def expire(self, timeout_ms: int) -> list[int]:
        """Take out members that were silent for so long; the others of their groups are not notified, as upstream.

        Returns:
            Their connections, for closing.
        """
        limit = self._now_ms() - timeout_ms
        doomed = [
            (group.name, member.conn)
            for group in self._groups.values()
            for member in group.members.values()
            if member.seen_ms < limit
        ]
        for name, conn in doomed:
            self.unregister(name, conn, notify=False)
        return list(dict.fromkeys(conn for _, conn in doomed))


@dataclass(slots=True)
class _Changes:
    """The changes of a heartbeat to a group's table of subscriptions.

    Attributes:
        topics: topics came or went.
        filters: a topic is filtered by something else.
        versions: a subscription has a new version, with the same or another content.
        differing: topics that the group and the client do not subscribe to alike; retry topics do not count.
    """

    topics: bool = False
    filters: bool = False
    versions: bool = False
    differing: list[str] = field(default_factory=list)


def is_unreachable(version: int, wanted: int, *, now_ms: int) -> bool:
    """Return whether a version is too far in the future for any client, and the wanted one is not.

    Versions are the time at the client, and the latest one counts, except for such a version.
    """
    return wanted <= now_ms + _AHEAD_MS < version


def _subscribe(table: dict[str, SubscriptionData], wanted: Iterable[SubscriptionData], *, now_ms: int) -> _Changes:
    """Apply a client's subscriptions to a group's table."""
    found = _Changes()
    named = set()
    for subscription in wanted:
        named.add(subscription.topic)
        before = table.get(subscription.topic)
        if before is None or _selection_of(subscription) != _selection_of(before):
            found.differing.append(subscription.topic)
        if before is None:
            found.topics = True
        elif subscription.sub_version > before.sub_version or is_unreachable(
            before.sub_version, subscription.sub_version, now_ms=now_ms
        ):
            found.versions = True
            found.filters = found.filters or _filter_of(subscription) != _filter_of(before)
        else:
            continue
        table[subscription.topic] = subscription
    for topic in [topic for topic in table if topic not in named]:
        del table[topic]
        found.topics = True
        found.differing.append(topic)
    found.differing = [topic for topic in found.differing if not topic.startswith(RETRY_PREFIX)]
    return found


def _warn_of_differences(group: ConsumerGroup, topics: list[str]) -> None:
    """Log that members of a group subscribe differently, at most every ``_WARN_EVERY_MS``."""
    if group.warned_ms is None or group.changed_ms - group.warned_ms >= _WARN_EVERY_MS:
        group.warned_ms = group.changed_ms
        _log.warning(
            "members of a group have different subscriptions, so messages are lost: give all members the same topics "
            "and expressions",
            extra={"group": group.name, "topics": listed_names(sorted(topics))},
        )


def _filter_of(subscription: SubscriptionData) -> tuple[str | None, str, bool]:
    return subscription.expression_type or "TAG", subscription.sub_string, subscription.class_filter_mode


def _selection_of(subscription: SubscriptionData) -> tuple[str, frozenset[str]]:
    """Return a form of the expression that is equal for equal selections: the order of tags does not matter."""
    kind, text = subscription.expression_type or "TAG", subscription.sub_string or ""
    parts = text.split("||") if kind == "TAG" else [text]
    return kind, frozenset(part.strip() for part in parts)


class ProducerRegistry:
    """Producer groups that are online."""

    def __init__(self, *, now_ms: Callable[[], int]) -> None:
        """Nobody is there. ``now_ms`` is the clock."""
        self._now_ms = now_ms
        self._groups: dict[str, dict[int, ClientConnection]] = {}
        self._groups_of: dict[int, set[str]] = {}
        self._conns_of: dict[str, dict[int, int]] = {}
        """Client id to its connections in the order of their first heartbeat, each with how many groups it is in."""

    def conn_of(self, client_id: str) -> int | None:
        """Return a client's newest connection, or None where the client is in no producer group."""
        conns = self._conns_of.get(client_id)
        return next(reversed(conns)) if conns else None

    def get(self, group: str) -> Mapping[int, ClientConnection] | None:
        """Return a group's members by connection, or None."""
        return self._groups.get(group)

    def groups(self) -> Mapping[str, Mapping[int, ClientConnection]]:
        """Return every group that is online."""
        return self._groups

    def groups_of_conn(self, conn: int) -> Set[str]:
        """Return the groups that a connection is in."""
        return self._groups_of.get(conn, frozenset())

    def register(self, group: str, client: ClientConnection) -> None:
        """Note a heartbeat."""
        members = self._groups.setdefault(group, {})
        before = members.get(client.conn)
        if before is None or before.client_id != client.client_id:
            if before is not None:
                self._uncount(before)
            conns = self._conns_of.setdefault(client.client_id, {})
            conns[client.conn] = conns.get(client.conn, 0) + 1
        members[client.conn] = client
        self._groups_of.setdefault(client.conn, set()).add(group)

    def _uncount(self, client: ClientConnection) -> None:
        """Forget that a client's connection is in one of its groups."""
        conns = self._conns_of[client.client_id]
        conns[client.conn] -= 1
        if not conns[client.conn]:
            del conns[client.conn]
        if not conns:
            del self._conns_of[client.client_id]

    def unregister(self, group: str, conn: int) -> None:
        """Take a connection out of a group."""
        members = self._groups.get(group)
        left = None if members is None else members.pop(conn, None)
        if left is None:
            return
        self._uncount(left)
        if not members:
            del self._groups[group]
        names = self._groups_of[conn]
        names.discard(group)
        if not names:
            del self._groups_of[conn]

    def close(self, conn: int) -> None:
        """Take a connection that is gone out of all groups."""
        for group in sorted(self._groups_of.get(conn, ())):
            self.unregister(group, conn)

    def expire(self, timeout_ms: int) -> list[int]:
        """Take out members that were silent for so long; returns their connections, for closing."""
        limit = self._now_ms() - timeout_ms
        doomed = [
            (group, member.conn)
            for group, members in self._groups.items()
            for member in members.values()
            if member.seen_ms < limit
        ]
        for group, conn in doomed:
            self.unregister(group, conn)
        return list(dict.fromkeys(conn for _, conn in doomed))
