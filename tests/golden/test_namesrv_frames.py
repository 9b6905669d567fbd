"""Checks: our name server answers the captured requests of real brokers, clients and mqadmin as the real ones did.

Every request that reached a name server of 4.9.7 and 5.3.3 in the golden runs is asked again, in its order and on its
connection; code, remark, fields and body must be the same. Differences on purpose, and unavoidable ones, are listed in
``EXCEPTIONS``.
"""

from __future__ import annotations

import json
import os
import random
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, replace

import pytest

from cometmq.namesrv.handlers import NameServer
from cometmq.namesrv.kv_config import KVConfig
from cometmq.namesrv.settings import NamesrvSettings
from cometmq.remoting.bodies.config_tables import TopicList
from cometmq.remoting.bodies.registration import RegisterBrokerBody, body_checksum
from cometmq.remoting.bodies.routes import TopicRouteData
from cometmq.remoting.codes import RequestCode, ResponseCode
from cometmq.remoting.command import Command
from cometmq.store_config.java_properties import parse_properties
from support.callers import DirectCaller, answer_of
from support.frames import Frame, namesrv_frames
from support.golden import golden_names

SEED = int(os.environ.get("CMQ_SEED", "20250919"), 0)

REQUESTS = {
    "apache-4.9.7": 93,
    "apache-5.3.3": 124,
    "apache-5.3.3-binary-headers": 125,
    "apache-5.3.3-expired": 168,
    "apache-5.3.3-groups": 101,
    "apache-5.3.3-rare": 34,
}
"""Requests that were answered, so that none is lost on the way."""


@dataclass(frozen=True, slots=True)
class Replayed:
    """One request, what the real name server answered and what ours does."""

    run: str
    request: Command
    theirs: Command
    ours: Command


def replay(run: str) -> list[Replayed]:
    """Ask everything again; the registrations are the captured ones, so that the routes are too."""
    now_ms = 0
    server = NameServer(NamesrvSettings(), KVConfig(None), now_ms=lambda: now_ms)
    table = server.table()
    found: list[Replayed] = []
    waiting: dict[tuple[int, int], tuple[Command, Command]] = {}
    frames = in_the_order_of_service(list(namesrv_frames(run)))
    for frame, command in frames:
        now_ms = frame.time_us // 1000
        key = (frame.connection, command.opaque)
        if frame.to_server:
            ours = answer_of(table[command.code](command, DirectCaller(frame.connection)))
            if not command.is_oneway:
                waiting[key] = (command, ours)
        elif key in waiting:
            request, ours = waiting.pop(key)
            found.append(Replayed(run, request, command, ours))
    return found


def in_the_order_of_service(frames: list[Frame]) -> list[tuple[Frame, Command]]:
    """A registration that came a moment after a question may have been served first: its answer was the earlier one."""
    ordered = [(frame, frame.command) for frame in frames]
    for at, (frame, command) in enumerate(ordered):
        if command.code != RequestCode.REGISTER_BROKER or not frame.to_server:
            continue
        while at > 0 and ordered[at - 1][0].to_server and ordered[at - 1][1].code == RequestCode.GET_ROUTEINFO_BY_TOPIC:
            asked = ordered[at - 1][1].fields["topic"]
            if asked not in RegisterBrokerBody.from_wire(command.body, version=command.version).wrapper.topics:
                break
            ordered[at - 1], ordered[at] = ordered[at], ordered[at - 1]
            at -= 1
    return ordered


def same_topics(one: Replayed) -> bool:
    """A set, whose order upstream does not say."""
    return set(TopicList.from_json(one.ours.body).topics) == set(TopicList.from_json(one.theirs.body).topics)


def same_route_without_acting_master(one: Replayed) -> bool:
    """4.9 knows no acting master; ours says that there is none."""
    mine = json.loads(one.ours.body)
    for broker in mine["brokerDatas"]:
        assert broker.pop("enableActingMaster") is False
    return bool(mine == json.loads(one.theirs.body)) and TopicRouteData.from_json(one.theirs.body) == (
        TopicRouteData.from_json(one.ours.body)
    )


def same_but_for_the_help_page(one: Replayed) -> bool:
    """4.9 names another page of the project's site."""
    theirs, ours = ((answer.remark or "").split("\n") for answer in (one.theirs, one.ours))
    return ours[0] == theirs[0] and len(ours) == len(theirs) == 2


def names_that_a_name_server_has(one: Replayed) -> bool:
    """Our settings are upstream's by name; those of its threads and buffers have no meaning here."""
    return set(parse_properties(one.ours.body)) <= set(parse_properties(one.theirs.body))


EXCEPTIONS: dict[tuple[bool, int, int], Callable[[Replayed], bool]] = {
    (False, RequestCode.GET_ALL_TOPIC_LIST_FROM_NAMESERVER, ResponseCode.SUCCESS): same_topics,
    (False, RequestCode.GET_NAMESRV_CONFIG, ResponseCode.SUCCESS): names_that_a_name_server_has,
    (True, RequestCode.GET_ROUTEINFO_BY_TOPIC, ResponseCode.SUCCESS): same_route_without_acting_master,
    (True, RequestCode.GET_ROUTEINFO_BY_TOPIC, ResponseCode.TOPIC_NOT_EXIST): same_but_for_the_help_page,
}
"""4.9 or not, request, answer: the comparison where the answers are not the same."""


@pytest.mark.parametrize("run", golden_names())
def test_the_answers_are_the_real_ones(run: str) -> None:
    found = replay(run)
    assert len(found) == REQUESTS[run]
    for one in found:
        where = f"request {one.request.code} {dict(one.request.fields)}"
        assert one.ours.code == one.theirs.code, where
        assert one.ours.fields == one.theirs.fields, where
        is_same = (one.ours.remark, one.ours.body) == (one.theirs.remark, one.theirs.body)
        if not is_same:
            check = EXCEPTIONS.get((run == "apache-4.9.7", one.request.code, one.theirs.code))
            assert check is not None, where
            assert check(one), where
        assert (one.ours.opaque, one.ours.is_response) == (one.theirs.opaque, True)
        assert one.ours.format == one.request.format, "ours answers in the format of the request"


def test_every_kind_of_request_was_asked() -> None:
    asked = Counter(one.request.code for run in golden_names() for one in replay(run))
    assert set(asked) == {100, 102, 103, 104, 105, 106, 205, 206, 319, 327}
    assert asked[RequestCode.GET_ROUTEINFO_BY_TOPIC] > 400


def test_damaged_requests_are_answered_and_harm_nobody() -> None:
    """The captured requests with fields and bodies changed: each gets an answer, and the server goes on."""
    print(f"CMQ_SEED={SEED}")
    rng = random.Random(SEED)
    server = NameServer(NamesrvSettings(), KVConfig(None), now_ms=lambda: 0)
    table = server.table()
    requests = [one.request for run in golden_names() for one in replay(run)]
    codes: Counter[int] = Counter()
    for _ in range(3_000):
        request = rng.choice(requests)
        fields = {
            name: rng.choice([value, "", "-1", "9" * 30, "x" * 300, "\x00", value[:1]])
            for name, value in request.fields.items()
            if rng.random() < 0.95
        }
        body = bytearray(request.body)
        for _ in range(rng.randint(0, 3)):
            at = rng.randrange(len(body) + 1)
            body[at : at + rng.randint(0, 4)] = rng.randbytes(rng.randint(0, 3))
        if "bodyCrc32" in fields and rng.random() < 0.9:
            fields["bodyCrc32"] = str(body_checksum(bytes(body)))
        code = rng.choice([request.code, rng.choice(list(table))])
        changed = replace(request, code=code, fields=fields, body=bytes(body))
        answer = answer_of(table[code](changed, DirectCaller(rng.randrange(9))))
        assert answer.is_response
        codes[answer.code] += 1
        if rng.random() < 0.05:
            server.connection_closed(rng.randrange(9))
    assert codes[ResponseCode.SYSTEM_ERROR] > 100
    assert codes[ResponseCode.SUCCESS] > 100
    for connection in range(9):
        server.connection_closed(connection)
    assert server.routes.broker_count == 0
