"""One worker as a process: ``python -m clients.worker_main KIND``, with a request a line on its standard input.

The answer to a request is a line ``{"row": …}`` and a line ``{"done": true}``, or one line
``{"error": …, "trace": …}``, as the Java program answers.
"""

from __future__ import annotations

import importlib
import json
import os
import sys
import traceback

from clients.worker import Worker

KINDS = {
    "sync": ("clients.rocketmq_sync", "SyncWorker"),
    "aio": ("clients.rocketmq_aio", "AioWorker"),
    "kafka": ("clients.confluent", "ConfluentWorker"),
    "nats": ("clients.jetstream", "JetStreamWorker"),
    "redis": ("clients.redis_streams", "RedisWorker"),
}


def main() -> None:
    # Output that a library prints must not end up between answers.
    answers = os.fdopen(os.dup(sys.stdout.fileno()), "w", encoding="utf-8")
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())
    module, name = KINDS[sys.argv[1]]
    worker: Worker = getattr(importlib.import_module(module), name)()
    for line in sys.stdin:
        try:
            answer = json.dumps({"row": worker.serve(json.loads(line))}) + '\n{"done": true}'
        except Exception as error:  # noqa: BLE001 - the runner reports every error
            text = f"{type(error).__name__}: {error}"
            answer = json.dumps({"error": text, "trace": traceback.format_exc()})
        print(answer, file=answers, flush=True)


if __name__ == "__main__":
    main()
