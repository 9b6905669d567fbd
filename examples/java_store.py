#!/usr/bin/env python3
"""Read a store that a RocketMQ broker wrote: no broker, no Java, nothing converted.

    python examples/java_store.py [STORE [BROKER_PROPERTIES]]

STORE is a broker's ``storePathRootDir``, the folder that holds ``commitlog``; without it, one that RocketMQ 5.3.3 wrote
for this project's tests. The store is only read, and a broker may be running on it. The broker's settings are needed
only where the folder does not determine its own sizes; the error says so.
"""

from __future__ import annotations

import sys
import tarfile
import tempfile
from collections import Counter
from datetime import datetime, timezone
from pathlib import Path

import cometmq

GOLDEN = Path(__file__).resolve().parent.parent / "tests" / "golden" / "apache-5.3.3" / "store-clean.tar.xz"


def show(path: Path, config: Path | None) -> None:
    with cometmq.open(path, mode="r", config=config) as store:
        info = store.info()
        print(f"{path}: {info.log_end - info.log_min:,} bytes of log, {info.queue_count} queues")
        if info.earliest_timestamp_ms is not None:
            print(f"the oldest message was stored at {when(info.earliest_timestamp_ms)}")

        for name in store.topics():
            topic = store.topic(name)
            if topic.messages:
                tags = Counter(message.tags for message in store.read(name))
                common = ", ".join(f"{tag} {count}" for tag, count in tags.most_common(3))
                print(
                    f"  {shorten(name):<24} {topic.messages:>6} messages in {len(topic.queues)} queues; tags: {common}"
                )

        print("consumer groups that lag:")
        for progress in store.progress():
            if progress.lag:
                print(f"  {shorten(progress.group)} in {shorten(progress.topic)}/{progress.queue_id}: {progress.lag}")

        newest = next(store.read(backwards=True), None)
        if newest is not None:
            host, port = newest.born_host
            print(f"the newest message came from {host}:{port}, id {newest.unique_id}: {newest.body_bytes[:60]!r}")
            # The offset message id of RocketMQ's clients works here too, and so does each key.
            assert store.get_by_id(newest.message_id).physical_offset == newest.physical_offset
            for key in newest.keys:
                assert newest.physical_offset in {found.physical_offset for found in store.find(newest.topic, key)}


def when(milliseconds: int) -> str:
    return datetime.fromtimestamp(milliseconds / 1000, timezone.utc).isoformat(timespec="seconds")


def shorten(name: str) -> str:
    return name if len(name) <= 40 else name[:37] + "..."


def main(arguments: list[str]) -> None:
    if arguments:
        show(Path(arguments[0]), Path(arguments[1]) if len(arguments) > 1 else None)
        return
    with tempfile.TemporaryDirectory(prefix="cometmq-java-") as folder:
        with tarfile.open(GOLDEN) as archive:
            # Plain files only, where this Python can say so.
            archive.extraction_filter = getattr(tarfile, "data_filter", lambda member, _: member)
            archive.extractall(folder)
        show(Path(folder, "store"), None)


if __name__ == "__main__":
    main(sys.argv[1:])
