"""Refuses ``with`` where ``async with`` is meant: Python's own error names neither."""

from __future__ import annotations

from typing import NoReturn

from cometmq.errors import WrongType

__all__ = ["AsyncOnly"]


class AsyncOnly:
    """Something of asyncio that ``async with`` opens, or closes."""

    def __enter__(self) -> NoReturn:
        """Refuse.

        Raises:
            WrongType: always.
        """
        raise WrongType(f"this {type(self).__name__} is for asyncio: use async with, not with")

    def __exit__(self, *error: object) -> None:
        """Do nothing: nothing was entered."""
