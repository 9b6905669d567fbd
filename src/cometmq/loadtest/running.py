"""One run of the load generator: its options, its progress, and its result."""

from __future__ import annotations

import enum
import os
import secrets
import threading
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Literal, TypeAlias

from cometmq.errors import InvalidArgument
from cometmq.loadtest.targets import Target, broker_names
from cometmq.remoting.command import HeaderFormat

if TYPE_CHECKING:
    from cometmq import _engine

__all__ = ["BODY_BYTES_MIN", "Latency", "LoadOptions", "LoadReport", "LoadWatch", "Stage", "Take", "run_load"]

BODY_BYTES_MIN = 40
"""Least body of a message, which holds what the run checks it by; as the engine's ``CMQ_LOAD_BODY_BYTES_MIN``."""

_LOOK_S = 0.02
_UINT32_MAX = (1 << 32) - 1

Stage: TypeAlias = Literal["connecting", "sending", "consuming", "counting", "done"]


class Take(enum.Enum):
    """How consumers get messages; values are the engine's ``cmq_load_take``."""

    PULL = 0
    """Each queue is pulled by one consumer."""
    POP = 1
    """Any consumer pops of any queue, and acknowledges nothing."""
    POP_ACK_EACH = 2
    """Popped; one request (200051) acknowledges one message."""
    POP_ACK_MANY = 3
    """Popped; one request (200151) acknowledges all messages of an answer."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadOptions:
    """A run's options.

    Attributes:
        producers: connections that send; at least one per broker.
        consumers: connections that pull, at least one per broker; 0: nobody consumes.
        depth: sends in flight on one connection.
        batch: messages of one send; above 1 as a batch (request 320).
        body_bytes: of one message, from 40.
        count: messages to send, a multiple of ``batch``; None: for ``duration_s``.
        duration_s: seconds to send for, where there is no ``count``.
        rate_per_s: messages a second in all; None: as fast as answers come.
        oneway: sends want no answer.
        transactions: each send is a half message, which is committed after its answer; excludes ``batch`` and
            ``oneway``. ``send_latency`` is that of the whole transaction.
        wait_for_disk: False sends ``WAIT=false``: a broker that flushes synchronously may answer before.
        consume_after: consume when all was sent, so that each has figures of its own; else at the same time.
        take: how consumers get messages.
        pull_messages: at most so many messages in a pull or a pop; of a pop 32 at most.
        pops_in_flight: pops without an answer on one connection.
        invisible_ms: invisible time of popped messages; a redelivered message makes the run wrong.
        headers: header format of requests.
        timeout_ms: an answer that takes longer ends the run.
        producer_group: producer group; None: one of the generator's own.
        consumer_group: consumer group, likewise.
    """

    producers: int = 1
    consumers: int = 0
    depth: int = 1
    batch: int = 1
    body_bytes: int = 128
    count: int | None = None
    duration_s: float = 10.0
    rate_per_s: int | None = None
    oneway: bool = False
    transactions: bool = False
    wait_for_disk: bool = True
    consume_after: bool = False
    take: Take = Take.PULL
    pull_messages: int = 32
    pops_in_flight: int = 1
    invisible_ms: int = 60_000
    headers: HeaderFormat = HeaderFormat.JSON
    timeout_ms: int = 10_000
    producer_group: str | None = None
    consumer_group: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Latency:
    """Durations in microseconds. Quantiles are exact to 0.8 %, the others exactly.

    Attributes:
        count: how many.
        mean_us: their mean.
        min_us: the shortest.
        p50_us: median.
        p90_us: nine of ten are not longer.
        p99_us: 99 of 100 are not longer.
        p999_us: 999 of 1000 are not longer.
        max_us: the longest.
    """

    count: int
    mean_us: float
    min_us: float
    p50_us: float
    p90_us: float
    p99_us: float
    p999_us: float
    max_us: float


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadReport:
    """The result of a run.

    Attributes:
        verified: everything was checked and right. False: look at no figure, but at ``problem``.
        stopped: somebody ended the run before its end; nothing is verified then.
        problem: the first thing that was wrong, or None.
        sent: messages that went out.
        accepted: messages that the broker says it has.
        not_on_disk: of those, messages accepted with a time-out of its disk or slave.
        refused: messages in sends that were refused, by flow control for example.
        refusal: code and remark of the first refusal, or None.
        sends: requests that sent something.
        consumed: messages that came, each counted once.
        pulls: requests that pulled, or popped.
        pulls_empty: of those, answered without a message.
        acks: requests that acknowledged something.
        acked: messages that were acknowledged.
        send_s: seconds from the first send to the last answer.
        consume_s: seconds from the first pull or pop to the last message, or to the answer to its ack.
        messages_per_s: accepted messages over ``send_s``.
        consumed_per_s: consumed messages over ``consume_s``.
        own_send_cpu_s: CPU seconds of the generator while sending.
        own_consume_cpu_s: while consuming; the whole run's where both went on at once.
        broker_send_cpu_s: CPU seconds of the broker's process while sending; None without its process id.
        broker_consume_cpu_s: while consuming, where that came after sending; else None.
        send_latency: from a send to its answer; None for one-way sends.
        end_to_end: from a send to its consumer; None unless consumed at the same time.
    """

    verified: bool
    stopped: bool
    problem: str | None
    sent: int
    accepted: int
    not_on_disk: int
    refused: int
    refusal: str | None
    sends: int
    consumed: int
    pulls: int
    pulls_empty: int
    acks: int
    acked: int
    send_s: float
    consume_s: float
    messages_per_s: float
    consumed_per_s: float
    own_send_cpu_s: float
    own_consume_cpu_s: float
    broker_send_cpu_s: float | None
    broker_consume_cpu_s: float | None
    send_latency: Latency | None
    end_to_end: Latency | None


LoadWatch: TypeAlias = Callable[[Stage, int, int, int], bool]
"""Gets stage, messages sent, accepted and consumed a few times a second; False ends the run."""


def run_load(
    target: Target, options: LoadOptions, *, watch: LoadWatch | None = None, broker_pid: int | None = None
) -> LoadReport:
    """Run once and return what came of it.

    Blocks; the load is made by a thread of its own that never takes the GIL. Nobody else may write to the topic
    meanwhile.

    Args:
        target: the queues.
        options: the run's options.
        watch: called while it runs.
        broker_pid: the broker's process on this machine, for its CPU seconds.

    Raises:
        InvalidArgument: an option is invalid; or the broker refuses every request.
        ConnectionLost: a connection could not be made, or ended, or an answer took too long.
        BrokerError: a broker does not return its name, which acks need.
        CorruptRecord: an answer cannot be read.
    """
    run = _new_run(target, options)
    meter = None if broker_pid is None else _CpuMeter(broker_pid)
    failure: list[BaseException] = []

    def work() -> None:
        try:
            run.run()
        except BaseException as error:  # noqa: BLE001 - raised again by the caller's thread
            failure.append(error)

    thread = threading.Thread(target=work, name="cometmq-load", daemon=True)
    thread.start()
    try:
        while thread.is_alive():
            thread.join(_LOOK_S)
            progress = run.progress()
            if meter is not None:
                meter.look(progress[0])
            if watch is not None and not watch(*progress):
                run.stop()
    finally:
        run.stop()
        thread.join()
    if failure:
        raise failure[0]
    return _report(run.result(), options, meter)


def _new_run(target: Target, options: LoadOptions) -> _engine.LoadRun:
    from cometmq import _engine

    for name in ("producers", "consumers", "depth", "batch", "body_bytes", "pull_messages", "pops_in_flight"):
        if not 0 <= getattr(options, name) <= _UINT32_MAX:
            raise InvalidArgument(f"{name} is {getattr(options, name)}")
    if options.count is not None and options.count < 1:
        raise InvalidArgument(f"count is {options.count}, expected at least 1 or None")
    if options.rate_per_s is not None and options.rate_per_s < 1:
        raise InvalidArgument(f"rate_per_s is {options.rate_per_s}, expected at least 1 or None")
    if options.duration_s * 1000 < 1:
        raise InvalidArgument(f"duration_s is {options.duration_s}, expected at least 0.001")
    return _engine.LoadRun(
        target.endpoints,
        target.queues,
        target.topic,
        format=int(options.headers),
        producers=options.producers,
        consumers=options.consumers,
        depth=options.depth,
        batch=options.batch,
        body_bytes=options.body_bytes,
        count=options.count or 0,
        duration_ms=int(options.duration_s * 1000),
        rate_per_s=options.rate_per_s or 0,
        oneway=options.oneway,
        no_wait=not options.wait_for_disk,
        consume_after=options.consume_after,
        transactions=options.transactions,
        take=options.take.value,
        pull_messages=options.pull_messages,
        pops_in_flight=options.pops_in_flight,
        invisible_ms=options.invisible_ms,
        brokers=() if options.take is Take.PULL else broker_names(target, timeout_ms=options.timeout_ms),
        timeout_ms=options.timeout_ms,
        run=secrets.randbits(64),
        producer_group=options.producer_group,
        consumer_group=options.consumer_group,
    )


def _latency(found: _engine._LoadLatency) -> Latency | None:
    if found["count"] == 0:
        return None
    return Latency(
        count=found["count"],
        mean_us=found["mean_ns"] / 1000,
        min_us=found["min_ns"] / 1000,
        p50_us=found["p50_ns"] / 1000,
        p90_us=found["p90_ns"] / 1000,
        p99_us=found["p99_ns"] / 1000,
        p999_us=found["p999_ns"] / 1000,
        max_us=found["max_ns"] / 1000,
    )


def _report(result: _engine._LoadResult, options: LoadOptions, meter: _CpuMeter | None) -> LoadReport:
    send_s, consume_s = result["send_ns"] / 1e9, result["consume_ns"] / 1e9
    return LoadReport(
        verified=result["verified"],
        stopped=result["stopped"],
        problem=result["problem"],
        sent=result["sent"],
        accepted=result["accepted"],
        not_on_disk=result["not_on_disk"],
        refused=result["refused"],
        refusal=result["refusal"],
        sends=result["sends"],
        consumed=result["consumed"],
        pulls=result["pulls"],
        pulls_empty=result["pulls_empty"],
        acks=result["acks"],
        acked=result["acked"],
        send_s=send_s,
        consume_s=consume_s,
        messages_per_s=result["accepted"] / send_s if send_s else 0.0,
        consumed_per_s=result["consumed"] / consume_s if consume_s else 0.0,
        own_send_cpu_s=result["send_cpu_ns"] / 1e9,
        own_consume_cpu_s=result["consume_cpu_ns"] / 1e9,
        broker_send_cpu_s=None if meter is None else meter.spent("sending"),
        broker_consume_cpu_s=None if meter is None or not options.consume_after else meter.spent("consuming"),
        send_latency=_latency(result["send_latency"]),
        end_to_end=_latency(result["end_to_end"]),
    )


class _CpuMeter:
    """CPU seconds of another process by stage, as the kernel counts them: in steps of 10 ms."""

    def __init__(self, pid: int) -> None:
        self._path = Path(f"/proc/{pid}/stat")
        self._ticks_per_s = os.sysconf("SC_CLK_TCK")
        self._spent: dict[str, float] = {}
        self._last_s = self._read()

    def _read(self) -> float:
        try:
            text = self._path.read_text()
        except OSError:
            raise InvalidArgument(f"no process {self._path.parent.name} on this machine") from None
        fields = text.rpartition(")")[2].split()  # the name in front may hold blanks
        return (int(fields[11]) + int(fields[12])) / self._ticks_per_s

    def look(self, stage: Stage) -> None:
        now_s = self._read()
        self._spent[stage] = self._spent.get(stage, 0.0) + now_s - self._last_s
        self._last_s = now_s

    def spent(self, stage: Stage) -> float:
        return self._spent.get(stage, 0.0)
