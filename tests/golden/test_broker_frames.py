"""Checks: our control plane answers the captured requests of real clients and mqadmin as the real brokers did.

Every request of the golden runs that a control plane serves is asked again, in its order and on its connection, over a
copy of the store that the run left. Code, remark, fields and body must be the same; so must be the notices (code 40)
that clients got. Differences on purpose, or because the store is the run's last state, are listed in ``EXCEPTIONS``.
"""

from __future__ import annotations

import asyncio
from collections import Counter, defaultdict, deque
from collections.abc import Callable
from dataclasses import dataclass, field
from inspect import isawaitable
from typing import Any

import pytest

from cometmq.remoting.bodies.config_tables import GroupList, KVTable
from cometmq.remoting.bodies.locks import LockBatchResponseBody
from cometmq.remoting.codes import RequestCode, ResponseCode
from cometmq.remoting.command import Command
from cometmq.store_config.fastjson import JsonValue, loads
from conftest import GoldenStoreFixture
from support.broker_twins import Caller, Rig
from support.frames import Frame, broker_frames
from support.golden import broker_properties, golden_names

ANSWERED = {
    "apache-4.9.7": 150,
    "apache-5.3.3": 143,
    "apache-5.3.3-binary-headers": 153,
    "apache-5.3.3-expired": 110,
    "apache-5.3.3-groups": 137,
    "apache-5.3.3-rare": 28,
}
"""Requests that were answered, so that none is lost on the way."""

KEPT_FOR_EVER = {"fileReservedTime": 1_000_000}
"""The stores are old: a broker would delete them at four in the morning."""


@dataclass(frozen=True, slots=True)
class Replayed:
    """One request, what the real broker answered and what ours does."""

    request: Command
    theirs: Command
    ours: Command

    @property
    def bodies(self) -> tuple[Any, Any]:
        """Both bodies as JSON, ours first."""
        return loads(self.ours.body or b"null"), loads(self.theirs.body or b"null")


@dataclass
class Run:
    """The results of a replay."""

    found: list[Replayed] = field(default_factory=list)
    notices: Counter[tuple[int, str]] = field(default_factory=Counter)
    their_notices: Counter[tuple[int, str]] = field(default_factory=Counter)


def answers_of_clients(frames: list[Frame]) -> dict[int, deque[Command]]:
    """Return the clients' answers to requests that were passed on to them, by connection."""
    asked = set()
    found: dict[int, deque[Command]] = defaultdict(deque)
    for frame in frames:
        command = frame.command
        key = (frame.connection, command.opaque)
        if not frame.to_server and command.code == RequestCode.GET_CONSUMER_RUNNING_INFO and not command.is_response:
            asked.add(key)
        elif frame.to_server and command.is_response and key in asked:
            found[frame.connection].append(command)
    return found


async def replay(rig: Rig, frames: list[Frame]) -> Run:
    run = Run()
    waiting: dict[tuple[int, int], tuple[Command, Command]] = {}
    last = {frame.connection: frame.number for frame in frames}
    for connection, answers in answers_of_clients(frames).items():
        rig.link.answers[connection] = lambda request, answers=answers: answers.popleft()  # type: ignore[misc]
    for frame in frames:
        command = frame.command
        key = (frame.connection, command.opaque)
        rig.clock.now_ms = frame.time_us // 1000
        if frame.to_server and not command.is_response:
            answer: Any = rig.control.handlers[command.code](command, Caller(frame.connection))
            answer = await answer if isawaitable(answer) else answer
            assert isinstance(answer, Command)
            if not command.is_oneway:
                waiting[key] = (command, answer)
        elif not frame.to_server and command.code == RequestCode.NOTIFY_CONSUMER_IDS_CHANGED:
            run.their_notices[frame.connection, command.fields["consumerGroup"]] += 1
        elif not frame.to_server and key in waiting:
            request, ours = waiting.pop(key)
            run.found.append(Replayed(request, command, ours))
        if frame.number == last[frame.connection]:
            rig.control.connection_closed(frame.connection)
    run.notices.update((conn, notice.fields["consumerGroup"]) for conn, notice in rig.link.sent)
    return run


# --- What is compared where the answers are not the same, and why


def shape(value: JsonValue) -> Any:
    """A body without its values: the members of objects, one element of arrays."""
    if isinstance(value, dict):
        return {key: shape(item) for key, item in value.items()}
    if isinstance(value, list):
        return [shape(item) for item in value[:1]]
    return type(value) if isinstance(value, str | bool) else "number"


def later_values(one: Replayed) -> bool:
    """The store is the run's last: offsets and times have moved on. Every member and every queue is there."""
    ours, theirs = one.bodies
    return bool(shape(ours) == shape(theirs))


def later_tables(one: Replayed) -> bool:
    """The same, where topics and groups came or went later: every member of an entry is there."""
    ours, theirs = one.bodies
    same_members = set(ours) == set(theirs)
    for name in ours:
        if isinstance(ours[name], dict) and ours[name] and theirs[name]:
            entries = [shape(next(iter(table.values()))) for table in (ours[name], theirs[name])]
            same_members = same_members and entries[0] == entries[1]
    return same_members


def same_but_for_addresses(one: Replayed) -> bool:
    """A captured frame does not say which port its connection had."""
    ours, theirs = one.bodies
    for body in (ours, theirs):
        for connection in body["connectionSet"]:
            assert connection.pop("clientAddr").startswith("127.0.0.1:")
        body["connectionSet"].sort(key=str)
    return bool(ours == theirs)


def same_queues(one: Replayed) -> bool:
    """A set, whose order upstream does not say."""
    ours, theirs = (
        set(LockBatchResponseBody.from_json(answer.body).locked_queues) for answer in (one.ours, one.theirs)
    )
    return ours == theirs


def same_keys(one: Replayed) -> bool:
    """The state of another broker. Every key that tools read is there, and CometMQ's version."""
    ours, theirs = (
        {key.partition("_/")[0] for key in KVTable.from_json(answer.body).table} for answer in (one.ours, one.theirs)
    )
    return ours == theirs | {"cometmqVersion"}


def who_has_been_there(one: Replayed) -> bool:
    """mqadmin itself consumed under the topic's name for a moment, and committed nothing."""
    ours, theirs = (GroupList.from_json(answer.body).groups for answer in (one.ours, one.theirs))
    return set(theirs) - set(ours) <= {one.request.fields["topic"]}


def index_moved_on(one: Replayed) -> bool:
    """The fields say how far the index is, which has moved on."""
    return set(one.ours.fields) == set(one.theirs.fields) and one.ours.body == one.theirs.body


def no_sql_yet(one: Replayed) -> bool:
    """SQL92 filters are not served yet."""
    return one.ours.code == ResponseCode.SYSTEM_ERROR and "SQL92" in (one.ours.remark or "")


def fields_of_5(one: Replayed) -> bool:
    """4.9 does not know the second version of heartbeats."""
    return not one.theirs.fields and one.ours.fields["IS_SUPPORT_HEART_BEAT_V2"] == "true"


def long_names(one: Replayed) -> bool:
    """4.9 cannot store topics of more than 127 bytes."""
    return one.theirs.remark == "MESSAGE_ILLEGAL" and len(one.request.fields["group"]) > 120 - 1


def upstreams_null_pointer(one: Replayed) -> bool:
    """Upstream fails without its timer wheel: a mistake, not a rule."""
    return one.theirs.code == ResponseCode.SYSTEM_ERROR and one.ours.code == ResponseCode.SUCCESS


def nothing_counted(one: Replayed) -> bool:
    """The twin's loops carry no messages, so that nothing was counted."""
    return (one.ours.remark or "").endswith("not exist")


def a_body_all_the_same(one: Replayed) -> bool:
    """Upstream's answer about an index outside the queue has no body, of which its own command dies."""
    return one.ours.remark == one.theirs.remark and b'"queueData":[]' in one.ours.body


def made_before(one: Replayed) -> bool:
    """The topic is there in the run's last state, and its kind of queue is fixed."""
    return (
        "fixed when the topic is made" in (one.ours.remark or "") and "queue.type" in one.request.fields["attributes"]
    )


EXCEPTIONS: dict[int, Callable[[Replayed], bool]] = {
    RequestCode.QUERY_MESSAGE: index_moved_on,
    RequestCode.UPDATE_AND_CREATE_TOPIC: made_before,
    RequestCode.GET_BROKER_RUNTIME_INFO: same_keys,
    RequestCode.HEART_BEAT: fields_of_5,
    RequestCode.CONSUMER_SEND_MSG_BACK: long_names,
    RequestCode.LOCK_BATCH_MQ: same_queues,
    RequestCode.CHECK_CLIENT_CONFIG: no_sql_yet,
    RequestCode.GET_ALL_SUBSCRIPTIONGROUP_CONFIG: later_tables,
    RequestCode.GET_TOPIC_STATS_INFO: later_values,
    RequestCode.GET_CONSUMER_CONNECTION_LIST: same_but_for_addresses,
    RequestCode.GET_PRODUCER_CONNECTION_LIST: same_but_for_addresses,
    RequestCode.GET_CONSUME_STATS: later_tables,
    RequestCode.DELETE_TOPIC_IN_BROKER: upstreams_null_pointer,
    RequestCode.INVOKE_BROKER_TO_RESET_OFFSET: later_values,
    RequestCode.QUERY_TOPIC_CONSUME_BY_WHO: who_has_been_there,
    RequestCode.CLEAN_EXPIRED_CONSUMEQUEUE: upstreams_null_pointer,
    RequestCode.VIEW_BROKER_STATS_DATA: nothing_counted,
    RequestCode.GET_BROKER_CONSUME_STATS: later_values,
    RequestCode.QUERY_CONSUME_QUEUE: a_body_all_the_same,
}


@pytest.mark.parametrize("name", golden_names())
def test_the_answers_are_the_real_ones(name: str, golden_store: GoldenStoreFixture) -> None:
    frames = list(broker_frames(name))
    with Rig(golden_store(name, "clean"), properties=broker_properties(name), settings=KEPT_FOR_EVER) as rig:
        run = asyncio.run(replay(rig, frames))
    assert len(run.found) == ANSWERED[name]
    for one in run.found:
        where = f"request {one.request.code} {dict(one.request.fields)}: {one.ours.remark}, {one.ours.body[:200]!r}"
        ours, theirs = ((answer.code, answer.remark, answer.fields) for answer in (one.ours, one.theirs))
        is_same = ours == theirs and (one.ours.body == one.theirs.body or one.bodies[0] == one.bodies[1])
        if not is_same:
            check = EXCEPTIONS.get(one.request.code)
            assert check is not None, where
            assert check(one), where
        assert (one.ours.opaque, one.ours.is_response) == (one.theirs.opaque, True)
        assert one.ours.format == one.request.format, "ours answers in the format of the request"
    # Up to 5.3.0 members of broadcasting groups were notified of each other, too.
    expected = run.their_notices - Counter({(21, "g_bc"): 1}) if name == "apache-4.9.7" else run.their_notices
    assert run.notices == expected


def test_every_kind_of_request_was_asked() -> None:
    asked = {
        frame.command.code
        for name in golden_names()
        for frame in broker_frames(name)
        if frame.to_server and not frame.command.is_response
    }
    assert asked == {
        *(12, 17, 28, 32, 34, 35, 36, 38, 41, 42, 46),
        *(200, 201, 202, 203, 204, 207, 208, 215, 222),
        *(300, 306, 307, 315, 316, 317, 321, 328, 329, 351),
    }
