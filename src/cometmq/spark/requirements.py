"""The requirements of Spark besides this package: PySpark, and Java 17 or newer."""

from __future__ import annotations

import importlib.util
import os
import re
import shutil
import subprocess
from pathlib import Path

from cometmq._extras import install_command

__all__ = ["JAVA_MIN", "missing"]

JAVA_MIN = 17


def missing() -> str | None:
    """Return in one line what is missing and how to install it, or None where Spark can run."""
    if importlib.util.find_spec("pyspark") is None:
        return f"pyspark is not installed: {install_command('spark')}"
    needed = f"Spark needs Java {JAVA_MIN} or newer"
    home = os.environ.get("JAVA_HOME")
    java = str(Path(home) / "bin" / "java") if home else shutil.which("java")
    if java is None or not Path(java).exists():
        return f"{needed}, but none was found: on Debian, apt install openjdk-17-jre-headless"
    printed = subprocess.run([java, "-version"], capture_output=True, text=True, check=False).stderr
    version = re.search(r'version "(\d+)', printed)
    if version is None or int(version[1]) < JAVA_MIN:
        return f"{needed}; {java} is {printed.splitlines()[0] if printed else 'something else'}"
    return None
