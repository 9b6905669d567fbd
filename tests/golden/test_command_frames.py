"""Checks: every frame that real servers and clients exchanged is read, and written again with the same bytes.

The frames that lie in the tree always; all of a run where the captures are at hand.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import chain

import pytest

from cometmq.remoting.command import Command, HeaderFormat
from support.frames import Frame, all_frames, broker_frames, namesrv_frames
from support.golden import golden_names

EMPTY_MAP = b'"extFields":{},'


def kept(name: str) -> Iterator[Frame]:
    return chain(namesrv_frames(name), broker_frames(name))


def bytes_again(frame: Frame) -> tuple[bytes, bytes]:
    """Return the frame's header and the one we write; where Java wrote an empty map or a null, without it."""
    written = frame.command.encode()
    header = frame.data[8 : 8 + int.from_bytes(frame.data[5:8], "big")]
    return header.replace(EMPTY_MAP, b""), written[8 : 8 + int.from_bytes(written[5:8], "big")]


def check(frames: Iterator[Frame]) -> int:
    count = 0
    for frame in frames:
        if frame.server == "broker-ha":  # the replication's own protocol
            continue
        count += 1
        command = frame.command
        captured, written = bytes_again(frame)
        if command.format == HeaderFormat.ROCKETMQ and len(captured) != len(written):
            # A field without a value is null in this format, and Python's fields have no null.
            assert Command.decode(command.encode()) == command
            continue
        assert written == captured, frame.number
        assert command.encode()[-len(command.body) or len(frame.data) :] == command.body
    return count


@pytest.mark.parametrize("name", golden_names())
def test_the_frames_in_the_tree(name: str) -> None:
    assert check(kept(name)) > 0


@pytest.mark.parametrize("name", golden_names())
def test_all_frames_of_a_run(name: str) -> None:
    frames = all_frames(name)
    if frames is None:
        pytest.skip("the whole captures are not in the tree")
    assert check(frames) > 1000
