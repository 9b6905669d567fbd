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
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from cometmq import _engine, errors
from cometmq.remoting import bodies
from cometmq.remoting.bodies.registration import RegisterBrokerBody
from cometmq.remoting.command import Command

CORPORA = Path(__file__).parents[1] / "fuzz" / "c" / "corpus"
SEED = int(os.environ.get("CMQ_SEED", "20261127"), 0)
MUTATIONS = 2_000 if os.environ.get("CMQ_LONG") else 10
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
    """What a name server, a broker or a client makes of a frame's body, whatever its code says."""
    body = data[data.find(b"{", data.find(b"}") + 1) :] if data.startswith(b"{", 8) else data
    for read in BODY_READERS:
        with contextlib.suppress(*EXPECTED):
            read(body)
    for version in (0, 479):
        with contextlib.suppress(*EXPECTED):
            RegisterBrokerBody.from_wire(data, version=version)


def decode_properties(data: bytes) -> None:
    _engine.decode_properties(data)


DECODERS: dict[str, tuple[Callable[[bytes], None], tuple[str, ...]]] = {
    "pulled": (decode_pulled, ("answers", "record")),
    "messages": (decode_messages, ("answers", "record")),
    "frame": (decode_frame, ("frame", "answers")),
    "properties": (decode_properties, ("record",)),
    "bodies": (decode_bodies, ("bodies",)),
}


@pytest.mark.parametrize("name", DECODERS)
def test_decoders_refuse_or_read(name: str) -> None:
    decode, corpora = DECODERS[name]
    seen = 0
    for data in cases(*corpora):
        seen += 1
        try:
            decode(data)
        except EXPECTED:
            continue
        except BaseException:
            print(f"CMQ_SEED={SEED} {data.hex()}")
            raise
    assert seen > MUTATIONS
