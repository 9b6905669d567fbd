"""A broker's ``broker.properties`` as settings.

Upstream passes over a value that it cannot convert and goes on with the default; here it is an error, since a segment
size that was not meant damages a store. A number with a blank behind it is such a value. The old spelling
``mapedFileSizeCommitLog`` (and its like) is accepted; where both are given they must agree.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from cometmq.errors import InvalidArgument
from cometmq.store_config.config_file import storage_error
from cometmq.store_config.errors import SettingError
from cometmq.store_config.file_ops import SYSTEM_FILE_OPS
from cometmq.store_config.given_settings import Given, Layer, add_given
from cometmq.store_config.java_properties import parse_properties
from cometmq.store_config.known_options import KNOWN_UPSTREAM_NAMES
from cometmq.store_config.setting_names import UPSTREAM_NAMES

__all__ = ["BrokerProperties", "parse_broker_properties", "read_broker_properties"]

_BYTES_MAX = 16 * 1024 * 1024


@dataclass(frozen=True, slots=True, kw_only=True)
class BrokerProperties:
    """The content of a ``broker.properties``.

    Attributes:
        settings: the settings of ours in it.
        unused: names that brokers know and CometMQ has no use for, with their values.
        unknown: names that no broker knows: perhaps misspelt. Report them to the user.
        repeated: names that are given more than once; the last value is in force. Report them to the user.
    """

    settings: Layer
    unused: Mapping[str, str] = field(default_factory=dict)
    unknown: tuple[str, ...] = ()
    repeated: tuple[str, ...] = ()


def parse_broker_properties(data: bytes, *, source: str) -> BrokerProperties:
    """Read the content of the file; ``source`` names it in errors.

    Raises:
        SettingError: a value cannot be used, or the text is malformed.
    """
    repeated: set[str] = set()
    try:
        properties = parse_properties(data, repeated=repeated)
    except InvalidArgument as error:
        raise SettingError(error.message, key="", source=source) from error
    settings: dict[str, Given] = {}
    unused: dict[str, str] = {}
    unknown: list[str] = []
    for key, value in properties.items():
        name = UPSTREAM_NAMES.get(key)
        if name is not None:
            add_given(settings, name, value, key=key, source=source)
        elif key in KNOWN_UPSTREAM_NAMES:
            unused[key] = value
        else:
            unknown.append(key)
    return BrokerProperties(settings=settings, unused=unused, unknown=tuple(unknown), repeated=tuple(sorted(repeated)))


def read_broker_properties(path: Path, *, in_store: bool = False) -> BrokerProperties:
    """Read the file.

    Args:
        path: the file.
        in_store: it lies in a store, which may come from elsewhere: it must be a plain file, no link, FIFO or device.

    Raises:
        SettingError: a value cannot be used, or the text is malformed.
        StorageError: the file cannot be read.
    """
    try:
        if in_store:
            data = SYSTEM_FILE_OPS.read(path, bytes_max=_BYTES_MAX) or b""
        else:
            with path.open("rb") as file:
                data = file.read(_BYTES_MAX + 1)
    except OSError as error:
        raise storage_error(error, f"cannot read {path}") from error
    if len(data) > _BYTES_MAX:
        raise SettingError(f"the file is larger than {_BYTES_MAX} bytes", key="", source=str(path))
    return parse_broker_properties(data, source=str(path))
