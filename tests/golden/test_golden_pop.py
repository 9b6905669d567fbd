"""Checks: POP's checkpoints, acks, handles and info strings of a real RocketMQ are read, and written equal.

``golden_pop`` does the work, a C program that `make golden-programs` builds; without it these tests are skipped.
"""

from __future__ import annotations

import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from support.frames import exchanges, pop_frames
from support.golden import StoreKind, expected_records
from support.programs import built_program


def run_program(*arguments: str | Path, text: str | None = None) -> str:
    """Run the program and return what it printed."""
    done = subprocess.run(
        [built_program("golden_pop"), *arguments],
        input=text,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.parametrize(("name", "checkpoints", "acks"), [("apache-5.3.3", 36, 144), ("apache-5.3.3-groups", 6, 0)])
def test_same_records(name: str, checkpoints: int, acks: int, golden_store: Callable[[str, StoreKind], Path]) -> None:
    tags = [record["properties"].get("TAGS") for record in expected_records(name) if "REVIVE" in str(record)]
    assert (tags.count("ck"), tags.count("ack")) == (checkpoints, acks)
    assert run_program(golden_store(name, "clean")) == f"checkpoints {checkpoints} acks {acks}\n"


def texts_of(name: str) -> Iterator[str]:
    """Iterate over what a run's pops and acks say, as the program takes it."""
    for _, request, answer in exchanges(pop_frames(name)):
        if "extraInfo" in request.fields:
            yield f"handle {request.fields['extraInfo']}"
        found = {} if answer is None else answer.fields
        if found.get("startOffsetInfo"):
            yield f"start {found['startOffsetInfo']}"
        if found.get("msgOffsetInfo"):
            yield f"offsets {found['msgOffsetInfo']}"


@pytest.mark.parametrize(("name", "count"), [("apache-5.3.3", 72), ("apache-5.3.3-groups", 23)])
def test_same_texts(name: str, count: int) -> None:
    texts = list(texts_of(name))
    kinds = {text.partition(" ")[0] for text in texts}
    assert kinds == {"handle", "start", "offsets"}
    assert len([text for text in texts if text.startswith("handle")]) == count
    assert run_program(text="\n".join(texts) + "\n") == f"texts {len(texts)}\n"
