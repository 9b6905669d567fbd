"""Checks: the C fuzzers' corpora, and mutations of them, through the decoders that the Python package calls.

Nothing but the package's own errors comes out, and nothing crashes: `make test-py-asan-corpora` runs this file with the
extension under both sanitizers. The C programs of tests/fuzz/c see the same bytes without Python between.
"""

from __future__ import annotations

import contextlib
import dataclasses
import importlib
import os
import pickle
import pkgutil
import random
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import pyarrow as pa
import pytest

from cometmq import _engine, errors
from cometmq.client.pop.pop_handles import PopHandle, PopTimes, read_message_offsets, read_starts, set_handles
from cometmq.remoting import bodies
from cometmq.remoting.bodies.registration import RegisterBrokerBody
from cometmq.remoting.command import Command

CORPORA = Path(__file__).parents[1] / "fuzz" / "c" / "corpus"
SEED = int(os.environ.get("CMQ_SEED", "20261127"), 0)
LONG = bool(os.environ.get("CMQ_LONG"))
MUTATIONS = 2_000 if LONG else 10
"""Of each file, by each decoder."""
EXPECTED = (errors.Error, ValueError)


def inputs(*names: str) -> list[bytes]:
    return [file.read_bytes() for name in names for file in sorted((CORPORA / name).iterdir())]


def mutated(data: bytes, chance: random.Random) -> bytes:
    changed = bytearray(data)
    for _ in range(chance.randint(1, 4)):
        if not changed:
            break
        at = chance.randrange(len(changed))
        kind = chance.randrange(5)
        if kind == 0:
            changed[at] ^= 1 << chance.randrange(8)
        elif kind == 1:
            changed[at] = chance.choice((0, 1, 2, 0x7F, 0x80, 0xFF))
        elif kind == 2:
            del changed[at:]
        elif kind == 3:
            changed[at : at + 4] = chance.choice((b"\0\0\0\0", b"\x7f\xff\xff\xff", b"\xff\xff\xff\xff", b"\0\0\0\1"))
        else:
            changed[at:at] = changed[max(0, at - 16) : at]
    return bytes(changed)


def cases(*names: str) -> Iterator[bytes]:
    chance = random.Random(SEED)
    for data in inputs(*names):
        yield data
        for _ in range(MUTATIONS):
            yield mutated(data, chance)


_SAYS = [name for name in dir(_engine.ReceivedMessage) if not name.startswith("_")]


def touch(message: _engine.Message) -> None:
    """Read everything that a message says."""
    for name in _SAYS:
        with contextlib.suppress(*EXPECTED):
            getattr(message, name, None)
    repr(message)
    hash(message)


def decode_pulled(data: bytes) -> None:
    pulled = _engine.decode_pulled(data, broker_name="b", topic="t", queue_id=0, tags=("a",))
    for message in _engine.decode_pulled(data, broker_name="b", topic="t", queue_id=0).messages:
        touch(message)
        with contextlib.suppress(*EXPECTED):
            assert pickle.loads(pickle.dumps(message)) == message
    assert len(pulled.messages) <= pulled.decoded


def decode_messages(data: bytes) -> None:
    for message in _engine.decode_messages(data):
        touch(message)


def decode_frame(data: bytes) -> None:
    command = Command.decode(data)
    assert Command.decode(command.encode()).fields == command.fields


def body_readers() -> list[Callable[[bytes], object]]:
    """Return every ``from_json`` of a body that a server or a client reads."""
    found: dict[type, Callable[[bytes], object]] = {}
    for module in pkgutil.iter_modules(bodies.__path__, f"{bodies.__name__}."):
        for kind in vars(importlib.import_module(module.name)).values():
            if dataclasses.is_dataclass(kind) and hasattr(kind, "from_json") and kind.__module__ == module.name:
                found[kind] = kind.from_json  # type: ignore[attr-defined]
    return list(found.values())


BODY_READERS = body_readers()


def decode_bodies(data: bytes) -> None:
    """Decode a frame's body as a name server, a broker or a client does, regardless of its code."""
    body = data[data.find(b"{", data.find(b"}") + 1) :] if data.startswith(b"{", 8) else data
    for read in BODY_READERS:
        with contextlib.suppress(*EXPECTED):
            read(body)
    for version in (0, 479):
        with contextlib.suppress(*EXPECTED):
            RegisterBrokerBody.from_wire(data, version=version)


def decode_properties(data: bytes) -> None:
    _engine.decode_properties(data)


REQUESTS = (
    _engine.SendRequest(
        code=310, producer_group="g", topic="t", queue_id=0, properties=b"", body=b"", born_timestamp_ms=0
    ),
    _engine.PullRequest(
        group="g",
        topic="t",
        queue_id=0,
        queue_offset=0,
        max_messages=32,
        sys_flag=4,
        commit_offset=0,
        suspend_timeout_ms=0,
        sub_version=0,
        max_bytes=0,
    ),
)


def decode_answer(data: bytes) -> None:
    """Read a frame as the answer to a send and to a pull."""
    for request in REQUESTS:
        with contextlib.suppress(*EXPECTED):
            answer = _engine.read_answer(request, data)
            for name in dir(answer):
                getattr(answer, name)


def decode_columns(data: bytes) -> None:
    """Read a pull's messages as Arrow columns, as readers over the wire do."""
    scan = _engine.RecordColumns(
        columns=list(COLUMNS),
        skip_corrupt=len(data) % 2 == 0,
    )
    scan.feed([(data, 0, 2**62, 0)])
    while (batch := scan.next_batch()) is not None:
        pa.record_batch(Batch(batch)).validate(full=True)


class Batch:
    """The object that Arrow imports."""

    def __init__(self, capsules: tuple[object, object]) -> None:
        self._capsules = capsules

    def __arrow_c_array__(self, requested_schema: object = None) -> tuple[object, object]:
        return self._capsules


COLUMNS = (
    ("topic", "default", "topic", None),
    ("queue_offset", "default", "offset", None),
    ("tags", "default", "tags", None),
    ("keys", "default", "keys", None),
    ("keys", "plain", "keys_text", None),
    ("body", "plain", "body", None),
    ("properties", "default", "properties", None),
    ("property", "default", "unique", "UNIQ_KEY"),
    ("born_timestamp", "default", "born", None),
    ("born_host", "default", "host", None),
    ("constant", "default", "broker", "b"),
)
"""Kind, form, name, and of which property: every way that a value is made."""


def decode_popped(data: bytes) -> None:
    """Read what a pop's answer says, and give its messages their handles."""
    text = data.decode("latin-1")
    for read in (PopHandle.parse, read_starts, read_message_offsets):
        with contextlib.suppress(*EXPECTED):
            read(text)  # type: ignore[operator]
    messages = _engine.decode_pulled(data, broker_name="b", topic="t", queue_id=0).messages
    times = PopTimes(pop_ms=1, invisible_ms=1, revive_queue_id=0)
    for message in set_handles(messages, times, broker_name="b", starts=None, message_offsets=None):
        touch(message)


def decode_journal(data: bytes) -> None:
    """Read a journal of commits that somebody left in a store."""
    with tempfile.TemporaryDirectory() as root:
        (Path(root) / "cometmq").mkdir()
        _engine.OffsetLog(root, (1, 1), False)
        file = Path(root) / "cometmq" / "progress"
        file.write_bytes(file.read_bytes() + data[1:])
        _engine.read_offset_log(root, (1, 1), None)


DECODERS: dict[str, tuple[Callable[[bytes], None], tuple[str, ...]]] = {
    "pulled": (decode_pulled, ("answers", "record")),
    "messages": (decode_messages, ("answers", "record")),
    "frame": (decode_frame, ("frame", "answers")),
    "answer": (decode_answer, ("answers", "frame")),
    "columns": (decode_columns, ("answers", "record", "scan")),
    "popped": (decode_popped, ("answers", "record", "pop")),
    "journal": (decode_journal, ("journal",)),
    "properties": (decode_properties, ("record",)),
    "bodies": (decode_bodies, ("bodies",)),
}


@pytest.mark.timeout(0 if LONG else 120)  # every body reader over two million bodies takes minutes under a sanitizer
@pytest.mark.parametrize("name", DECODERS)
def test_decoders_refuse_or_read(name: str) -> None:
    decode, corpora = DECODERS[name]
    seen = read = 0
    for data in cases(*corpora):
        seen += 1
        try:
            decode(data)
            read += 1
        except EXPECTED:
            continue
        except BaseException:
            print(f"CMQ_SEED={SEED} {data.hex()}")
            raise
    assert seen > MUTATIONS
    assert read > 0, "the decoder rejected every input: it is not called as it should be"
