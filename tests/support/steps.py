"""Work in steps (:mod:`cometmq.namesrv.turns`), run to its end."""

from __future__ import annotations

from typing import TypeVar

from cometmq.namesrv.turns import Steps

T = TypeVar("T")


def finished(steps: Steps[T]) -> T:
    """Run work without a pause; return its result."""

    def run() -> Steps[None]:
        results.append((yield from steps))

    results: list[T] = []
    for _ in run():
        pass
    return results[0]
