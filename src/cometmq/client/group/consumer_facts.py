"""The facts about consumers that heartbeats and the rebalance need, from their settings.

Threads: any; settings are immutable.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from cometmq.client.pop.simple_settings import SimpleSettings
    from cometmq.client.settings import ConsumerSettings
    from cometmq.remoting.bodies.heartbeat import ConsumeFromWhere, MessageModel

__all__ = ["ConsumerFacts", "GroupFacts"]


class GroupFacts:
    """Facts of a consumer that follow from its settings; see
    :class:`~cometmq.client.instance.registrants.ConsumerPart`.
    """

    settings: ConsumerSettings | SimpleSettings

    @property
    def consume_from_where(self) -> ConsumeFromWhere:
        """Where a group without progress begins."""
        return self.settings.consume_from_where

    @property
    def namespace(self) -> str | None:
        """The prefix that the user does not see."""
        return self.settings.namespace

    @property
    def unit_mode(self) -> bool:
        """Whether the group's clients are spread over units."""
        return self.settings.unit_mode


class ConsumerFacts(GroupFacts):
    """The same where clients share queues out among themselves, or each takes all."""

    settings: ConsumerSettings

    @property
    def message_model(self) -> MessageModel:
        """Whether members share the messages or each gets all."""
        return self.settings.message_model

    @property
    def model(self) -> MessageModel:
        """The same, for the rebalance."""
        return self.settings.message_model
