"""Checks the types of an operation's arguments by its annotations, so that no wrong one becomes Python's own error, or
the text "None" in a request.

Texts, flags, numbers, bytes, mappings, lists and a few enumerations are checked; other types have checks of their own
where they are used.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Mapping
from typing import Any

from cometmq.errors import WrongType
from cometmq.store.options import a_flag, a_text
from cometmq.store_config.request_modes import MessageRequestMode

__all__ = ["argument_check", "without_brackets"]

_INNERMOST = re.compile(r"\[[^\[\]]*\]")


def _is_mapping(value: object, name: str) -> None:
    if not isinstance(value, Mapping):
        raise WrongType(f"{name} must be a dict, not {type(value).__name__} ({value!r:.60})")


def _is_list(value: object, name: str) -> None:
    if isinstance(value, (str, bytes)) or not hasattr(value, "__iter__"):
        raise WrongType(f"{name} must be a list, not {type(value).__name__} ({value!r:.60})")


def _is_bytes(value: object, name: str) -> None:
    if not isinstance(value, (bytes, bytearray, memoryview)):
        hint = ": encode it" if isinstance(value, str) else ""
        raise WrongType(f"{name} must be bytes-like, not {type(value).__name__} ({value!r:.60}){hint}")


def _is_number(value: object, name: str) -> None:
    if isinstance(value, bool) or not hasattr(value, "__index__"):
        raise WrongType(f"{name} must be an int, not {type(value).__name__} ({value!r:.60})")


def _is_mode(value: object, name: str) -> None:
    if not isinstance(value, MessageRequestMode):
        names = " or ".join(f"MessageRequestMode.{one.name}" for one in MessageRequestMode)
        raise WrongType(f"{name} must be {names}, not {value!r:.60}")


_CHECKS: Mapping[str, Callable[[Any, str], object]] = {
    "str": a_text,
    "bool": a_flag,
    "int": _is_number,
    "Perm": _is_number,
    "MessageRequestMode": _is_mode,
    "bytes": _is_bytes,
    "Mapping": _is_mapping,
    "Iterable": _is_list,
}


def without_brackets(annotation: str) -> str:
    """Return an annotation without the arguments of its types: ``Mapping | None``."""
    while annotation != (shorter := _INNERMOST.sub("", annotation)):
        annotation = shorter
    return annotation


def argument_check(operation: Callable[..., Any]) -> Callable[..., None]:
    """Return a function that takes the operation's arguments and raises WrongType where one has a wrong type."""
    signature = inspect.signature(operation)
    checks: dict[str, tuple[Callable[[Any, str], object], bool]] = {}
    for parameter in signature.parameters.values():
        # Brackets may hold " | " of their own.
        kind, _, rest = without_brackets(str(parameter.annotation)).partition(" | ")
        check = _CHECKS.get(kind)
        if check is not None and rest in ("", "None"):
            checks[parameter.name] = (check, rest == "None")

    def check_arguments(*args: Any, **kwargs: Any) -> None:
        for name, value in signature.bind(*args, **kwargs).arguments.items():
            check, may_be_none = checks.get(name, (None, True))
            if check is not None and not (value is None and may_be_none):
                check(value, name)

    return check_arguments
