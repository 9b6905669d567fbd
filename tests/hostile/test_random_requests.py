"""Attacks: random requests of every code, from clients that come and go while topics and groups are made and deleted.

Headers are plausible at first sight: a name that some code reads, with a number that is negative, too large or none, an
empty or a long text, bytes that are no UTF-8; bodies are those of other codes, cut, or cut compressed ones. The servers
must answer or close, log no failure of their own, keep a sender's messages, and end in order.
"""

from __future__ import annotations

import os
import random
import socket
import threading
import zlib
from pathlib import Path

import pytest

import cometmq
from cometmq.remoting.codes import RequestCode, ResponseCode
from cometmq.remoting.command import Command, HeaderFormat
from cometmq.remoting.sync_channel import Channel
from hostile.test_worst_requests import BODIES, SHORT, Servers, make_wide, running, served
from support.transactions import COMMIT, end, send_half

LONG = bool(os.environ.get("CMQ_LONG"))
SEED = int(os.environ.get("CMQ_SEED", "20261128"), 0)
ROUNDS = 40 if LONG else 2
"""Of one request of every code."""
ATTACKERS = 3
TIMEOUT_MS = 60_000
ANSWERED = Command(code=RequestCode.GET_ROUTEINFO_BY_TOPIC, fields={"topic": "none"}).encode()
"""Whatever the random ones ask for, an answer comes on each connection that is not closed."""
CORPUS = Path(__file__).parents[1] / "fuzz" / "c" / "corpus" / "bodies"

NAMES = sorted(
    {*SHORT, *"abcdefghijklmn", "pollTime", "bornTime", "expType", "exp", "attemptId", "initMode", "suspend"}
)
NUMBERS = ("-1", "0", "1", "7", "65535", "65536", "2147483647", "-2147483648", "4294967296", "9223372036854775807")
WORDS = (
    "",
    "g",
    "orders",
    "gone",
    "wide",
    "%RETRY%g",
    "%LMQ%x",
    "TBW102",
    "SCHEDULE_TOPIC_XXXX",
    "true",
    "no number",
    "*",
)
TEXTS = (
    "1e9",
    "0x10",
    "\0",
    "é" * 9,
    "x" * 300,
    "\U0001f600",
    "a||b",
    "k\x01v\x02",
    "RMQ_SYS_TRANS_HALF_TOPIC",
    "0 0 0 0 0 b 0 0",
)
_POP = ("consumerGroup", "topic", "queueId", "maxMsgNums", "invisibleTime", "pollTime", "bornTime", "initMode")
_PULL = ("consumerGroup", "topic", "queueId", "queueOffset", "maxMsgNums", "sysFlag", "commitOffset", "subVersion")
NEEDED: dict[int, list[str]] = {
    RequestCode.POP_MESSAGE: [*_POP, "expType", "exp", "order", "attemptId"],
    RequestCode.NOTIFICATION: [*_POP, "order"],
    RequestCode.PEEK_MESSAGE: [*_POP],
    RequestCode.PULL_MESSAGE: [*_PULL, "suspendTimeoutMillis", "subscription", "expressionType"],
    RequestCode.LITE_PULL_MESSAGE: [*_PULL, "suspendTimeoutMillis", "subscription", "expressionType"],
    RequestCode.SEND_MESSAGE_V2: list("abcdefghijklm"),
}
"""Required fields of held requests, and of sends, which end the holds."""
LIKELY: dict[str, tuple[str, ...]] = {
    "topic": ("wide", "orders", "gone"),
    "consumerGroup": ("g", "other"),
    "queueId": ("-1", "-1", "0", "7"),
    "maxMsgNums": ("1", "32"),
    "pollTime": ("0", "300", "9999"),
    "suspendTimeoutMillis": ("0", "300", "9999"),
    "sysFlag": ("0", "2", "6"),
    "expType": ("TAG", "SQL92"),
    "expressionType": ("TAG", "SQL92"),
    "exp": ("*", "a", "n > 1 OR n IS NULL", "TAGS CONTAINS 'x'"),
    "subscription": ("*", "a", "n > 1 OR n IS NULL", "TAGS CONTAINS 'x'"),
    "order": ("false", "false", "true"),
    "bornTime": ("0",),
    "b": ("orders", "gone", "wide"),
    "e": ("0", "1"),
    "i": ("TAGS\x01a\x02n\x012\x02",),
}
SMALL_BODIES = tuple(body for body in BODIES if len(body) < 300_000)


def value(dice: random.Random) -> str:
    return dice.choice(dice.choice((NUMBERS, WORDS, WORDS, TEXTS)))


def fields(dice: random.Random, code: int) -> dict[str, str]:
    """What the code or most codes want, some of it changed; or few names with any value."""
    if code in NEEDED and dice.random() < 0.8:
        chosen = {name: dice.choice(LIKELY.get(name, (SHORT.get(name, "0"),))) for name in NEEDED[code]}
        return chosen | {name: value(dice) for name in dice.sample(NEEDED[code], dice.choice((0, 0, 1, 3)))}
    if dice.random() < 0.7:
        chosen = {name: SHORT.get(name, "0") for name in dice.sample(NAMES, 50)}
        chosen |= {"topic": dice.choice(WORDS), "b": dice.choice(WORDS)}
        return chosen | {name: value(dice) for name in dice.sample(sorted(chosen), dice.randint(0, 4))}
    return {name: value(dice) for name in dice.sample(NAMES, dice.randint(0, 12))}


def body(dice: random.Random, corpus: list[bytes]) -> bytes:
    kind = dice.randrange(5)
    if kind == 0:
        return b""
    data = dice.choice(corpus) if kind < 4 else dice.choice(SMALL_BODIES)
    if dice.random() < 0.3:
        data = zlib.compress(data)
    if dice.random() < 0.5:
        data = data[: dice.randint(0, len(data))]
    return data


def frame(dice: random.Random, code: int, corpus: list[bytes]) -> bytes:
    request = Command(
        code=code,
        fields=fields(dice, code),
        body=body(dice, corpus),
        format=dice.choice((HeaderFormat.JSON, HeaderFormat.ROCKETMQ)),
        opaque=dice.choice((0, -1, dice.randrange(1 << 31))),
    )
    if dice.random() < 0.1:
        request = request.as_oneway()
    data = bytearray(request.encode())
    if dice.random() < 0.15:  # the lengths stay
        for _ in range(dice.randint(1, 5)):
            data[dice.randrange(8, len(data))] = dice.randrange(256)
    return bytes(data)


def attack(address: str, seed: int, codes: list[int], corpus: list[bytes]) -> None:
    """Send a part of the requests on each of many connections."""
    dice = random.Random(seed)
    host, port = address.rsplit(":", 1)
    for _ in range(ROUNDS):
        dice.shuffle(codes)
        for first in range(0, len(codes), 20):
            with socket.create_connection((host, int(port)), timeout=TIMEOUT_MS / 1000) as connection:
                try:
                    for code in (*codes[first : first + 20], *dice.choices(list(NEEDED), k=6)):
                        connection.sendall(frame(dice, code, corpus))
                    connection.sendall(ANSWERED)
                    reads = dice.randrange(3)  # ends at once, behind the first answer, behind all
                    if reads > 0:
                        connection.recv(1)
                    if reads == 2:
                        connection.shutdown(socket.SHUT_WR)
                        while connection.recv(1 << 16):
                            pass
                except TimeoutError:
                    raise
                except OSError:  # the server closed it, which is an answer
                    continue


def make_and_delete(address: str, stop: threading.Event) -> None:
    """Make and delete the topic and the group that others pull, pop, hold and reset."""
    wanted = {"defaultTopic": "TBW102", "readQueueNums": "4", "writeQueueNums": "4", "perm": "6", "order": "false"}
    wanted |= {"topic": "gone", "topicFilterType": "SINGLE_TAG", "topicSysFlag": "0"}
    with Channel(address) as channel:
        while not stop.is_set():
            for code, given in (
                (RequestCode.UPDATE_AND_CREATE_TOPIC, wanted),
                (RequestCode.INVOKE_BROKER_TO_RESET_OFFSET, {"topic": "gone", "group": "g", "timestamp": "0"}),
                (RequestCode.DELETE_TOPIC_IN_BROKER, {"topic": "gone"}),
                (RequestCode.DELETE_SUBSCRIPTIONGROUP, {"groupName": "g", "cleanOffset": "true"}),
            ):
                channel.invoke(Command(code=code, fields=given), timeout_ms=TIMEOUT_MS)


def try_all(servers: Servers) -> int:
    """Attack while a sender continues; return how many messages it has sent."""
    corpus = [file.read_bytes() for file in sorted(CORPUS.iterdir())]
    threads = [
        threading.Thread(target=attack, args=(address, SEED + number, sorted(served().values()), corpus))
        for address in (servers.broker, servers.namesrv)
        for number in range(ATTACKERS)
    ]
    make_wide(servers)
    stop, sent = threading.Event(), 0
    changing = threading.Thread(target=make_and_delete, args=(servers.broker, stop))
    with Channel(servers.broker) as channel:
        for thread in (*threads, changing):
            thread.start()
        while any(thread.is_alive() for thread in threads) or sent < 10:
            half = send_half(channel, b"%d" % sent, group="mine", unique=f"U{sent}", topic="mine")
            assert half.code == ResponseCode.SUCCESS, half.remark
            assert end(channel, half, COMMIT, group="mine") == ResponseCode.SUCCESS
            sent += 1
        stop.set()
        for thread in (*threads, changing):
            thread.join()
    return sent


@pytest.mark.timeout(0 if LONG else 120)
def test_random_requests_of_every_code_harm_nobody(tmp_path: Path) -> None:
    with running(tmp_path / "store", {"autoCreateTopicEnable": "true", "enablePropertyFilter": "true"}) as servers:
        sent = try_all(servers)
        assert servers.stop() == 0, servers.log.read_text()[-4000:]
        # A machine that stands still for a second is no failure.
        lines = [line for line in servers.log.read_text().splitlines() if "held the control thread" not in line]
        failures = [line for line in lines if "Traceback" in line or " ERROR " in line]
        assert not failures, (SEED, failures[:5], servers.log)
    with cometmq.open(tmp_path / "store", mode="r") as store, store.read("mine") as reader:
        assert {bytes(message.body) for message in reader} >= {b"%d" % number for number in range(sent)}
