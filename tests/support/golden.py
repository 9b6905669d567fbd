"""Golden stores: unpacked once a session, handed out as copies that a test may write to.

A copy keeps the holes of sparse files (the timer wheel is 38 MB of zeros) and the files' times (retention reads them).
"""

from __future__ import annotations

import errno
import functools
import json
import lzma
import os
import shutil
import tarfile
from pathlib import Path
from typing import Any, Literal, TypeAlias

__all__ = [
    "GOLDEN",
    "GoldenStores",
    "StoreKind",
    "broker_properties",
    "copy_sparse",
    "expected_records",
    "golden_names",
    "unpack",
]

GOLDEN = Path(__file__).resolve().parent.parent / "golden"

StoreKind: TypeAlias = Literal["clean", "crashed"]


def golden_names(kind: StoreKind = "clean") -> list[str]:
    """Return the names of all golden runs that have a store of this kind, for ``parametrize``."""
    names = sorted(archive.parent.name for archive in GOLDEN.glob(f"*/store-{kind}.tar.xz"))
    if not names:
        raise FileNotFoundError(f"no golden store of kind {kind} under {GOLDEN}")
    return names


@functools.cache
def expected_records(name: str) -> tuple[dict[str, Any], ...]:
    """Return every record of the run's clean store, in log order, as upstream's decoder reads it; read them only.

    But for ``__CRC32#``, which upstream shows among the properties: it is the store's own, and hidden here.
    """
    with lzma.open(GOLDEN / name / "expected.jsonl.xz", "rt", encoding="utf-8") as lines:
        records = tuple(json.loads(line) for line in lines)
    for record in records:
        record["properties"].pop("__CRC32#", None)
    return records


def broker_properties(name: str) -> Path:
    """Return the path of the settings that the run's broker had; read it only."""
    return GOLDEN / name / "broker.properties"


class GoldenStores:
    """Unpacks each archive once, under ``cache``, and copies from there."""

    def __init__(self, cache: Path) -> None:
        self._cache = cache

    def copy(self, name: str, kind: StoreKind, target: Path) -> Path:
        """Copy a store to the new directory ``target`` and return it."""
        copy_sparse(self._unpacked(name, kind), target)
        return target

    def _unpacked(self, name: str, kind: StoreKind) -> Path:
        target = self._cache / name / kind
        if not target.exists():
            # Under another name first: a session that is stopped half-way leaves nothing that looks whole.
            partial = self._cache / name / f"{kind}.partial"
            shutil.rmtree(partial, ignore_errors=True)
            partial.mkdir(parents=True)
            unpack(GOLDEN / name / f"store-{kind}.tar.xz", partial)
            partial.rename(target)
        return target / "store"


def unpack(archive_path: Path, target: Path) -> None:
    """Extract an archive's plain files and folders into the directory ``target``; its root is ``store``."""
    with tarfile.open(archive_path, "r:xz") as archive:
        _extract(archive, target)


def _extract(archive: tarfile.TarFile, target: Path) -> None:
    """Extract plain files and folders only, inside ``target``. Some Pythons from 3.10 on lack tarfile's own filter."""
    for member in archive.getmembers():
        parts = Path(member.name).parts
        if not (member.isfile() or member.isdir()) or ".." in parts or Path(member.name).is_absolute():
            raise ValueError(f"{archive.name!r} has the member {member.name}, which is no file or folder inside it")
    if hasattr(tarfile, "data_filter"):
        archive.extractall(target, filter="data")
    else:
        archive.extractall(target)


def copy_sparse(source: Path, target: Path) -> None:
    """Copy a directory tree with its holes and times."""
    target.mkdir(parents=True)
    for entry in sorted(source.iterdir()):
        if entry.is_dir():
            copy_sparse(entry, target / entry.name)
        else:
            _copy_file(entry, target / entry.name)
    shutil.copystat(source, target)


def _copy_file(source: Path, target: Path) -> None:
    with source.open("rb") as reader, target.open("xb") as writer:
        end = os.fstat(reader.fileno()).st_size
        os.ftruncate(writer.fileno(), end)
        at = 0
        while at < end:
            try:
                start = os.lseek(reader.fileno(), at, os.SEEK_DATA)
            except OSError as error:
                if error.errno == errno.ENXIO:  # only a hole is left
                    break
                raise
            at = os.lseek(reader.fileno(), start, os.SEEK_HOLE)
            while start < at:
                piece = os.pread(reader.fileno(), min(at - start, 1 << 20), start)
                start += os.pwrite(writer.fileno(), piece, start)
    shutil.copystat(source, target)
