"""Rejects ``with`` in place of ``async with``: Python's own error suggests neither."""

from __future__ import annotations

from typing import NoReturn

from cometmq.errors import WrongType

__all__ = ["AsyncOnly"]


class AsyncOnly:
    """A base of asyncio's context managers."""

    def __enter__(self) -> NoReturn:
        """Reject ``with``.

        Raises:
            WrongType: always.
        """
        raise WrongType(f"this {type(self).__name__} is for asyncio: use async with, not with")

    def __exit__(self, *error: object) -> None:
        """Do nothing: nothing was entered."""
