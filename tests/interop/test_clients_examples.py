"""Upstream's example programs, unmodified, on our servers: transactions, SQL92 filters, requests and message traces.

The examples are in no artifact: ``CMQ_ROCKETMQ_EXAMPLES`` names the folder ``example/src/main/java`` of a checkout of
RocketMQ (tag ``rocketmq-all-5.3.3``). Programs whose source has the address of a name server in it are left out.
"""

from __future__ import annotations

import contextlib
import os
import re
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

import cometmq.admin
from cometmq.client import ReceivedMessage
from cometmq.client.trace.trace_records import PubTrace, SubAfterTrace
from interop.landscapes import ours_only
from interop.members import Seen, producer, puller, push
from interop.processes import PEER_VERSION, Child, PeerMissing, classpath, java
from interop.sites import SHARED_SETTINGS, Peer
from interop.waiting import eventually

pytestmark = pytest.mark.java

SETTINGS = {**SHARED_SETTINGS, "enablePropertyFilter": "true", "traceTopicEnable": "true", "transactionCheckMax": 3}
SOURCES = (
    "filter/SqlFilterConsumer",
    "filter/SqlFilterProducer",
    "rpc/AsyncRequestProducer",
    "tracemessage/TraceProducer",
    "tracemessage/TracePushConsumer",
    "transaction/TransactionListenerImpl",
    "transaction/TransactionProducer",
)
GROUP = "please_rename_unique_group_name"
PACKAGE = "org.apache.rocketmq.example"
DISCARDED = "TRANS_CHECK_MAX_TIME_TOPIC"


class Example(Child):
    """One example in a JVM of its own; its output is the test's to read."""

    def start(self, classes: Path, namesrv: str) -> None:
        class_path = f"{classes}:{classpath(PEER_VERSION)}"
        options = ["-Xmx128m", "-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC", "-XX:-UsePerfData"]
        properties = [f"-Duser.home={self._home}", f"-Drocketmq.namesrv.addr={namesrv}"]
        self._spawn([java(), *options, *properties, "-cp", class_path, f"{PACKAGE}.{self._name}"])

    def output(self) -> str:
        return self.out.read_text(errors="replace")


@pytest.fixture(scope="module")
def classes(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The compiled examples."""
    named = os.environ.get("CMQ_ROCKETMQ_EXAMPLES")
    if not named:
        pytest.skip("CMQ_ROCKETMQ_EXAMPLES names no sources of RocketMQ's examples")
    try:
        class_path = classpath(PEER_VERSION)
    except PeerMissing as missing:
        pytest.skip(str(missing))
    folder = tmp_path_factory.mktemp("examples")
    sources = [str(Path(named) / PACKAGE.replace(".", "/") / f"{source}.java") for source in SOURCES]
    subprocess.run(["javac", "-nowarn", "-d", str(folder), "-cp", class_path, *sources], check=True)
    return folder


@contextlib.contextmanager
def example(site: Peer, classes: Path, home: Path, name: str) -> Iterator[Example]:
    program = Example(name, home)
    program.start(classes, site.namesrv.address)
    try:
        yield program
    finally:
        program.kill()


def bodies_of(site: Peer, topic: str) -> list[str]:
    """The bodies in a topic, all queues together; system topics too."""
    with puller(site, "example_readers") as consumer:
        found = []
        for queue in consumer.queues(topic):
            offset, end = consumer.min_offset(queue), consumer.max_offset(queue)
            while offset < end:
                result = consumer.pull(queue, offset)
                found += [message.body_bytes.decode() for message in result.messages]
                offset = result.next_begin_offset
        return sorted(found)


@ours_only
def test_transactions_end_as_their_checks_answer(site: Peer, classes: Path, tmp_path: Path) -> None:
    topic = "TopicTest1234"
    with site.broker(tmp_path / "store", settings=SETTINGS) as broker:
        site.client.create_topic(broker, topic, queues=2)
        with example(site, classes, tmp_path / "home", "transaction.TransactionProducer") as program:
            committed = [f"Hello RocketMQ {number}" for number in (1, 4, 7)]
            eventually(lambda: bodies_of(site, topic), lambda found: found == committed)
            # The outcome of each third message stays unknown until the broker asks no more.
            unknown = [f"Hello RocketMQ {number}" for number in (0, 3, 6, 9)]
            with cometmq.admin.connect(namesrv=site.namesrv.address) as admin:
                eventually(lambda: DISCARDED in admin.topics.list(system=True))
            eventually(lambda: bodies_of(site, DISCARDED), lambda found: found == unknown)
            assert bodies_of(site, topic) == committed
            assert program.output().count("sendStatus=SEND_OK") == 10


@ours_only
def test_sql92_consumer_gets_the_selected_messages(site: Peer, classes: Path, tmp_path: Path) -> None:
    topic = "SqlFilterTest"
    with site.broker(tmp_path / "store", settings=SETTINGS) as broker:
        site.client.create_topic(broker, topic, queues=2)
        with example(site, classes, tmp_path / "consumer", "filter.SqlFilterConsumer") as consumer:
            consumer.wait_for_output("Consumer Started.", since=0)
            with example(site, classes, tmp_path / "producer", "filter.SqlFilterProducer") as sender:
                eventually(lambda: sender.output().count("sendStatus=SEND_OK") == 10)
                with cometmq.admin.connect(namesrv=site.namesrv.address) as admin:

                    def lag() -> int:
                        return sum(queue.lag for queue in admin.offsets.progress(GROUP, topic=topic).queues)

                    eventually(lambda: re.findall(r"\ba=(\d)", consumer.output()), lambda found: len(found) >= 3)
                    eventually(lag, lambda left: left == 0)
            assert sorted(re.findall(r"\ba=(\d)", consumer.output())) == ["0", "1", "3"]


@ours_only
def test_reply_reaches_the_requester(site: Peer, classes: Path, tmp_path: Path) -> None:
    """The client of 5.3.1 to 5.3.3 passes null to the callback when the request is acknowledged: only the broker's push
    and the client's answer to it can be held against anything."""
    topic, seen = "RequestTopic", Seen()
    with site.broker(tmp_path / "store", settings=SETTINGS) as broker:
        site.client.create_topic(broker, topic, queues=2)
        replied: list[bytes] = []
        with producer(site, "example_replies") as replier:

            def answer(message: ReceivedMessage) -> None:
                replier.reply_to(message, b"reply message contents.", timeout_ms=30_000)
                replied.append(message.body_bytes)

            with (
                push(site, "example_answers", seen, answer=answer).subscribe(topic),
                example(site, classes, tmp_path / "home", "rpc.AsyncRequestProducer") as program,
            ):
                eventually(lambda: replied == [b"Hello world"])
                program.wait_for_output("request to <RequestTopic> cost:", since=0)


@ours_only
def test_traces_name_sends_and_consumptions(site: Peer, classes: Path, tmp_path: Path) -> None:
    topic = "TopicTest"
    with site.broker(tmp_path / "store", settings=SETTINGS) as broker:
        site.client.create_topic(broker, topic, queues=2)
        with (
            example(site, classes, tmp_path / "consumer", "tracemessage.TracePushConsumer") as consumer,
            example(site, classes, tmp_path / "producer", "tracemessage.TraceProducer") as sender,
        ):
            eventually(lambda: sender.output().count("sendStatus=SEND_OK") == 128)
            eventually(lambda: consumer.output().count("UNIQ_KEY=") == 128)
            (last, *_) = re.findall(r"msgId=(\w+)", sender.output())[::-1]
            with cometmq.admin.connect(namesrv=site.namesrv.address) as admin:

                def kinds() -> set[type]:
                    return {type(record) for record in admin.messages.trace(last)}

                eventually(kinds, lambda found: found >= {PubTrace, SubAfterTrace})
            printed = site.client.mqadmin("queryMsgTraceById", "-i", last)
            assert "ProducerGroupName" in printed
            assert "Pub" in printed
            assert "Sub" in printed
