"""The content of heartbeats, and which of them may leave the subscriptions out. Plain data, no network.

Source: consumption specification 1.5; remoting specification 2.7, 5.5.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace

from cometmq._engine import java_hash
from cometmq.client.instance.registrants import ConsumerPart
from cometmq.remoting.bodies.heartbeat import ConsumerData, HeartbeatData, ProducerData
from cometmq.remoting.command import Command
from cometmq.remoting.members import Members

__all__ = ["HeartbeatMemory", "heartbeat_data", "heartbeat_fingerprint"]

_SUPPORTS_V2 = "IS_SUPPORT_HEART_BEAT_V2"
_SUBSCRIPTIONS_CHANGED = "IS_SUB_CHANGE"


def heartbeat_data(client_id: str, *, producers: Iterable[str], consumers: Iterable[ConsumerPart]) -> HeartbeatData:
    """Return the heartbeat of a client: its groups by name and their subscriptions by topic.

    Args:
        client_id: the client.
        producers: its producer groups, the inner one included.
        consumers: its consumer groups.
    """
    return HeartbeatData(
        client_id=client_id,
        producers=tuple(ProducerData(group_name=group) for group in sorted(producers)),
        consumers=tuple(_consumer_data(part) for part in sorted(consumers, key=lambda part: part.group)),
    )


def _consumer_data(part: ConsumerPart) -> ConsumerData:
    return ConsumerData(
        group_name=part.group,
        consume_type=part.consume_type,
        message_model=part.message_model,
        consume_from_where=part.consume_from_where,
        subscriptions=tuple(sorted(part.subscriptions.values(), key=lambda subscription: subscription.topic)),
        unit_mode=part.unit_mode,
    )


def heartbeat_fingerprint(data: HeartbeatData) -> int:
    """Return a number that is the same as long as the groups and what they subscribe to are; never 0.

    It depends on neither the client nor the versions of its subscriptions.
    """
    consumers = tuple(
        replace(
            consumer,
            subscriptions=tuple(replace(subscription, sub_version=0) for subscription in consumer.subscriptions),
        )
        for consumer in data.consumers
    )
    plain = replace(data, client_id="", consumers=consumers, fingerprint=0, without_sub=False)
    # 0 stands for a heartbeat of the first version.
    return java_hash(plain.to_json().decode()) or 1


@dataclass(slots=True)
class _Known:
    """The state of one broker."""

    supports_v2: bool = False
    fingerprint: int = 0


class HeartbeatMemory:
    """Which brokers know our subscriptions already, so that the next heartbeat may leave them out."""

    def __init__(self) -> None:
        """No broker knows anything."""
        self._brokers: dict[str, _Known] = {}

    def body_for(self, address: str, full: HeartbeatData, fingerprint: int) -> HeartbeatData:
        """Return what to send to a broker; ``fingerprint`` is that of ``full``."""
        known = self._brokers.get(address)
        if known is None or not known.supports_v2 or known.fingerprint != fingerprint:
            return replace(full, fingerprint=fingerprint)
        consumers = tuple(replace(consumer, subscriptions=()) for consumer in full.consumers)
        return replace(full, consumers=consumers, fingerprint=fingerprint, without_sub=True)

    def answered(self, address: str, sent: HeartbeatData, answer: Command) -> None:
        """Take note of a broker's answer to a heartbeat that it accepted.

        Raises:
            MalformedCommand: a field of the answer is malformed.
        """
        members = Members(answer.fields)
        known = self._brokers.setdefault(address, _Known())
        known.supports_v2 = members.boolean(_SUPPORTS_V2)
        changed = members.boolean(_SUBSCRIPTIONS_CHANGED)
        if sent.without_sub:
            known.fingerprint = 0 if changed else sent.fingerprint
        else:
            known.fingerprint = sent.fingerprint if known.supports_v2 and not changed else 0

    def forget(self, address: str | None = None) -> None:
        """Let the next heartbeats say everything; to one broker, or to all."""
        if address is None:
            self._brokers.clear()
        else:
            self._brokers.pop(address, None)
