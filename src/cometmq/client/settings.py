"""Settings of consumers and producers: upstream's, under their names in snake case, units at the end.

Settings are checked when the client starts, in upstream's order, so that of several wrong ones the same is named first.
Numbers have their range beside them; settings of CometMQ's own are checked behind upstream's.

Threads: any. Settings are immutable. Source: consumption specification 1.2, 1.13, 1.14.
"""

from __future__ import annotations

import difflib
import os
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, fields
from datetime import datetime
from enum import Enum
from pathlib import Path
from typing import Any, ClassVar, TypedDict, TypeVar

from cometmq.client.arguments import callable_hook, flag
from cometmq.client.group.allocation import AllocateFunction, AllocateStrategy, Averagely, as_strategy
from cometmq.errors import InvalidArgument
from cometmq.remoting.addresses import parse_addresses
from cometmq.remoting.bodies.heartbeat import ConsumeFromWhere, MessageModel
from cometmq.remoting.command import HeaderFormat
from cometmq.remoting.network import RpcHook, check_hooks
from cometmq.store_config.fields import INT32_MAX, INT64_MAX
from cometmq.store_config.names import validate_group

__all__ = [
    "DEFAULT_CONSUMER_GROUP",
    "DEFAULT_INSTANCE_NAME",
    "ClientOptions",
    "ClientSettings",
    "ConsumerOptions",
    "ConsumerSettings",
    "PullOptions",
    "PullSettings",
    "PushOptions",
    "PushSettings",
    "check_client_group",
    "check_fields",
    "number",
    "settings_of",
]

DEFAULT_INSTANCE_NAME = "DEFAULT"
"""Stands for "give me one of my own" where a client may not share its instance by chance."""
DEFAULT_CONSUMER_GROUP = "DEFAULT_CONSUMER"

_NAME_SERVERS_VARIABLE = "NAMESRV_ADDR"
_DOMAIN_VARIABLE = "rocketmq.namesrv.domain"
_SUBGROUP_VARIABLE = "rocketmq.namesrv.domain.subgroup"
_RANGE = "cometmq.range"
_STEM = 4
_HINTS_MAX = 3
_ELSEWHERE: Mapping[str, str] = {
    **dict.fromkeys(("retries", "max_retries", "retry", "retry_times"), "retry_times_when_send_failed"),
    **dict.fromkeys(("timeout", "timeout_ms", "send_timeout", "request_timeout_ms"), "send_msg_timeout_ms"),
    **dict.fromkeys(("max_poll_records", "batch_size"), "pull_batch_size"),
    **dict.fromkeys(("threads", "workers", "concurrency"), "consume_thread_max"),
    **dict.fromkeys(("auto_offset_reset", "offset_reset"), "consume_from_where"),
}
"""Names that other libraries' clients have for an option."""
_TIMESTAMP_CHARS = 14
_DEPRECATED = (
    "CONSUME_FROM_LAST_OFFSET_AND_FROM_MIN_WHEN_BOOT_FIRST",
    "CONSUME_FROM_MIN_OFFSET",
    "CONSUME_FROM_MAX_OFFSET",
)
"""Upstream takes these names still, and begins at the end with all of them."""
_START_BEFORE_MS = 30 * 60 * 1000

S = TypeVar("S", bound="ClientSettings")


@dataclass(frozen=True, slots=True, kw_only=True)
class _Range:
    """A number's range; ``unset`` stands for "none" and is allowed besides."""

    minimum: int
    maximum: int
    unset: int | None


def number(default: int, *, minimum: int = 0, maximum: int = INT32_MAX, unset: int | None = None) -> Any:
    """Declare a numeric setting as a dataclass field.

    Args:
        default: its default.
        minimum, maximum: its range.
        unset: a value outside the range that means "not set".
    """
    return field(default=default, metadata={_RANGE: _Range(minimum=minimum, maximum=maximum, unset=unset)})


@dataclass(frozen=True, slots=True, kw_only=True)
class ClientSettings:
    """Settings that producers and consumers share. Clients of one client id share the first one's.

    Attributes:
        name_servers: name servers, ``host:port``; as an option also a text with ``;`` between them. Without any, the
            environment's ``NAMESRV_ADDR`` is taken, then ``name_server_domain``.
        name_server_domain: host, or ``host:port``, of a web server that lists the name servers' addresses; also from
            the environment's ``rocketmq.namesrv.domain``. None: nobody is asked.
        name_server_subgroup: the last part of that address; also from ``rocketmq.namesrv.domain.subgroup``.
        client_ip: the address in the client id; None for the machine's own.
        instance_name: distinguishes clients of a process. ``DEFAULT`` becomes a name of its own for each client, except
            for broadcasting consumers, whose local offsets are kept under it.
        unit_name: the unit in the client id, or None.
        unit_mode: the group's clients are spread over units.
        namespace: put before topics and groups on the wire, or None.
        enable_stream_request_type: mark the client id as a pulling client's.
        poll_name_server_interval_ms: how often routes are refreshed.
        heartbeat_broker_interval_ms: how often brokers hear from us; after 120 s without they drop a client.
        persist_consumer_offset_interval_ms: how often consumers' progress is stored.
        pull_time_delay_when_exception_ms: how long a pull waits after an error.
        mq_client_api_timeout_ms: how long name servers and brokers may take to answer what is not a send or a pull.
        connect_timeout_ms: how long a connection may take to be made.
        idle_timeout_ms: how long a connection stays without traffic.
        vip_channel_enabled: talk to brokers on the port two below theirs.
        use_heartbeat_v2: leave subscriptions out of heartbeats that did not change, for brokers that know it.
        enable_heartbeat_channel_event_listener: send a heartbeat as soon as a broker is connected again.
        header_format: how headers of requests are written.
        send_latency_enable: producers avoid brokers that were slow.
        start_detector_enable: look whether avoided brokers answer again.
        detect_timeout_ms: how long such a look may take.
        detect_interval_ms: how often a broker is looked at.
        enable_trace: record sends and consumption in upstream's message trace; simple consumers record nothing.
        trace_topic: where to.
        trace_message_batch_num: how many messages one trace record covers.
        rpc_hooks: see every request to a server and every answer, to sign or to count them
            (:class:`~cometmq.remoting.network.RpcHook`). With hooks, sends and pulls take a slower path.
        rebalance_wait_interval_ms: how often queues are shared out when nothing happens.
        rebalance_min_interval_ms: how close two rounds of that may be.
    """

    name_servers: tuple[str, ...] = ()
    name_server_domain: str | None = None
    name_server_subgroup: str = "nsaddr"
    client_ip: str | None = None
    instance_name: str = DEFAULT_INSTANCE_NAME
    unit_name: str | None = None
    unit_mode: bool = False
    namespace: str | None = None
    enable_stream_request_type: bool = False
    poll_name_server_interval_ms: int = number(30_000, minimum=10)
    heartbeat_broker_interval_ms: int = number(30_000, minimum=10)
    persist_consumer_offset_interval_ms: int = number(5_000, minimum=10)
    pull_time_delay_when_exception_ms: int = number(1_000)
    mq_client_api_timeout_ms: int = number(3_000, minimum=1)
    connect_timeout_ms: int = number(3_000, minimum=1)
    idle_timeout_ms: int = number(120_000, minimum=1_000)
    vip_channel_enabled: bool = False
    use_heartbeat_v2: bool = False
    enable_heartbeat_channel_event_listener: bool = True
    header_format: HeaderFormat = HeaderFormat.ROCKETMQ
    send_latency_enable: bool = False
    start_detector_enable: bool = False
    detect_timeout_ms: int = number(200, minimum=1)
    detect_interval_ms: int = number(2_000, minimum=1)
    enable_trace: bool = False
    trace_topic: str = "RMQ_SYS_TRACE_TOPIC"
    trace_message_batch_num: int = number(10, minimum=1, maximum=1024)
    rpc_hooks: Sequence[RpcHook] = ()
    rebalance_wait_interval_ms: int = number(20_000, minimum=1)
    rebalance_min_interval_ms: int = number(1_000)

    def check(self) -> None:
        """Check every setting.

        Raises:
            InvalidArgument: one cannot be used; the text names it, its value and its range.
        """
        check_fields(self)
        self._check_name_servers()

    def _check_name_servers(self) -> None:
        if not self.name_servers and not self.name_server_domain:
            raise InvalidArgument(
                "no name server is known: give name_servers='host:9876', or set NAMESRV_ADDR in the environment"
            )


@dataclass(frozen=True, slots=True, kw_only=True)
class ConsumerSettings(ClientSettings):
    """Settings that consumers share.

    Attributes:
        group: the consumer group.
        message_model: whether the group's members share the messages or each gets all.
        consume_from_where: where a group without progress begins.
        consume_timestamp: for ``CONSUME_FROM_TIMESTAMP``: ``yyyyMMddHHmmss`` in local time, or a datetime; None for
            half an hour before the consumer was made.
        allocate_strategy: which member gets which queues: ``AVG``, ``AVG_BY_CIRCLE``, ``CONSISTENT_HASH``, a strategy
            or a function (:mod:`cometmq.client.group.allocation`).
        broker_suspend_max_time_ms: how long a broker may hold a pull that finds nothing.
        consumer_timeout_when_suspend_ms: how long we wait for such a pull.
        client_rebalance: members share the queues out themselves; False asks the broker.
        lock_interval_ms: how often locks of queues are renewed.
        offset_folder: where broadcasting consumers keep their progress; None for ``~/.rocketmq_offsets``.
    """

    group: str = ""
    message_model: MessageModel = MessageModel.CLUSTERING
    consume_from_where: ConsumeFromWhere = ConsumeFromWhere.CONSUME_FROM_LAST_OFFSET
    consume_timestamp: str | datetime | None = None
    allocate_strategy: AllocateStrategy | AllocateFunction | str = field(default_factory=Averagely)
    broker_suspend_max_time_ms: int = number(15_000)
    consumer_timeout_when_suspend_ms: int = number(30_000, minimum=1)
    client_rebalance: bool = True
    lock_interval_ms: int = number(20_000, minimum=10)
    offset_folder: Path | str | None = None

    def first_start_ms(self, made_ms: int) -> int:
        """Return the time to begin at under ``CONSUME_FROM_TIMESTAMP``, milliseconds since 1970.

        Args:
            made_ms: when the consumer was made, milliseconds since 1970.

        Raises:
            InvalidArgument: ``consume_timestamp`` is no such time.
        """
        given = self.consume_timestamp
        if given is None:
            return made_ms - _START_BEFORE_MS
        if isinstance(given, datetime):
            return int(given.timestamp() * 1000)
        try:
            if len(given) != _TIMESTAMP_CHARS or not (given.isascii() and given.isdigit()):
                raise ValueError
            return int(datetime.strptime(given, "%Y%m%d%H%M%S").timestamp()) * 1000
        except (TypeError, ValueError, OverflowError):
            raise InvalidArgument(
                f"consume_timestamp is {given!r}: write it as yyyyMMddHHmmss or give a datetime"
            ) from None

    def _check_timeouts(self) -> None:
        if self.consumer_timeout_when_suspend_ms < self.broker_suspend_max_time_ms:
            raise InvalidArgument(
                f"consumer_timeout_when_suspend_ms is {self.consumer_timeout_when_suspend_ms}: it must not be below "
                f"broker_suspend_max_time_ms, {self.broker_suspend_max_time_ms}"
            )


@dataclass(frozen=True, slots=True, kw_only=True)
class PushSettings(ConsumerSettings):
    """Settings of a push consumer.

    Attributes:
        consume_thread_min, consume_thread_max: worker threads that run the listener.
        consume_concurrently_max_span: how far the offsets of a queue's unfinished messages may lie apart.
        pull_threshold_for_queue: messages of a queue that may wait.
        pull_threshold_for_topic: messages of a topic that may wait, shared among its queues; -1 for no such limit.
        pull_threshold_size_for_queue_mib: MiB of a queue's messages that may wait.
        pull_threshold_size_for_topic_mib: MiB of a topic's messages that may wait; -1 for no such limit.
        pull_interval_ms: pause between two pulls of a queue that has messages.
        consume_message_batch_max_size: most messages that the listener gets at a time.
        pull_batch_size: most messages of one pull.
        pull_batch_size_bytes: most bytes of one pull, for brokers that know it.
        pop_invisible_time_ms: for POP: how long others do not see a message that is being handled.
        pop_batch_nums: for POP: most messages of one request.
        pop_threshold_for_queue: for POP: messages of a queue that may wait.
        pop_extend: for POP: keep messages hidden from others for as long as their listener works on them, an hour at
            most; False gives them to others when their invisible time is over.
        post_subscription_when_pull: send the subscription with each pull.
        max_reconsume_times: how often a message is tried again; -1 for 16, and for no limit where it is orderly.
        suspend_current_queue_time_ms: orderly: how long a queue waits after a message that failed.
        consume_timeout_minutes: when a message that hangs is sent back.
        await_termination_when_shutdown_ms: how long closing waits for listeners.
        adjust_thread_pool_nums_threshold: changes nothing, here as upstream; admin tools show it.
        offset_illegal_delay_ms: how long a queue rests whose offset the broker refused, before it restarts.
    """

    _upstream_order: ClassVar[tuple[str, ...]] = (
        "consume_thread_min",
        "consume_thread_max",
        "consume_concurrently_max_span",
        "pull_threshold_for_queue",
        "pull_threshold_for_topic",
        "pull_threshold_size_for_queue_mib",
        "pull_threshold_size_for_topic_mib",
        "pull_interval_ms",
        "consume_message_batch_max_size",
        "pull_batch_size",
        "pop_invisible_time_ms",
        "pop_batch_nums",
    )

    consume_thread_min: int = number(20, minimum=1, maximum=1000)
    consume_thread_max: int = number(20, minimum=1, maximum=1000)
    consume_concurrently_max_span: int = number(2000, minimum=1, maximum=65_535)
    pull_threshold_for_queue: int = number(1000, minimum=1, maximum=65_535)
    pull_threshold_for_topic: int = number(-1, minimum=1, maximum=6_553_500, unset=-1)
    pull_threshold_size_for_queue_mib: int = number(100, minimum=1, maximum=1024)
    pull_threshold_size_for_topic_mib: int = number(-1, minimum=1, maximum=102_400, unset=-1)
    pull_interval_ms: int = number(0, maximum=65_535)
    consume_message_batch_max_size: int = number(1, minimum=1, maximum=1024)
    pull_batch_size: int = number(32, minimum=1, maximum=1024)
    pull_batch_size_bytes: int = number(262_144, minimum=1)
    pop_invisible_time_ms: int = number(60_000, minimum=5_000, maximum=300_000)
    pop_batch_nums: int = number(32, minimum=1, maximum=32)
    pop_threshold_for_queue: int = number(96, minimum=1)
    pop_extend: bool = False
    post_subscription_when_pull: bool = False
    max_reconsume_times: int = number(-1, unset=-1)
    suspend_current_queue_time_ms: int = number(1_000)
    consume_timeout_minutes: int = number(15, minimum=1)
    await_termination_when_shutdown_ms: int = number(0, maximum=INT64_MAX)
    adjust_thread_pool_nums_threshold: int = number(100_000)
    offset_illegal_delay_ms: int = number(10_000)

    def check(self, *, made_ms: int = 0, listeners: Sequence[object] | None = None) -> None:
        """Check every setting in upstream's order.

        Args:
            made_ms: when the consumer was made, milliseconds since 1970.
            listeners: the listeners that were given, of which there must be one; None where that is not to be checked.

        Raises:
            InvalidArgument: one cannot be used; the text names it, its value and its range.
        """
        _check_consumer_head(self)
        self.first_start_ms(made_ms)
        as_strategy(self.allocate_strategy)
        if listeners is not None:
            _check_listeners(listeners)
        for name in self._upstream_order:
            _check_number(self, name)
            if name == "consume_thread_max" and self.consume_thread_min > self.consume_thread_max:
                raise InvalidArgument(
                    f"consume_thread_min is {self.consume_thread_min}: it must not be above consume_thread_max, "
                    f"{self.consume_thread_max}"
                )
        check_fields(self)
        self._check_timeouts()
        self._check_name_servers()


@dataclass(frozen=True, slots=True, kw_only=True)
class PullSettings(ConsumerSettings):
    """Settings of a pull consumer.

    Attributes:
        consumer_pull_timeout_ms: how long a pull that the broker must not hold may take.
        auto_commit: :meth:`poll` commits what was polled before.
        auto_commit_interval_ms: how often; at least 1000.
        pull_batch_size: most messages of one pull.
        pull_threshold_for_all: messages of all queues that may wait to be polled.
        consume_max_span: how far the offsets of a queue's waiting messages may lie apart.
        pull_threshold_for_queue: messages of a queue that may wait.
        pull_threshold_size_for_queue_mib: MiB of a queue's messages that may wait.
        poll_timeout_ms: how long :meth:`poll` waits by default.
        topic_metadata_check_interval_ms: how often a topic's queues are compared for listeners to changes.
        max_reconsume_times: how often a message that is sent back is tried again.
    """

    enable_stream_request_type: bool = True
    broker_suspend_max_time_ms: int = number(20_000)
    consumer_pull_timeout_ms: int = number(10_000, minimum=1)
    auto_commit: bool = True
    auto_commit_interval_ms: int = number(5_000, minimum=1_000)
    pull_batch_size: int = number(10, minimum=1, maximum=1024)
    pull_threshold_for_all: int = number(10_000, minimum=1)
    consume_max_span: int = number(2_000, minimum=1)
    pull_threshold_for_queue: int = number(1_000, minimum=1, maximum=65_535)
    pull_threshold_size_for_queue_mib: int = number(100, minimum=1, maximum=1024)
    poll_timeout_ms: int = number(5_000)
    topic_metadata_check_interval_ms: int = number(30_000, minimum=10)
    max_reconsume_times: int = number(16, minimum=-1)

    def check(self, *, made_ms: int = 0) -> None:
        """Check every setting in upstream's order.

        Args:
            made_ms: when the consumer was made, milliseconds since 1970.

        Raises:
            InvalidArgument: one cannot be used; the text names it, its value and its range.
        """
        _check_consumer_head(self)
        as_strategy(self.allocate_strategy)
        self._check_timeouts()
        self.first_start_ms(made_ms)
        check_fields(self)
        self._check_name_servers()


def check_client_group(group: str, *, reserved: str) -> None:
    """Check a group that a client is to use.

    Args:
        group: its name.
        reserved: upstream's name for "none given", which nobody may use.

    Raises:
        InvalidArgument: it is not a name, or the reserved one.
    """
    if not isinstance(group, str) or not group.strip():
        raise InvalidArgument(f"group is {group!r}: a group needs a name")
    validate_group(group)
    if group == reserved:
        raise InvalidArgument(f"group is {group!r}, which stands for none: give the group a name of its own")


def _check_consumer_head(settings: ConsumerSettings) -> None:
    check_client_group(settings.group, reserved=DEFAULT_CONSUMER_GROUP)
    for name in ("message_model", "consume_from_where"):
        _check_enum(settings, name)


def _check_enum(settings: ClientSettings, name: str) -> None:
    value = getattr(settings, name)
    kind = _enum_kinds(type(settings)).get(name)
    if kind is not None and not isinstance(value, kind):
        members = [member for member in kind.__members__ if member not in _DEPRECATED]
        raise InvalidArgument(f"{name} is {value!r}: give one of {', '.join(members)}")


def _check_listeners(listeners: Sequence[object]) -> None:
    given = [listener for listener in listeners if listener is not None]
    if not given:
        raise InvalidArgument("there is no listener: give listener= or batch_listener=, or use @consumer.listener")
    if len(given) > 1:
        raise InvalidArgument("there is more than one listener: a consumer has either listener= or batch_listener=")
    callable_hook("the listener", given[0])


def _check_number(settings: ClientSettings, name: str) -> None:
    known: _Range = type(settings).__dataclass_fields__[name].metadata[_RANGE]
    value = getattr(settings, name)
    if not isinstance(value, int) or isinstance(value, bool):
        raise InvalidArgument(f"{name} is {value!r}: it must be a whole number")
    if value == known.unset or known.minimum <= value <= known.maximum:
        return
    besides = "" if known.unset is None else f", or {known.unset} for none"
    raise InvalidArgument(f"{name} is {value}: it must be from {known.minimum} to {known.maximum}{besides}")


def check_fields(settings: ClientSettings) -> None:
    """Check every setting for its kind and range, in the order of their declaration.

    Raises:
        InvalidArgument: one cannot be used; the text names it, its value and its range.
    """
    for known in fields(settings):
        value = getattr(settings, known.name)
        if _RANGE in known.metadata:
            _check_number(settings, known.name)
        elif isinstance(known.default, bool):
            flag(known.name, value)
        elif isinstance(known.default, Enum):
            _check_enum(settings, known.name)
        elif isinstance(known.default, str) and (not isinstance(value, str) or not value.strip()):
            raise InvalidArgument(f"{known.name} is {value!r}: it is a text that is not empty")
    check_hooks(settings.rpc_hooks)


def _enum_kinds(kind: type[ClientSettings]) -> dict[str, type[Enum]]:
    return {known.name: type(known.default) for known in fields(kind) if isinstance(known.default, Enum)}


def _nearest_options(name: str, known: Collection[str], kind: type[ClientSettings]) -> str:
    """Return a hint: options that are written alike, else those that share a word (``retries``: ``retry_times_…``)."""
    elsewhere = _ELSEWHERE.get(name)
    near = [elsewhere] if elsewhere is not None and elsewhere in known else difflib.get_close_matches(name, known, n=1)
    if not near:
        stems = {word[:_STEM] for word in name.lower().split("_") if len(word) >= _STEM}
        near = sorted(each for each in known if stems & {word[:_STEM] for word in each.split("_")})[:_HINTS_MAX]
    if not near:
        return f"all of them: help({kind.__module__}.{kind.__name__})"
    return f"did you mean {' or '.join(near)}?"


def settings_of(
    kind: type[S],
    options: Mapping[str, object],
    *,
    name_servers: str | Iterable[str] | None = None,
    environ: Mapping[str, str] | None = None,
    **fixed: object,
) -> S:
    """Make settings from what a user gave as keywords. They are not checked yet: :meth:`ClientSettings.check` does.

    Args:
        kind: which settings.
        options: the keywords. Enums may be given by their names.
        name_servers: name servers, ``host:port``, as a list or as a text with ``;`` between them.
        environ: the environment's variables; None for the process's own.
        fixed: settings that are not options, such as the group.

    Raises:
        InvalidArgument: there is no such option, the text names the nearest; or a name server is not an address.
    """
    known = {each.name for each in fields(kind)} - {"name_servers", *fixed}
    values: dict[str, Any] = dict(fixed)
    kinds = _enum_kinds(kind)
    for name, value in options.items():
        if name not in known:
            raise InvalidArgument(f"there is no option {name!r}; {_nearest_options(name, known, kind)}")
        enum_kind = kinds.get(name)
        if enum_kind is not None and isinstance(value, str):
            value = enum_kind.__members__.get(value.upper(), value)  # check() reports an unknown name
        values[name] = value
    environment = os.environ if environ is None else environ
    for name, variable in (("name_server_domain", _DOMAIN_VARIABLE), ("name_server_subgroup", _SUBGROUP_VARIABLE)):
        if environment.get(variable):
            values.setdefault(name, environment[variable])
    namespace: object = values.get("namespace")
    if namespace is not None and not isinstance(namespace, str):
        raise InvalidArgument(f"namespace is {namespace!r}: it is a text, or None")
    several: object = () if name_servers is None or isinstance(name_servers, str) else name_servers
    if not isinstance(several, Iterable):
        raise InvalidArgument(f"name_servers is {several!r}: write 'host:9876', several with ';' between them")
    name_servers = name_servers if isinstance(name_servers, str) else [str(each) for each in several]
    given = name_servers or environment.get(_NAME_SERVERS_VARIABLE)
    if given:
        values["name_servers"] = parse_addresses(given if isinstance(given, str) else ";".join(given))
    return kind(**values)


class ClientOptions(TypedDict, total=False):
    """The settings of :class:`ClientSettings` as keywords."""

    name_server_domain: str | None
    name_server_subgroup: str
    client_ip: str | None
    instance_name: str
    unit_name: str | None
    unit_mode: bool
    namespace: str | None
    enable_stream_request_type: bool
    poll_name_server_interval_ms: int
    heartbeat_broker_interval_ms: int
    persist_consumer_offset_interval_ms: int
    pull_time_delay_when_exception_ms: int
    mq_client_api_timeout_ms: int
    connect_timeout_ms: int
    idle_timeout_ms: int
    vip_channel_enabled: bool
    use_heartbeat_v2: bool
    enable_heartbeat_channel_event_listener: bool
    header_format: HeaderFormat
    send_latency_enable: bool
    start_detector_enable: bool
    detect_timeout_ms: int
    detect_interval_ms: int
    enable_trace: bool
    trace_topic: str
    trace_message_batch_num: int
    rpc_hooks: Sequence[RpcHook]
    rebalance_wait_interval_ms: int
    rebalance_min_interval_ms: int


class ConsumerOptions(ClientOptions, total=False):
    """The settings of :class:`ConsumerSettings` as keywords."""

    message_model: MessageModel | str
    consume_from_where: ConsumeFromWhere | str
    consume_timestamp: str | datetime | None
    allocate_strategy: AllocateStrategy | AllocateFunction | str
    broker_suspend_max_time_ms: int
    consumer_timeout_when_suspend_ms: int
    client_rebalance: bool
    lock_interval_ms: int
    offset_folder: Path | str | None


class PushOptions(ConsumerOptions, total=False):
    """The settings of :class:`PushSettings` as keywords."""

    consume_thread_min: int
    consume_thread_max: int
    consume_concurrently_max_span: int
    pull_threshold_for_queue: int
    pull_threshold_for_topic: int
    pull_threshold_size_for_queue_mib: int
    pull_threshold_size_for_topic_mib: int
    pull_interval_ms: int
    consume_message_batch_max_size: int
    pull_batch_size: int
    pull_batch_size_bytes: int
    pop_invisible_time_ms: int
    pop_batch_nums: int
    pop_threshold_for_queue: int
    pop_extend: bool
    post_subscription_when_pull: bool
    max_reconsume_times: int
    suspend_current_queue_time_ms: int
    consume_timeout_minutes: int
    await_termination_when_shutdown_ms: int
    adjust_thread_pool_nums_threshold: int
    offset_illegal_delay_ms: int


class PullOptions(ConsumerOptions, total=False):
    """The settings of :class:`PullSettings` as keywords."""

    consumer_pull_timeout_ms: int
    auto_commit: bool
    auto_commit_interval_ms: int
    pull_batch_size: int
    pull_threshold_for_all: int
    consume_max_span: int
    pull_threshold_for_queue: int
    pull_threshold_size_for_queue_mib: int
    poll_timeout_ms: int
    topic_metadata_check_interval_ms: int
    max_reconsume_times: int
