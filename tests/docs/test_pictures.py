"""Checks: pictures are what ``make plots`` draws, request nothing, and show figures that the pages have."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import draw_path
import draw_plots
import pytest

ROOT = Path(__file__).resolve().parents[2]
PICTURES = sorted((ROOT / "docs" / "pictures").glob("*.svg"))
RESULTS = sorted(draw_plots.PUBLISHED.glob("*.json"))
PAGES = [ROOT / "docs" / "performance.md", ROOT / "docs" / "spark.md"]
NUMBER = re.compile(r"\d[\d,]*(?:\.\d+)?")


def test_pictures_are_drawn_from_the_published_results() -> None:
    drawn = {"message_path.svg": draw_path.draw(), **draw_plots.draw(RESULTS)}
    assert {path.name: path.read_text(encoding="utf-8") for path in PICTURES} == drawn, "run: make plots"


@pytest.mark.parametrize("picture", PICTURES, ids=lambda path: path.name)
def test_picture_is_alone_and_is_shown(picture: Path) -> None:
    text = picture.read_text(encoding="utf-8")
    root = ElementTree.fromstring(text)
    assert root.find("{http://www.w3.org/2000/svg}title") is not None
    assert re.findall(r"url\(|href|@import|<script|<image", text) == []
    assert "prefers-color-scheme:dark" in text
    assert any(picture.name in page.read_text(encoding="utf-8") for page in (ROOT / "README.md", *PAGES))


@pytest.mark.parametrize("result", RESULTS, ids=lambda path: path.stem)
def test_published_figures_are_those_of_the_page(result: Path) -> None:
    document: dict[str, Any] = json.loads(result.read_text(encoding="utf-8"))
    page = PAGES[document["benchmark"] == "query"].read_text(encoding="utf-8")
    shown = {float(number.replace(",", "")) for number in NUMBER.findall(page)}
    assert f"`{document['command']}" in page
    assert document["figures"]
    missing = [
        (figure["name"], value)
        for figure in document["figures"]
        for value in (figure.get("value"), figure.get("cpu_ns"))
        if value is not None and not shown & {round(value / size, 6) for size in (1, 1e3, 1e6)}
    ]
    assert missing == []


def test_a_result_without_known_figures_gives_no_picture(tmp_path: Path) -> None:
    path = tmp_path / "other.json"
    path.write_text(json.dumps({"figures": [{"name": "other/figure", "value": 1.0}]}), encoding="utf-8")
    assert draw_plots.draw([path]) == {}
