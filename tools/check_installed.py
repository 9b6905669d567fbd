"""Uses an installed CometMQ once: an append that is read back, and the command. For packages, so with nothing else.

Run it from another folder than the checkout's, or the checkout is what gets imported.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
from pathlib import Path

import cometmq


def main() -> int:
    """Append, read, run the command; print where the package lies."""
    with tempfile.TemporaryDirectory() as folder, cometmq.open(folder) as store:
        store.append("orders", b"hello", tags="paid", keys="order-17")
        assert [m.body_bytes for m in store.read("orders", tags="paid")] == [b"hello"]
        assert [m.tags for m in store.find("orders", "order-17")] == ["paid"]
        shown = subprocess.run(
            [sys.executable, "-m", "cometmq", "inspect", folder], capture_output=True, text=True, check=True
        )
        assert "orders" in shown.stdout
    print(f"cometmq of {Path(cometmq.__file__).parent} works")
    return 0


if __name__ == "__main__":
    sys.exit(main())
