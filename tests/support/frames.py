"""Captured remoting frames of real servers and clients: those of name servers, and where they are, all of a run."""

from __future__ import annotations

import base64
import json
import lzma
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from cometmq.remoting.command import Command
from support.golden import GOLDEN

__all__ = ["Frame", "all_frames", "broker_frames", "exchanges", "namesrv_frames", "pop_frames"]

_SHARED = Path(__file__).resolve().parents[3] / "shared" / "golden"


@dataclass(frozen=True, slots=True)
class Frame:
    """One frame.

    Attributes:
        number: its place in the run's capture.
        time_us: when it arrived, microseconds since the capture began.
        connection: number of its connection in the run.
        server: ``namesrv`` or ``broker``.
        to_server: True from client to server.
        data: the bytes, length word included.
    """

    number: int
    time_us: int
    connection: int
    server: str
    to_server: bool
    data: bytes

    @property
    def command(self) -> Command:
        """The frame, decoded."""
        return Command.decode(self.data)


def _frames(path: Path) -> Iterator[Frame]:
    with lzma.open(path, "rt", encoding="ascii") as lines:
        for line in lines:
            row = json.loads(line)
            data = base64.b64decode(row["frame"])
            to_server = row["direction"] == "to-server"
            yield Frame(row["n"], row["t_us"], row["connection"], row["server"], to_server, data)


def namesrv_frames(name: str) -> Iterator[Frame]:
    """Iterate over what a run's name server got and gave, in order of arrival."""
    return _frames(GOLDEN / name / "frames-namesrv.jsonl.xz")


def broker_frames(name: str) -> Iterator[Frame]:
    """Iterate over what a run's broker and its clients asked of each other's control planes, and the answers."""
    return _frames(GOLDEN / name / "frames-broker.jsonl.xz")


def pop_frames(name: str) -> Iterator[Frame]:
    """Iterate over what a run's clients asked about popping (200050 to 200055, 400 to 402), and the answers."""
    return _frames(GOLDEN / name / "frames-pop.jsonl.xz")


def all_frames(name: str) -> Iterator[Frame] | None:
    """Iterate over all of a run's frames; None where the capture is not at hand, which is too big for the tree."""
    path = _SHARED / name / "frames.jsonl.xz"
    return _frames(path) if path.exists() else None


def exchanges(frames: Iterator[Frame]) -> Iterator[tuple[Frame, Command, Command | None]]:
    """Pair requests with their answers, which are None for one-way requests; in order of the answers."""
    waiting: dict[tuple[int, bool, int], tuple[Frame, Command]] = {}
    for frame in frames:
        if not frame.server.startswith(("namesrv", "broker")) or frame.server == "broker-ha":
            continue
        command = frame.command
        if not command.is_response:
            if command.is_oneway:
                yield frame, command, None
            else:
                waiting[frame.connection, frame.to_server, command.opaque] = (frame, command)
            continue
        asked = waiting.pop((frame.connection, not frame.to_server, command.opaque), None)
        if asked is not None:
            yield (*asked, command)
