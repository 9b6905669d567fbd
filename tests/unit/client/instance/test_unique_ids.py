"""Checks: unique message ids."""

from __future__ import annotations

import re
from datetime import datetime

from cometmq.client.instance.unique_ids import UniqueIds


def test_unique_ids() -> None:
    ids = UniqueIds()
    begins = datetime(2026, 12, 1)
    now_ms = int(datetime(2026, 12, 31, 23, 59, 59).timestamp() * 1000)
    made = [ids.next(now_ms) for _ in range(70_000)]
    assert len(set(made[:65_536])) == 65_536
    assert all(re.fullmatch("[0-9A-F]{32}", one) for one in made[:10])
    assert int(made[0][20:28], 16) == now_ms - int(begins.timestamp() * 1000)
    # The next month begins again at zero, also at the end of a year.
    assert int(ids.next(now_ms + 1000)[20:28], 16) == 0
    assert UniqueIds().next(now_ms)[:20] != made[0][:20]
