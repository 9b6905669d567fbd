"""Checks: a member takes and gives up queues as upstream's does, with locks where order matters."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from types import SimpleNamespace

import pytest

from cometmq.client.group.allocation import AllocateStrategy, Averagely, as_strategy
from cometmq.client.group.process_queue import PULL_IDLE_MS, ProcessQueue
from cometmq.client.group.rebalance import Rebalance
from cometmq.client.group.subscriptions import make_subscription
from cometmq.client.settings import PullSettings
from cometmq.errors import ClientStateError, ConnectionLost, Error, InvalidArgument, RequestTimeout
from cometmq.remoting.bodies.assignments import (
    MessageQueueAssignment,
    MessageRequestMode,
    QueryAssignmentRequestBody,
    QueryAssignmentResponseBody,
)
from cometmq.remoting.bodies.heartbeat import MessageModel, SubscriptionData
from cometmq.remoting.bodies.locks import LockBatchRequestBody, LockBatchResponseBody, UnlockBatchRequestBody
from cometmq.remoting.bodies.message_queue import MessageQueue
from cometmq.remoting.codes import RequestCode
from cometmq.remoting.command import Command


def _queue(number: int, *, topic: str = "t", broker: str = "b") -> MessageQueue:
    return MessageQueue(topic=topic, broker_name=broker, queue_id=number)


class _Instance:
    """The parts of a client instance that the rebalance uses: routes, members, masters with locks."""

    def __init__(self) -> None:
        self.client_id = "c1"
        self.table: dict[str, tuple[MessageQueue, ...]] = {"t": tuple(_queue(number) for number in range(4))}
        self.route_after_ids: dict[str, tuple[MessageQueue, ...]] = {}
        self.members: list[str] | None = ["c1", "c2"]
        self.masters = {"b": "m:1", "a": "m:2"}
        self.lock_owner: dict[MessageQueue, str] = {}
        self.failure: Error | None = None
        self.calls: list[tuple[str, int, tuple[MessageQueue, ...]]] = []
        self.woken: list[int] = []
        self.routes = SimpleNamespace(
            subscribe_queues=lambda topic: self.table.get(topic),
            broker_of_topic=lambda topic: "m:1" if topic in self.table else None,
        )
        self.assignments: tuple[MessageQueueAssignment, ...] | None = ()
        self.network = SimpleNamespace(invoke=self._invoke, oneway=self._oneway)

    def master_address(self, broker_name: str) -> str | None:
        return self.masters.get(broker_name)

    def api_address(self, address: str) -> str:
        return address

    async def consumer_ids(self, topic: str, group: str) -> list[str] | None:
        assert group == "g"
        self.table.update(self.route_after_ids)
        return self.members

    def wake_rebalance(self, delay_ms: int = 0) -> None:
        self.woken.append(delay_ms)

    async def update_route(self, topic: str) -> bool:
        self.table.update(self.route_after_ids)
        return True

    def _assign(self, command: Command) -> Command:
        asked = QueryAssignmentRequestBody.from_json(command.body)
        assert (asked.consumer_group, asked.client_id, asked.strategy_name) == ("g", "c1", "AVG")
        assert asked.message_model is MessageModel.CLUSTERING
        self.calls.append((asked.topic, command.code, ()))
        return Command(code=0, body=QueryAssignmentResponseBody(assignments=self.assignments).to_json())

    async def _invoke(self, address: str, command: Command, *, timeout_ms: int) -> Command:
        if self.failure is not None:
            raise self.failure
        if command.code == RequestCode.QUERY_ASSIGNMENT:
            return self._assign(command)
        assert timeout_ms == 1_000
        if command.code == RequestCode.UNLOCK_BATCH_MQ:
            self._unlock(address, command)
            return Command(code=0)
        assert command.code == RequestCode.LOCK_BATCH_MQ
        body = LockBatchRequestBody.from_json(command.body)
        assert (body.consumer_group, body.client_id, body.only_this_broker) == ("g", "c1", False)
        self.calls.append((address, command.code, body.queues))
        ours = [queue for queue in body.queues if self.lock_owner.setdefault(queue, "c1") == "c1"]
        return Command(code=0, body=LockBatchResponseBody(locked_queues=tuple(ours)).to_json())

    def _oneway(self, address: str, command: Command) -> None:
        self._unlock(address, command)

    def _unlock(self, address: str, command: Command) -> None:
        body = UnlockBatchRequestBody.from_json(command.body)
        assert (body.consumer_group, body.client_id) == ("g", "c1")
        self.calls.append((address, command.code, body.queues))
        for queue in body.queues:
            assert self.lock_owner.pop(queue, "c1") == "c1"


class _Owner:
    """A consumer that records its calls."""

    def __init__(self) -> None:
        self.group = "g"
        self.model = MessageModel.CLUSTERING
        self.is_orderly = False
        self.is_push = True
        self.strategy: AllocateStrategy = Averagely()
        self.settings = PullSettings(group="g")
        self.subscriptions: dict[str, SubscriptionData] = {"t": make_subscription("t", "*", now_ms=1)}
        self.starts: dict[MessageQueue, int | Error] = {}
        self.refuses: set[MessageQueue] = set()
        self.log: list[tuple[str, object]] = []
        self.changes: list[tuple[str, frozenset[MessageQueue], frozenset[MessageQueue]]] = []
        self.before_start: Callable[[], Awaitable[None]] | None = None
        self.popped: list[MessageQueue] = []
        self.pops = True

    def take_pops(self, topic: str, queues: Sequence[MessageQueue], *, is_pulled: bool) -> bool:
        if queues and not self.pops:
            raise ClientStateError("it does not pop")
        is_changed = self.popped != list(queues)
        self.popped = list(queues)
        self.log.append(("pulled", is_pulled))
        return is_changed

    async def start_offset(self, queue: MessageQueue) -> int:
        if self.before_start is not None:
            await self.before_start()
        start = self.starts.get(queue, 7)
        if isinstance(start, Error):
            raise start
        return start

    def dispatch(self, queue: MessageQueue, process_queue: ProcessQueue, next_offset: int) -> None:
        assert process_queue.locked
        assert process_queue.queue == queue
        self.log.append(("dispatch", (queue, next_offset)))

    async def release(self, queue: MessageQueue, process_queue: ProcessQueue) -> bool:
        assert process_queue.dropped
        self.log.append(("release", queue))
        return queue not in self.refuses

    def queues_changed(self, topic: str, all_queues: Collection[MessageQueue], mine: Collection[MessageQueue]) -> None:
        self.changes.append((topic, frozenset(all_queues), frozenset(mine)))

    def forget_offset(self, queue: MessageQueue) -> None:
        self.log.append(("forget", queue))


class _Group:
    """A consumer with its rebalance, and a clock."""

    def __init__(self) -> None:
        self.instance = _Instance()
        self.owner = _Owner()
        self.now_ms = 1_000
        self.rebalance = Rebalance(self.instance, self.owner, now_ms=lambda: self.now_ms)  # type: ignore[arg-type]

    def run(self) -> bool:
        return asyncio.run(self.rebalance.run())

    @property
    def table(self) -> Mapping[MessageQueue, ProcessQueue]:
        return self.rebalance.queues

    def taken(self) -> list[object]:
        return [what for kind, what in self.owner.log if kind == "dispatch"]


@pytest.fixture
def group() -> _Group:
    return _Group()


def test_member_takes_its_share_and_releases_other_queues(group: _Group) -> None:
    """Promises 11, 61, 62, 86: four queues, one member; a second joins; the first leaves again."""
    group.instance.members = ["c1"]
    assert group.run()
    assert group.taken() == [(_queue(number), 7) for number in range(4)]
    everything = frozenset(group.instance.table["t"])
    assert group.owner.changes == [("t", everything, everything)]
    held = dict(group.table)
    group.owner.log.clear()
    group.instance.members = ["c1", "c2"]
    assert group.run()
    assert set(group.table) == {_queue(0), _queue(1)}
    assert all(held[queue].dropped == (queue not in group.table) for queue in held)
    assert group.table[_queue(0)] is held[_queue(0)], "a kept queue is left alone"
    assert group.owner.log == [("release", _queue(2)), ("release", _queue(3))]
    assert group.owner.changes[1:] == [("t", everything, frozenset(group.table))]
    assert group.run()
    assert len(group.owner.changes) == 2, "no change, no notification"


def test_a_queue_forgets_its_old_offset_before_it_begins(group: _Group) -> None:
    group.run()
    assert [kind for kind, what in group.owner.log if what in (_queue(0), (_queue(0), 7))] == ["forget", "dispatch"]


def test_where_route_or_members_are_missing_nothing_changes(group: _Group) -> None:
    """Promises 59, 93: and that counts as balanced."""
    group.run()
    before = dict(group.table)
    group.instance.members = None
    assert group.run()
    assert group.table == before
    group.owner.subscriptions["u"] = make_subscription("u", "*", now_ms=1)
    group.owner.changes.clear()
    assert group.run()
    assert group.owner.changes == [("u", frozenset(), frozenset())]


def test_a_route_that_comes_with_the_question_for_members_waits_for_the_next_round(group: _Group) -> None:
    group.owner.subscriptions = {"%RETRY%g": make_subscription("%RETRY%g", "*", now_ms=1)}
    retry = _queue(0, topic="%RETRY%g")
    group.instance.route_after_ids = {"%RETRY%g": (retry,)}
    assert not group.run(), "the next round comes soon"
    assert not group.table
    assert group.owner.changes == [], "a retry topic that is not there yet is no news"
    group.run()
    assert list(group.table) == [retry]


def test_a_broadcasting_member_has_every_queue(group: _Group) -> None:
    """Promises 7, 93: no members are asked for, no lock is taken."""
    group.owner.model = MessageModel.BROADCASTING
    group.owner.is_orderly = True
    group.instance.members = None
    assert group.run()
    assert set(group.table) == set(group.instance.table["t"])
    assert group.instance.calls == []
    group.instance.table["t"] = group.instance.table["t"][:3]
    assert group.run()
    assert len(group.table) == 3


def test_a_strategy_that_raises_leaves_the_topic_and_spares_the_others(group: _Group) -> None:
    def strategy(name: str, own: str, queues: Collection[MessageQueue], ids: Collection[str]) -> list[MessageQueue]:
        if next(iter(queues)).topic == "t":
            raise ZeroDivisionError
        return list(queues)

    group.instance.table["u"] = (_queue(0, topic="u"),)
    group.owner.subscriptions["u"] = make_subscription("u", "*", now_ms=1)
    group.owner.strategy = as_strategy(strategy)
    assert not group.run()
    assert list(group.table) == [_queue(0, topic="u")]


def test_a_member_that_is_not_listed_has_no_queues(group: _Group) -> None:
    group.run()
    group.instance.members = ["c2"]
    assert group.run()
    assert not group.table


def test_a_queue_without_a_start_waits_for_a_later_round(group: _Group) -> None:
    group.owner.starts = {_queue(0): -1, _queue(1): RequestTimeout("late")}
    assert not group.run()
    assert not group.table
    group.owner.starts = {_queue(0): 0}
    assert group.run()
    assert group.taken() == [(_queue(0), 0), (_queue(1), 7)]


def test_queue_that_was_not_pulled_for_too_long_is_replaced(group: _Group) -> None:
    """Promise 94: in the same round; a pull consumer's stays."""
    group.run()
    before = dict(group.table)
    for held in before.values():
        held.last_pull_ms = group.now_ms
    group.now_ms += PULL_IDLE_MS + 1
    before[_queue(1)].last_pull_ms = group.now_ms
    group.owner.is_push = False
    assert group.run()
    assert group.table == before
    group.owner.is_push = True
    assert group.run()
    assert before[_queue(0)].dropped
    assert group.table[_queue(0)] is not before[_queue(0)]
    assert group.table[_queue(1)] is before[_queue(1)]
    assert group.taken()[2:] == [(_queue(0), 7)]


def test_queues_of_unsubscribed_topics_are_dropped(group: _Group) -> None:
    group.run()
    held = list(group.table.values())
    group.owner.subscriptions = {}
    assert group.run()
    assert not group.table
    assert all(each.dropped for each in held)
    assert {queue for kind, queue in group.owner.log if kind == "release"} == {each.queue for each in held}


def test_unsubscribed_queue_whose_listener_works_goes_with_a_later_round(group: _Group) -> None:
    group.run()
    group.owner.subscriptions = {}
    group.owner.refuses = {_queue(1)}
    assert not group.run(), "the next round comes soon"
    assert set(group.table) == {_queue(1)}
    group.owner.refuses = set()
    assert group.run()
    assert not group.table


def _assignments(
    *numbers: int, mode: MessageRequestMode = MessageRequestMode.PULL
) -> tuple[MessageQueueAssignment, ...]:
    return tuple(MessageQueueAssignment(queue=_queue(number), mode=mode) for number in numbers)


def test_a_broker_may_share_out_the_queues(group: _Group) -> None:
    group.owner.settings = PullSettings(group="g", client_rebalance=False)
    group.instance.members = None
    group.instance.assignments = _assignments(1, 3)
    assert group.run()
    assert set(group.table) == {_queue(1), _queue(3)}
    group.instance.assignments = None
    assert not group.run()
    assert set(group.table) == {_queue(1), _queue(3)}, "a broker that does not know changes nothing"
    group.instance.assignments = _assignments(3)
    assert group.run()
    assert set(group.table) == {_queue(3)}
    group.owner.pops = False
    group.instance.assignments = _assignments(-1, mode=MessageRequestMode.POP)
    assert not group.run(), "popping is not pulling"
    group.instance.failure = RequestTimeout("late")
    assert not group.run()
    assert set(group.table) == {_queue(3)}
    group.instance.failure = None
    group.instance.assignments = ()
    assert group.run()
    assert not group.table, "an empty answer takes everything away"


def test_an_outage_and_its_end_are_logged_once(group: _Group, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, logger="cometmq.client.group.rebalance")
    group.owner.settings = PullSettings(group="g", client_rebalance=False)
    group.instance.assignments = _assignments(-1, mode=MessageRequestMode.POP)
    assert group.run()
    for _ in range(2):
        group.instance.failure = ConnectionLost("cannot connect to m:1")
        assert [group.run() for _ in range(5)] == [False] * 5
        group.instance.failure = None
        assert [group.run() for _ in range(2)] == [True] * 2
    assert [(one.levelname, one.getMessage()) for one in caplog.records if "stay" in one.msg or "again" in one.msg] == [
        ("WARNING", "group g: the queues of t stay as they are until this is over: cannot connect to m:1"),
        ("INFO", "group g: the queues of t are shared out again"),
    ] * 2
    assert not any(one.exc_info for one in caplog.records)
    assert caplog.records[0].getMessage() == "group g pops all queues of t, as m:1 says"
    caplog.clear()
    group.instance.failure = InvalidArgument("this stays wrong")
    assert [group.run() for _ in range(2)] == [False] * 2
    assert [(one.levelname, one.exc_info is None) for one in caplog.records] == [("WARNING", False)] * 2


def test_a_broker_may_have_queues_pulled_and_popped(group: _Group) -> None:
    """Promises 97, 109, 130."""
    group.owner.settings = PullSettings(group="g", client_rebalance=False)
    group.instance.assignments = (*_assignments(1), *_assignments(-1, mode=MessageRequestMode.POP))
    assert group.run()
    assert set(group.table) == {_queue(1)}
    assert group.owner.popped == [_queue(-1)]
    assert group.owner.changes[-1][2] == {_queue(1), _queue(-1)}
    told = len(group.owner.changes)
    assert group.run()
    assert len(group.owner.changes) == told, "nothing is new"
    group.instance.assignments = _assignments(-1, mode=MessageRequestMode.POP)
    assert group.run()
    assert not group.table
    group.instance.assignments = None
    assert not group.run()
    assert group.owner.popped == [_queue(-1)], "a broker that does not know changes nothing"
    group.instance.assignments = (MessageQueueAssignment(queue=None),)
    assert not group.run()
    group.instance.assignments = ()
    assert group.run()
    assert group.owner.popped == []
    assert [what for kind, what in group.owner.log if kind == "pulled"] == [True, True, False, False]


@pytest.mark.parametrize("kept", ["orderly", "broadcasting"])
def test_orderly_and_broadcasting_members_never_ask_the_broker(group: _Group, kept: str) -> None:
    group.owner.settings = PullSettings(group="g", client_rebalance=False)
    group.owner.is_orderly = kept == "orderly"
    group.owner.model = MessageModel.BROADCASTING if kept == "broadcasting" else MessageModel.CLUSTERING
    assert group.run()
    assert not any(code == RequestCode.QUERY_ASSIGNMENT for _, code, _ in group.instance.calls)
    assert len(group.table) == (4 if kept == "broadcasting" else 2)


def test_a_topic_that_nobody_knows_is_not_asked_about(group: _Group) -> None:
    group.owner.settings = PullSettings(group="g", client_rebalance=False)
    group.instance.table = {}
    assert group.run()
    assert group.instance.calls == []
    group.instance.route_after_ids = {"t": (_queue(0),)}
    group.instance.assignments = _assignments(0)
    assert group.run()
    assert list(group.table) == [_queue(0)]


def test_an_orderly_member_locks_before_it_takes(group: _Group) -> None:
    """Promises 30, 92: a lock that another has is tried again half a second later."""
    group.owner.is_orderly = True
    group.instance.lock_owner[_queue(1)] = "c2"
    assert not group.run()
    assert list(group.table) == [_queue(0)]
    assert (group.table[_queue(0)].locked, group.table[_queue(0)].last_lock_ms) == (True, 1_000)
    assert group.instance.woken == [500]
    assert group.instance.calls == [("m:1", RequestCode.LOCK_BATCH_MQ, (_queue(0), _queue(1)))]
    del group.instance.lock_owner[_queue(1)]
    assert group.run()
    assert set(group.table) == {_queue(0), _queue(1)}
    assert group.instance.woken == [500]


def test_an_orderly_member_takes_nothing_where_no_master_answers(group: _Group) -> None:
    group.owner.is_orderly = True
    group.instance.failure = RequestTimeout("late")
    assert not group.run()
    assert not group.table
    group.instance.failure = None
    group.instance.masters = {}
    assert not group.run()
    assert not group.table
    assert group.instance.woken == [500, 500]


def test_a_queue_that_cannot_be_given_up_yet_is_tried_again(group: _Group) -> None:
    """And where it is wanted again meanwhile, it is removed first and added as new."""
    group.instance.members = ["c1"]
    group.run()
    kept = group.table[_queue(3)]
    group.owner.refuses = {_queue(3)}
    group.instance.members = ["c1", "c2"]
    assert group.run()
    assert kept.dropped
    assert group.table[_queue(3)] is kept
    assert group.run()
    assert [what for kind, what in group.owner.log if kind == "release"].count(_queue(3)) == 2
    group.instance.members = ["c1"]
    assert not group.run()
    assert group.table[_queue(3)] is kept
    group.owner.refuses = set()
    assert group.run()
    assert group.table[_queue(3)] is not kept
    assert not group.table[_queue(3)].dropped


def test_a_dropped_queue_that_its_owner_repairs_is_left_to_it(group: _Group) -> None:
    """Promise 41: between the drop and the repair's end no round may begin with the old offset."""
    group.run()
    held = group.table[_queue(0)]
    held.dropped = True
    assert not group.run()
    assert group.table[_queue(0)] is held
    del group.rebalance.queues[_queue(0)]
    assert group.run()
    assert group.table[_queue(0)] is not held


def test_a_release_that_fails_is_tried_again(group: _Group) -> None:
    group.run()
    group.instance.members = ["c2"]
    failing = InvalidArgument("no")

    async def release(queue: MessageQueue, process_queue: ProcessQueue) -> bool:
        raise failing

    real = group.owner.release
    group.owner.release = release  # type: ignore[method-assign]
    assert group.run()
    assert len(group.table) == 2
    group.owner.release = real  # type: ignore[method-assign]
    assert group.run()
    assert not group.table


def test_locks_are_renewed_by_broker(group: _Group) -> None:
    """Promise 92: one request for each broker; refused queues are not locked, those without an answer stay."""
    group.instance.members = ["c1"]
    far = _queue(0, broker="a")
    group.instance.table["t"] = (_queue(0), _queue(1), _queue(2), far)
    group.run()
    group.table[_queue(2)].dropped = True
    group.instance.lock_owner = {_queue(1): "c2"}
    group.now_ms = 5_000
    asyncio.run(group.rebalance.lock_all())
    assert sorted(group.instance.calls) == [
        ("m:1", RequestCode.LOCK_BATCH_MQ, (_queue(0), _queue(1))),
        ("m:2", RequestCode.LOCK_BATCH_MQ, (far,)),
    ]
    states = {queue: (held.locked, held.last_lock_ms) for queue, held in group.table.items()}
    assert states == {
        _queue(0): (True, 5_000),
        _queue(1): (False, 1_000),
        _queue(2): (True, 1_000),
        far: (True, 5_000),
    }
    group.instance.failure = RequestTimeout("late")
    asyncio.run(group.rebalance.lock_all())
    assert group.table[far].locked


def test_single_locks(group: _Group) -> None:
    """Promise 92."""
    group.run()
    group.now_ms = 3_000
    group.table[_queue(0)].locked = False
    assert asyncio.run(group.rebalance.lock(_queue(0)))
    assert (group.table[_queue(0)].locked, group.table[_queue(0)].last_lock_ms) == (True, 3_000)
    group.instance.lock_owner[_queue(1)] = "c2"
    assert not asyncio.run(group.rebalance.lock(_queue(1)))
    assert not asyncio.run(group.rebalance.lock(_queue(0, broker="gone")))


@pytest.mark.parametrize("oneway", [True, False])
def test_unlocks(group: _Group, oneway: bool) -> None:
    """Promise 92."""
    group.run()
    asyncio.run(group.rebalance.unlock(_queue(0), oneway=oneway))
    assert not group.table[_queue(0)].locked
    asyncio.run(group.rebalance.unlock_all(oneway=oneway))
    assert group.instance.calls == [
        ("m:1", RequestCode.UNLOCK_BATCH_MQ, (_queue(0),)),
        ("m:1", RequestCode.UNLOCK_BATCH_MQ, (_queue(0), _queue(1))),
    ]
    assert not any(held.locked for held in group.table.values())
    group.instance.masters = {}
    asyncio.run(group.rebalance.unlock_all(oneway=oneway))
    assert len(group.instance.calls) == 2


def test_after_the_end_nothing_comes_in(group: _Group) -> None:
    async def close() -> None:
        group.rebalance.drop_all()

    group.owner.before_start = close
    group.run()
    assert not group.table
    assert group.taken() == []
    group.owner.before_start = None
    assert group.run()
    assert not group.table


def test_the_end_drops_everything(group: _Group) -> None:
    group.run()
    held = list(group.table.values())
    group.rebalance.drop_all()
    assert len(held) == 2
    assert all(each.dropped for each in held)
    assert not group.table


def test_rounds_never_overlap(group: _Group) -> None:
    running = 0

    async def watch() -> None:
        nonlocal running
        running += 1
        assert running <= 2, "the two starts of one round"
        await asyncio.sleep(0)
        running -= 1

    group.owner.before_start = watch

    async def both() -> list[bool]:
        return list(await asyncio.gather(group.rebalance.run(), group.rebalance.run()))

    assert asyncio.run(both()) == [True, True]
    assert len(group.taken()) == 2
