"""The driver's side of a write for Spark's JVM: the Java source's tasks stage files, and this commits them.

``python -m cometmq.spark.job_service`` answers requests, each a JSON object in a line, until its input ends:

=========== =============================================== ============================================
``call``    further                                         answer
=========== =============================================== ============================================
``ping``                                                    ``{}``
``check``   ``options``, ``streaming``, ``truncates``,      ``path``, ``kinds`` (``cmq_spark_rows.h``),
            ``columns`` (name and Spark's name of its type) ``hasTopic``
``begin``   ``options``, ``streaming``                      ``job``, ``bodyBytesMax``
``commit``  … ``job``, ``files``, ``query``, ``number``     ``{}``
``abandon`` … ``job``                                       ``{}``
=========== =============================================== ============================================

An answer with ``error`` is a failure. Everything that makes a write exactly-once is :mod:`cometmq.spark.journal`'s.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from typing import Any, TextIO

from cometmq.errors import Error
from cometmq.spark import journal
from cometmq.spark.options import OptionMap, WriteOptions
from cometmq.spark.running import refuse_complete, refuse_overwrite
from cometmq.spark.staging import WriteSchema
from cometmq.store.handoff_files import StagedFile

__all__ = ["answer", "serve"]

_KINDS: Mapping[tuple[str, str], int] = {
    ("body", "string"): 0,
    ("body", "binary"): 0,
    ("topic", "string"): 1,
    ("tags", "string"): 2,
    ("keys", "string"): 3,
    ("keys", "array<string>"): 4,
    ("properties", "map<string,string>"): 5,
    ("queue", "tinyint"): 6,
    ("queue", "smallint"): 7,
    ("queue", "int"): 8,
    ("queue", "bigint"): 9,
    ("shardKey", "string"): 10,
}
"""``cmq_spark_kind`` of a column and its type."""


def _check(request: Mapping[str, Any], options: WriteOptions) -> dict[str, Any]:
    (refuse_complete if request["streaming"] else refuse_overwrite)(request["truncates"])
    columns = [(str(name), str(kind)) for name, kind in request["columns"]]
    ours = {given: name for name, given in WriteSchema.of_types(columns, options.topic).names.items()}
    kinds = [_KINDS[ours[name], kind] for name, kind in columns]
    return {"path": options.path, "kinds": kinds, "hasTopic": options.topic is not None}


def _checkpoint(request: Mapping[str, Any]) -> str | None:
    given = {name.lower(): value for name, value in request["options"].items()}
    return given.get("checkpointlocation")


def _begin(request: Mapping[str, Any], options: WriteOptions) -> dict[str, Any]:
    scope = journal.stream_scope(_checkpoint(request)) if request["streaming"] else journal.BATCH_SCOPE
    job, largest = journal.begin(options, scope)
    return {"job": job, "bodyBytesMax": largest}


def _commit(request: Mapping[str, Any], options: WriteOptions) -> dict[str, Any]:
    files = [StagedFile(name=name, rows=rows, size_bytes=size, crc32=crc) for name, rows, size, crc in request["files"]]
    key = journal.stream_key(request["query"]) if request["streaming"] else journal.batch_key(options)
    number = request["number"] if request["streaming"] else 0
    journal.commit(options, request["job"], journal.sorted_files([files]), done_key=key, done_number=number)
    return {}


def _abandon(request: Mapping[str, Any], options: WriteOptions) -> dict[str, Any]:
    if request["streaming"]:
        journal.abandon_micro_batch(options, [request["job"]], _checkpoint(request))
    else:
        journal.abandon(options, request["job"])
    return {}


_CALLS = {"check": _check, "begin": _begin, "commit": _commit, "abandon": _abandon}


def answer(request: Mapping[str, Any]) -> dict[str, Any]:
    """Return the answer to a request; a failure is one, too."""
    if request["call"] == "ping":
        return {}
    try:
        options = WriteOptions.of(OptionMap(request["options"]), streaming=request["streaming"])
        return _CALLS[request["call"]](request, options)
    except (Error, OSError) as error:
        return {"error": str(error)}
    except Exception as error:  # noqa: BLE001 - the driver's log is far from Spark's error, which needs the reason
        return {"error": f"{type(error).__name__}: {error}"}


def serve(requests: TextIO, answers: TextIO) -> None:
    """Answer each line of ``requests`` by one."""
    for line in requests:
        answers.write(json.dumps(answer(json.loads(line))) + "\n")
        answers.flush()


def main() -> None:
    """Serve this process's input and output; other writes to the output go to the error output."""
    answers = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)
    # Java writes UTF-8 whatever the locale is.
    with open(0, encoding="utf-8", errors="strict", closefd=False) as requests:
        serve(requests, answers)


if __name__ == "__main__":
    main()
