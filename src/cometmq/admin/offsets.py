"""Offsets of consumer groups: where they are, where a time is, and moving them.

Source: remoting specification 2.6, 2.10, 2.12.
"""

from __future__ import annotations

from collections.abc import Iterable

from cometmq.admin.operation import Call, Operation, accepted, ask_all, succeeded
from cometmq.admin.results import BrokerRef, GroupProgress, QueueOffset, QueueProgress
from cometmq.admin.servers import Route, Servers, TopicQueues, lost_broker, request
from cometmq.errors import InvalidArgument, NotFound
from cometmq.remoting.bodies.offset_changes import ResetOffsetBody
from cometmq.remoting.bodies.stats import ConsumeStats
from cometmq.remoting.codes import RequestCode, ResponseCode
from cometmq.remoting.command import Command
from cometmq.remoting.members import Members
from cometmq.store_config.java_properties import parse_properties

__all__ = ["EARLIEST_MS", "LATEST_MS", "OffsetOperations"]

LATEST_MS = -1
"""As a time: the end of the queue, behind the newest message."""

EARLIEST_MS = 0
"""As a time: the oldest message."""


class OffsetOperations:
    """Offsets. Each method is an operation: the surfaces run it."""

    def __init__(self, servers: Servers) -> None:
        """``servers`` is the way to the cluster."""
        self._servers = servers

    # --- Looking ------------------------------------------------------------------------------------------------------

    def progress(self, group: str, *, topic: str | None = None) -> Operation[GroupProgress]:
        """Return where a group is in each queue that it has progress in; no queues for a group that never was.

        Lost brokers are those of the clusters where it has progress; of all clusters where it has none.

        Args:
            group: the group.
            topic: only this topic.
        """
        brokers, lost = yield from self._servers.brokers_and_lost()
        answers = yield from self._servers.invoke_brokers(
            brokers, request(RequestCode.GET_CONSUME_STATS, consumerGroup=group, topic=topic)
        )
        queues: list[QueueProgress] = []
        clusters = set()
        rate = 0.0
        for broker, answer in answers:
            if not answer.body:
                continue
            stats = ConsumeStats.from_json(answer.body)
            rate += stats.consume_tps
            found = [
                QueueProgress(
                    topic=queue.topic,
                    broker_name=broker.broker_name or queue.broker_name,
                    queue_id=queue.queue_id,
                    broker_offset=place.broker_offset,
                    consumer_offset=place.consumer_offset,
                    pull_offset=place.pull_offset,
                    last_timestamp_ms=place.last_timestamp_ms,
                )
                for queue, place in stats.offsets.items()
                if topic is None or queue.topic == topic
            ]
            queues += found
            if found:
                clusters.add(broker.cluster)
        return GroupProgress(
            group=group,
            queues=tuple(sorted(queues)),
            consumed_messages_per_s=rate,
            lost=tuple(broker for broker in lost if not clusters or broker.cluster in clusters),
        )

    def _whole_progress(self, group: str, topic: str | None) -> Operation[GroupProgress]:
        """Return the progress for a change that must not leave queues out.

        Raises:
            ConnectionLost: a broker is lost.
        """
        progress = yield from self.progress(group, topic=topic)
        for broker in progress.lost:
            raise lost_broker(broker)
        return progress

    def at_time(
        self, topic: str, timestamp_ms: int, *, broker_name: str | None = None, queue_id: int | None = None
    ) -> Operation[tuple[QueueOffset, ...]]:
        """Return for each queue the offset of its first message that was stored at a time or later.

        Args:
            topic: the topic.
            timestamp_ms: milliseconds since 1970; :data:`LATEST_MS` is the end of the queue.
            broker_name: only at this broker.
            queue_id: only this queue.

        Raises:
            BrokerError: there is no such topic (code 17).
        """
        route = yield from self._servers.route(topic)
        places = _queues(route, broker_name, queue_id)
        asked = [self._offset_call(topic, broker, queue, timestamp_ms) for broker, queue in places]
        answers = yield from ask_all(asked)
        return tuple(
            QueueOffset(
                broker_name=broker.broker_name,
                queue_id=queue,
                offset=Members(accepted(call, answer).fields).required_int64("offset"),
            )
            for (broker, queue), (call, answer) in zip(places, answers, strict=True)
        )

    def _offset_call(self, topic: str, broker: BrokerRef, queue_id: int, timestamp_ms: int) -> Call:
        if timestamp_ms == LATEST_MS:
            command = request(RequestCode.GET_MAX_OFFSET, topic=topic, queueId=queue_id, committed=True)
        elif timestamp_ms == EARLIEST_MS:
            command = request(RequestCode.GET_MIN_OFFSET, topic=topic, queueId=queue_id)
        else:
            command = request(
                RequestCode.SEARCH_OFFSET_BY_TIMESTAMP,
                topic=topic,
                queueId=queue_id,
                timestamp=timestamp_ms,
                boundaryType="LOWER",
            )
        return self._servers.call(broker.address, command)

    # --- Moving -------------------------------------------------------------------------------------------------------

    def reset(
        self,
        group: str,
        topic: str,
        *,
        timestamp_ms: int | None = None,
        offset: int | None = None,
        broker_name: str | None = None,
        queue_id: int | None = None,
        force: bool = True,
    ) -> Operation[tuple[QueueOffset, ...]]:
        """Move a group: its next messages are those from a time or an offset on, in every queue or in one.

        Connected members continue from there. Where none is connected and the broker wants one, the offset is committed
        for the group instead.

        Args:
            group: the group; the broker has to know it.
            topic: the topic.
            timestamp_ms: to the first message that was stored at this time or later, milliseconds since 1970;
                :data:`LATEST_MS` behind the newest, 0 to the oldest.
            offset: or to this queue offset; needs a queue.
            broker_name: only at this broker.
            queue_id: only this queue.
            force: backwards and forwards; without, only backwards.

        Returns:
            Where it is now, in each queue that was moved.

        Raises:
            InvalidArgument: not one of the two was given, or an offset without a queue.
            BrokerError: there is no such topic (17) or group (26), or the offset is not in the queue.
        """
        if timestamp_ms is None and offset is None:
            raise InvalidArgument("reset needs a time or an offset: timestamp_ms=..., or offset=... with queue_id=...")
        if timestamp_ms is not None and offset is not None:
            raise InvalidArgument("give a time or an offset to reset to, not both")
        if offset is not None and queue_id is None:
            raise InvalidArgument("an offset belongs to one queue: name the queue")
        route = yield from self._servers.route(topic)
        parts = route.parts if broker_name is None and offset is None else (route.part_of(broker_name),)
        if queue_id is not None:
            _queues(route, broker_name, queue_id)
        moved: list[QueueOffset] = []
        for part in parts:
            if queue_id is not None and not (yield from self._moves_single_queues(part.broker)):
                yield from self._check_nobody_is_connected(group, part.broker)
                moved += yield from self._commit_instead(
                    group, topic, part, timestamp_ms, offset, queue_id, force=force
                )
                continue
            command = request(
                RequestCode.INVOKE_BROKER_TO_RESET_OFFSET,
                topic=topic,
                group=group,
                timestamp=LATEST_MS if timestamp_ms is None else timestamp_ms,
                isForce=force,
                queueId=-1 if queue_id is None else queue_id,
                offset=-1 if offset is None else offset,
            )
            call = self._servers.call(part.broker.address, command)
            answer = yield from succeeded(call, ResponseCode.CONSUMER_NOT_ONLINE)
            if answer.code == ResponseCode.CONSUMER_NOT_ONLINE:
                moved += yield from self._commit_instead(
                    group, topic, part, timestamp_ms, offset, queue_id, force=force
                )
            else:
                moved += _moved(part.broker, answer)
        return tuple(sorted(moved))

    def _moves_single_queues(self, broker: BrokerRef) -> Operation[bool]:
        """Return whether the broker moves only the named queue; brokers of 4.9, and some of 5.x, move all."""
        answer = yield from succeeded(self._servers.call(broker.address, request(RequestCode.GET_BROKER_CONFIG)))
        return parse_properties(answer.body).get("useServerSideResetOffset") == "true"

    def _check_nobody_is_connected(self, group: str, broker: BrokerRef) -> Operation[None]:
        call = self._servers.call(
            broker.address, request(RequestCode.GET_CONSUMER_CONNECTION_LIST, consumerGroup=group)
        )
        answer = yield from succeeded(call, ResponseCode.CONSUMER_NOT_ONLINE)
        if answer.code == ResponseCode.SUCCESS:
            raise InvalidArgument(
                f"broker {broker.broker_name} cannot reset a single queue while members of group {group} are "
                "connected: stop them first, or reset all queues"
            )

    def _commit_instead(
        self,
        group: str,
        topic: str,
        part: TopicQueues,
        timestamp_ms: int | None,
        offset: int | None,
        queue_id: int | None,
        *,
        force: bool,
    ) -> Operation[list[QueueOffset]]:
        """Do what upstream's tools do for a group without members: look the offsets up, and commit them."""
        if offset is not None and queue_id is not None:
            targets = [QueueOffset(broker_name=part.broker.broker_name, queue_id=queue_id, offset=offset)]
        else:
            assert timestamp_ms is not None
            targets = list(
                (yield from self.at_time(topic, timestamp_ms, broker_name=part.broker.broker_name, queue_id=queue_id))
            )
        if not force:
            before = {
                (queue.broker_name, queue.queue_id): queue.consumer_offset
                for queue in (yield from self._whole_progress(group, topic)).queues
            }
            targets = [
                one for one in targets if one.offset < before.get((one.broker_name, one.queue_id), one.offset + 1)
            ]
        yield from self.commit(group, topic, targets)
        return targets

    def commit(self, group: str, topic: str, offsets: Iterable[QueueOffset]) -> Operation[None]:
        """Commit offsets for a group, as one of its members would.

        A member that is connected overwrites them with its own; to move a group with members, use :meth:`reset`.

        Raises:
            BrokerError: there is no such topic (17), queue (29) or group (26).
        """
        route = yield from self._servers.route(topic)
        calls = [
            self._servers.call(
                route.part_of(one.broker_name).broker.address,
                request(
                    RequestCode.UPDATE_CONSUMER_OFFSET,
                    consumerGroup=group,
                    topic=topic,
                    queueId=one.queue_id,
                    commitOffset=one.offset,
                ),
            )
            for one in offsets
        ]
        # A Java broker makes a group's table with its first commit; of two that come at the same time one is lost.
        firsts = {call.address: call for call in reversed(calls)}
        rest = [call for call in calls if firsts[call.address] is not call]
        for together in (firsts.values(), rest):
            for call, answer in (yield from ask_all(together)):
                accepted(call, answer)

    def skip(self, group: str, topic: str) -> Operation[tuple[QueueOffset, ...]]:
        """Move a group behind the newest message of every queue: unconsumed messages are skipped.

        Returns and raises as :meth:`reset`.
        """
        return (yield from self.reset(group, topic, timestamp_ms=LATEST_MS))

    def clone(self, source: str, destination: str, *, topic: str | None = None) -> Operation[tuple[QueueProgress, ...]]:
        """Give a group the place of another one.

        Args:
            source: the group whose place it is.
            destination: the group that gets it; the brokers have to know it.
            topic: only in this topic; else in all that the first has progress in, but for its retry topic.

        Returns:
            Where the second group is now.

        Raises:
            NotFound: the first group has no progress there.
            BrokerError: there is no such second group (code 26).
            ConnectionLost: a broker is lost, so that its queues would be left out.
        """
        progress = yield from self._whole_progress(source, topic)
        places = [
            queue
            for queue in progress.queues
            if queue.consumer_offset >= 0 and (topic is not None or not queue.topic.startswith("%RETRY%"))
        ]
        if not places:
            raise NotFound(f"group {source} has no progress{'' if topic is None else f' in topic {topic}'}")
        for name in sorted({queue.topic for queue in places}):
            offsets = [
                QueueOffset(broker_name=queue.broker_name, queue_id=queue.queue_id, offset=queue.consumer_offset)
                for queue in places
                if queue.topic == name
            ]
            yield from self.commit(destination, name, offsets)
        return tuple(places)


def _queues(route: Route, broker_name: str | None, queue_id: int | None) -> list[tuple[BrokerRef, int]]:
    parts = route.parts if broker_name is None else (route.part_of(broker_name),)
    found = [
        (part.broker, queue)
        for part in parts
        for queue in range(part.all_queues)
        if queue_id is None or queue == queue_id
    ]
    if not found:
        raise NotFound(f"topic {route.topic} has no queue {queue_id}")
    return found


def _moved(broker: BrokerRef, answer: Command) -> list[QueueOffset]:
    if not answer.body:
        return []
    return [
        QueueOffset(broker_name=broker.broker_name or queue.broker_name, queue_id=queue.queue_id, offset=offset)
        for queue, offset in ResetOffsetBody.from_json(answer.body).offsets.items()
    ]
