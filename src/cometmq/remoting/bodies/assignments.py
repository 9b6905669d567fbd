"""Queues that a broker assigns, and whether a group pulls or pops: codes 400 to 402.

Source: remoting specification 2.5, 5.11.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from cometmq.remoting.bodies.body import (
    TEXT,
    Body,
    MapCodec,
    body_codec,
    enumeration,
    int32,
    map_of,
    optional_list_of,
    optional_map_of,
    optional_nested,
    text,
)
from cometmq.remoting.bodies.heartbeat import MessageModel
from cometmq.remoting.bodies.message_queue import MessageQueue
from cometmq.store_config.request_modes import MessageRequestMode

__all__ = [
    "MessageQueueAssignment",
    "MessageRequestMode",
    "MessageRequestModeSerializeWrapper",
    "QueryAssignmentRequestBody",
    "QueryAssignmentResponseBody",
    "SetMessageRequestModeRequestBody",
]


@dataclass(frozen=True, slots=True, kw_only=True)
class QueryAssignmentRequestBody(Body):
    """Which queues of a topic are this client's?"""

    topic: str = text("topic")
    consumer_group: str = text("consumerGroup")
    client_id: str = text("clientId")
    strategy_name: str = text("strategyName", "AVG")
    message_model: MessageModel = enumeration("messageModel", MessageModel.CLUSTERING)


@dataclass(frozen=True, slots=True, kw_only=True)
class MessageQueueAssignment(Body):
    """One queue, or with queue id -1 all of a broker, and how to get at it."""

    queue: MessageQueue | None = optional_nested("messageQueue", MessageQueue)
    mode: MessageRequestMode = enumeration("mode", MessageRequestMode.PULL)
    attachments: Mapping[str, str] | None = optional_map_of("attachments", TEXT, TEXT)


@dataclass(frozen=True, slots=True, kw_only=True)
class QueryAssignmentResponseBody(Body):
    """The client's queues; None says that it keeps what it has."""

    assignments: tuple[MessageQueueAssignment, ...] | None = optional_list_of(
        "messageQueueAssignments", body_codec(MessageQueueAssignment)
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class SetMessageRequestModeRequestBody(Body):
    """A group's mode for a topic; -1 shares with all members."""

    topic: str = text("topic")
    consumer_group: str = text("consumerGroup")
    mode: MessageRequestMode = enumeration("mode", MessageRequestMode.PULL)
    pop_share_queue_num: int = int32("popShareQueueNum")


@dataclass(frozen=True, slots=True, kw_only=True)
class MessageRequestModeSerializeWrapper(Body):
    """All modes: topic to group to mode."""

    modes: Mapping[str, Mapping[str, SetMessageRequestModeRequestBody]] = map_of(
        "messageRequestModeMap", TEXT, MapCodec(TEXT, body_codec(SetMessageRequestModeRequestBody))
    )
