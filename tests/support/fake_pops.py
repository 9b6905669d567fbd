"""POP in a broker of the fake cluster: messages given out and hidden, acknowledged, extended, revived;
questions that are held; and which queues, pulled or popped, are whose.

A message that is not acknowledged in time is appended to the group's retry topic at once, without a broker's delay.

Source: consumption specification 4.2 to 4.11.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from cometmq.client.group.allocation import Averagely
from cometmq.remoting.bodies.acks import BatchAckMessageRequestBody
from cometmq.remoting.bodies.assignments import (
    MessageQueueAssignment,
    MessageRequestMode,
    QueryAssignmentRequestBody,
    QueryAssignmentResponseBody,
)
from cometmq.remoting.bodies.message_queue import MessageQueue
from cometmq.remoting.codes import RequestCode, ResponseCode
from cometmq.remoting.command import Command
from cometmq.remoting.members import Members
from support.virtual_loop import VirtualLoop

if TYPE_CHECKING:
    from support.fake_cluster import FakeBroker, FakeNetwork, Record

__all__ = ["FakePops", "Hidden"]

REVIVE_QUEUES = 8


@dataclass(kw_only=True)
class Hidden:
    """A message that somebody has."""

    group: str
    topic: str
    record: Record
    pop_ms: int
    timer: asyncio.TimerHandle


def _retry(group: str, topic: str) -> str:
    return f"%RETRY%{group}_{topic}"


class FakePops:
    """POP at one broker."""

    def __init__(self, broker: FakeBroker, loop: VirtualLoop) -> None:
        self._broker = broker
        self._loop = loop
        self._next: dict[tuple[str, str, int], int] = {}
        self._waiting: list[asyncio.Event] = []
        self._count = 0
        self.modes: dict[str, MessageRequestMode] = {}
        self.hidden: dict[tuple[str, str, int, int, int], Hidden] = {}
        """By group, stored topic, queue, offset and the time of the pop."""
        self.acked: list[bytes] = []
        self.is_full = False
        self.spoil: Callable[[dict[str, str]], None] = lambda fields: None
        """Changes the fields of the answers to pops."""

    def answer(self, client: FakeNetwork, command: Command) -> Any:
        handler = self._HANDLERS.get(command.code)
        return None if handler is None else handler(self, client, command)

    def arrived(self) -> None:
        for waiting in self._waiting:
            waiting.set()
        self._waiting.clear()

    async def _until(self, command: Command, holds: Callable[[], Any]) -> Any:
        """Return the messages that are there, at the latest when the request's time is over."""
        end_s = self._loop.time() + Members(command.fields).required_int64("pollTime") / 1000
        while not (found := holds()) and self._loop.time() < end_s:
            arrived = asyncio.Event()
            self._waiting.append(arrived)
            timer = self._loop.call_later(end_s - self._loop.time(), arrived.set)
            await arrived.wait()
            timer.cancel()
        return found

    # --- Pops ---------------------------------------------------------------------------------------------------------

    async def _pop(self, client: FakeNetwork, command: Command) -> Command:
        members = Members(command.fields)
        group, topic = members.required("consumerGroup"), members.required("topic")
        if topic not in self._broker.topics:
            return command.response(ResponseCode.TOPIC_NOT_EXIST, remark=f"topic[{topic}] not exist")
        if group in self._broker.unknown_groups:
            remark = f"subscription group [{group}] does not exist"
            return command.response(ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST, remark=remark)
        most = members.required_int32("maxMsgNums")
        if most > 32:
            return command.response(ResponseCode.INVALID_PARAMETER, remark="too many")
        if self.is_full:
            return command.response(ResponseCode.POLLING_FULL)
        taken = await self._until(command, lambda: self._take(group, topic, most, members))
        if not taken:
            fields = {"popTime": "1", "invisibleTime": "1", "reviveQid": "0", "restNum": "0"}
            return command.response(ResponseCode.POLLING_TIMEOUT, remark="NO_MESSAGE_IN_QUEUE", fields=fields)
        return self._given(command, group, topic, taken, members.required_int64("invisibleTime"))

    def _queues(self, group: str, topic: str) -> list[tuple[str, int, list[Record]]]:
        topics = self._broker.topics
        return [
            (name, queue_id, queue)
            for name in (_retry(group, topic), topic)
            for queue_id, queue in enumerate(topics.get(name, []))
        ]

    def _take(self, group: str, topic: str, most: int, members: Members) -> list[Record]:
        taken: list[Record] = []
        for name, queue_id, queue in self._queues(group, topic):
            from_end = members.required_int32("initMode") == 1 and name == topic
            at = self._next.setdefault((group, name, queue_id), max(0, len(queue) - 1) if from_end else 0)
            some = queue[at : at + most - len(taken)]
            self._next[group, name, queue_id] = at + len(some)
            taken += some
        return taken

    def _given(self, command: Command, group: str, topic: str, taken: list[Record], invisible_ms: int) -> Command:
        now_ms, revive = self._loop.now_ms(), self._count % REVIVE_QUEUES
        self._count += 1
        by_queue: dict[tuple[str, int], list[Record]] = {}
        for record in taken:
            by_queue.setdefault((record.topic, record.queue_id), []).append(record)
            self._hide(group, topic, record, now_ms, invisible_ms)
        starts, offsets, bodies = [], [], []
        for (stored, queue_id), some in by_queue.items():
            kind = 0 if stored == topic else 1
            starts.append(f"{kind} {queue_id} {some[0].queue_offset}")
            offsets.append(f"{kind} {queue_id} {','.join(str(one.queue_offset) for one in some)}")
            for one in some:
                shown = one
                if kind:
                    handle = (
                        f"{some[0].queue_offset} {now_ms} {invisible_ms} {revive} 1 {self._broker.name} {queue_id} "
                        f"{one.queue_offset}"
                    )
                    shown = replace(one, topic=topic, properties={**one.properties, "POP_CK": handle})
                bodies.append(shown.encode())
        fields = {
            "popTime": str(now_ms),
            "invisibleTime": str(invisible_ms),
            "reviveQid": str(revive),
            "restNum": str(self._rest(group, topic)),
            "startOffsetInfo": ";".join(starts),
            "msgOffsetInfo": ";".join(offsets),
        }
        self.spoil(fields)
        return command.response(ResponseCode.SUCCESS, remark="FOUND", fields=fields, body=b"".join(bodies))

    def _rest(self, group: str, topic: str) -> int:
        return sum(
            len(queue) - self._next.get((group, name, queue_id), 0)
            for name, queue_id, queue in self._queues(group, topic)
        )

    def _hide(self, group: str, topic: str, record: Record, pop_ms: int, invisible_ms: int) -> None:
        key = group, record.topic, record.queue_id, record.queue_offset, pop_ms
        timer = self._loop.call_later(invisible_ms / 1000, self._revive, key)
        self.hidden[key] = Hidden(group=group, topic=topic, record=record, pop_ms=pop_ms, timer=timer)

    def _revive(self, key: tuple[str, str, int, int, int]) -> None:
        hidden = self.hidden.pop(key)
        old = hidden.record
        self._broker.append(
            _retry(hidden.group, hidden.topic), 0, old.body, old.properties, reconsume_times=old.reconsume_times + 1
        )

    async def _notify(self, client: FakeNetwork, command: Command) -> Command:
        members = Members(command.fields)
        group, topic = members.required("consumerGroup"), members.required("topic")
        found = await self._until(command, lambda: self._rest(group, topic))
        fields = {"hasMsg": "true" if found else "false", "pollingFull": "false"}
        return command.response(ResponseCode.SUCCESS, fields=fields)

    # --- Handles ------------------------------------------------------------------------------------------------------

    def _finish(self, key: tuple[str, str, int, int, int]) -> Hidden | None:
        hidden = self.hidden.pop(key, None)
        if hidden is not None:
            hidden.timer.cancel()
        return hidden

    def _key(self, members: Members) -> tuple[str, str, int, int, int]:
        return (
            members.required("consumerGroup"),
            members.required("topic"),
            members.required_int32("queueId"),
            members.required_int64("offset"),
            int(members.required("extraInfo").split(" ")[1]),
        )

    def _is_there(self, key: tuple[str, str, int, int, int]) -> bool:
        queues = self._broker.topics.get(key[1], [])
        return key[2] < len(queues) and key[3] < len(queues[key[2]])

    def _ack(self, client: FakeNetwork, command: Command) -> Command:
        key = self._key(Members(command.fields))
        if not self._is_there(key):
            return command.response(ResponseCode.NO_MESSAGE, remark="offset is illegal")
        if (hidden := self._finish(key)) is not None:
            self.acked.append(hidden.record.body)
        return command.response(ResponseCode.SUCCESS)

    def _ack_batch(self, client: FakeNetwork, command: Command) -> Command:
        for ack in BatchAckMessageRequestBody.from_json(command.body).acks:
            stored = ack.topic if ack.retry == "0" else _retry(ack.consumer_group, ack.topic)
            for bit in ack.acknowledged:
                key = ack.consumer_group, stored, ack.queue_id, ack.start_offset + bit, ack.pop_time_ms
                if (hidden := self._finish(key)) is not None:
                    self.acked.append(hidden.record.body)
        return command.response(ResponseCode.SUCCESS)

    def _change(self, client: FakeNetwork, command: Command) -> Command:
        members = Members(command.fields)
        key, invisible_ms = self._key(members), members.required_int64("invisibleTime")
        if not self._is_there(key):
            return command.response(ResponseCode.NO_MESSAGE, remark="offset is illegal")
        now_ms = self._loop.now_ms()
        if (hidden := self._finish(key)) is not None:
            self._hide(hidden.group, hidden.topic, hidden.record, now_ms, invisible_ms)
        fields = {"popTime": str(now_ms), "invisibleTime": str(invisible_ms), "reviveQid": "1"}
        return command.response(ResponseCode.SUCCESS, fields=fields)

    # --- Queues -------------------------------------------------------------------------------------------------------

    def _assign(self, client: FakeNetwork, command: Command) -> Command:
        question = QueryAssignmentRequestBody.from_json(command.body)
        topic, cluster = question.topic, client.cluster
        mode = self.modes.get(topic, MessageRequestMode.PULL)
        members = sorted(self._broker.groups.get(question.consumer_group, ()))
        queues = [
            MessageQueue(topic=topic, broker_name=broker.name, queue_id=queue_id)
            for broker in cluster.brokers
            for queue_id in range(len(broker.topics.get(topic, ())))
        ]
        if not queues or not members:
            return command.response(ResponseCode.SUCCESS, body=QueryAssignmentResponseBody(assignments=None).to_json())
        if mode is MessageRequestMode.POP:
            mine = dict.fromkeys(replace(queue, queue_id=-1) for queue in queues)
        else:
            shared = Averagely().allocate(question.consumer_group, question.client_id, queues, members)
            mine = dict.fromkeys(shared)
        assigned = tuple(MessageQueueAssignment(queue=queue, mode=mode) for queue in mine)
        return command.response(ResponseCode.SUCCESS, body=QueryAssignmentResponseBody(assignments=assigned).to_json())

    _HANDLERS: Mapping[int, Callable[[FakePops, FakeNetwork, Command], Any]] = {
        RequestCode.POP_MESSAGE: _pop,
        RequestCode.ACK_MESSAGE: _ack,
        RequestCode.BATCH_ACK_MESSAGE: _ack_batch,
        RequestCode.CHANGE_MESSAGE_INVISIBLETIME: _change,
        RequestCode.NOTIFICATION: _notify,
        RequestCode.QUERY_ASSIGNMENT: _assign,
    }
