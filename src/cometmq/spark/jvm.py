"""The engine inside Spark's JVM: where its jar is, and sessions that have it.

The jar holds Spark's source in Java and the native library (``bindings/jvm``). It is built where a JDK and PySpark are
found; without it everything works through Python.
"""

from __future__ import annotations

from pathlib import Path

__all__ = ["jars"]

_JAR = Path("spark") / "jars" / "cometmq-spark.jar"


def jars() -> list[str]:
    """Return the jars for Spark's setting ``spark.jars``: one, or none where this installation was built without it."""
    import cometmq._engine

    # Beside the compiled module, also where the installation is editable.
    jar = Path(cometmq._engine.__file__).parent / _JAR
    return [str(jar)] if jar.is_file() else []
