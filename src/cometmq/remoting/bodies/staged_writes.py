"""The commit of a staged write: code 31003, one of CometMQ's own. Apache RocketMQ has nothing like it.

Source: decision 0017.
"""

from __future__ import annotations

from dataclasses import dataclass

from cometmq.remoting.bodies.body import Body, body_codec, int32, int64, list_of, optional_text, text

__all__ = ["CommitStagedJobRequestBody", "StagedFileEntry"]


@dataclass(frozen=True, slots=True, kw_only=True)
class StagedFileEntry(Body):
    """A file that a task brought, whole.

    Attributes:
        name: its name in the job.
        rows: number of messages.
        size_bytes: its length.
        crc32: zlib's checksum of all of it.
    """

    name: str = text("name")
    rows: int = int64("rows")
    size_bytes: int = int64("size")
    crc32: int = int64("crc")


@dataclass(frozen=True, slots=True, kw_only=True)
class CommitStagedJobRequestBody(Body):
    """A job's staged rows, to be appended once.

    Attributes:
        job: whose files.
        files: the files, in the order in which they are appended.
        topic: topic of rows that name none, or None.
        topic_queues: queues of a topic that is not there; 0: as many as the broker gives it.
        done_key, done_number: appended only where the number is above the one appended last under the key.
        born_timestamp_ms: time of making.
    """

    job: str = text("job")
    files: tuple[StagedFileEntry, ...] = list_of("files", body_codec(StagedFileEntry))
    topic: str | None = optional_text("topic")
    topic_queues: int = int32("topicQueues")
    done_key: str = text("doneKey")
    done_number: int = int64("doneNumber")
    born_timestamp_ms: int = int64("born")
