"""The settings of a name server: upstream's options, typed, from a file, the environment and flags.

A field's name is upstream's in snake_case with the unit at its end, and a setting may be given under either name; in
the environment it is ``COMETMQ_NAMESRV_`` and ours in capitals. Later sources win: the defaults, the file, the
environment, the caller's arguments. Names that upstream's name servers know and CometMQ has no use for are ignored in a
``.properties`` file; an unknown name is an error.
"""

# The calls in the defaults are dataclasses.field with metadata; the rule does not see through them.

from __future__ import annotations

import dataclasses
import difflib
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from cometmq.store_config.config_file import storage_error
from cometmq.store_config.errors import SettingError, UnknownSetting
from cometmq.store_config.java_properties import parse_properties
from cometmq.store_config.setting_names import find_setting
from cometmq.store_config.setting_options import Option, SettingValue, long_option, option, option_of, text_option
from cometmq.store_config.setting_sources import parse_toml

__all__ = ["NamesrvSettings", "load_namesrv_settings", "properties_text", "with_updates"]

_SECOND = 1_000
_TOML_TABLE = "namesrv"
_VARIABLE_PREFIX = "COMETMQ_NAMESRV_"
_BYTES_MAX = 1024 * 1024


@dataclass(frozen=True, slots=True, kw_only=True)
class NamesrvSettings:
    """Everything that decides about a name server's behaviour."""

    # --- Listening
    bind_address: str = text_option("bindAddress", "127.0.0.1", "address to listen on; upstream's default is all")
    listen_port: int = option("listenPort", 9876, "port; 0 for any that is free", maximum=65_535)
    server_channel_max_idle_time_seconds: int = option(
        "serverChannelMaxIdleTimeSeconds", 120, "silence that ends a connection", minimum=1
    )
    shutdown_wait_time_seconds: int = option("shutdownWaitTimeSeconds", 30, "longest wait for a clean stop")

    # --- Where things are
    kv_config_path: str | None = text_option("kvConfigPath", None, "kvConfig.json; without, keys are in memory alone")

    # --- Answers
    order_message_enable: bool = option("orderMessageEnable", False, "routes name the order configuration")
    return_order_topic_config_to_broker: bool = option(
        "returnOrderTopicConfigToBroker", True, "brokers learn the order configuration when they register"
    )
    enable_all_topic_list: bool = option("enableAllTopicList", True, "answer with the list of all topics")
    enable_topic_list: bool = option("enableTopicList", True, "answer with the lists by cluster and unit")
    support_acting_master: bool = option("supportActingMaster", False, "show a slave where a master is lost")
    need_wait_for_service: bool = option("needWaitForService", False, "give no routes right after the start")
    wait_for_service_seconds: int = option("waitSecondsForService", 45, "how long that is")

    # --- Brokers
    delete_topic_with_broker_registration: bool = option(
        "deleteTopicWithBrokerRegistration", False, "a registration removes the topics that it does not have"
    )
    scan_not_active_broker_interval_ms: int = long_option(
        "scanNotActiveBrokerInterval", 5 * _SECOND, "between two looks for silent brokers", minimum=1
    )


_OPTIONS: Mapping[str, Option] = {field.name: option_of(field) for field in dataclasses.fields(NamesrvSettings)}
_FIELDS: Mapping[str, str] = {
    **{option.upstream_name: name for name, option in _OPTIONS.items()},
    **{name: name for name in _OPTIONS},
}

# Read off what a name server of 5.3.3 says of itself (code 319).
_UNUSED_TEXT = """
clientRequestThreadPoolNums clientRequestThreadPoolQueueCapacity clusterTest configBlackList configStorePath
defaultThreadPoolNums defaultThreadPoolQueueCapacity enableControllerInNamesrv enableShutdownGracefully
notifyMinBrokerIdChanged productEnvName rocketmqHome serverAsyncSemaphoreValue serverCallbackExecutorThreads
serverNettyWorkerGroupEnable serverOnewaySemaphoreValue serverPooledByteBufAllocatorEnable serverSelectorThreads
serverSocketBacklog serverSocketRcvBufSize serverSocketSndBufSize serverWorkerThreads unRegisterBrokerQueueCapacity
useEpollNativeSelector writeBufferHighWaterMark writeBufferLowWaterMark
"""
_UNUSED_NAMES = frozenset(_UNUSED_TEXT.split())

_SETTABLE = frozenset(
    {
        "order_message_enable",
        "return_order_topic_config_to_broker",
        "enable_all_topic_list",
        "enable_topic_list",
        "support_acting_master",
        "need_wait_for_service",
        "wait_for_service_seconds",
        "delete_topic_with_broker_registration",
    }
)
"""Settings that a request may change. Paths, addresses and limits are not among them."""


def load_namesrv_settings(
    path: Path | None = None,
    *,
    environ: Mapping[str, str] | None = None,
    overrides: Mapping[str, object] | None = None,
) -> NamesrvSettings:
    """Read every source and lay them over the defaults.

    Args:
        path: upstream's ``namesrv.properties``, or a ``cometmq.toml`` with a table ``[namesrv]``; by its suffix.
        environ: an environment; None for the process's own, an empty mapping for none.
        overrides: settings given in the call or by flags.

    Raises:
        UnknownSetting: a name that nobody knows.
        SettingError: a value that cannot be used, or a file that is malformed.
        StorageError: the file cannot be read.
    """
    values: dict[str, SettingValue] = {}
    if path is not None:
        given = _from_toml(path) if path.suffix == ".toml" else _from_properties(path)
        values.update(_converted(given, source=str(path)))
    values.update(_from_environment(os.environ if environ is None else environ))
    values.update(_converted(overrides or {}, source="keyword arguments"))
    return NamesrvSettings(**values)  # type: ignore[arg-type]  # converted to the fields' types


def _read(path: Path) -> bytes:
    try:
        with path.open("rb") as file:
            data = file.read(_BYTES_MAX + 1)
    except OSError as error:
        raise storage_error(error, f"cannot read {path}") from error
    if len(data) > _BYTES_MAX:
        raise SettingError(f"the file is larger than {_BYTES_MAX} bytes", key="", source=str(path))
    return data


def _from_properties(path: Path) -> Mapping[str, object]:
    return {key: value for key, value in parse_properties(_read(path)).items() if key not in _UNUSED_NAMES}


def _from_toml(path: Path) -> Mapping[str, object]:
    table = parse_toml(_read(path), path).get(_TOML_TABLE, {})
    if not isinstance(table, dict):
        raise SettingError("this is the name of a table", key=_TOML_TABLE, source=str(path))
    return table


def _from_environment(environ: Mapping[str, str]) -> dict[str, SettingValue]:
    values: dict[str, SettingValue] = {}
    for variable, value in environ.items():
        # COMETMQ_NAMESRV_ADDR is a setting of brokers.
        if not variable.startswith(_VARIABLE_PREFIX) or find_setting(variable.removeprefix("COMETMQ_").lower()):
            continue
        name = variable.removeprefix(_VARIABLE_PREFIX).lower()
        if name not in _OPTIONS:
            near = difflib.get_close_matches(name, _OPTIONS, n=2)
            suggestions = tuple(_VARIABLE_PREFIX + each.upper() for each in near)
            raise UnknownSetting(key=variable, source="environment", suggestions=suggestions)
        values[name] = _OPTIONS[name].convert(value, key=variable, source="environment")
    return values


def _converted(given: Mapping[str, object], *, source: str) -> dict[str, SettingValue]:
    values: dict[str, SettingValue] = {}
    for key, value in given.items():
        name = _FIELDS.get(key)
        if name is None:
            near = tuple(difflib.get_close_matches(key, _FIELDS, n=2))
            raise UnknownSetting(key=key, source=source, suggestions=near)
        values[name] = _OPTIONS[name].convert(value, key=key, source=source)
    return values


def with_updates(settings: NamesrvSettings, properties: Mapping[str, str]) -> NamesrvSettings:
    """Return the settings as a request (code 318) changes them.

    Raises:
        PermissionError: one of them is not among those that a request may change; nothing is changed then.
        SettingError: a value cannot be used.
    """
    for key in properties:
        if _FIELDS.get(key) not in _SETTABLE:
            raise PermissionError(key)
    return dataclasses.replace(settings, **_converted(properties, source="request"))  # type: ignore[arg-type]


def properties_text(settings: NamesrvSettings) -> str:
    """Return all settings under upstream's names as a ``.properties`` text, a line each, sorted."""
    lines = []
    for name, known in _OPTIONS.items():
        value = getattr(settings, name)
        if value is not None:
            text = str(value).lower() if isinstance(value, bool) else str(value)
            lines.append(f"{known.upstream_name}={text}\n")
    return "".join(sorted(lines))
