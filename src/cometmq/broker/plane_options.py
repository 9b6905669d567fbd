"""The settings of a broker's data plane, as the loops need them: sizes in bytes, times in milliseconds.

0 stands for the engine's own default, which ``csrc/broker/cmq_broker.h``, ``timer/cmq_timer.h`` and
``pop/cmq_pop_service.h`` state. :func:`cometmq.broker.server` fills these from the broker's settings.

Threads: any; immutable.
"""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass(frozen=True, kw_only=True, slots=True)
class PullOptions:
    """How pulls are held, and how much one answer carries."""

    long_polling: bool = True
    short_polling_ms: int = 0
    holds_max: int = 0
    lite: bool = True
    property_filter: bool = False
    transfer_count_memory: int = 0
    transfer_bytes_memory: int = 0
    transfer_count_disk: int = 0
    transfer_bytes_disk: int = 0
    memory_bytes: int = 0


@dataclass(frozen=True, kw_only=True, slots=True)
class TimerOptions:
    """The timer wheel."""

    precision_ms: int = 0
    delay_ms_max: int = 0
    roll_window_slots: int = 0
    slot_messages: int = 0
    flush_interval_ms: int = 0
    log_file_bytes: int = 0


@dataclass(frozen=True, kw_only=True, slots=True)
class PopOptions:
    """POP: its revive queues, its buffer of checkpoints, its retry topics and its limits."""

    revive_queues: int = 0
    revive_queues_read: int = 0
    merge: bool = False
    stay_ms: int = 0
    stay_out_ms: int = 0
    merged_max: int = 0
    lane_max: int = 0
    retry_v2: bool = False
    retry_v1: bool = True
    retry_percent: int = 20
    begin_early: bool = True
    in_flight_max: int = 0
    waits_max: int = 0
    waits_key_max: int = 0
    give_up: bool = False


@dataclass(frozen=True, kw_only=True, slots=True)
class TransactionOptions:
    """Transactions: which half messages are accepted, when they are checked, and how their ends are written."""

    reject: bool = False
    timeout_ms: int = 0
    interval_ms: int = 0
    checks_max: int = 0
    op_interval_ms: int = 0
    op_bytes: int = 0
    reserved_ms: int = 0


@dataclass(frozen=True, kw_only=True, slots=True)
class PlaneOptions:
    """A data plane.

    ``store_address`` (4 or 16 bytes) and ``store_port`` stand in the records as their store host. Without ``timers``
    no timer message is accepted, without ``transactions`` no half message; ``pops`` need ``timers`` and a
    ``broker_name``.
    """

    cluster: str
    broker_ip: str
    store_address: bytes
    store_port: int
    broker_name: str | None = None
    region: str = "DefaultRegion"
    trace: bool = True
    message_bytes_max: int = 0
    sends_waiting_max: int = 0
    flush_timeout_ms: int = 0
    pull: PullOptions = field(default_factory=PullOptions)
    timers: TimerOptions | None = None
    pops: PopOptions | None = None
    transactions: TransactionOptions | None = None
