"""Checks: `make mutants` finds what it may change in C and Python files, and leaves the tree alone."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

import mutants
import pytest

ROOT = Path(__file__).resolve().parents[2]

C = """/* a < b */
#define TWO (1 + 1)
static int f(const char *s, int a)
{
    int sum = -1;
    if (a <= 0 && s[0] == '<') return 0;
    sum += a;   /* counted */
    CMQ_ASSERT(a > 0);
    note("a + b", a);
    return !a;
}
"""
PYTHON = '''"""a < b"""

def f(a, b):
    if not a or a is not b:
        return -1
    a.total += 1
    g(a,
      b)
    return a + b
'''


def changes(path: str, text: str) -> set[tuple[int, str, str]]:
    return {(each.line, each.old, each.new) for each in mutants.mutants_of(path, text)}


def test_places_of_a_c_file() -> None:
    assert changes("a.c", C) == {
        (5, "1", "0"),
        (5, "1", "2"),
        (6, "<=", "<"),
        (6, "0", "1"),
        (6, "&&", "||"),
        (6, "==", "!="),
        (7, "+=", "-="),
        (7, "sum += a;", "(void)0;"),
        (9, 'note("a + b", a);', "(void)0;"),
        (10, "!", ""),
    }


def test_places_of_a_python_file() -> None:
    assert changes("a.py", PYTHON) == {
        (4, "not", ""),
        (4, "or", "and"),
        (5, "-", "+"),
        (5, "1", "0"),
        (5, "1", "2"),
        (6, "+=", "-="),
        (6, "1", "0"),
        (6, "1", "2"),
        (6, "a.total += 1", "pass"),
        (9, "+", "-"),
    }


@pytest.mark.parametrize("name", [name for name, module in mutants.MODULES.items() if module.path.endswith(".py")])
def test_each_change_of_a_python_module_can_be_compiled(name: str) -> None:
    text = (ROOT / mutants.MODULES[name].path).read_text(encoding="utf-8")
    found = mutants.mutants_of(mutants.MODULES[name].path, text)
    assert len(found) > 50
    for mutant in found:
        ast.parse(mutant.apply(text))


def test_modules_and_their_tests_exist() -> None:
    for module in mutants.MODULES.values():
        assert (ROOT / module.path).is_file()
        for test in module.tests:
            assert (ROOT / test).is_file() or list((ROOT / "tests" / "c").rglob(f"{test}.c")), test


def test_changed_module_is_loaded_instead(tmp_path: Path) -> None:
    changed = tmp_path / "changed.py"
    changed.write_text("MARK = 'changed'\n", encoding="utf-8")
    code = "import mutant_plugin, cometmq.client.group.allocation as module; print(module.MARK)"
    done = subprocess.run(
        [sys.executable, "-c", code],
        env={"CMQ_MUTANT": f"cometmq.client.group.allocation={changed}", "PYTHONPATH": str(ROOT / "tools")},
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout == "changed\n"
