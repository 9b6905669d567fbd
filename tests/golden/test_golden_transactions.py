"""Checks: our broker continues the transactions of stores that Apache's brokers wrote.

The captured runs ended every transaction, and their progress is behind all of them. With the progress of their
beginning, ours reads the op records, of 4.9.7 one for each end, of 5.3.3 many in one, and the commits in the log. What
neither of them names is open: half messages that were copied, as Apache's brokers do not write that down.
"""

from __future__ import annotations

import re
from collections import Counter
from contextlib import closing
from pathlib import Path

import pytest

import cometmq
from cometmq.broker.config import load_broker_config
from cometmq.broker.server import Broker
from cometmq.remoting.codes import RequestCode
from cometmq.remoting.command import Command
from cometmq.remoting.sync_channel import Channel
from conftest import GoldenStoreFixture
from support.any_disk import ANY_DISK
from support.golden import broker_properties
from support.transactions import ROLLBACK, TIMEOUT_MS, AskedProducer

HALF_TOPIC, OP_TOPIC, GROUP = "RMQ_SYS_TRANS_HALF_TOPIC", "RMQ_SYS_TRANS_OP_HALF_TOPIC", "CID_RMQ_SYS_TRANS"

RUNS = {"apache-4.9.7": 24, "apache-5.3.3": 24, "apache-5.3.3-binary-headers": 36}
"""Half messages of each run, with their copies."""


def rewind(path: Path) -> None:
    """Set the progress of checks back to the first half message and op record."""
    file = path / "config" / "consumerOffset.json"
    text = file.read_text()
    for topic in (HALF_TOPIC, OP_TOPIC):
        text, changed = re.subn(rf'("{topic}@{GROUP}":\s*{{\s*0:)\d+', r"\g<1>0", text)
        assert changed == 1
    file.write_text(text)


def open_transactions(path: Path) -> tuple[int, Counter[str]]:
    """Return how many half messages there are, and the ids of those that neither an op record nor a commit names."""
    with cometmq.open(path, mode="r") as store:
        halves = {message.queue_offset: message for message in store.read(HALF_TOPIC)}
        ended = {
            int(text) for message in store.read(OP_TOPIC) for text in bytes(message.body).decode().split(",") if text
        }
        commits = {message.prepared_transaction_offset for message in store.read("Tx") if message.sys_flag & 0xC == 8}
        ids = Counter(
            str(message.unique_id)
            for offset, message in halves.items()
            if offset not in ended and message.physical_offset not in commits
        )
        return len(halves), ids


@pytest.mark.parametrize("name", RUNS)
def test_open_transactions_of_apaches_broker_are_continued(golden_store: GoldenStoreFixture, name: str) -> None:
    path = golden_store(name, "crashed")
    halves, expected = open_transactions(path)
    assert halves == RUNS[name]
    rewind(path)
    settings = {
        "namesrvAddr": "",
        "fileReservedTime": 1_000_000,
        "transactionCheckInterval": 1,
        "transactionCheckMax": 1_000_000,
    }
    config = load_broker_config(
        path, config=broker_properties(name), listen="127.0.0.1:0", settings=settings, environ=ANY_DISK
    )
    asked: Counter[str] = Counter()
    with Broker(config) as broker, closing(AskedProducer(broker.address, "p_tx")) as producer:
        while asked != expected:
            question = producer.question()
            producer.answer(question, ROLLBACK)
            # Where the answer meets the next round, the question is repeated about a copy.
            asked[question.fields["transactionId"]] = 1
            assert question.fields["transactionId"] in expected
        queue = {"topic": HALF_TOPIC, "queueId": "0"}
        max_offset = Command(code=RequestCode.GET_MAX_OFFSET, fields=queue)
        progress = Command(code=RequestCode.QUERY_CONSUMER_OFFSET, fields=queue | {"consumerGroup": GROUP})
        with Channel(broker.address) as channel:
            passed, all_of_them = "", "-"
            while passed != all_of_them:
                passed = channel.invoke(progress, timeout_ms=TIMEOUT_MS).fields.get("offset", "")
                all_of_them = channel.invoke(max_offset, timeout_ms=TIMEOUT_MS).fields["offset"]
