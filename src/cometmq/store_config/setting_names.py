"""Which names mean which setting: upstream's, its old spellings, and ours in snake_case with or without the unit."""

from __future__ import annotations

import dataclasses
import difflib
import re
from collections.abc import Mapping

from cometmq.store_config.broker_settings import BrokerSettings
from cometmq.store_config.setting_options import Option, option_of

__all__ = ["OPTIONS", "UPSTREAM_NAMES", "find_setting", "similar_names", "snake_case"]

_WORD_START = re.compile(r"(?<=[a-z0-9])(?=[A-Z])|(?<=[A-Z])(?=[A-Z][a-z])")
_SUGGESTIONS_MAX = 2


def snake_case(upstream_name: str) -> str:
    """Return ``mappedFileSizeCommitLog`` as ``mapped_file_size_commit_log``."""
    return _WORD_START.sub("_", upstream_name).lower()


OPTIONS: Mapping[str, Option] = {field.name: option_of(field) for field in dataclasses.fields(BrokerSettings)}
"""Every setting by the name of its field in :class:`BrokerSettings`."""

UPSTREAM_NAMES: Mapping[str, str] = {
    name: field for field, option in OPTIONS.items() for name in (option.upstream_name, *option.aliases)
}
"""Upstream's names and old spellings, to the field each stands for."""

_FIELD_OF: dict[str, str] = {
    **{snake_case(name): field for name, field in UPSTREAM_NAMES.items()},
    **UPSTREAM_NAMES,
    **{field: field for field in OPTIONS},
}


def find_setting(name: str) -> str | None:
    """Return the field that a name stands for, or None."""
    return _FIELD_OF.get(name)


def similar_names(name: str) -> tuple[str, ...]:
    """Return up to two known names of the same style that look like ``name``, nearest first."""
    style = UPSTREAM_NAMES if re.search("[A-Z]", name) else OPTIONS
    plain = {known.replace("_", "").lower(): known for known in style}
    near = difflib.get_close_matches(name.replace("_", "").lower(), plain, n=_SUGGESTIONS_MAX)
    return tuple(plain[match] for match in near)
