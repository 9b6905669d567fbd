"""Lists the tests that ``make test`` skipped, and why: ``python tools/skips.py FOLDER`` exits 1 on a new reason.

pytest leaves ``*.jsonl`` in the folder (``tests/conftest.py``), ctest ``*.xml`` (JUnit). ``tests/allowed_skips.txt``
lists the allowed reasons, one regular expression a line; the comment behind ``#`` gives the cause.
"""

from __future__ import annotations

import json
import re
import sys
import xml.etree.ElementTree as ElementTree
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

ALLOWED = Path(__file__).resolve().parent.parent / "tests" / "allowed_skips.txt"


def allowed_reasons(text: str) -> list[re.Pattern[str]]:
    """Return the expressions of a list of reasons."""
    lines = (line.rpartition("  #")[0] if "  #" in line else line for line in text.splitlines())
    return [re.compile(line.strip()) for line in lines if line.strip() and not line.startswith("#")]


def skipped(folder: Path) -> Iterator[tuple[str, str]]:
    """Iterate over the tests that were skipped: their reason and their name."""
    for path in sorted(folder.glob("*.jsonl")):
        for line in path.read_text(encoding="utf-8").splitlines():
            note = json.loads(line)
            yield note["reason"], note["test"]
    for path in sorted(folder.glob("*.xml")):
        for case in ElementTree.parse(path).getroot().iter("testcase"):
            if case.find("skipped") is not None or case.get("status") in ("notrun", "disabled"):
                said = (case.findtext("system-out") or "").strip().splitlines()
                yield (said[-1] if said else "the program gives no reason"), f"{path.stem}: {case.get('name')}"


def report(folder: Path, allowed: list[re.Pattern[str]]) -> tuple[list[str], bool]:
    """Return the lines to print, and whether a reason is new."""
    tests: dict[str, list[str]] = defaultdict(list)
    for reason, test in skipped(folder):
        tests[reason].append(test)
    lines = [f"skipped: {sum(map(len, tests.values()))} tests" if tests else "skipped: none"]
    is_new = False
    for reason, names in sorted(tests.items(), key=lambda item: (-len(item[1]), item[0])):
        known = any(each.fullmatch(reason) for each in allowed)
        is_new |= not known
        lines.append(f"{len(names):6} {reason}" + ("" if known else "  <- not in tests/allowed_skips.txt"))
        lines += [] if known else [f"       {name}" for name in sorted(names)[:20]]
    return lines, is_new


def main(arguments: list[str]) -> int:
    """Print the report of one folder."""
    lines, is_new = report(Path(arguments[0]), allowed_reasons(ALLOWED.read_text(encoding="utf-8")))
    print("\n".join(lines))
    return int(is_new)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
