"""Runs administration calls without sockets: against what real servers answered, or what a test says."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

from cometmq.admin.operation import Answer, Call, Operation
from cometmq.remoting.codes import RequestCode
from cometmq.remoting.command import Command
from support.frames import broker_frames, exchanges, namesrv_frames

__all__ = ["NAMESRV", "Replay", "run_operation"]

T = TypeVar("T")

NAMESRV = "127.0.0.1:9882"
"""The name server of the runs, in calls that are answered from them."""

_NOT_OURS = frozenset({"AccessKey", "Signature", "ReqT", "bname"})
"""Members of upstream's tools that say who calls, not what for."""


def run_operation(operation: Operation[T], answer: Callable[[Call], Answer]) -> T:
    """Run an operation; ``answer`` says what each call gets."""
    try:
        calls = next(operation)
        while True:
            calls = operation.send([answer(call) for call in calls])
    except StopIteration as end:
        result: T = end.value
        return result


class Replay:
    """Answers calls as a captured run's servers answered ``mqadmin``, each in the order of the capture.

    A call is taken for the first captured request of its code, not yet asked again, whose members it has, all of them
    with the same values; or for the last that was. ``calls`` has what was asked.
    """

    def __init__(self, run: str) -> None:
        self._exchanges = [
            (request, answer)
            for frames in (namesrv_frames(run), broker_frames(run))
            for frame, request, answer in exchanges(frames)
            if answer is not None and frame.to_server
        ]
        self._used: set[int] = set()
        self.calls: list[Call] = []

    def __call__(self, call: Call) -> Command:
        """Return the captured answer."""
        self.calls.append(call)
        ours = call.request
        found = [
            at
            for at, (request, _) in enumerate(self._exchanges)
            if request.code == ours.code
            and all(ours.fields.get(name) == value for name, value in request.fields.items() if name not in _NOT_OURS)
        ]
        if not found:
            asked = [request.fields for request, _ in self._exchanges if request.code == ours.code]
            raise AssertionError(f"{RequestCode(ours.code).name} {dict(ours.fields)} was not captured, but {asked}")
        at = next((at for at in found if at not in self._used), found[-1])
        self._used.add(at)
        return self._exchanges[at][1]

    @property
    def codes(self) -> list[int]:
        """The codes of the requests."""
        return [call.request.code for call in self.calls]
