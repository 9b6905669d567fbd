"""The process behind ``ours.Writer``: ``python -m interop.writer_main STORE FLUSH WORKLOAD``.

Prints, after each append that returned, the queue and offset of each of its messages as one line.
"""

from __future__ import annotations

import json
import sys

import cometmq
from interop.ours import Workload, settings


def main() -> None:
    path, flush, workload = sys.argv[1:]
    work = Workload(**json.loads(workload))
    with cometmq.open(path, flush=flush, settings=settings(), default_queues=work.queues) as store:
        for places in work.append_to(store):
            print(json.dumps(places), flush=True)


if __name__ == "__main__":
    main()
