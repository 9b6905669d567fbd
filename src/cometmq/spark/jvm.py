"""The engine inside Spark's JVM: where its jar is, and sessions that have it.

The jar holds Spark's source in Java and the native library (``bindings/jvm``). It is built where a JDK and PySpark are
found; without it everything works through Python.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

__all__ = ["jars", "session"]

_JAR = Path("spark") / "jars" / "cometmq-spark.jar"


def jars() -> list[str]:
    """Return the jars for Spark's setting ``spark.jars``: one, or none where this installation was built without it."""
    import cometmq._engine

    # Beside the compiled module, also where the installation is editable.
    jar = Path(cometmq._engine.__file__).parent / _JAR
    return [str(jar)] if jar.is_file() else []


def session(builder: SparkSession.Builder | None = None) -> SparkSession:
    """Return a Spark session with the engine in its JVM, where this installation has it.

    Also sets what reading through Python needs: ``PYSPARK_PYTHON`` to this interpreter, unless it is set, and Unix
    sockets to the JVM. A session that is there already keeps its jars.

    Args:
        builder: further settings: ``SparkSession.builder.master("local[4]")``. Jars in its ``spark.jars`` are replaced;
            give them together with :func:`jars` instead.
    """
    from pyspark.sql import SparkSession

    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    made = SparkSession.builder if builder is None else builder
    found = jars()
    if found:
        made = made.config("spark.jars", ",".join(found))
    return made.config("spark.python.unix.domain.socket.enabled", "true").getOrCreate()
