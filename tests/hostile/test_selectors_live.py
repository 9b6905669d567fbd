"""Attacks by SQL92 at a live broker, on every way in: heartbeats, checks, pulls, pops, notifications, and messages with
properties that cost the most. Another client's heartbeats, sends and look-ups keep their times meanwhile.

The bounds are those of the worst requests: ratios to the same process at rest, and CPU time of the control thread.
"""

from __future__ import annotations

import os
import threading
from pathlib import Path

import cometmq
from cometmq.remoting.bodies.heartbeat import CheckClientRequestBody, ConsumerData, HeartbeatData, SubscriptionData
from cometmq.remoting.codes import RequestCode
from cometmq.remoting.command import Command
from hostile.test_selectors import repeated
from hostile.test_worst_requests import (
    RATIO_OF_ALL,
    RATIO_OF_ONE,
    REST_MS_MIN,
    Attacker,
    Victim,
    percentile,
    running,
)
from support.broker_twins import send_fields

LONG = bool(os.environ.get("CMQ_LONG"))
DIFFERENT = 10_000 if LONG else 500
HELD_MS = "20000"
MONSTERS = [
    repeated("a<1.5"),
    repeated("a=b"),
    repeated(f"a CONTAINS '{'x' * 100}y{'x' * 100}'"),
    f"a IN ({','.join(f'{chr(39)}{n}{chr(39)}' for n in range(8_000))})",
    "(" * 60_000,
    "NOT " * 16_000 + "a",
    "-" * 65_000,
    f"a = '{'x' * 65_000}'",
    "a = '" + "x" * 65_000,
    " OR ".join(f"n{n} IS NULL" for n in range(4_000)),
    "'" * 65_535,
    "\ud7ff" * 20_000,
]
BOMBS = [f"a\x01{'0' * 30_000}9\x02", f"a\x01{'x' * 15_000}\x02b\x01{'x' * 15_000}\x02", "a\x01\x02" * 8_000]


def heartbeat(number: int, expression: str) -> Command:
    subscription = SubscriptionData(
        topic="orders", sub_string=expression, sub_version=2**62 if number % 5 == 0 else number, expression_type="SQL92"
    )
    group = ConsumerData(group_name=f"g{number % 50}", subscriptions=(subscription,))
    return Command(code=RequestCode.HEART_BEAT, body=HeartbeatData(client_id="evil", consumers=(group,)).to_json())


def check(expression: str) -> Command:
    subscription = SubscriptionData(topic="orders", sub_string=expression, sub_version=1, expression_type="SQL92")
    body = CheckClientRequestBody(client_id="evil", group="g", subscription=subscription)
    return Command(code=RequestCode.CHECK_CLIENT_CONFIG, body=body.to_json())


def pull(code: int, expression: str) -> Command:
    fields = {
        "consumerGroup": "g",
        "topic": "orders",
        "queueId": "0",
        "queueOffset": "1000000" if code == RequestCode.PULL_MESSAGE else "0",
        "maxMsgNums": "32",
        "sysFlag": "6",
        "commitOffset": "0",
        "suspendTimeoutMillis": HELD_MS,
        "subVersion": "1",
        "subscription": expression,
        "expressionType": "SQL92",
    }
    return Command(code=code, fields=fields)


def pop(code: int, expression: str) -> Command:
    fields = {
        "consumerGroup": "g",
        "topic": "orders",
        "queueId": "-1",
        "maxMsgNums": "32",
        "invisibleTime": "1000",
        "pollTime": HELD_MS,
        "bornTime": "0",
        "initMode": "0",
        "exp": expression,
        "expType": "SQL92",
    }
    return Command(code=code, fields=fields)


def bomb(properties: str) -> Command:
    code = RequestCode.SEND_MESSAGE_V2
    return Command(code=code, fields=send_fields(code, topic="orders", properties=properties), body=b"x")


def frames() -> list[bytes]:
    """Return every way in with every expression, those that differ in a number alone, and the properties between."""
    requests = []
    ways = [(pull, RequestCode.PULL_MESSAGE), (pull, RequestCode.LITE_PULL_MESSAGE)]
    ways += [(pop, RequestCode.POP_MESSAGE), (pop, RequestCode.NOTIFICATION)]
    for number, expression in enumerate(MONSTERS):
        requests += [heartbeat(number, expression), check(expression)]
        requests += [make(code, expression) for make, code in ways]
        requests.append(bomb(BOMBS[number % len(BOMBS)]))
    for number in range(DIFFERENT):
        make, code = ways[number % len(ways)]
        requests.append(make(code, f"n = {number} OR a = '{number}'"))
        if number % 100 == 0:
            requests += [heartbeat(number, f"a = {number}"), bomb(BOMBS[number % len(BOMBS)])]
    return [request.with_opaque(number).encode() for number, request in enumerate(requests)]


def test_sql92_harms_no_other_client(tmp_path: Path) -> None:
    with running(tmp_path / "store", {"enablePropertyFilter": "true", "timerWheelEnable": "true"}) as servers:
        victim = Victim(servers)
        try:
            for _ in range(10):
                victim.cycle()
            at_rest = max(percentile([one for _ in range(50) for one in victim.cycle()], 0.99), REST_MS_MIN)
            attackers = [Attacker(servers.broker) for _ in range(2)]
            everything = frames()
            senders = [threading.Thread(target=one.send, args=(everything,)) for one in attackers]
            for sender in senders:
                sender.start()
            times = victim.cycle()
            while any(sender.is_alive() for sender in senders):
                times += victim.cycle()
            for _ in range(10):  # beside the requests that are held
                times += victim.cycle()
            for one in attackers:
                one.close()
            print(f"p99 {at_rest:.2f} ms at rest, {percentile(times, 0.99):.1f} ms beside {len(everything)} attacks")
            assert percentile(times, 0.5) <= RATIO_OF_ONE * at_rest
            assert percentile(times, 0.9) <= RATIO_OF_ALL * at_rest
        finally:
            victim.close()
        assert servers.stop() == 0
        assert servers.costly_steps() == []
    with cometmq.open(servers.path, mode="r") as store:
        assert sum(1 for one in store.read("orders") if bytes(one.body) == b"forged") == victim.sent
