"""Runs of the load generator through Python, against our broker; csrc/load's own tests have every way of erring."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Iterator

import pytest

from cometmq._engine import LoadRun
from cometmq.errors import BrokerError, ConnectionLost, InvalidArgument
from cometmq.loadtest import LoadOptions, Stage, Take, Target, find_target, run_load
from cometmq.remoting.command import HeaderFormat
from cometmq.testing import Cluster, cluster


@pytest.fixture(scope="module")
def two() -> Iterator[Cluster]:
    with cluster(brokers=2) as running:
        yield running


def target_at(two: Cluster, topic: str) -> Target:
    return find_target(namesrv=two.name_server_address, topic=topic, queues=2, create=True)


@pytest.mark.parametrize("headers", HeaderFormat)
def test_sent_and_consumed_at_two_brokers(two: Cluster, headers: HeaderFormat) -> None:
    stages: list[Stage] = []

    def watch(stage: Stage, sent: int, accepted: int, consumed: int) -> bool:
        stages.append(stage)
        assert consumed <= sent
        assert accepted <= sent
        return True

    options = LoadOptions(producers=2, consumers=2, depth=8, count=3000, headers=headers)
    report = run_load(target_at(two, f"both_{headers.name}"), options, watch=watch)
    assert report.verified, report.problem
    assert (report.sent, report.accepted, report.consumed, report.sends) == (3000, 3000, 3000, 3000)
    assert (report.refused, report.refusal, report.not_on_disk, report.stopped) == (0, None, 0, False)
    assert report.messages_per_s == pytest.approx(3000 / report.send_s)
    assert report.send_latency is not None
    assert report.end_to_end is not None
    assert report.send_latency.count == report.end_to_end.count == 3000
    for latency in (report.send_latency, report.end_to_end):
        assert 0 < latency.min_us <= latency.p50_us <= latency.p90_us <= latency.p99_us <= latency.p999_us
        assert latency.p999_us <= latency.max_us
    assert stages[-1] == "done"


def test_batches_consumed_afterwards(two: Cluster) -> None:
    options = LoadOptions(producers=2, consumers=2, batch=16, count=4000, body_bytes=1000, consume_after=True)
    report = run_load(target_at(two, "batches"), options, broker_pid=os.getpid())
    assert report.verified, report.problem
    assert (report.sends, report.consumed) == (250, 4000)
    assert report.end_to_end is None
    assert report.broker_send_cpu_s is not None
    assert report.broker_consume_cpu_s is not None
    assert report.pulls >= 4000 / 32


@pytest.mark.parametrize("headers", HeaderFormat)
@pytest.mark.parametrize("take", [Take.POP, Take.POP_ACK_EACH, Take.POP_ACK_MANY])
def test_popped_by_any_consumer(two: Cluster, take: Take, headers: HeaderFormat) -> None:
    name = f"popped_{take.name}_{headers.name}"
    options = LoadOptions(producers=2, consumers=4, depth=8, count=2000, take=take, pops_in_flight=2, headers=headers)
    report = run_load(target_at(two, name), dataclasses.replace(options, consumer_group=name), broker_pid=os.getpid())
    assert report.verified, report.problem
    acked = 0 if take is Take.POP else 2000
    assert (report.consumed, report.acked) == (2000, acked)
    assert report.acks == acked if take is Take.POP_ACK_EACH else report.acks <= acked
    assert report.pulls >= 2000 / 32


def test_an_endpoint_that_is_no_broker_has_no_name(two: Cluster) -> None:
    host, port = two.name_server_address.split(":")
    target = Target(topic="t", endpoints=((host, int(port)),), queues=((0, 0),))
    with pytest.raises(BrokerError):
        run_load(target, LoadOptions(consumers=1, take=Take.POP))


def test_oneway(two: Cluster) -> None:
    report = run_load(target_at(two, "oneway"), LoadOptions(producers=2, count=2000, oneway=True))
    assert report.verified, report.problem
    assert (report.accepted, report.send_latency) == (2000, None)


def test_a_watch_can_end_it(two: Cluster) -> None:
    def watch(stage: Stage, sent: int, accepted: int, consumed: int) -> bool:
        return accepted < 100

    report = run_load(target_at(two, "ended"), LoadOptions(producers=2, duration_s=3600), watch=watch)
    assert report.stopped
    assert not report.verified
    assert report.accepted >= 100


def test_an_exception_of_a_watch_ends_it(two: Cluster) -> None:
    def watch(stage: Stage, sent: int, accepted: int, consumed: int) -> bool:
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        run_load(target_at(two, "raised"), LoadOptions(producers=2, duration_s=3600), watch=watch)


def test_a_topic_that_went_away(two: Cluster) -> None:
    target = Target(
        topic="no_topic", endpoints=(("127.0.0.1", int(two.broker.address.split(":")[1])),), queues=((0, 7),)
    )
    with pytest.raises(InvalidArgument, match="in a row, the last with code"):
        run_load(target, LoadOptions(count=100_000))


def test_nobody_there() -> None:
    target = Target(topic="t", endpoints=(("127.0.0.1", 1),), queues=((0, 0),))
    with pytest.raises(ConnectionLost, match=r"127\.0\.0\.1:1"):
        run_load(target, LoadOptions())


@pytest.mark.parametrize(
    ("options", "text"),
    [
        (LoadOptions(depth=5000), "depth is 5000"),
        (LoadOptions(depth=-1), "depth is -1"),
        (LoadOptions(body_bytes=10), "body_bytes is 10"),
        (LoadOptions(count=0), "count is 0"),
        (LoadOptions(rate_per_s=0), "rate_per_s is 0"),
        (LoadOptions(duration_s=0), "duration_s is 0"),
        (LoadOptions(producers=0), "the number of producers is 0"),
        (LoadOptions(pops_in_flight=-1), "pops_in_flight is -1"),
        (LoadOptions(invisible_ms=-1), "invisible_ms is"),
        (LoadOptions(count=5, batch=2), "no multiple of batch"),
    ],
)
def test_options_that_cannot_be(options: LoadOptions, text: str) -> None:
    with pytest.raises(InvalidArgument, match=text):
        run_load(Target(topic="t", endpoints=(("127.0.0.1", 1),), queues=((0, 0),)), options)


def test_no_such_process() -> None:
    target = Target(topic="t", endpoints=(("127.0.0.1", 1),), queues=((0, 0),))
    with pytest.raises(InvalidArgument, match="no process"):
        run_load(target, LoadOptions(), broker_pid=1 << 30)


def test_a_run_is_run_once_and_asked_afterwards(two: Cluster) -> None:
    target = target_at(two, "once")
    run = LoadRun(
        target.endpoints,
        target.queues,
        target.topic,
        format=0,
        producers=2,
        consumers=0,
        depth=1,
        batch=1,
        body_bytes=40,
        count=10,
        duration_ms=0,
        rate_per_s=0,
        oneway=False,
        no_wait=False,
        consume_after=False,
        transactions=False,
        pull_messages=0,
        timeout_ms=0,
        run=1,
    )
    with pytest.raises(RuntimeError, match="has not ended"):
        run.result()
    assert run.progress() == ("connecting", 0, 0, 0)
    run.run()
    assert run.result()["accepted"] == 10
    assert run.progress() == ("done", 10, 10, 0)
    with pytest.raises(RuntimeError, match="once"):
        run.run()
