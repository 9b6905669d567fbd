"""CometMQ's side of the interop tests: opened with the peer's file lengths, compared in the peer's terms."""

from __future__ import annotations

import hashlib
import json
import os
import subprocess
import sys
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import cometmq
from interop.patterns import SYSTEM_PROPERTIES, Content, MessageSpec, bulk, content_of_spec, mixed
from interop.servers import StoreSizes

TESTS = Path(__file__).resolve().parents[1]

BLOCK = 100
"""Messages of one ``append_many``: so many may be stored and not acknowledged when the writer is killed."""


COMPRESSED = 1


def settings() -> dict[str, object]:
    """Return the settings of a new store that the peer's broker can open."""
    sizes = StoreSizes()
    return {
        "mappedFileSizeCommitLog": sizes.commit_log_bytes,
        "mappedFileSizeConsumeQueue": sizes.consume_queue_units * 20,
        "maxHashSlotNum": sizes.index_slots,
        "maxIndexNum": sizes.index_entries,
    }


def content_of_message(message: cometmq.Message) -> Content:
    properties = message.properties
    return Content(
        message.topic,
        message.queue_id,
        message.queue_offset,
        message.tags,
        message.keys,
        tuple(sorted((k, v) for k, v in properties.items() if k not in SYSTEM_PROPERTIES)),
        hashlib.sha256(message.body).hexdigest(),
    )


def contents(messages: Iterable[cometmq.Message]) -> list[Content]:
    """In an order that both sides can have."""
    return sorted(map(content_of_message, messages), key=repr)


def _host(host: tuple[str, int]) -> str:
    return f"/{host[0]}:{host[1]}"


def row_of_message(message: cometmq.Message) -> dict[str, Any]:
    """Every field that the Java client reports of the same record, under the same names.

    The client clears the flag of a body that it has decompressed.
    """
    return {
        "topic": message.topic,
        "queue": message.queue_id,
        "queue_offset": message.queue_offset,
        "physical_offset": message.physical_offset,
        "size": message.record_bytes,
        "flag": message.flag,
        "sys_flag": message.sys_flag & ~COMPRESSED,
        "body_crc": message.body_crc,
        "born_timestamp_ms": message.born_timestamp_ms,
        "store_timestamp_ms": message.store_timestamp_ms,
        "born_host": _host(message.born_host),
        "store_host": _host(message.store_host),
        "reconsume_times": message.reconsume_times,
        "message_id": message.unique_id or message.message_id,
        "offset_message_id": message.message_id,
        "tags": message.tags,
        "keys": message.properties.get("KEYS"),
        "properties": message.properties,
        "body_sha256": hashlib.sha256(message.body).hexdigest(),
        "body_bytes": len(message.body),
    }


@dataclass(frozen=True, slots=True)
class Workload:
    """The messages of a writer; the same for the same numbers, in any process."""

    topic: str
    queues: int
    singles: int
    """Messages of every kind, appended one by one."""
    many: int
    """Small messages behind them, appended in blocks."""
    seed: int = 1

    def specs(self) -> list[MessageSpec]:
        return [
            *mixed(self.topic, self.singles, queues=self.queues, seed=self.seed),
            *bulk(self.topic, self.many, queues=self.queues, seed=self.seed),
        ]

    def append_to(self, store: cometmq.Store) -> Iterator[list[tuple[int, int]]]:
        """Append everything; yield, per call, the queue and offset of each message."""
        specs = self.specs()
        for spec in specs[: self.singles]:
            result = store.append(
                spec.topic, spec.body, tags=spec.tags, keys=spec.keys, properties=spec.properties, queue=spec.queue
            )
            yield [(result.queue_id, result.queue_offset)]
        for start in range(self.singles, len(specs), BLOCK):
            block = specs[start : start + BLOCK]
            appended = store.append_many(
                self.topic,
                [spec.body for spec in block],
                tags=[spec.tags for spec in block],
                keys=[spec.keys for spec in block],
                properties=[spec.properties for spec in block],
                queue=[spec.queue or 0 for spec in block],
            )
            yield list(zip(appended.queue_ids.tolist(), appended.queue_offsets.tolist(), strict=True))

    def contents(self, places: Iterable[Sequence[int]]) -> list[Content]:
        """Return the content of the store when the messages, in order, went to these queues and offsets."""
        return [content_of_spec(spec, *place) for spec, place in zip(self.specs(), places, strict=False)]


class Writer:
    """A process of ours that opens a store, appends a workload and tells after each call what was acknowledged.

    It closes the store behind the last message and ends, unless it is killed before. See ``writer_main.py``.
    """

    def __init__(self, store: Path, workload: Workload, *, flush: str) -> None:
        self._workload = workload
        self._places: list[tuple[int, int]] = []
        self._process = subprocess.Popen(
            [sys.executable, "-m", "interop.writer_main", str(store), flush, json.dumps(asdict(workload))],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            env={**os.environ, "PYTHONPATH": os.pathsep.join([str(TESTS), os.environ.get("PYTHONPATH", "")])},
            text=True,
        )

    def __enter__(self) -> Writer:
        return self

    def __exit__(self, *_: object) -> None:
        self._process.kill()
        self._process.wait()
        assert self._process.stdout is not None
        self._process.stdout.close()

    @property
    def acknowledged(self) -> list[Content]:
        """Return the messages that the writer has reported as stored."""
        return self._workload.contents(self._places)

    def wait_for(self, count: int) -> None:
        """Read until so many messages are acknowledged."""
        while len(self._places) < count:
            assert self._read_line(), f"the writer ended after {len(self._places)} messages"

    def finish(self) -> None:
        """Let it append everything and close the store."""
        while self._read_line():
            pass
        assert self._process.wait() == 0

    def kill(self) -> None:
        """kill -9; its reports up to then are read to the end."""
        self._process.kill()
        self._process.wait()
        while self._read_line():
            pass

    def _read_line(self) -> bool:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        # A line that a kill cut off does not count as reported.
        if not line.endswith("\n"):
            return False
        self._places += [tuple(place) for place in json.loads(line)]
        return True
