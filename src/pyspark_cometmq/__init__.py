"""What makes ``spark.read.format("cometmq")`` work without a line of registration.

Spark imports every top-level module named ``pyspark_…`` when a Python data source is first used, and registers its
``DefaultSource``. That happens to every Spark user of the environment, so this import is light.
"""

from __future__ import annotations

from cometmq.spark.default_source import CometMQSource, RocketMQSource

__all__ = ["DefaultSource", "RocketMQSource"]

DefaultSource = CometMQSource
