"""How a broker runs: the settings of every source, and what follows from them, checked before anything is opened.

Settings come from a ``broker.properties`` or ``cometmq.toml``, the environment and the call, as a store's do
(:mod:`cometmq.store_config.setting_sources`). Where CometMQ is more careful than upstream: a broker listens on the
loopback unless an address is given, refuses another address without ``insecure_listen``, and flushes synchronously.
"""

from __future__ import annotations

import os
import socket
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from ipaddress import ip_address
from pathlib import Path

from cometmq.errors import InvalidArgument
from cometmq.remoting.addresses import (
    check_listen_host,
    host_port,
    listen_host,
    own_address,
    parse_address,
    parse_addresses,
)
from cometmq.store.opening import Plan
from cometmq.store.options import FlushMode, Retention
from cometmq.store_config.broker_settings import BrokerSettings
from cometmq.store_config.errors import SettingError
from cometmq.store_config.setting_effects import refuse_settings, settings_without_effect
from cometmq.store_config.setting_names import OPTIONS
from cometmq.store_config.setting_sources import LoadedSettings, load_settings
from cometmq.store_config.settings import FlushDiskType

__all__ = ["SETTABLE", "BrokerConfig", "load_broker_config"]

_LOOPBACK = "127.0.0.1"
_PORTS_BELOW_FAST = 2
_DEFAULT_TOPIC_QUEUES = 4
"""Queues of a topic that an append of this process creates, as many as for a Java client's send."""

SETTABLE: frozenset[str] = frozenset(
    {
        "allow_recall_when_broker_not_writeable",
        "auto_create_subscription_group",
        "auto_create_topic_enable",
        "broker_permission",
        "channel_expired_timeout_ms",
        "clean_file_forcibly_enable",
        "clear_retry_topic_when_delete_topic",
        "default_message_request_mode",
        "default_pop_share_queue_num",
        "delete_file_batch_max",
        "delete_when_hours_of_day",
        "disk_max_used_space_ratio_percent",
        "disk_space_clean_forcibly_ratio_percent",
        "disk_space_warning_level_ratio_percent",
        "file_reserved_time_hours",
        "flush_consumer_offset_interval_ms",
        "flush_delay_offset_interval_ms",
        "force_register",
        "load_balance_poll_name_server_interval_ms",
        "notify_consumer_ids_changed_enable",
        "real_time_notify_consumer_change",
        "recall_message_enable",
        "register_name_server_period_ms",
        "reject_pull_consumer_enable",
        "reject_transaction_message",
        "server_load_balancer_enable",
        "transaction_check_interval_ms",
        "transaction_check_max",
        "transaction_op_batch_interval_ms",
        "transaction_op_msg_max_size_bytes",
        "transaction_timeout_ms",
        "use_server_side_reset_offset",
        "validate_system_topic_when_update_topic",
    }
)
"""Settings that administration may change while the broker runs, and that have their effect without a restart. No path,
no address, no command, nothing that the files' form depends on. ``docs/settings.md`` shows them."""

_OWN_FILE = Path("cometmq", "broker.properties")
"""In the store: where settings that were changed at run time last, of a broker that was started without a file."""
_STRONGER = {"environment": "the environment", "keyword arguments": "--set or another option of the command"}
"""The sources that replace a file's settings at the start, and their names in texts."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BrokerConfig:
    """A broker's configuration. Immutable.

    Attributes:
        path: the store's directory.
        settings: every setting, as it holds: with what was decided here where nobody gave it.
        settings_file: where settings that are changed at run time last, and where the next start finds them.
        is_own_file: that is the store's own file, which the first change makes; else somebody gave it.
        given: names of the settings that somebody gave.
        unknown: names in a ``broker.properties`` that no broker knows, for a warning.
        repeated: names that it has more than once, for a warning; the last value is in force.
        unused_file: such a file of the store that was not read, since another was given; for a warning.
        stronger: the settings that something gave which replaces a file's, and the name of that source.
        without_effect: one line with the settings that somebody gave and that do nothing here; None without any.
        host: numeric address to listen on.
        port: port to listen on; 0 takes a free one.
        advertised_ip: numeric address that clients connect to, in routes and message ids.
        broker_name: the broker's name.
        name_servers: ``host:port`` of each.
    """

    path: Path
    settings: BrokerSettings
    settings_file: Path
    is_own_file: bool
    given: frozenset[str]
    unknown: tuple[str, ...] = ()
    repeated: tuple[str, ...] = ()
    unused_file: Path | None = None
    stronger: Mapping[str, str] = field(default_factory=dict)
    without_effect: str | None = None
    host: str = _LOOPBACK
    port: int = 10911
    advertised_ip: str = _LOOPBACK
    broker_name: str = "broker"
    name_servers: tuple[str, ...] = ()

    def addresses(self, port: int) -> tuple[str, ...]:
        """Return what to listen on for a main port: it and, two below, the one of clients' fast channel."""
        fast = port - _PORTS_BELOW_FAST
        ports = (port, fast) if self.port and fast > 0 else (port,)
        return tuple(host_port(self.host, one) for one in ports)

    def advertised(self, port: int) -> str:
        """Return the address in routes. IPv6 stands without brackets, as upstream has it."""
        return f"{self.advertised_ip}:{port}"

    def registered_with(self, name_server: str) -> BrokerConfig:
        """Return the same configuration with one more name server."""
        names = tuple(dict.fromkeys((name_server, *self.name_servers)))
        return replace(self, name_servers=names, settings=replace(self.settings, namesrv_addr=";".join(names)))

    @property
    def flush(self) -> FlushMode:
        """When sends are acknowledged: on disk, unless somebody asked for ``ASYNC_FLUSH``."""
        is_async = self.settings.flush_disk_type is FlushDiskType.ASYNC_FLUSH
        return FlushMode.ASYNC if is_async else FlushMode.SYNC

    def plan(self, port: int, *, create: bool = True) -> Plan:
        """Return how to open the store, for a broker on this port."""
        return Plan(
            path=self.path,
            settings=replace(self.settings, broker_ip1=self.advertised_ip, listen_port=port),
            given=self.given | {"broker_ip1", "listen_port"},
            flush=self.flush,
            retention=Retention.from_settings(self.settings),
            default_queues=min(self.settings.default_topic_queue_nums, _DEFAULT_TOPIC_QUEUES),
            create=create,
            background=True,
            warns=False,  # the log has it
        )


def load_broker_config(
    path: str | os.PathLike[str] | None = None,
    *,
    config: str | os.PathLike[str] | None = None,
    listen: str | None = None,
    insecure_listen: bool = False,
    settings: Mapping[str, object] | None = None,
    environ: Mapping[str, str] | None = None,
) -> BrokerConfig:
    """Bring everything together that says how a broker runs.

    Args:
        path: the store; without, ``storePathRootDir`` of the settings.
        config: a ``broker.properties``, or a ``cometmq.toml``. Without, ``cometmq/broker.properties`` of the store if
            it is there: settings that were changed at run time last in it.
        listen: ``host:port`` or ``:port``; goes before ``bindAddress`` and ``listenPort``.
        insecure_listen: listen on other addresses than the loopback, where anybody who reaches the port may send,
            read and delete.
        settings: further settings by upstream's names or ours.
        environ: the environment; None for the process's own.

    Raises:
        SettingError, UnknownSetting: a setting cannot be used, does not exist, or is in the store's own file, although
            it cannot be changed at run time.
        StorageError: a file cannot be read; the store's own must be a plain file.
        InvalidArgument: an argument cannot be used, the address was refused, or a setting asks for something that a
            CometMQ broker does not do (:mod:`cometmq.store_config.setting_effects`).
    """
    file = None if config is None else Path(config)
    loaded = _load(file, environ, settings)
    root = os.fspath(path) if path is not None else loaded.settings.store_path_root_dir
    if root is None:
        raise InvalidArgument("no store was given: give its directory, or storePathRootDir in the configuration")
    own_file = Path(root) / _OWN_FILE
    has_own = os.path.lexists(own_file)
    if file is None and has_own:
        loaded = _load_own(own_file, environ, settings)
    values = loaded.settings
    given = {OPTIONS[name].upstream_name: getattr(values, name) for name in loaded.given} | dict(loaded.unused)
    refuse_settings(given)
    host, port = _listen_on(listen, values)
    check_listen_host(host, insecure_listen=insecure_listen, danger="send, read and delete")
    advertised_ip = _advertised_ip(values.broker_ip1, host)
    name = values.broker_name or socket.gethostname() or "broker"
    return BrokerConfig(
        path=Path(root),
        # A request for the broker's settings (26) returns those in force, not upstream's defaults.
        settings=replace(
            values,
            flush_disk_type=values.flush_disk_type if "flush_disk_type" in loaded.given else FlushDiskType.SYNC_FLUSH,
            broker_name=name,
            broker_ip1=advertised_ip,
            bind_address=host,
            listen_port=port,
        ),
        given=frozenset(loaded.given),
        unknown=loaded.unknown,
        repeated=loaded.repeated,
        settings_file=own_file if file is None else file,
        is_own_file=file is None,
        unused_file=own_file if file is not None and has_own else None,
        stronger={name: _STRONGER[source] for name, source in loaded.given.items() if source in _STRONGER},
        without_effect=settings_without_effect(given),
        host=host,
        port=port,
        advertised_ip=advertised_ip,
        broker_name=name,
        name_servers=parse_addresses(values.namesrv_addr) if values.namesrv_addr else (),
    )


def _load(file: Path | None, environ: Mapping[str, str] | None, given: Mapping[str, object] | None) -> LoadedSettings:
    is_toml = file is not None and file.suffix == ".toml"
    return load_settings(
        properties=None if is_toml else file, toml=file if is_toml else None, environ=environ, overrides=given
    )


def _load_own(file: Path, environ: Mapping[str, str] | None, given: Mapping[str, object] | None) -> LoadedSettings:
    """Read the store's own file. A store may come from elsewhere: the file has what requests may change, no more."""
    loaded = load_settings(properties=file, in_store=True, environ=environ, overrides=given)
    names = {
        OPTIONS[name].upstream_name
        for name, source in loaded.given.items()
        if name not in SETTABLE and source == str(file)
    }
    for name in sorted(names | set(loaded.unused) | set(loaded.unknown)):
        raise SettingError(
            "this file in the store has the settings that were changed at run time, and this is none of them; "
            "start with --config and a file outside the store",
            key=f"{name:.60}",
            source=str(file),
        )
    return loaded


def _listen_on(listen: str | None, settings: BrokerSettings) -> tuple[str, int]:
    host, port = settings.bind_address or _LOOPBACK, settings.listen_port
    if listen is not None:
        host, port = parse_address(f"{host}{listen}" if listen.startswith(":") else listen)
    return listen_host(host), port


def _advertised_ip(given: str | None, host: str) -> str:
    if given is not None:
        try:
            return str(ip_address(given))
        except ValueError:
            raise InvalidArgument(f"brokerIP1 is {given!r}, which is not a numeric address") from None
    address = ip_address(host)
    return own_address(version=address.version) if address.is_unspecified else host
