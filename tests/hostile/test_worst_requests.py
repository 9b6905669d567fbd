"""Attacks: the worst of every request code. Another client's heartbeats, sends and look-ups keep their times meanwhile.

The requests are made from the table of codes, so that a code that is served tomorrow is attacked tomorrow: fields that
any code reads with the longest and largest values, a topic of 65,536 queues, and bodies that take long to read. A
request's cost at the control thread is its CPU time, which a busy machine does not lengthen: the watchdog logs it. The
times that the other client waits are compared with those of the same process at rest, and a code that seems to be slow
is attacked again alone: these bounds are wide, as the machine may be busy.
"""

from __future__ import annotations

import os
import random
import re
import signal
import socket
import subprocess
import sys
import threading
import time
import zlib
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from types import MappingProxyType

import pytest
import tomllib

import cometmq
from cometmq.remoting.codes import RequestCode, ResponseCode
from cometmq.remoting.command import Command
from cometmq.remoting.sync_channel import Channel
from hostile.test_control_thread import LENIENT_CHARS, heartbeat, lenient
from hostile.test_system_topics import send

LONG = bool(os.environ.get("CMQ_LONG"))
CODES = Path(__file__).parents[2] / "csrc" / "wire" / "codes.toml"
TIMEOUT_MS = 60_000
QUEUES = 65_536
CYCLES = 20 if LONG else 3
"""Of a heartbeat, a send and two look-ups, beside the attacks of one code."""

RATIO_OF_ALL = 1000
RATIO_OF_ONE = 150
"""How many times the p99 at rest the p90 beside all attacks, and the median beside those of one code, may be. At rest
it is about 1 ms; beside two busy lanes the interpreter's lock changes hands every 5 ms. Before the fix it took 1 s."""
STEP_CPU_MS = 50
"""CPU time of the control thread that no step of a request may reach. Steps of fewer than 100 ms are not logged."""
REST_MS_MIN = 1.0
TRIES = 3

COSTLY = ("HEART_BEAT", "UPDATE_BROKER_CONFIG", "REGISTER_BROKER", "GET_CONSUME_STATS")
DRAWN = 8
SEED = int(os.environ.get("CMQ_SEED", "20261127"), 0)


def served() -> dict[str, int]:
    requests = tomllib.loads(CODES.read_text())["request"]
    return {
        name: entry["code"]
        for name, entry in requests.items()
        if entry["where"] in ("c", "python") and {"broker", "namesrv"} & set(entry["to"])
    }


def chosen() -> dict[str, int]:
    """Return all codes in the long form, in the short one some, with those that cost most."""
    codes = served()
    if LONG:
        return codes
    drawn = random.Random(SEED).sample(sorted(codes), DRAWN)
    return {name: codes[name] for name in {*drawn, *COSTLY}}


# --- The worst of a code

MANY = ",".join(f'"{number}"' for number in range(40_000)).encode()
BODIES: tuple[bytes, ...] = (
    b"",
    b'{"topicConfigList":[' + b",".join(b'{"topicName":"t%d"}' % number for number in range(2_000)) + b"]}",
    b'{"clientID":"c","consumerDataSet":[],"producerDataSet":['
    + b",".join(b'{"groupName":"g%d"}' % number for number in range(5_000))
    + b"]}",
    b'{"mqSet":[' + b",".join(b'{"topic":"wide","brokerName":"b","queueId":%d}' % n for n in range(5_000)) + b"]}",
    lenient(LENIENT_CHARS),
    b"[" * 20_000,
    b"k=\\\n" * 60_000,
    zlib.compress(lenient(LENIENT_CHARS)),
    zlib.compress(b"[" + MANY + b"]"),
    b'{"a":' + b"9" * 200_000 + b"}",
    b'{"list":[' + MANY + b"]}",
)

SHORT: dict[str, str] = {
    **dict.fromkeys(("topic", "b", "n"), "wide"),
    **dict.fromkeys(("group", "consumerGroup", "producerGroup", "a", "srcGroup", "destGroup", "groupName"), "g"),
    **dict.fromkeys(("queueId", "e", "offset", "queueOffset", "commitOffset", "sysFlag", "f", "h", "j", "index"), "0"),
    **dict.fromkeys(("maxMsgNums", "maxMsgNum", "count", "maxNum", "topicSeq", "readQueueNums"), str(2**31 - 1)),
    **dict.fromkeys(("timestamp", "beginTimestamp", "bornTimestamp", "g", "bornTime", "subVersion"), "0"),
    **dict.fromkeys(("endTimestamp", "timeStamp"), str(2**63 - 1)),
    **dict.fromkeys(("suspendTimeoutMillis", "pollTime", "invisibleTime"), "0"),
    **dict.fromkeys(("isForce", "order", "initMode", "k", "m", "withValue", "cleanOffset"), "true"),
    "key": "k",
    "namespace": "ORDER_TOPIC_CONFIG",
    "value": "v",
    "defaultTopic": "TBW102",
    "c": "TBW102",
    "d": "8",
    "writeQueueNums": str(QUEUES),
    "perm": "6",
    "topicFilterType": "SINGLE_TAG",
    "topicSysFlag": "0",
    "brokerName": "b",
    "brokerAddr": "10.0.0.1:1",
    "clusterName": "c",
    "haServerAddr": "",
    "brokerId": "0",
    "job": "j",
    "file": "a.arrow",
    "position": "0",
    "crc": "0",
    "extraInfo": "0 0 60000 0 0 b 0 0",
    "isOffline": "true",
    "clientId": "c",
    "msgId": "0" * 32,
    "subscription": "*",
    "compareGroup": "g",
    "filterGroups": "g",
    "wideTopic": "t",
}
"""Every name that some code reads, with a value that leads far."""


def fields_of(kind: int) -> dict[str, str]:
    if kind == 0:
        return SHORT
    if kind == 1:  # long texts where texts belong, the largest numbers where numbers do
        return {name: str(2**63 - 1) if value.lstrip("-").isdigit() else value * 200 for name, value in SHORT.items()}
    return dict.fromkeys(list(SHORT)[:60], "," * 400)


def worst_of(code: int) -> list[bytes]:
    """Frames: every kind of fields without a body, every body with the fields that lead far."""
    requests = []
    for kind in range(3):
        some = dict(list(fields_of(kind).items()))
        while some:  # a header has 64 fields
            part = dict(list(some.items())[:60]) | ({"topic": some["topic"]} if "topic" in some else {})
            requests.append(Command(code=code, fields=part))
            some = dict(list(some.items())[60:])
    few = {name: SHORT[name] for name in ("topic", "group", "consumerGroup", "brokerName", "brokerAddr", "clusterName")}
    few |= {name: SHORT[name] for name in ("brokerId", "haServerAddr", "namespace", "key", "value", "queueId")}
    requests += [Command(code=code, fields=few, body=body) for body in BODIES]
    return [request.encode() for request in requests]


# --- The servers, and who suffers


class Servers:
    """A name server and a broker in a process of their own."""

    def __init__(self, path: Path, settings: Mapping[str, object] = MappingProxyType({})) -> None:
        self.path = path
        chosen = [
            text
            for name, value in (
                ("flushDiskType", "ASYNC_FLUSH"),
                ("mappedFileSizeCommitLog", 16 << 20),
                ("stagedWritesEnable", "true"),
                ("maxIndexNum", 40_000),
                ("maxHashSlotNum", 10_000),
                *settings.items(),
            )
            for text in ("--set", f"{name}={value}")
        ]
        command = [sys.executable, "-m", "cometmq", "serve", os.fspath(path), "--listen", "127.0.0.1:0"]
        command += ["--namesrv-listen", "127.0.0.1:0", *chosen]
        self.log = path.with_suffix(".log")
        with self.log.open("a") as log:
            self.process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=log, text=True)
        assert self.process.stdout is not None
        self.namesrv, self.broker = (self._address() for _ in range(2))

    def _address(self) -> str:
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        found = re.search(r"listening on ([0-9.:]+)", line)
        assert found, f"the servers said {line!r}"
        return found[1]

    def costly_steps(self) -> list[str]:
        """The log lines of steps that used too much of the control thread."""
        held = [line for line in self.log.read_text().splitlines() if "held the control thread" in line]
        return [line for line in held if int(re.findall(r"\bcpu_ms=(\d+)", line)[0]) >= STEP_CPU_MS]

    def stop(self) -> int:
        """End them, and return their exit code."""
        self.process.send_signal(signal.SIGTERM)
        self.process.communicate(timeout=60)
        return self.process.returncode


@contextmanager
def running(path: Path, settings: Mapping[str, object] = MappingProxyType({})) -> Iterator[Servers]:
    servers = Servers(path, settings)
    try:
        yield servers
    finally:
        if servers.process.poll() is None:
            servers.process.kill()
        servers.process.communicate()


@pytest.fixture
def servers(tmp_path: Path) -> Iterator[Servers]:
    with running(tmp_path / "store") as servers:
        yield servers


class Victim:
    """A client that does the same all the time, and measures it."""

    def __init__(self, servers: Servers) -> None:
        self._broker = Channel(servers.broker)
        self._namesrv = Channel(servers.namesrv)
        self.sent = 0

    def cycle(self) -> list[float]:
        times = []
        for one in (self._heartbeat, self._send, self._look_up, self._look_at_topic):
            began = time.perf_counter()
            one()
            times.append((time.perf_counter() - began) * 1000)
        return times

    def _heartbeat(self) -> None:
        assert self._broker.invoke(heartbeat(1), timeout_ms=TIMEOUT_MS).code == ResponseCode.SUCCESS

    def _send(self) -> None:
        assert send(self._broker, "orders").code == ResponseCode.SUCCESS
        self.sent += 1

    def _look_up(self) -> None:
        request = Command(code=RequestCode.GET_ROUTEINFO_BY_TOPIC, fields={"topic": "TBW102"})
        assert self._namesrv.invoke(request, timeout_ms=TIMEOUT_MS).code == ResponseCode.SUCCESS

    def _look_at_topic(self) -> None:
        request = Command(code=RequestCode.GET_TOPIC_CONFIG, fields={"topic": "orders"})
        assert self._broker.invoke(request, timeout_ms=TIMEOUT_MS).code == ResponseCode.SUCCESS

    def close(self) -> None:
        self._broker.close()
        self._namesrv.close()


class Attacker:
    """Sends frames, and takes the answers so that nothing waits for it."""

    def __init__(self, address: str) -> None:
        host, port = address.rsplit(":", 1)
        self._socket = socket.create_connection((host, int(port)))
        self._reading = threading.Thread(target=self._read, daemon=True)
        self._reading.start()

    def _read(self) -> None:
        try:
            while self._socket.recv(1 << 20):
                pass
        except OSError:
            pass

    def send(self, frames: list[bytes]) -> None:
        try:
            for frame in frames:
                self._socket.sendall(frame)
        except OSError:  # the server has closed the connection, which is an answer
            pass

    def close(self) -> None:
        self._socket.close()


def attack(servers: Servers, victim: Victim, code: int) -> list[float]:
    """Return the victim's times while the worst of a code is sent to both servers, on two connections each."""
    frames = worst_of(code)
    attackers = [Attacker(address) for address in (servers.broker, servers.namesrv) for _ in range(2)]
    senders = [threading.Thread(target=one.send, args=(frames,)) for one in attackers]
    try:
        for sender in senders:
            sender.start()
        times = [one for _ in range(CYCLES) for one in victim.cycle()]
        for sender in senders:
            sender.join()
        return times + victim.cycle()
    finally:
        for one in attackers:
            one.close()


def percentile(times: list[float], share: float) -> float:
    return sorted(times)[min(int(len(times) * share), len(times) - 1)]


def make_wide(servers: Servers) -> None:
    with Channel(servers.broker) as channel:
        fields = {**SHORT, "readQueueNums": str(QUEUES)}
        names = ("topic", "defaultTopic", "readQueueNums", "writeQueueNums", "perm", "topicFilterType", "topicSysFlag")
        request = Command(
            code=RequestCode.UPDATE_AND_CREATE_TOPIC, fields={name: fields[name] for name in names} | {"order": "false"}
        )
        assert channel.invoke(request, timeout_ms=TIMEOUT_MS).code == ResponseCode.SUCCESS
        for queue in range(16):
            assert send(channel, "wide", queue=queue).code == ResponseCode.SUCCESS


def test_the_worst_of_every_code(servers: Servers) -> None:
    make_wide(servers)
    victim = Victim(servers)
    try:
        for _ in range(30):
            victim.cycle()
        rest = [one for _ in range(100) for one in victim.cycle()]
        at_rest = max(percentile(rest, 0.99), REST_MS_MIN)
        beside: list[float] = []
        slow: dict[str, float] = {}
        for name, code in chosen().items():
            times = attack(servers, victim, code)
            for _ in range(TRIES - 1):
                if percentile(times, 0.5) <= RATIO_OF_ONE * at_rest:
                    break
                times = attack(servers, victim, code)
            else:
                slow[name] = percentile(times, 0.5)
            beside += times
            if LONG:
                print(f"{name}: median {percentile(times, 0.5):.1f} ms, at most {max(times):.1f} ms")
            assert servers.process.poll() is None, f"{name} ended the servers"
        worst = percentile(beside, 0.99)
        print(f"p99 {at_rest:.2f} ms at rest, {worst:.2f} ms beside the attacks, {max(beside):.1f} ms at most")
        assert not slow, f"median beside attacks, in ms; {at_rest:.2f} at rest: {slow}"
        most = percentile(beside, 0.9)
        assert most <= RATIO_OF_ALL * at_rest, f"p90 is {most:.1f} ms beside attacks, {at_rest:.2f} at rest"
    finally:
        victim.close()
    assert servers.stop() == 0
    assert servers.costly_steps() == []
    # The remains of the attacks prevent no start, and no acknowledged message is lost.
    with running(servers.path) as again:
        after = Victim(again)
        after.cycle()
        after.close()
        assert again.stop() == 0
    with cometmq.open(servers.path, mode="r") as store:
        assert sum(1 for _ in store.read("orders")) == victim.sent + 1


def test_every_served_code_is_attacked() -> None:
    assert len(served()) > 90
    assert all(len(worst_of(code)) > len(BODIES) for code in list(served().values())[:3])
