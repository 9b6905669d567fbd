"""Checks: the extension's small functions against independent values; the import is light and says its version."""

from __future__ import annotations

import importlib.metadata
import random
import subprocess
import sys
import zlib

import pytest

import cometmq
from cometmq import _engine

HEAVY = ["numpy", "pyarrow", "typer", "rich", "asyncio", "pyspark", "json", "uuid", "socket", "decimal", "pathlib"]
HEAVY += ["cometmq.store", "cometmq.store_config", "cometmq.client", "cometmq.remoting", "cometmq.arrow"]


def test_version_is_the_package_s() -> None:
    assert cometmq.__version__ == importlib.metadata.version("cometmq")


@pytest.mark.parametrize("size", [0, 1, 15, 16, 17, 63, 64, 65, 1000, 100_000])
def test_crc31_is_zlib_s_without_the_top_bit(size: int) -> None:
    data = random.Random(size).randbytes(size)
    expected = zlib.crc32(data) & 0x7FFFFFFF
    assert [_engine.crc31(data), _engine.crc31(bytearray(data)), _engine.crc31(memoryview(data))] == [expected] * 3


def reference_java_hash(text: str) -> int:
    value = 0
    units = text.encode("utf-16-be")
    for at in range(0, len(units), 2):
        value = (31 * value + int.from_bytes(units[at : at + 2], "big")) & 0xFFFFFFFF
    return value - (1 << 32) if value >= 1 << 31 else value


@pytest.mark.parametrize("text", ["", "a", "AaAa", "BBBB", "order-18", "\u6570\u91cf", "\U0001f680 rocket", "x" * 1000])
def test_java_hash(text: str) -> None:
    assert _engine.java_hash(text) == reference_java_hash(text)


def test_java_hash_known_collision() -> None:
    assert _engine.java_hash("AaAa") == _engine.java_hash("BBBB") == 2031744


def test_java_hash_refuses_none() -> None:
    with pytest.raises(TypeError):
        _engine.java_hash(None)  # type: ignore[arg-type]


def test_import_is_light() -> None:
    program = f"import sys, cometmq; print([name for name in {HEAVY!r} if name in sys.modules])"
    printed = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True).stdout
    assert printed.strip() == "[]"


def test_public_names_are_loaded_when_they_are_named() -> None:
    program = (
        "import cometmq; assert cometmq.store.Store; assert dir(cometmq) == sorted(cometmq.__all__); cometmq.nothing"
    )
    ended = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert "AttributeError: module 'cometmq' has no attribute 'nothing'" in ended.stderr
    assert [name for name in cometmq.__all__ if getattr(cometmq, name, None) is None] == []
    assert cometmq.store.Store is cometmq.Store


def test_missing_extension_names_a_remedy() -> None:
    program = "import sys; sys.modules['cometmq._engine'] = None; import cometmq"
    ended = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert ended.returncode == 1
    assert "ImportError: cometmq's native engine could not be loaded" in ended.stderr
    assert "make build" in ended.stderr


def test_a_program_without_logging_sees_nothing() -> None:
    program = "import logging, cometmq; logging.getLogger('cometmq.client').warning('a broker is gone')"
    ran = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert (ran.returncode, ran.stderr) == (0, "")
