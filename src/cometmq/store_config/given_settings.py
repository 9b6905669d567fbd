"""A setting as somebody gave it, and a layer of them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TypeAlias

from cometmq.store_config.errors import SettingError
from cometmq.store_config.setting_names import OPTIONS
from cometmq.store_config.setting_options import SettingValue

__all__ = ["Given", "Layer", "add_given"]


@dataclass(frozen=True, slots=True)
class Given:
    """One checked value.

    Attributes:
        value: the value, of the setting's type.
        key: the name it was given under.
        source: where it was given.
    """

    value: SettingValue
    key: str
    source: str


Layer: TypeAlias = Mapping[str, Given]
"""Field name to value, from one source."""


def add_given(layer: dict[str, Given], name: str, value: object, *, key: str, source: str) -> None:
    """Check a value and put it into a layer.

    Raises:
        SettingError: the value cannot be used, or the layer has the setting under another name with another value.
    """
    given = Given(OPTIONS[name].convert(value, key=key, source=source), key, source)
    before = layer.get(name)
    if before is not None and before.value != given.value:
        reason = f"{given.value!r} contradicts {before.key} = {before.value!r}, which is the same setting"
        raise SettingError(reason, key=key, source=source)
    layer[name] = given
