"""Changes one place of a module at a time and runs the tests that belong to it: `make mutants`.

A change that no test notices is a survivor: a test is missing there, or the place does nothing. Prints one line for
each survivor and a table at the end; ``--json FILE`` keeps all results. Nothing in the tree is touched: C is built from
a copy under build/mutants, and a pytest plugin (``mutant_plugin.py``) loads the changed Python module.

    python tools/mutants.py [--sample N] [--seed N] [--json FILE] [MODULE...]
"""

from __future__ import annotations

import argparse
import ast
import io
import json
import os
import random
import re
import shutil
import subprocess
import sys
import tokenize
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
COPY = ROOT / "build" / "mutants"
COPIED = ("csrc", "tests/c", "tests/crash", "tests/fuzz", "tests/golden", "tests/model")
GROUP = "src/cometmq/client/group"
GROUP_TESTS = "tests/unit/client/group"
TEST_LIMIT_S = 120
BUILD_LIMIT_S = 3600


@dataclass(frozen=True)
class Module:
    """A module, and the tests that have to notice a change of it: C programs, or arguments of pytest."""

    path: str
    tests: tuple[str, ...]


MODULES = {
    "append": Module(
        "csrc/store/append/cmq_append.c",
        (
            "test_cmq_append",
            "test_cmq_append_columns",
            "test_cmq_append_run",
            "test_cmq_append_staging",
            "test_cmq_store",
            "test_cmq_queues",
        ),
    ),
    "recover": Module(
        "csrc/store/recover/cmq_recover.c",
        ("test_cmq_recover", "test_cmq_recover_content", "test_cmq_recover_queues", "test_cmq_removed"),
    ),
    "pop_buffer": Module("csrc/broker/pop/flight/cmq_pop_buffer.c", ("test_cmq_pop_buffer", "test_cmq_pop")),
    "pop_revive": Module("csrc/broker/pop/revive/cmq_pop_revive.c", ("test_cmq_pop_revive", "test_cmq_pop")),
    "pull": Module("csrc/broker/pull/cmq_pull.c", ("test_cmq_broker",)),
    "scan": Module("csrc/export/cmq_scan_rows.c", ("test_cmq_scan", "test_cmq_scan_fed")),
    "rebalance": Module(f"{GROUP}/rebalance.py", (f"{GROUP_TESTS}/test_rebalance.py",)),
    "process_queue": Module(
        f"{GROUP}/process_queue.py",
        (f"{GROUP_TESTS}/test_process_queue.py", f"{GROUP_TESTS}/test_process_queue_figures.py"),
    ),
    "offset_stores": Module(
        f"{GROUP}/offset_stores.py",
        (f"{GROUP_TESTS}/test_offset_stores.py", f"{GROUP_TESTS}/test_offset_store_races.py"),
    ),
    "allocation": Module(f"{GROUP}/allocation.py", (f"{GROUP_TESTS}/test_allocation.py",)),
}


@dataclass(frozen=True)
class Mutant:
    """One change: in a line (from 1), from a column on."""

    line: int
    column: int
    old: str
    new: str

    def apply(self, text: str) -> str:
        """Return the text with the change."""
        lines = text.splitlines(keepends=True)
        line = lines[self.line - 1]
        assert line.startswith(self.old, self.column), (line, self)
        lines[self.line - 1] = line[: self.column] + self.new + line[self.column + len(self.old) :]
        return "".join(lines)


# --- Which changes there are ------------------------------------------------------------------------------------------

_SWAPS = {
    "==": ("!=",),
    "!=": ("==",),
    "<": ("<=",),
    "<=": ("<",),
    ">": (">=",),
    ">=": (">",),
    "&&": ("||",),
    "||": ("&&",),
    "and": ("or",),
    "or": ("and",),
    "+": ("-",),
    "-": ("+",),
    "+=": ("-=",),
    "-=": ("+=",),
    "&": ("|",),
    "|": ("&",),
    "++": ("--",),
    "--": ("++",),
    "true": ("false",),
    "false": ("true",),
    "True": ("False",),
    "False": ("True",),
    "0": ("1",),
    "1": ("0", "2"),
    "break": ("continue",),
    "continue": ("break",),
}
_C_TOKEN = re.compile(
    r"""/\*.*?\*/ | "(?:[^"\\\n]|\\.)*" | '(?:[^'\\\n]|\\.)+' | ^\s*\#(?:[^\n]*\\\n)*[^\n]* | (?P<word>[A-Za-z_0-9.]+) |
    (?P<operator><<=|>>=|->|\+\+|--|<<|>>|[-+*/%&|^=!<>]=|&&|\|\||[-+<>&|!])""",
    re.VERBOSE | re.DOTALL | re.MULTILINE,
)
_C_STATEMENT = re.compile(r"^( +)([a-z_][\w.>\[\]-]*(?: [-+|&*]?= |\+\+|--|\()[^{}\n]*;)(?= *(?:/\*.*\*/)? *$)")
_C_DULL = re.compile(r"CMQ_ASSERT|CMQ_STATIC_ASSERT|cmq_fail\(|CMQ_LOG")


def c_mutants(text: str) -> Iterator[Mutant]:
    """Iterate over the changes of a C file."""
    lines = text.splitlines()
    for found in _C_TOKEN.finditer(text):
        token = found["word"] or found["operator"]
        if token not in _SWAPS and token != "!":
            continue
        line = text.count("\n", 0, found.start()) + 1
        start = text.rfind("\n", 0, found.start()) + 1
        before, after = text[start : found.start()], text[found.end() : found.end() + 1]
        if _C_DULL.search(lines[line - 1]) or not before.startswith(" "):
            continue  # code that ends the process, and code outside a function
        is_binary = before.endswith(" ") and after == " "
        if found["operator"] in ("-", "+", "&", "|", "<", ">") and not is_binary:
            continue  # a sign, an address, a bracket
        for new in _SWAPS.get(token, ("",)):
            yield Mutant(line, found.start() - start, token, new)
    for number, line_text in enumerate(lines, start=1):
        statement = _C_STATEMENT.match(line_text)
        if statement and not _C_DULL.search(line_text) and not statement[2].startswith("return"):
            yield Mutant(number, len(statement[1]), statement[2], "(void)0;")


def python_mutants(text: str) -> Iterator[Mutant]:
    """Iterate over the changes of a Python file."""
    code = [token for token in tokenize.generate_tokens(io.StringIO(text).readline) if token.string.strip()]
    wanted = (tokenize.OP, tokenize.NAME, tokenize.NUMBER)
    for before, token, after in zip(code, code[1:], code[2:], strict=False):
        new: tuple[str, ...] = _SWAPS.get(token.string, ()) if token.type in wanted and token.start[1] > 0 else ()
        if token.string == "not" and before.string != "is" and after.string != "in":
            new = ("",)
        if token.string in ("-", "+", "|", "&") and (before.type == tokenize.OP or "->" in token.line):
            new = ()
        for each in new:
            yield Mutant(token.start[0], token.start[1], token.string, each)
    lines = text.splitlines()
    for node in ast.walk(ast.parse(text)):
        if not isinstance(node, (ast.Expr, ast.Assign, ast.AugAssign)):
            continue
        is_text = isinstance(node, ast.Expr) and not isinstance(node.value, (ast.Call, ast.Await))
        if not is_text and node.lineno == node.end_lineno and node.col_offset > 0:
            old = lines[node.lineno - 1][node.col_offset : node.end_col_offset]
            yield Mutant(node.lineno, node.col_offset, old, "pass")


def mutants_of(path: str, text: str) -> list[Mutant]:
    """Return all changes of a file, in their order."""
    found = set(c_mutants(text) if path.endswith(".c") else python_mutants(text))
    return sorted(found, key=lambda one: (one.line, one.column, one.new))


# --- Running one ------------------------------------------------------------------------------------------------------


def run(
    command: list[str], *, folder: Path = ROOT, environment: dict[str, str] | None = None, limit_s: int = TEST_LIMIT_S
) -> str:
    """Run a command; return how it ended: ``passed``, ``failed`` or ``hung``."""
    try:
        done = subprocess.run(
            command,
            cwd=folder,
            env={**os.environ, **(environment or {})},
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            timeout=limit_s,
            check=False,
        )
    except subprocess.TimeoutExpired:
        return "hung"
    return "failed" if done.returncode else "passed"


def prepare_c() -> None:
    """Copy the C tree, where it changed, and configure its build."""
    for folder in COPIED:
        target = COPY / folder
        target.mkdir(parents=True, exist_ok=True)
        for source in (ROOT / folder).rglob("*"):
            if source.suffix not in (".c", ".h", ".txt", ".json", ".py", ".toml", ".in") or not source.is_file():
                continue
            copy = target / source.relative_to(ROOT / folder)
            if not copy.exists() or copy.read_bytes() != source.read_bytes():
                copy.parent.mkdir(parents=True, exist_ok=True)
                shutil.copyfile(source, copy)
    configure = ["cmake", "--preset", "release", "-DCMQ_BENCHMARKS=OFF"]
    subprocess.run(configure, cwd=COPY / "csrc", check=True, stdout=subprocess.DEVNULL)


def try_c(module: Module, text: str) -> str:
    """Build a changed C file into its test programs and run them."""
    (COPY / module.path).write_text(text, encoding="utf-8")
    build = ["cmake", "--build", "--preset", "release", "--target", *module.tests]
    if run(build, folder=COPY / "csrc", limit_s=BUILD_LIMIT_S) != "passed":
        return "not built"
    for test in module.tests:
        ended = run([str(COPY / "build" / "release" / "tests" / test)])
        if ended != "passed":
            return ended
    return "survived"


def try_python(module: Module, text: str) -> str:
    """Run pytest with a changed module."""
    changed = COPY / "mutant.py"
    changed.parent.mkdir(parents=True, exist_ok=True)
    changed.write_text(text, encoding="utf-8")
    name = module.path.removeprefix("src/").removesuffix(".py").replace("/", ".")
    command = [sys.executable, "-m", "pytest", "-x", "-q", "-p", "mutant_plugin", "--timeout", "60", *module.tests]
    environment = {"CMQ_MUTANT": f"{name}={changed}", "PYTHONPATH": str(ROOT / "tools"), "PYTHONDONTWRITEBYTECODE": "1"}
    ended = run(command, environment=environment)
    return "survived" if ended == "passed" else ended


def sweep(name: str, *, sample: int, seed: int) -> list[dict[str, object]]:
    """Try a sample of a module's changes; return what became of each."""
    module = MODULES[name]
    original = (ROOT / module.path).read_text(encoding="utf-8")
    attempt = try_c if module.path.endswith(".c") else try_python
    unchanged = attempt(module, original)
    if unchanged != "survived":
        raise SystemExit(f"mutants: the tests of {name} without a change: {unchanged}")
    every = mutants_of(module.path, original)
    chosen = sorted(random.Random(seed).sample(range(len(every)), min(sample, len(every))))
    results: list[dict[str, object]] = []
    for index in chosen:
        mutant = every[index]
        ended = attempt(module, mutant.apply(original))
        results.append({"module": name, "ended": ended, **asdict(mutant)})
        if ended == "survived":
            line = original.splitlines()[mutant.line - 1].strip()
            print(f"{module.path}:{mutant.line}: `{mutant.old}` -> `{mutant.new}` survives: {line}", flush=True)
    if attempt is try_c:
        (COPY / module.path).write_text(original, encoding="utf-8")
    killed = sum(result["ended"] in ("failed", "hung") for result in results)
    alive = sum(result["ended"] == "survived" for result in results)
    print(f"{name}: {len(every)} changes, {len(results)} tried, {killed} noticed, {alive} survived", flush=True)
    return results


def main(arguments: list[str]) -> int:
    """Sweep the modules that are named, or all."""
    parser = argparse.ArgumentParser(description="Run each module's tests against small changes of it")
    parser.add_argument("modules", nargs="*", metavar="MODULE", help=f"of {', '.join(MODULES)}; all without")
    parser.add_argument("--sample", type=int, default=25, help="changes per module (default 25)")
    parser.add_argument("--seed", type=int, default=1, help="which changes the sample takes (default 1)")
    parser.add_argument("--json", type=Path, help="file for all results")
    options = parser.parse_args(arguments)
    names = options.modules or list(MODULES)
    if unknown := [name for name in names if name not in MODULES]:
        parser.error(f"unknown module {unknown[0]}; there are {', '.join(MODULES)}")
    if any(MODULES[name].path.endswith(".c") for name in names):
        prepare_c()
    results = [result for name in names for result in sweep(name, sample=options.sample, seed=options.seed)]
    if options.json is not None:
        options.json.write_text(json.dumps(results, indent=1), encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
