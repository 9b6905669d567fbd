"""Checks: wrong command lines end with an exit code and a text that names the option, its value and the remedy."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from support.command_line import run
from support.wrong_uses import world


@pytest.fixture(scope="module")
def names(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, Any]]:
    with world(tmp_path_factory.mktemp("wrong")) as found:
        yield found


COMMANDS: list[tuple[str, int, str]] = [
    ("inspect redis://x", 3, "a URL: a store is a directory"),
    ("inspect nowhere", 3, "nowhere: check the path"),
    ("put redis://x t", 3, "a URL: a store is a directory"),
    ("put ~/x t", 3, "~ is not expanded"),
    ("export s t -o o.xlsx", 2, "unsupported suffix of o.xlsx: use .parquet, .arrow, .csv or .jsonl"),
    ("export s t -o o.xlsx --limit 0", 2, "--limit"),
    ("export s nope -o o.csv", 3, "there is no topic 'nope'"),
    ("export s t -o o.csv --tags a,b", 3, "only || divides tags"),
    ("export s t -o o.csv --columns nope", 3, "there is no column 'nope'"),
    ("export s t -o o.csv --compression brotli", 3, "csv is compressed by none, gzip, zstd, not 'brotli'"),
    ("export s t -o o.csv --from-time soon", 2, "'soon' is not a time"),
    ("export s t -o out --part-size 0", 2, "'0' is not a size"),
    ("export s t -o out --resume", 3, "no export was begun in out"),
    ("export s t", 2, "--output"),
    ("export s t -o o.csv --since-last", 2, "o.csv is a file: --since-last needs a folder"),
    ("export s t -o out --since-last --resume", 2, "--since-last excludes --resume and --overwrite"),
    ("export s t -o out --partition-by hour", 2, "'hour' is not day, topic or queue_id"),
    ("export s t -o out --schema x", 3, "'x' is not a name with a type"),
    ("export s t -o out --infer", 3, "cannot infer a schema of t: none of the 5 bodies of the sample"),
    ("sql s x --infer --body-format csv", 2, "CSV lines have no names; give --schema"),
    ("cat s t --tags a='5'", 3, "only || divides tags"),
    ("cat s nope", 3, "there is no topic 'nope'"),
    ("sql s", 2, "Missing argument 'query'"),
    ("sql s x -o o.xlsx", 2, "unsupported suffix of o.xlsx"),
    ("sql s x --from-time soon", 2, "'soon' is not a time"),
    ("sql s x --csv --json", 2, "exclude each other"),
    ("verify nowhere", 3, "nowhere"),
    ("topic create t --queues 0", 2, "--queues"),
    ("topic create t --perm 9", 2, "'9' is not a permission: use r, w, rw or none"),
    ("topic create t --perm x", 2, "'x' is not a permission"),
    ("message get nonsense -n 127.0.0.1:1", 3, "for a unique id pass --topic: get nonsense --topic T"),
    ("message get", 2, "give an id, or --topic, --queue and --offset"),
    ("message get x --queue 1", 2, "give an id, or --topic, --queue and --offset"),
    ("consume t --tags a='b' -n 127.0.0.1:1", 2, "has '=', which has no meaning there"),
    ("cat s t --tags gr\udcf6", 2, "'gr\\udcf6' is not text in this locale's encoding"),
    ("cat s t --key gr\udcf6", 2, "'gr\\udcf6' is not text in this locale's encoding"),
    ("nonsense", 2, "No such command 'nonsense'"),
    ("bench --nonsense", 2, "No such option"),
]


@pytest.mark.parametrize(("line", "code", "part"), COMMANDS, ids=[row[0] for row in COMMANDS])
def test_a_wrong_command_line_is_refused(names: dict[str, Any], line: str, code: int, part: str) -> None:
    before = sorted(Path(names["d"]).iterdir())
    outcome = run(*line.split())
    assert part in " ".join(outcome.err.replace("│", " ").split())
    assert outcome.code == code
    assert sorted(Path(names["d"]).iterdir()) == before, "a file was made"
