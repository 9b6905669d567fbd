"""Registers ``spark.read.format("cometmq")`` without a line in the user's program.

Spark imports every top-level module named ``pyspark_…`` when a Python data source is first used, and registers its
``DefaultSource``. That happens to every Spark user of the environment, so this import is light, and where CometMQ
cannot be loaded it says so instead of ending everybody's look-up.
"""

from __future__ import annotations

import warnings

try:
    from cometmq.spark.default_source import CometMQSource as DefaultSource
    from cometmq.spark.default_source import RocketMQSource
except ImportError as error:
    warnings.warn(f'format("cometmq") is not there: {error}', RuntimeWarning, stacklevel=1)

__all__ = ["DefaultSource", "RocketMQSource"]
