"""One engine, one mode, one size, in a fresh process: ``python -m rivals.rival_main lmdb durable 128 1000 --quick``.

Prints one figure a line. The appended messages are read back twice, left in place and consumed, and must be the same
in the same order (number and CRC); else the process fails and prints no figure.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Callable
from pathlib import Path

from bench_support import SLOTS, Checksum, Figure, expected_checksum, figure, make_bodies, new_directory
from rivals.engines import ENGINES, Engine

BATCH = 1000


def measure(work: Callable[[], None]) -> float:
    """Return seconds on the wall."""
    begin = time.perf_counter()
    work()
    return time.perf_counter() - begin


class Job:
    """The job for one engine, with what it found."""

    def __init__(self, engine: type[Engine], *, durable: bool, body_bytes: int, path: Path) -> None:
        self._engine = engine
        self._durable = durable
        self._bodies = make_bodies(body_bytes)
        self._path = path
        self._body_bytes = body_bytes
        self.figures: list[Figure] = []

    def note(self, what: str, count: int, seconds: float) -> None:
        mode = "durable" if self._durable else "relaxed"
        self.figures.append(
            figure(
                f"rivals/{mode}/{self._body_bytes}B/{what}/{self._engine.name}",
                "msg/s",
                [count / seconds],
                flush=self._engine.durable_setting if self._durable else self._engine.relaxed_setting,
                keys=0,
                messages=count,
            )
        )

    def _open(self, name: str) -> Engine:
        path = self._path / name
        path.mkdir()
        return self._engine(path, durable=self._durable)

    def singles(self, count: int) -> None:
        """Append one at a time, then read and consume. The first, which makes files and tables, is not timed."""
        bodies = [self._bodies[i % SLOTS] for i in range(1, count)]

        def work() -> None:
            append = engine.append
            for body in bodies:
                append(body)

        engine = self._open("singles")
        engine.append(self._bodies[0])
        self.note("append, one a call", count - 1, measure(work))
        self._read_back(engine, count, "one a call")
        engine.close()

    def batches(self, count: int) -> None:
        """Append in batches, the first not timed; nothing where the engine has none."""
        lots = [self._bodies[at : at + BATCH] for at in range(0, SLOTS, BATCH)]

        def work() -> None:
            for lot in range(1, count // BATCH):
                engine.append_batch(lots[lot % len(lots)])

        engine = self._open("batches")
        try:
            engine.append_batch(lots[0])
            seconds = measure(work)
        except NotImplementedError:
            engine.close()
            return
        self.note(f"append, {BATCH:,} a call", count - BATCH, seconds)
        self._read_back(engine, count, f"{BATCH:,} a call")
        engine.close()

    def _read_back(self, engine: Engine, count: int, after: str) -> None:
        expected = expected_checksum(self._bodies, count)
        for what, read in (("read all", engine.read_all), ("consume all", engine.consume_all)):
            got: list[bytes] = []
            try:
                seconds = measure(lambda read=read, got=got: got.extend(read()))  # type: ignore[misc]
            except NotImplementedError:
                continue
            found = Checksum().add_all(got)
            if found != expected:
                raise SystemExit(f"{engine.name}: {what} gave {found}, expected {expected}")
            # The larger store of the two tells more; the smaller one is verified only.
            if after != "one a call" or type(engine).append_batch is Engine.append_batch:
                self.note(what, count, seconds)


def main() -> None:
    """Run one job."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("engine", choices=ENGINES)
    parser.add_argument("mode", choices=["durable", "relaxed"])
    parser.add_argument("body_bytes", type=int)
    parser.add_argument("--quick", action="store_true")
    arguments = parser.parse_args()
    durable = arguments.mode == "durable"
    if durable and not ENGINES[arguments.engine].durable_setting:
        parser.error(f"{arguments.engine} has no durable mode")
    singles = 50 if arguments.quick else 1000 if durable else 50_000
    batches = 2 * BATCH if arguments.quick else 100 * BATCH
    with new_directory() as path:
        job = Job(ENGINES[arguments.engine], durable=durable, body_bytes=arguments.body_bytes, path=path)
        job.singles(singles)
        job.batches(batches)
    for one in job.figures:
        print(json.dumps(one), flush=True)


if __name__ == "__main__":
    main()
