"""Where settings come from: ``cometmq.toml``, the environment, keyword arguments; and how the sources are laid over
each other. ``broker.properties`` has a module of its own, since much in it is not ours.

Later layers win: the defaults, ``broker.properties``, ``cometmq.toml``, ``COMETMQ_*`` variables, keyword arguments.
Everywhere a setting may be called by upstream's name (``flushDiskType``) or by ours (``flush_disk_type``; in the
environment ``COMETMQ_FLUSH_DISK_TYPE``). A name that nobody knows is an error with a suggestion.
"""

from __future__ import annotations

import importlib
import os
from collections.abc import Callable, Collection, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from types import ModuleType
from typing import Any

from cometmq.store_config.broker_properties import read_broker_properties
from cometmq.store_config.broker_settings import BrokerSettings
from cometmq.store_config.config_file import storage_error
from cometmq.store_config.errors import SettingError, UnknownSetting
from cometmq.store_config.given_settings import Given, Layer, add_given
from cometmq.store_config.known_options import why_not_ours
from cometmq.store_config.setting_names import find_setting, similar_names

__all__ = [
    "ENVIRONMENT_PREFIX",
    "LoadedSettings",
    "from_environment",
    "from_mapping",
    "from_toml",
    "load_settings",
    "parse_toml",
]

ENVIRONMENT_PREFIX = "COMETMQ_"
_TOML_TABLES = ("store", "broker")
_OTHERS_TABLES = ("namesrv",)
_OTHERS_VARIABLES = frozenset({"COMETMQ_NAMESRV"})
"""Where administration and clients look for name servers (``cometmq.admin``): no setting of a store or broker."""
_OTHERS_PREFIX = "COMETMQ_NAMESRV_"
"""Settings of a name server (:mod:`cometmq.namesrv.settings`), but for COMETMQ_NAMESRV_ADDR, which is a broker's."""

_TOML_BYTES_MAX = 1024 * 1024


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadedSettings:
    """Settings and where they came from.

    Attributes:
        settings: every setting; the default where nobody gave one.
        given: the settings that somebody gave, with the source of each.
        unused: names in ``broker.properties`` that brokers know and CometMQ has no use for, with their values.
        unknown: names in ``broker.properties`` that no broker knows, for a warning.
        repeated: names that it has more than once, for a warning; the last value is in force.
    """

    settings: BrokerSettings
    given: Mapping[str, str] = field(default_factory=dict)
    unused: Mapping[str, str] = field(default_factory=dict)
    unknown: tuple[str, ...] = ()
    repeated: tuple[str, ...] = ()


def from_mapping(values: Mapping[str, object], *, source: str) -> Layer:
    """Read settings from names and values.

    Raises:
        UnknownSetting: no setting has this name.
        SettingError: a value cannot be used, or two names of one setting have different values.
    """
    layer: dict[str, Given] = {}
    for key, value in values.items():
        found = find_setting(key)
        if found is None:
            raise UnknownSetting(key=key, source=source, suggestions=similar_names(key), why=why_not_ours(key))
        add_given(layer, found, value, key=key, source=source)
    return layer


def from_environment(environ: Mapping[str, str], *, ignore: Collection[str] = ()) -> Layer:
    """Read the ``COMETMQ_*`` variables of an environment.

    Args:
        environ: usually ``os.environ``.
        ignore: whole names of variables that are not settings.

    Raises:
        UnknownSetting, SettingError: as :func:`from_mapping`; ``key`` is the variable's name.
    """
    layer: dict[str, Given] = {}
    for key, value in environ.items():
        if not key.startswith(ENVIRONMENT_PREFIX) or key in ignore or key in _OTHERS_VARIABLES:
            continue
        name = key.removeprefix(ENVIRONMENT_PREFIX).lower()
        found = find_setting(name)
        if found is None and key.startswith(_OTHERS_PREFIX):
            continue
        if found is None:
            near = tuple(ENVIRONMENT_PREFIX + similar.upper() for similar in similar_names(name))
            raise UnknownSetting(key=key, source="environment", suggestions=near)
        add_given(layer, found, value, key=key, source="environment")
    return layer


def from_toml(path: Path) -> Layer:
    """Read a ``cometmq.toml``: settings at the top or in the tables ``[store]`` and ``[broker]``.

    The table ``[namesrv]`` is another's (:mod:`cometmq.namesrv.settings`).

    Raises:
        UnknownSetting, SettingError: as :func:`from_mapping`; also where the file is not TOML.
        StorageError: the file cannot be read.
    """
    try:
        with path.open("rb") as file:
            data = file.read(_TOML_BYTES_MAX + 1)
    except OSError as error:
        raise storage_error(error, f"cannot read {path}") from error
    if len(data) > _TOML_BYTES_MAX:
        raise SettingError(f"the file is larger than {_TOML_BYTES_MAX} bytes", key="", source=str(path))
    content = parse_toml(data, path)
    flat: dict[str, object] = {
        key: value for key, value in content.items() if key not in (*_TOML_TABLES, *_OTHERS_TABLES)
    }
    for table in _TOML_TABLES:
        values = content.get(table, {})
        if not isinstance(values, dict):
            raise SettingError("this is the name of a table", key=table, source=str(path))
        for key, value in values.items():
            if key in flat:
                raise SettingError("is given twice", key=f"{table}.{key}", source=str(path))
            flat[key] = value
    return from_mapping(flat, source=str(path))


def parse_toml(data: bytes, path: Path) -> dict[str, Any]:
    """Return a TOML file's content; ``path`` names it in the SettingError where it is not TOML."""
    parse: Callable[[str], dict[str, Any]] = _toml_module().loads
    try:
        return parse(data.decode("utf-8"))
    except (ValueError, RecursionError) as error:
        raise SettingError(f"this is not TOML: {error}", key="", source=str(path)) from error


def _toml_module() -> ModuleType:
    """Return the standard library's parser, or on Python 3.10 the package it came from."""
    for name in ("tomllib", "tomli"):
        with suppress(ModuleNotFoundError):
            return importlib.import_module(name)
    raise SettingError("reading TOML needs Python 3.11, or `pip install tomli`", key="", source="cometmq.toml")


def load_settings(
    *,
    properties: Path | None = None,
    in_store: bool = False,
    toml: Path | None = None,
    environ: Mapping[str, str] | None = None,
    ignore_variables: Collection[str] = (),
    overrides: Mapping[str, object] | None = None,
) -> LoadedSettings:
    """Read every source and lay them over the defaults.

    Args:
        properties: a broker's ``broker.properties``.
        in_store: that file lies in a store: it must be a plain file, no link, FIFO or device.
        toml: a ``cometmq.toml``.
        environ: an environment; None for the process's own, an empty mapping for none.
        ignore_variables: ``COMETMQ_*`` variables that are not settings.
        overrides: settings given in the call or by flags.

    Raises:
        UnknownSetting: a name that nobody knows, except in ``broker.properties``, where it is reported.
        SettingError: a value that cannot be used.
        StorageError: a file cannot be read.
    """
    from_broker = None if properties is None else read_broker_properties(properties, in_store=in_store)
    layers: list[Layer] = [] if from_broker is None else [from_broker.settings]
    if toml is not None:
        layers.append(from_toml(toml))
    layers.append(from_environment(os.environ if environ is None else environ, ignore=ignore_variables))
    layers.append(from_mapping(overrides or {}, source="keyword arguments"))
    merged: dict[str, Given] = {}
    for layer in layers:
        merged.update(layer)
    values: dict[str, Any] = {name: given.value for name, given in merged.items()}
    return LoadedSettings(
        settings=BrokerSettings(**values),
        given={name: given.source for name, given in merged.items()},
        unused={} if from_broker is None else from_broker.unused,
        unknown=() if from_broker is None else from_broker.unknown,
        repeated=() if from_broker is None else from_broker.repeated,
    )
