"""A broker in a process whose Python is busy: ``python benchmarks/system/busy_main.py STORE FLUSH``.

One thread runs a loop of plain Python for ever, as a service does that embeds the broker beside its own work.
"""

from __future__ import annotations

import signal
import sys
import threading

from cometmq.broker.config import load_broker_config
from cometmq.broker.server import Broker


def busy(stop: threading.Event) -> None:
    """Keep the interpreter's lock as much as one thread can."""
    number = 0
    while not stop.is_set():
        for _ in range(10_000):
            number = number * 31 % 1_000_003


def main() -> int:
    path, flush = sys.argv[1:]
    stop = threading.Event()
    for name in (signal.SIGTERM, signal.SIGINT):
        signal.signal(name, lambda *_: stop.set())
    config = load_broker_config(path, listen="127.0.0.1:0", settings={"flushDiskType": f"{flush.upper()}_FLUSH"})
    with Broker(config) as broker:
        print(f"listening on {broker.address}", flush=True)
        threading.Thread(target=busy, args=(stop,), daemon=True).start()
        stop.wait()
    return 0


if __name__ == "__main__":
    sys.exit(main())
