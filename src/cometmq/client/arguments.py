"""Checks of what callers give to methods, so that a wrong value is refused here and by its name.

Threads: any; nothing is kept.
"""

from __future__ import annotations

from collections.abc import Iterable
from inspect import iscoroutinefunction
from typing import TypeVar

from cometmq.errors import InvalidArgument

__all__ = [
    "close_timeout",
    "flag",
    "callable_hook",
    "check_executor",
    "hook_instance",
    "milliseconds",
    "one",
    "plain_hook",
    "several",
    "whole_number",
]

_T = TypeVar("_T")


def one(call: str, value: object, kind: type[_T], takes: str) -> _T:
    """Return what a method was given, where it is of its kind.

    Args:
        call: the method.
        value: its value.
        kind: the required type.
        takes: the same in words.

    Raises:
        InvalidArgument: it is something else.
    """
    if not isinstance(value, kind):
        raise InvalidArgument(f"{call}() was given {value!r:.100}: it takes {takes}")
    return value


def several(call: str, values: object, kind: type[_T], takes: str) -> list[_T]:
    """Return all that a method was given several of; arguments and errors as :func:`one`."""
    if not isinstance(values, Iterable):
        raise InvalidArgument(f"{call}() was given {values!r:.100}: it takes {takes}")
    return [one(call, value, kind, takes) for value in values]


def whole_number(name: str, value: object, *, minimum: int | None = 0, maximum: int | None = None) -> int:
    """Return a whole number that was given.

    Args:
        name: the argument.
        value: its value.
        minimum, maximum: its range; None for no end.

    Raises:
        InvalidArgument: it is not a whole number, or outside its range.
    """
    if not isinstance(value, int) or isinstance(value, bool):
        raise InvalidArgument(f"{name} is {value!r}: it must be a whole number")
    if (minimum is not None and value < minimum) or (maximum is not None and value > maximum):
        if maximum is None:
            raise InvalidArgument(f"{name} is {value}: it must not be below {minimum}")
        raise InvalidArgument(f"{name} is {value}: it must be from {minimum} to {maximum:,}")
    return value


def hook_instance(name: str, value: object) -> None:
    """Check that a hook is not a class: calling that would make an object of it and do nothing else.

    Args:
        name: the argument.
        value: its value.

    Raises:
        InvalidArgument: it is a class.
    """
    if isinstance(value, type):
        made = value.__name__
        raise InvalidArgument(f"{name} is the class {made}: give an instance of it, {made}(...), or a function")


def callable_hook(name: str, value: object) -> None:
    """Check a hook that is called, plain or ``async def``; arguments as :func:`hook_instance`.

    Raises:
        InvalidArgument: it is a class, or cannot be called.
    """
    hook_instance(name, value)
    if not callable(value):
        raise InvalidArgument(f"{name} is {value!r:.100}, which cannot be called: give a function")


def plain_hook(name: str, value: object) -> None:
    """Check a hook that is called and not awaited; arguments as :func:`hook_instance`.

    Raises:
        InvalidArgument: it is a class, cannot be called, or is an ``async def``.
    """
    callable_hook(name, value)
    if iscoroutinefunction(value) or iscoroutinefunction(type(value).__call__):
        raise InvalidArgument(f"{name} is an `async def`, which nobody would await: give a plain function")


def check_executor(value: object) -> None:
    """Check an executor of the user's own, which may be None.

    Raises:
        InvalidArgument: it is a class, or has no ``submit``.
    """
    if value is None:
        return
    hook_instance("executor", value)
    if not callable(getattr(value, "submit", None)):
        raise InvalidArgument(f"executor is {value!r:.100}: give a concurrent.futures.Executor")


def flag(name: str, value: object) -> None:
    """Check a flag.

    Raises:
        InvalidArgument: it is not True or False.
    """
    if not isinstance(value, bool):
        raise InvalidArgument(f"{name} is {value!r}: it must be True or False")


def close_timeout(value: object) -> None:
    """Check the ``timeout_ms`` of a close, which may be None.

    Raises:
        InvalidArgument: it is not a whole number, or negative.
    """
    if value is not None:
        whole_number("timeout_ms", value)


def milliseconds(name: str, value: object, *, minimum_ms: int = 0, maximum_ms: int, of_limit: str = "") -> int:
    """Return a time that was given in seconds, in whole milliseconds.

    Args:
        name: the argument.
        value: its value: seconds, also parts of one.
        minimum_ms, maximum_ms: its range, milliseconds.
        of_limit: the text that follows the range in the error.

    Raises:
        InvalidArgument: it is not a number, or outside its range.
    """
    if not isinstance(value, (int, float)) or isinstance(value, bool):
        raise InvalidArgument(f"{name} is {value!r}: it is a number of seconds")
    # Compared before it is made a whole number, which infinity cannot become; NaN is in no range.
    if not minimum_ms <= value * 1000 <= maximum_ms:
        raise InvalidArgument(
            f"{name} is {value}: it must be from {minimum_ms / 1000:g} to {maximum_ms / 1000:.0f} seconds{of_limit}"
        )
    return int(value * 1000)
