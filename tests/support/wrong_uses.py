"""Calls that are written as texts, for the tables of wrong uses."""

from __future__ import annotations

import asyncio
import inspect
from typing import Any

__all__ = ["call"]


def call(text: str, names: dict[str, Any]) -> Any:
    """Make a call, and wait where it is asyncio's."""
    result = eval(text, names)

    async def waited() -> Any:
        return await result

    return asyncio.run(waited()) if inspect.isawaitable(result) else result
