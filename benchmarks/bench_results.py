"""One form for all results: a JSON document per run, in ``benchmarks/results`` or where CMQ_BENCH_RESULTS says.

``benchmark``, ``command``, ``when``, ``commit``, ``quick``, ``machine`` and ``figures``, each as in ``bench_support``;
a benchmark may add members of its own. ``make plots`` reads ``figures``. Git keeps only ``results/published``: the
figures that ``docs/performance.md`` shows.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from bench_machine import ROOT, commit
from bench_support import Figure


def results_folder() -> Path:
    """Return the folder of result files, which exists then."""
    folder = Path(os.environ.get("CMQ_BENCH_RESULTS", ROOT / "benchmarks" / "results"))
    folder.mkdir(parents=True, exist_ok=True)
    return folder


def save_result(
    benchmark: str,
    when: str,
    machine: Mapping[str, Any],
    figures: Sequence[Figure],
    *,
    is_quick: bool = False,
    command: str | None = None,
    **more: Any,
) -> Path:
    """Write ``<benchmark>-<when>-<commit>.json``, over an earlier one of the same run; return its path."""
    at_commit = commit()
    name = f"{benchmark}-{when}-{at_commit.replace('+', '-changed')}{'-quick' if is_quick else ''}.json"
    path = results_folder() / name
    document = {
        "benchmark": benchmark,
        "command": command or f"make bench-{benchmark}",
        "when": when,
        "commit": at_commit,
        "quick": is_quick,
        "machine": machine,
        **more,
        "figures": figures,
    }
    path.write_text(json.dumps(document, indent=1) + "\n", encoding="utf-8")
    return path


def figures_of_rows(benchmark: str, rows: Sequence[Mapping[str, Any]]) -> Iterator[Figure]:
    """Yield the figures of rows that hold several systems' numbers by name, such as ``messages/s`` and ``p99 us``."""
    for row in rows:
        for system, numbers in row.items():
            if not isinstance(numbers, Mapping):
                continue  # the row's name, the load beside it
            for number, value in numbers.items():
                unit = "msg/s" if number.endswith("messages/s") else _unit(number)
                yield {
                    "name": f"{benchmark}/{row['name']}/{number}/{system}",
                    "value": value,
                    "unit": unit,
                    "system": system,
                }


def _unit(number: str) -> str:
    return next((unit for unit in ("us", "MiB", "%") if unit in number.split() or f"{unit}/" in number), "")
