"""Load on a RocketMQ broker, ours or Java's, measured and checked; ``cometmq bench`` is its command line.

:func:`find_target` asks a name server or a broker where a topic's queues are, and makes the topic where that is wanted;
:func:`run_load` runs the engine's load generator (``csrc/load``) against them. Every answer is checked: each accepted
message has an offset of its own, no queue has a hole, and each message comes to a consumer once, with the bytes it was
sent with, pulled or popped; when what was popped is acknowledged, the group has reached the end of every queue. A run
of which that is not true has no figures worth looking at: see :attr:`LoadReport.verified`.

>>> target = find_target(broker="127.0.0.1:10911", topic="bench", queues=4, create=True)   # doctest: +SKIP
>>> run_load(target, LoadOptions(producers=16, count=100_000)).messages_per_s              # doctest: +SKIP
"""

from __future__ import annotations

from cometmq.loadtest.running import BODY_BYTES_MIN, Latency, LoadOptions, LoadReport, LoadWatch, Stage, Take, run_load
from cometmq.loadtest.targets import Target, find_target

__all__ = [
    "BODY_BYTES_MIN",
    "Latency",
    "LoadOptions",
    "LoadReport",
    "LoadWatch",
    "Stage",
    "Take",
    "Target",
    "find_target",
    "run_load",
]
