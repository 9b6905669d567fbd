"""Checks: the tree has none of the mistakes that tools/tidy.py looks for; each check sees its mistake; lists agree."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
import tidy

ROOT = Path(__file__).resolve().parents[2]


def test_tree_is_tidy() -> None:
    if not (ROOT / ".git").exists():
        pytest.skip("not a git checkout: the files of the tree are unknown")
    found = tidy.findings()
    assert not found, "\n".join(map(str, found))


def check(name: str) -> tidy.Check:
    return next(each for each in tidy.CHECKS if each.name == name)


@pytest.mark.parametrize(
    ("name", "path", "text", "line"),
    [
        ("forbidden words", "src/a.py", "x\npath = '/wor" + "k/main'", 2),
        ("forbidden words", "docs/a.md", "cd /roo" + "t/checkout", 1),
        ("forbidden words", "docs/a.md", "from https://pyp" + "i.org/simple", 1),
        ("forbidden words", "pom.xml", "<url>https://repo.mav" + "en.apache.org/maven2</url>", 1),
        ("forbidden words", "csrc/a.c", "/* TOD" + "O later */", 1),
        ("file calls", "csrc/store/cmq_a.c", "int f(void)\n{\n    return open(path, 0);\n}", 3),
        ("file calls", "csrc/store/cmq_a.c", "    if (fsync (fd) != 0)", 1),
        ("C head", "csrc/store/cmq_a.c", "#include <stdio.h>\n", 1),
        ("C head", "csrc/store/cmq_a.h", "/* cmq_a: something. */\nvoid cmq_a(void);\n", 1),
        ("C function length", "csrc/store/cmq_a.c", "void f(void)\n{\n" + "    g();\n" * 71 + "}\n", 2),
        ("file length", "csrc/store/cmq_a.c", "\n" * 701, 1),
        ("file length", "src/cometmq/a.py", "\n" * 701, 1),
        ("file length", "tests/c/store/test_cmq_a.c", "\n" * 1001, 1),
        ("file length", "tests/unit/test_a.py", "\n" * 1001, 1),
        ("columns", "tests/c/store/test_cmq_a.c", "\n" + "x" * 121, 2),
    ],
)
def test_each_check_sees_its_mistake(name: str, path: str, text: str, line: int) -> None:
    assert check(name).paths.fullmatch(path)
    assert [finding.line for finding in check(name).find(path, text)] == [line]


@pytest.mark.parametrize(
    ("name", "path", "text"),
    [
        ("forbidden words", "docs/a.md", "the way of one message; src/wor" + "k/list; a hacksaw"),
        ("forbidden words", "pom.xml", 'xmlns="http://maven.apache.org/POM/4.0.0"'),
        ("file calls", "csrc/base/cmq_file_posix.c", "open(path, 0)"),
        ("file calls", "csrc/base/cmq_lock.c", "fcntl(fd, F_SETLK, &lock)"),
        (
            "file calls",
            "csrc/store/cmq_a.c",
            '/* open(2) */ fs->open(fs, "rename(x)"); file.unlink(p); cmq_fs_open(p);',
        ),
        ("C head", "csrc/store/cmq_a.c", "/* cmq_a: see cmq_a.h. */\n"),
        ("C function length", "csrc/store/cmq_a.c", "void f(void)\n{\n" + "    g();\n" * 70 + "}\n"),
        ("file length", "src/cometmq/a.py", "\n" * 700),
    ],
)
def test_no_check_cries_wolf(name: str, path: str, text: str) -> None:
    assert list(check(name).find(path, text)) == []


def test_large_files() -> None:
    assert list(tidy.large_file("docs/picture.png", 200_001))
    assert not list(tidy.large_file("docs/picture.png", 200_000))
    assert not list(tidy.large_file("tests/golden/a/store.tar.xz", 500_000))


def test_versions_agree() -> None:
    package = re.search(r'^version = "(.+)"$', (ROOT / "pyproject.toml").read_text(), re.MULTILINE)
    engine = re.search(r"project\(cmq_core VERSION (\S+)", (ROOT / "csrc" / "CMakeLists.txt").read_text())
    assert package is not None
    assert engine is not None
    assert package.group(1) == engine.group(1)


def test_build_without_isolation_has_the_requirements_of_pyproject() -> None:
    pyproject = (ROOT / "pyproject.toml").read_text()
    declared = re.search(r"^requires = (\[.+\])$", pyproject, re.MULTILINE)
    assert declared is not None
    listed = (ROOT / "tools" / "requirements-build.txt").read_text().splitlines()
    assert set(json.loads(declared.group(1))) <= set(listed)
