"""Upstream's SQL92 evaluator gives the answers that ``tests/unit/selector/answers.json`` keeps.

``CMQ_WRITE_ANSWERS=1`` rewrites the file, for the expressions and properties in it.
"""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path

import pytest

from interop.processes import PEER_VERSION, PeerMissing, classpath, java

ANSWERS = Path(__file__).resolve().parents[1] / "unit" / "selector" / "answers.json"


def _lines(values: list[str]) -> str:
    return ",\n".join(values)


@pytest.mark.java
def test_kept_answers_are_those_of_upstream() -> None:
    kept = json.loads(ANSWERS.read_text(encoding="utf-8"))
    question = {"properties": kept["properties"], "expressions": list(kept["answers"])}
    try:
        command = [java(), "-cp", classpath(PEER_VERSION), "io.cometmq.interop.Selectors"]
    except PeerMissing as missing:
        pytest.skip(str(missing))
    ran = subprocess.run(command, input=json.dumps(question).encode(), stdout=subprocess.PIPE, check=True, timeout=120)
    answers = json.loads(ran.stdout)
    if os.environ.get("CMQ_WRITE_ANSWERS") == "1":
        sets = _lines([json.dumps(one, ensure_ascii=False) for one in kept["properties"]])
        rows = _lines([f"{json.dumps(text, ensure_ascii=False)}: {json.dumps(row)}" for text, row in answers.items()])
        ANSWERS.write_text(f'{{"properties": [\n{sets}\n],\n"answers": {{\n{rows}\n}}}}\n', encoding="utf-8")
    assert answers == kept["answers"]
