"""Queues that the broker assigns to members (400), and whether a group pulls or pops a topic (401, 402).

An answer without an assignment (None) leaves a member its queues; an empty one takes all of them away. Any broker of a
topic may be asked, so all must answer alike: from the name servers' route and the sorted ids of the members.

Threads: the event loop's; the functions above the class are plain ones.
Source: consumption specification 4.2, 4.3, 8; upstream's QueryAssignmentProcessor.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from cometmq.broker.groups import BrokerGroups
from cometmq.broker.registry import ConsumerRegistry
from cometmq.broker.routes import Routes
from cometmq.broker.topics import BrokerTopics
from cometmq.client.group.allocation import AllocateStrategy, Averagely, AveragelyByCircle
from cometmq.client.group.subscriptions import queue_order, text_order
from cometmq.errors import Error, InvalidArgument
from cometmq.remoting.answers import Caller, Refusal, Table, ok, read_apart
from cometmq.remoting.bodies.assignments import (
    MessageQueueAssignment,
    QueryAssignmentRequestBody,
    QueryAssignmentResponseBody,
    SetMessageRequestModeRequestBody,
)
from cometmq.remoting.bodies.heartbeat import MessageModel
from cometmq.remoting.bodies.message_queue import MessageQueue
from cometmq.remoting.codes import RequestCode, ResponseCode
from cometmq.remoting.command import Command
from cometmq.remoting.shared_write import SharedWrite
from cometmq.store_config.fastjson import Layout, encode
from cometmq.store_config.file_ops import SYSTEM_FILE_OPS, FileOps
from cometmq.store_config.names import RETRY_PREFIX, is_light_queue
from cometmq.store_config.request_modes import MessageRequestMode, RequestMode, RequestModes

__all__ = ["ALL_QUEUES", "AssignmentRules", "Assignments", "allocate_for_pop", "share_out"]

_log = logging.getLogger("cometmq.broker.assignment")

_INLINE_QUEUES = 200
"""Queues whose answer is written on the event loop."""

ALL_QUEUES = -1
"""As a queue id: all queues of the topic at the broker."""

_STRATEGIES: dict[str, AllocateStrategy] = {one.name: one for one in (Averagely(), AveragelyByCircle())}


def allocate_for_pop(
    strategy: AllocateStrategy,
    group: str,
    client_id: str,
    queues: Sequence[MessageQueue],
    client_ids: Sequence[str],
    *,
    share: int,
) -> list[MessageQueue]:
    """Return the queues that a member pops, some of them perhaps twice.

    Args:
        strategy: divides the queues.
        group, client_id, queues, client_ids: as for :meth:`AllocateStrategy.allocate`; both lists are sorted.
        share: a member pops its own queues and those of so many members behind it; none, or as many as there are
            others: it pops all, which is said by one queue of id -1 for each broker.

    Raises:
        InvalidArgument: nothing to divide, or nobody to divide it among.
    """
    members = len(client_ids)
    if share <= 0 or share >= members - 1:
        return [MessageQueue(topic=one.topic, broker_name=one.broker_name, queue_id=ALL_QUEUES) for one in queues]
    mine = strategy.allocate(group, client_id, queues, client_ids)
    if client_id not in client_ids:
        return mine
    index = client_ids.index(client_id)
    if members > len(queues):
        return [queues[index % len(queues)]]
    for step in range(1, share + 1):
        mine += strategy.allocate(group, client_ids[(index + step) % members], queues, client_ids)
    return mine


def share_out(
    strategy_name: str,
    mode: RequestMode,
    *,
    group: str,
    client_id: str,
    queues: Sequence[MessageQueue],
    client_ids: Sequence[str],
) -> tuple[MessageQueue, ...] | None:
    """Return a member's queues, each once; None where it is to keep what it has.

    Args:
        strategy_name: ``AVG`` or ``AVG_BY_CIRCLE``; the answer to any other is None.
        mode: how the group gets the topic's messages.
        group, client_id: whose.
        queues: all queues of the topic, in any order.
        client_ids: all members, likewise.
    """
    strategy = _STRATEGIES.get(strategy_name)
    if strategy is None:
        _log.warning("assignment by an unknown strategy", extra={"group": group, "strategy": strategy_name[:60]})
        return None
    in_order, members = sorted(queues, key=queue_order), sorted(client_ids, key=text_order)
    try:
        if mode.mode is MessageRequestMode.POP:
            mine = allocate_for_pop(strategy, group, client_id, in_order, members, share=mode.pop_share_queue_num)
        else:
            mine = strategy.allocate(group, client_id, in_order, members)
    except InvalidArgument as error:
        _log.warning("no assignment", extra={"group": group, "client": client_id, "error": str(error)})
        return None
    return tuple(dict.fromkeys(mine))


@dataclass(frozen=True, slots=True, kw_only=True)
class AssignmentRules:
    """The settings of assignments.

    Attributes:
        default_mode: of groups for which none was set.
        share_out: queues are shared out among the members; without, each is given all.
        serves_pops: the loops serve pops, which need timers; without, members whose mode is POP are assigned to pull.
    """

    default_mode: RequestMode
    share_out: bool
    serves_pops: bool


class Assignments:
    """Assignments and modes of one broker."""

    def __init__(
        self,
        folder: Path,
        *,
        routes: Routes,
        topics: BrokerTopics,
        groups: BrokerGroups,
        consumers: ConsumerRegistry,
        broker_name: str,
        rules: AssignmentRules,
        file_ops: FileOps = SYSTEM_FILE_OPS,
    ) -> None:
        """Read ``messageRequestMode.json``.

        Args:
            folder: the store's ``config`` folder.
            routes: where queues are.
            topics, groups, consumers: this broker's.
            broker_name: this broker's name.
            rules: the settings.
            file_ops: the file operations to use.

        Raises:
            ConfigError: the file cannot be used, nor its ``.bak``.
        """
        self._modes = RequestModes(folder, file_ops=file_ops)
        self._routes = routes
        self._topics = topics
        self._groups = groups
        self._consumers = consumers
        self._broker_name = broker_name
        self.rules = rules
        self._write = SharedWrite(self._modes.persist)
        warning = self._modes.load().warning
        if warning is not None:
            _log.warning("modes not read as they were", extra={"error": warning})

    def mode_of(self, topic: str, group: str) -> RequestMode:
        """Return how a group gets a topic's messages."""
        found = self._modes.get(topic, group)
        if found is not None:
            return found
        # A retry topic is pulled, also by a group whose broker pops by default.
        return RequestMode() if topic.startswith(RETRY_PREFIX) else self.rules.default_mode

    # --- Requests

    def handlers(self) -> Table:
        """Return what this part serves."""
        return {
            RequestCode.QUERY_ASSIGNMENT: self._assign,
            RequestCode.SET_MESSAGE_REQUEST_MODE: self._set_mode,
            RequestCode.GET_ALL_MESSAGE_REQUEST_MODE: self._show_modes,
        }

    async def _assign(self, request: Command, caller: Caller) -> Command:
        asked = await read_apart(request, caller, QueryAssignmentRequestBody.from_request)
        mode = self.mode_of(asked.topic, asked.consumer_group)
        if mode.mode is MessageRequestMode.POP and not self.rules.serves_pops:
            mode = RequestMode()
        queues = await self._queues_of(asked, mode)
        assignments = (
            None if queues is None else tuple(MessageQueueAssignment(queue=queue, mode=mode.mode) for queue in queues)
        )
        body = QueryAssignmentResponseBody(assignments=assignments)
        is_short = assignments is None or len(assignments) <= _INLINE_QUEUES
        return ok(request, body=body.to_json() if is_short else await caller.apart(body.to_json))

    async def _queues_of(self, asked: QueryAssignmentRequestBody, mode: RequestMode) -> tuple[MessageQueue, ...] | None:
        is_broadcast = asked.message_model is MessageModel.BROADCASTING
        queues: tuple[MessageQueue, ...] | None
        if is_light_queue(asked.topic) and not is_broadcast:
            queues = (MessageQueue(topic=asked.topic, broker_name=self._broker_name, queue_id=0),)
        else:
            queues = await self._routes.queues(asked.topic)
        if queues is None or is_broadcast or not self.rules.share_out:
            return queues
        group = self._consumers.get(asked.consumer_group)
        if group is None:
            return None
        return share_out(
            asked.strategy_name,
            mode,
            group=asked.consumer_group,
            client_id=asked.client_id,
            queues=queues,
            client_ids=group.client_ids(),
        )

    async def _set_mode(self, request: Command, caller: Caller) -> Command:
        body = await read_apart(request, caller, SetMessageRequestModeRequestBody.from_request)
        topic, group = body.topic, body.consumer_group
        if topic.startswith(RETRY_PREFIX):
            raise Refusal(ResponseCode.NO_PERMISSION, "retry topic is not allowed to set mode")
        if self._topics.get(topic) is None:
            raise Refusal(ResponseCode.TOPIC_NOT_EXIST, f"topic[{topic}] not exist")
        if await self._groups.find_or_make(group) is None:
            raise Refusal(ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST, "subscription group does not exist")
        mode = RequestMode(mode=body.mode, pop_share_queue_num=body.pop_share_queue_num)
        before = self._modes.put(topic, group, mode)
        try:
            await self._write()
        except Error:
            self._modes.put(topic, group, before)
            raise
        _log.info("mode set", extra={"topic": topic, "group": group, "mode": mode.mode.value})
        return ok(request)

    def _show_modes(self, request: Command, caller: Caller) -> Command:
        return ok(request, body=encode(self._modes.encode(), layout=Layout.COMPACT))
