"""Checks: a broker starts on a store of which one file is anything at all, or refuses it with an error that names it.

Each file of a store that a broker left is cut, emptied, overwritten, or replaced by a link, a FIFO, a device, a folder
or a sparse file of a tebibyte. The start ends within bounds; it fails with a typed error that names the file, or the
broker serves. Where nothing else holds the file's content, it then says what was left out.
"""

from __future__ import annotations

import json
import logging
import os
import random
import stat
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from cometmq import errors
from cometmq.broker.config import load_broker_config
from cometmq.broker.server import Broker
from cometmq.remoting.bodies.heartbeat import ConsumerData, HeartbeatData, SubscriptionData
from cometmq.remoting.bodies.locks import LockBatchRequestBody
from cometmq.remoting.bodies.message_queue import MessageQueue
from cometmq.remoting.codes import RequestCode, ResponseCode
from cometmq.remoting.command import Command
from cometmq.remoting.sync_channel import Channel
from support.broker_twins import send_fields
from support.transactions import COMMIT, end, send_half
from support.waiting import wait_until

LONG = bool(os.environ.get("CMQ_LONG"))
SEED = int(os.environ.get("CMQ_SEED", "20250919"), 0)
SHORT_FILES = 3
TIMEOUT_MS = 60_000
CPU_S_MAX = 5
SETTINGS = {
    "brokerName": "broker-a",
    "flushDiskType": "ASYNC_FLUSH",
    "mappedFileSizeCommitLog": 1 << 20,
    "mappedFileSizeConsumeQueue": 20_000,
    "mappedFileSizeTimerLog": 1 << 20,
    "maxHashSlotNum": 1_000,
    "maxIndexNum": 4_000,
    "enablePropertyFilter": True,
}


def make(path: Path) -> Broker:
    return Broker(load_broker_config(path, listen=":0", settings=SETTINGS, environ={}))


def fill(path: Path) -> None:
    """Leave a file of every kind: messages, timers, transactions, progress, filters, modes, locks, settings."""
    queue = MessageQueue(topic="orders", broker_name="broker-a", queue_id=0)
    subscription = SubscriptionData(topic="orders", sub_string="a > 3", expression_type="SQL92", sub_version=5)
    with make(path) as broker, Channel(broker.address) as channel:

        def ask(code: int, body: bytes = b"", **fields: str) -> Command:
            return channel.invoke(Command(code=code, fields=fields, body=body), timeout_ms=TIMEOUT_MS)

        def done(code: int, body: bytes = b"", **fields: str) -> None:
            answer = ask(code, body, **fields)
            assert answer.code == ResponseCode.SUCCESS, answer

        def send(queue_id: int, properties: str) -> None:
            fields = send_fields(
                RequestCode.SEND_MESSAGE_V2, topic="orders", queueId=str(queue_id), properties=properties
            )
            done(RequestCode.SEND_MESSAGE_V2, b"x", **fields)

        for number in range(20):
            send(number % 4, f"KEYS\x01k{number}\x02TAGS\x01t\x02UNIQ_KEY\x01U{number}\x02")
        send(0, "TIMER_DELAY_SEC\x013600\x02UNIQ_KEY\x01T\x02")
        send(0, "DELAY\x015\x02UNIQ_KEY\x01D\x02")
        send_half(channel, b"open", unique="H1")
        assert end(channel, send_half(channel, b"ended", unique="H2"), COMMIT) == ResponseCode.SUCCESS
        group = ConsumerData(group_name="g", subscriptions=(subscription,))
        done(RequestCode.HEART_BEAT, HeartbeatData(client_id="c", consumers=(group,)).to_json())
        progress = {"consumerGroup": "g", "topic": "orders", "queueId": "0", "commitOffset": "2"}
        done(RequestCode.UPDATE_CONSUMER_OFFSET, **progress)
        locked = LockBatchRequestBody(consumer_group="g", client_id="c", queues=(queue,))
        done(RequestCode.LOCK_BATCH_MQ, locked.to_json())
        mode = {"topic": "orders", "consumerGroup": "g", "mode": "POP", "popShareQueueNum": 1}
        done(RequestCode.SET_MESSAGE_REQUEST_MODE, json.dumps(mode).encode())
        done(RequestCode.UPDATE_BROKER_CONFIG, b"fileReservedTime=48\n")
        pop = {"topic": "orders", "queueId": "1", "maxMsgNums": "4", "invisibleTime": "60000", "pollTime": "0"}
        born = {"bornTime": str(time.time_ns() // 1_000_000), "initMode": "0", "exp": "*", "expType": "TAG"}
        ask(RequestCode.POP_MESSAGE, consumerGroup="popper", order="false", **pop, **born)
        ask(RequestCode.POP_MESSAGE, consumerGroup="ordered", order="true", **pop, **born)
        runtime = Command(code=RequestCode.GET_BROKER_RUNTIME_INFO)

        def timers_are_read() -> bool:
            channel.invoke(runtime, timeout_ms=TIMEOUT_MS)
            return (path / "timerlog").is_dir() and (path / "timerwheel").exists()

        wait_until(timers_are_read)


@pytest.fixture(scope="module")
def filled(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("starts") / "store"
    for _ in range(2):  # the second run leaves the files' .bak
        fill(path)
    return path


# --- Mutations --------------------------------------------------------------------------------------------------------


def overwritten(content: Callable[[bytes], bytes]) -> Callable[[Path], None]:
    def mutate(path: Path) -> None:
        with path.open("rb") as file:
            data = file.read(2 << 20)
        path.write_bytes(content(data))

    return mutate


def replaced(put: Callable[[Path], object]) -> Callable[[Path], None]:
    def mutate(path: Path) -> None:
        path.unlink()
        put(path)

    return mutate


def flipped(data: bytes) -> bytes:
    dice, mutated = random.Random(SEED), bytearray(data)
    for _ in range(8):
        if mutated:
            mutated[dice.randrange(min(len(mutated), 4_096))] ^= 1 << dice.randrange(8)
    return bytes(mutated)


def of_other_types(data: bytes) -> bytes:
    def other(value: object) -> object:
        if isinstance(value, dict):
            return {name: other(inner) for name, inner in value.items()}
        return {"a": 1} if isinstance(value, list) else [1]

    try:
        return json.dumps(other(json.loads(data))).encode()
    except ValueError:
        return b'"x"'


MUTATIONS: dict[str, Callable[[Path], None]] = {
    "cut": overwritten(lambda data: data[: len(data) // 2]),
    "empty": overwritten(lambda data: b""),
    "zeros": overwritten(lambda data: bytes(len(data))),
    "ones": overwritten(lambda data: b"\xff" * len(data)),
    "noise": overwritten(lambda data: random.Random(SEED).randbytes(len(data))),
    "flipped": overwritten(flipped),
    "a list": overwritten(lambda data: b"[1,2,3]"),
    "brackets": overwritten(lambda data: b"[" * 200_000),
    "objects": overwritten(lambda data: b'{"a":' * 200_000),
    "digits": overwritten(lambda data: b'{"a":' + b"9" * (2 << 20) + b"}"),
    "infinite": overwritten(lambda data: b'{"version":1e999,"log_end":Infinity}'),
    "other types": overwritten(of_other_types),
    "link": replaced(lambda path: path.symlink_to("/etc/passwd")),
    "dangling": replaced(lambda path: path.symlink_to("nothing-is-here")),
    "loop": replaced(lambda path: path.symlink_to(path.name)),
    "fifo": replaced(os.mkfifo),
    "device": replaced(lambda path: os.mknod(path, 0o600 | stat.S_IFCHR, os.makedev(1, 5))),
    "folder": replaced(Path.mkdir),
    "sparse": lambda path: os.truncate(path, 1 << 40),
    "gone": Path.unlink,
}

# Nothing else holds what is in these; an empty settings file has no settings, and without the mark of delays all that
# is not delivered for sure is looked at again.
ALONE = ("config/", "cometmq/locks.json", "cometmq/delay.json", "cometmq/broker.properties")
QUIET = {
    ("cometmq/broker.properties", "empty"),
    ("cometmq/delay.json", "empty"),
    ("config/timercheck", "any"),  # the timers are read again from their topic
    ("config/transactionMetrics", "other types"),  # kept as it is, until the counts change
}


def must_be_reported(file: str, mutation: str) -> bool:
    if not file.startswith(ALONE) or file.endswith(".bak") or mutation == "gone":
        return False
    return (file, mutation) not in QUIET and (file, "any") not in QUIET


class Problems(logging.Handler):
    def __init__(self) -> None:
        super().__init__(logging.WARNING)
        self.lines: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.lines.append(" ".join(map(str, [record.getMessage(), *vars(record).values()])))


@contextmanager
def reported() -> Iterator[Problems]:
    problems, logger = Problems(), logging.getLogger("cometmq")
    logger.addHandler(problems)
    try:
        yield problems
    finally:
        logger.removeHandler(problems)


def outcome(path: Path, problems: Problems) -> str:
    """Start a broker, and use it; return the error of the start, or nothing."""
    del problems.lines[:]
    begun = time.process_time()
    try:
        with make(path) as broker, Channel(broker.address) as channel:
            fields = send_fields(RequestCode.SEND_MESSAGE_V2, topic="orders")
            sent = Command(code=RequestCode.SEND_MESSAGE_V2, fields=fields, body=b"y")
            assert channel.invoke(sent, timeout_ms=TIMEOUT_MS).code == ResponseCode.SUCCESS
            broker.control.sample()
        return ""
    except errors.Error as error:
        return error.message
    finally:
        assert time.process_time() - begun < CPU_S_MAX


def copied(filled: Path, to: Path) -> Path:
    subprocess.run(["rm", "-rf", to], check=True)
    subprocess.run(["cp", "-a", "--sparse=always", filled, to], check=True)
    return to


def files_of(filled: Path, kind: str) -> list[str]:
    files = sorted(str(file.relative_to(filled)) for file in filled.rglob("*") if file.is_file())
    return files if LONG else random.Random(f"{SEED} {kind}").sample(files, SHORT_FILES)


@pytest.mark.parametrize("kind", MUTATIONS)
def test_whatever_one_file_holds_the_start_succeeds_or_names_it(filled: Path, tmp_path: Path, kind: str) -> None:
    if kind == "device" and os.geteuid() != 0:
        return  # only root makes devices
    with reported() as problems:
        for file in files_of(filled, kind):
            store = copied(filled, tmp_path / "store")
            MUTATIONS[kind](store / file)
            error = outcome(store, problems)
            name = Path(file).name
            if error:
                assert len(error) < 2_000, (file, kind)
                assert name in error or file.startswith("commitlog/"), (file, kind, error)
            elif must_be_reported(file, kind):
                assert any(name in line for line in problems.lines), (file, kind, problems.lines)


@pytest.mark.parametrize("name", ["topics.json", "subscriptionGroup.json", "consumerOffset.json", "transactionMetrics"])
@pytest.mark.parametrize("kind", ["brackets", "link", "fifo", "sparse", "other types", "empty"])
def test_a_missing_file_and_a_bad_backup(filled: Path, tmp_path: Path, name: str, kind: str) -> None:
    store = copied(filled, tmp_path / "store")
    (store / "config" / name).unlink()
    backup = store / "config" / f"{name}.bak"
    if not backup.exists():
        backup.write_bytes(b"{}")
    MUTATIONS[kind](backup)
    with reported() as problems:
        error = outcome(store, problems)
    assert kind == "empty" or backup.name in error or any(name in line for line in problems.lines), problems.lines
