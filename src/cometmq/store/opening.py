"""How a store is opened: settings from every source, features that the directory shows, and the engine's handle."""

from __future__ import annotations

import os
import re
import warnings
from collections.abc import Mapping
from dataclasses import dataclass, replace
from ipaddress import ip_address
from pathlib import Path
from typing import Any

from cometmq._engine import StoreHandle
from cometmq.errors import InvalidArgument, NotAStore, WrongType
from cometmq.store.foreign import refuse_links
from cometmq.store.options import FlushMode, Retention, a_flag, a_text, in_range
from cometmq.store.staged_check import Disks
from cometmq.store_config.setting_sources import LoadedSettings, load_settings
from cometmq.store_config.settings import FlushDiskType, IndexTags, StoreSettings, StoreType
from cometmq.store_config.topic_config import QueueType
from cometmq.store_config.topics import Topics

__all__ = ["Plan", "plan_opening"]

_LIGHT_OFFSETS = "lmqConsumerOffset.json"
_NAMES_SHOWN = 5
_SEGMENT_BYTES = (4096, 2_147_479_552)
"""The engine's range, which it checks when the directory is there already."""
_INDEX_TAGS = {IndexTags.AS_FOUND: None, IndexTags.ON: True, IndexTags.OFF: False}
_SCHEME = re.compile(r"[A-Za-z][A-Za-z0-9+.-]+:/{1,2}")
"""One slash too: a ``Path`` of a URL has no more."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """Everything that opening needs; enough to open the same store again.

    Attributes:
        path: the directory.
        settings: every setting.
        given: names of the settings that somebody gave.
        flush: when appends are acknowledged.
        retention: when old messages go, or None for never.
        default_queues: queues of a topic that its first append makes.
        create: make a store where there is none.
        background: run the engine's and the hand-off thread.
        warns: warn of damaged files by Python's warnings, beside the log.
    """

    path: Path
    settings: StoreSettings
    given: frozenset[str]
    flush: FlushMode
    retention: Retention | None
    default_queues: int
    create: bool
    background: bool
    warns: bool = True

    def without_background(self) -> Plan:
        """Return the plan of a short life: an existing store, no threads."""
        return replace(self, background=False, create=False)

    @property
    def disks(self) -> Disks:
        """Where the store writes to."""
        return Disks(
            self.path,
            self.settings.commit_log_paths(self.path),
            1.0 if self.retention is None else self.retention.warning_ratio,
        )

    @property
    def config_folder(self) -> Path:
        """Where the JSON files are."""
        return self.path / "config"

    @property
    def light_queues(self) -> bool:
        """True where the store has light queues: the setting, or the file that only such a broker writes."""
        return self.settings.enable_lmq or (self.config_folder / _LIGHT_OFFSETS).exists()

    def open_handle(self, *, read_only: bool) -> StoreHandle:
        """Open the engine's handle.

        Raises:
            Error: as :func:`cometmq.open`.
        """
        address, port = _store_host(self.settings)
        return StoreHandle(
            self.path,
            read_only=read_only,
            create=self.create,
            background=self.background,
            sync_flush=self.flush is FlushMode.SYNC,
            body_bytes_max=self.settings.max_message_size_bytes,
            property_crc=self.settings.enabled_append_prop_crc,
            light_queues_max=self.settings.max_lmq_consume_queue_num,
            retention=self.retention,
            store_address=address,
            store_port=port,
            **self.layout_options(),
        )

    def layout_options(self) -> dict[str, Any]:
        """Return what the engine has to know of the files: their sizes where somebody gave them, and their features."""
        settings = self.settings
        return {
            "segment_bytes": self._given("mapped_file_size_commit_log_bytes"),
            "queue_file_bytes": settings.consume_queue_file_bytes
            if "mapped_file_size_consume_queue_bytes" in self.given
            else 0,
            "batch_file_bytes": self._given("mapper_file_size_batch_consume_queue_bytes"),
            "ext_file_bytes": self._given("mapped_file_size_consume_queue_ext_bytes"),
            "index_slots": self._given("max_hash_slot_num"),
            "index_entries": self._given("max_index_num"),
            "commitlog_paths": [os.fspath(path) for path in settings.store_path_commit_log],
            "delay_levels": settings.message_delay_level,
            "batch_topics": self._batch_topics(),
            "index_enabled": settings.message_index_enable,
            "index_tags": _INDEX_TAGS[settings.message_index_tags],
            "ext_enabled": settings.enable_consume_queue_ext or (self.path / "consumequeue_ext").is_dir(),
            "lmq_enabled": self.light_queues,
            "check_property_crc": settings.force_verify_prop_crc,
        }

    def _given(self, name: str) -> int:
        """A configured size, or 0: the engine takes it from the directory, or upstream's default."""
        value: int = getattr(self.settings, name)
        return value if name in self.given else 0

    def _batch_topics(self) -> list[str]:
        topics = Topics(self.config_folder)
        topics.load()
        return [topic.topic_name for topic in topics.all() if topic.queue_type is QueueType.BATCH]


def plan_opening(
    path: str | os.PathLike[str],
    *,
    flush: FlushMode | str | None,
    config: str | os.PathLike[str] | None,
    settings: Mapping[str, object] | None,
    named: Mapping[str, object | None],
    retention: Retention | None,
    default_queues: int,
    create: bool,
    background: bool,
) -> Plan:
    """Bring the arguments of :func:`cometmq.open` together.

    Args:
        named: settings that have an argument of their own, by their field's name; None: not given.

    Raises:
        SettingError: a setting cannot be used.
        InvalidArgument: an argument cannot be used, or the store is of a kind that CometMQ does not read.
        NotAStore: the path is a file, or there are links inside the store.
    """
    check_path(path)
    if settings is not None and not isinstance(settings, Mapping):
        raise WrongType(f"settings must be a dict of names and values, not {type(settings).__name__}")
    if config is not None and not isinstance(config, (str, os.PathLike)):
        raise WrongType(f"config must be the path of a file, not {type(config).__name__} ({config!r:.60})")
    if retention is not None and not isinstance(retention, Retention):
        raise WrongType(
            f"retention must be a cometmq.Retention, not {type(retention).__name__} ({retention!r:.60}): "
            "retention=Retention(reserved_hours=72)"
        )
    a_flag(create, "create")
    a_flag(background, "background")
    overrides: dict[str, Any] = {a_text(name, "a setting's name"): value for name, value in (settings or {}).items()}
    overrides |= {name: value for name, value in named.items() if value is not None}
    file = None if config is None else Path(config)
    is_toml = file is not None and file.suffix == ".toml"
    segment_bytes = named.get("mapped_file_size_commit_log_bytes")
    if isinstance(segment_bytes, int):
        in_range(segment_bytes, "segment_bytes", *_SEGMENT_BYTES)
    loaded = load_settings(properties=None if is_toml else file, toml=file if is_toml else None, overrides=overrides)
    _refuse_foreign(loaded.settings)
    _warn_unknown(file, loaded)
    if Path(path).exists() and not Path(path).is_dir():
        raise NotAStore(f"{os.fspath(path)} is a file; a store is a directory")
    refuse_links(Path(path))
    in_range(default_queues, "default_queues", 1, 65_536)
    return Plan(
        path=Path(path),
        settings=loaded.settings,
        given=frozenset(loaded.given),
        flush=_flush_mode(flush, loaded),
        retention=retention,
        default_queues=default_queues,
        create=create,
        background=background,
    )


def check_path(path: object) -> None:
    """Refuse what names no directory of this machine, before a directory of that name is made.

    Raises:
        WrongType: it is not a path.
        InvalidArgument: it is empty, a URL, or begins with ``~``, which shells expand and Python does not.
    """
    if not isinstance(path, (str, os.PathLike)) or not isinstance(os.fspath(path), str):
        raise WrongType(f"path must be a str or a Path, not {type(path).__name__} ({path!r:.60})")
    text = os.fspath(path)
    if not text:
        raise InvalidArgument('path is empty: give a directory ("." for the current one)')
    if text == "~" or text.startswith("~/"):
        raise InvalidArgument(f"path is {text!r}: ~ is not expanded; pass os.path.expanduser({text!r})")
    if scheme := _SCHEME.match(text):
        advice = (
            f"pass {text.removeprefix(scheme[0])!r}"
            if scheme[0].lower().startswith("file:")
            else "a store is a directory; brokers are reached by cometmq.client"
        )
        raise InvalidArgument(f"path is {text!r}, a URL: {advice}")


def _flush_mode(flush: FlushMode | str | None, loaded: LoadedSettings) -> FlushMode:
    """Synchronous, unless somebody asked otherwise: upstream's own default does not count."""
    if flush is not None:
        return FlushMode.of(flush)
    asked = "flush_disk_type" in loaded.given and loaded.settings.flush_disk_type is FlushDiskType.ASYNC_FLUSH
    return FlushMode.ASYNC if asked else FlushMode.SYNC


def _refuse_foreign(settings: StoreSettings) -> None:
    if settings.store_type is StoreType.ROCKSDB:
        raise InvalidArgument("storeType is defaultRocksDB: CometMQ reads stores whose consume queues are files")
    if settings.enable_dleger_commit_log:
        raise InvalidArgument("enableDLegerCommitLog is set: CometMQ does not read DLedger's log")


def _warn_unknown(file: Path | None, loaded: LoadedSettings) -> None:
    """Report names in a broker's file that no broker knows, which may be typos; a file of only such is another's."""
    if not loaded.unknown:
        return
    names = ", ".join(loaded.unknown[:_NAMES_SHOWN]) + (", …" if len(loaded.unknown) > _NAMES_SHOWN else "")
    if not loaded.unused and str(file) not in loaded.given.values():
        raise InvalidArgument(f"{file} has no setting of a RocketMQ broker, but {names}")
    warnings.warn(f"{file}: no RocketMQ broker knows {names}", RuntimeWarning, stacklevel=5)


def _store_host(settings: StoreSettings) -> tuple[bytes, int]:
    """Return the address and port for message ids: those of a broker on this directory, else loopback."""
    if settings.broker_ip1 is None:
        return b"\x7f\x00\x00\x01", settings.listen_port
    try:
        return ip_address(settings.broker_ip1).packed, settings.listen_port
    except ValueError as error:
        raise InvalidArgument(f"brokerIP1 is not an address: {error}") from None
