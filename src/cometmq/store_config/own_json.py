"""Reads the small JSON files that CometMQ writes for itself.

A store may come from elsewhere, so that each of them may hold anything. Whatever is wrong is one kind of error, which
the readers expect: deep nesting, which ends Python's parser, and numbers that no integer holds are among it.

Threads: any. Nothing is shared.
"""

from __future__ import annotations

import json
import math
from typing import Any, NoReturn

__all__ = ["loads_own"]


def loads_own(data: bytes | str) -> Any:
    """Return the content of such a file.

    Raises:
        ValueError: it is not JSON, nested too deep, or has a number that is not finite.
    """
    try:
        return json.loads(data, parse_float=_finite, parse_constant=_refuse)
    except RecursionError:
        raise ValueError("it is nested too deep") from None


def _finite(digits: str) -> float:
    number = float(digits)
    if not math.isfinite(number):
        _refuse(digits)
    return number


def _refuse(text: str) -> NoReturn:
    raise ValueError(f"{text:.40} is not a finite number")
