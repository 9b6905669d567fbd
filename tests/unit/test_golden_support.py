"""Checks: golden stores come out whole, as copies of their own, with holes and times kept; records are all there."""

from __future__ import annotations

import hashlib
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from support.golden import broker_properties, copy_sparse, expected_records, golden_names


def tree(root: Path) -> dict[str, tuple[str, int]]:
    """Map each file's path to its content's hash and time."""
    return {
        str(path.relative_to(root)): (hashlib.sha256(path.read_bytes()).hexdigest(), path.stat().st_mtime_ns)
        for path in sorted(root.rglob("*"))
        if path.is_file()
    }


def test_names() -> None:
    assert golden_names("clean") == [
        "apache-4.9.7",
        "apache-5.3.3",
        "apache-5.3.3-binary-headers",
        "apache-5.3.3-expired",
        "apache-5.3.3-groups",
        "apache-5.3.3-rare",
    ]
    assert golden_names("crashed") == [
        "apache-4.9.7",
        "apache-5.3.3",
        "apache-5.3.3-binary-headers",
        "apache-5.3.3-rare",
    ]


def test_each_copy_is_its_own(golden_store: Callable[..., Path]) -> None:
    first, second = golden_store("apache-5.3.3", "crashed"), golden_store("apache-5.3.3", "crashed")
    before = tree(second)
    assert tree(first) == before
    assert (first / "abort").exists()
    (first / "abort").unlink()
    (first / "commitlog" / ("0" * 20)).write_bytes(b"")
    assert tree(second) == before
    assert tree(golden_store("apache-5.3.3", "crashed")) == before


def test_copies_are_sparse(golden_store: Callable[..., Path]) -> None:
    store = golden_store("apache-5.3.3", "crashed")
    files = [path.stat() for path in store.rglob("*") if path.is_file()]
    assert sum(stat.st_size for stat in files) > 40_000_000
    assert sum(stat.st_blocks * 512 for stat in files) < 20_000_000


def test_holes_at_both_ends(tmp_path: Path) -> None:
    source = tmp_path / "source"
    source.mkdir()
    (source / "empty").touch()
    (source / "all-hole").touch()
    with (source / "all-hole").open("r+b") as file:
        file.truncate(1 << 20)
    with (source / "middle").open("wb") as file:
        file.seek(1 << 20)
        file.write(b"data")
        file.truncate(3 << 20)
    time_before = (source / "middle").stat().st_mtime_ns
    copy_sparse(source, tmp_path / "copy")
    assert tree(tmp_path / "copy") == tree(source)
    assert (tmp_path / "copy" / "middle").stat().st_mtime_ns == time_before < time.time_ns()


@pytest.mark.parametrize("name", golden_names())
def test_the_stored_bodies_are_those_that_upstream_read(name: str, golden_store: Callable[..., Path]) -> None:
    """The two halves of a golden run belong together, seen with nothing but offsets: no code of ours in between."""
    store = golden_store(name, "clean")
    segments = {int(path.name): path.read_bytes() for path in (store / "commitlog").iterdir()}
    compared = 0
    for record in expected_records(name):
        if record["sysFlag"] & 0x30:  # an IPv6 host makes the fixed part longer
            continue
        at = record["physicalOffset"]
        base = max(start for start in segments if start <= at)
        stored = segments[base][at - base : at - base + record["size"]]
        assert stored[4:8].hex() == record["magic"]
        body = stored[88:][: int.from_bytes(stored[84:88], "big")]
        assert hashlib.sha256(body).hexdigest() == record["storedBodySha256"]
        compared += 1
    assert compared > 0
    assert broker_properties(name).read_text().count("=") > 3
