"""Builds and tests what changed: ``make quick``, the loop between two edits. ``make test`` stays the gate.

    python tools/quick.py [--base REVISION] [--list]

Changed is what differs from where this branch left main, with files that are not committed or new. Tests mirror the
sources: ``csrc/store/index/cmq_index.c`` has ``tests/c/store/index/test_cmq_index.c``, ``src/cometmq/arrow/scans.py``
has ``tests/unit/arrow/test_scans.py``. Where a file has no test of its own, the nearest folder's tests run. C tests run
under AddressSanitizer. Spark, Java, benchmarks, mypy and the crash tests' long forms are left to ``make test``.
"""

from __future__ import annotations

import argparse
import re
import subprocess
import sys
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
JOBS = 2
_LEFT_OUT = ("tests/spark/", "tests/interop/", "tests/benchmarks/", "tests/hostile/")
_FOLDER_MAX = 12
"""Test files that a change without a test of its own may start."""


@dataclass(slots=True)
class Plan:
    """The programs to build and the tests to run."""

    c_programs: set[str] = field(default_factory=set)
    """Names of C test programs."""
    pytest_files: set[str] = field(default_factory=set)
    pages: set[str] = field(default_factory=set)
    """Pages whose blocks and links are checked."""
    python_files: set[str] = field(default_factory=set)
    """For the linter."""
    without_test: set[str] = field(default_factory=set)


def changed_files(base: str | None, root: Path = ROOT) -> list[str]:
    """Return the files that differ from ``base``, by default from where this branch left main; new files too.

    On main itself they are those that are not committed.
    """

    def git(*arguments: str) -> list[str]:
        done = subprocess.run(["git", *arguments], cwd=root, capture_output=True, text=True, check=False)
        if done.returncode != 0:
            raise SystemExit(f"quick: git {arguments[0]} failed: {done.stderr.strip()}; name a revision with --base")
        return done.stdout.splitlines()

    if base is None:
        mains = git("for-each-ref", "--format=%(refname)", "refs/remotes/origin/main", "refs/heads/main")
        base = git("merge-base", "HEAD", mains[0])[0] if mains else "HEAD"
    found = {*git("diff", "--name-only", base), *git("ls-files", "--others", "--exclude-standard")}
    return sorted(found)


def make_plan(files: Iterable[str], root: Path = ROOT) -> Plan:
    """Return what belongs to these files."""
    plan = Plan()
    for name in files:
        path = Path(name)
        if path.suffix == ".py" and (root / path).exists():
            plan.python_files.add(name)
        if not _add(plan, path, root):
            plan.without_test.add(name)
    return plan


def _add(plan: Plan, path: Path, root: Path) -> bool:
    """Add what belongs to one file; return whether there is anything."""
    parts, name = path.parts, path.as_posix()
    if name.startswith(_LEFT_OUT) or path.name == "CHANGELOG.md":
        return False
    if parts[0] == "csrc" or name.startswith(("tests/c/", "tests/fuzz/c/", "tests/crash/")):
        return _add_c(plan, path, root)
    if name.startswith("bindings/jvm/"):
        plan.pytest_files.add("tests/jvm/test_hostile_calls.py")
        return True
    if parts[0] == "bindings":
        plan.pytest_files |= {"tests/unit/test_engine.py", "tests/unit/test_stubs.py"}
        return True
    if parts[0] == "src":
        return _add_python(plan, path, root)
    if path.suffix == ".md":
        plan.pages.add(name)
        return True
    if parts[0] == "tests" and path.name.startswith("test_") and path.suffix == ".py":
        if (root / path).exists():
            plan.pytest_files.add(name)
        return True
    if parts[0] in ("tools", "examples", "docs", "benchmarks"):
        users = _tests_with(
            root, rf"import {re.escape(path.stem)}\b|\b{re.escape(path.name)}\b", ("tests/unit", "tests/docs")
        )
        plan.pytest_files |= set(users[:_FOLDER_MAX])
        return bool(users)
    return False


def _add_c(plan: Plan, path: Path, root: Path) -> bool:
    if path.suffix not in (".c", ".h"):
        return False
    if path.parts[0] == "tests":
        if path.parts[1] == "crash":
            found = [f"crash_{path.stem}"] if path.suffix == ".c" else []
        else:
            found = [path.stem] if path.stem.startswith(("test_", "fuzz_")) else []
        plan.c_programs.update(found)
        return bool(found)
    folder = root / "tests" / "c" / path.relative_to("csrc").parent
    own = sorted(folder.glob(f"test_{path.stem}*.c"))
    while not own and folder != root / "tests":
        own = sorted(folder.glob("test_*.c"))[:_FOLDER_MAX]
        folder = folder.parent
    plan.c_programs.update(one.stem for one in own)
    return bool(own)


def _add_python(plan: Plan, path: Path, root: Path) -> bool:
    inside = path.relative_to("src/cometmq") if path.is_relative_to("src/cometmq") else None
    if inside is None:
        return False
    folder = root / "tests" / "unit" / inside.parent
    stem = path.stem.lstrip("_")
    own = [one.relative_to(root).as_posix() for one in sorted(folder.glob(f"test_{stem}*.py"))] if stem else []
    if not own:
        module = ".".join(path.relative_to("src").with_suffix("").parts).removesuffix(".__init__")
        own = _tests_with(root, rf"\b{re.escape(module)}\b", ("tests/unit",))[:_FOLDER_MAX]
    if not own:
        own = [one.relative_to(root).as_posix() for one in sorted(folder.glob("test_*.py"))[:_FOLDER_MAX]]
    plan.pytest_files.update(own)
    return bool(own)


def _tests_with(root: Path, pattern: str, folders: Sequence[str]) -> list[str]:
    return [
        path.relative_to(root).as_posix()
        for folder in folders
        for path in sorted((root / folder).rglob("test_*.py"))
        if re.search(pattern, path.read_text(encoding="utf-8"))
    ]


# --- Running ----------------------------------------------------------------------------------------------------------


def _step(title: str, command: Sequence[str], cwd: Path = ROOT) -> bool:
    """Run a command; show its output where it fails. Return whether it passed."""
    begin = time.monotonic()
    done = subprocess.run(command, cwd=cwd, capture_output=True, text=True, check=False)
    took = time.monotonic() - begin
    print(f"quick: {title}: {'passed' if done.returncode == 0 else 'FAILED'}, {took:.1f} s", flush=True)
    if done.returncode != 0:
        print(done.stdout[-8000:], done.stderr[-4000:], sep="\n")
    return done.returncode == 0


def run(plan: Plan) -> bool:
    """Build and run everything; later steps run although earlier ones failed, unless they need a build."""
    passed, python = True, sys.executable
    if plan.python_files:
        names = sorted(plan.python_files)
        passed &= _step("ruff check", [python, "-m", "ruff", "check", "--quiet", *names])
        passed &= _step("ruff format", [python, "-m", "ruff", "format", "--quiet", "--check", *names])
    passed &= _step("tidy", [python, "tools/tidy.py"])
    if plan.c_programs:
        programs, csrc = sorted(plan.c_programs), ROOT / "csrc"
        title = f"{len(programs)} C programs under AddressSanitizer"
        if (
            _step("configure", ["cmake", "--preset", "asan"], csrc)
            and _step(f"build {title}", ["cmake", "--build", "--preset", "asan", "--target", *programs], csrc)
            and _step(title, ["ctest", "--preset", "asan", "-j", str(JOBS), "-R", f"^({'|'.join(programs)})$"], csrc)
        ):
            pass
        else:
            passed = False
    pytest = [python, "-m", "pytest", "-q", "-x", "-n", str(JOBS), "--dist", "loadfile", "--timeout", "60"]
    if not (plan.pytest_files or plan.pages):
        return passed
    if not _step("build the extension", ["make", "-s", "build"]):
        return False
    if plan.pytest_files:
        passed &= _step(f"{len(plan.pytest_files)} test files", [*pytest, *sorted(plan.pytest_files)])
    if plan.pages:
        pages = " or ".join(sorted(plan.pages))
        passed &= _step(f"{len(plan.pages)} pages", [*pytest, "tests/docs/test_readme.py", "-k", pages])
    return passed


def main() -> int:
    """Plan and run; the exit code is 0 where everything passed."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--base", metavar="REVISION", help="compare with this revision")
    parser.add_argument("--list", action="store_true", help="show the plan, run nothing")
    arguments = parser.parse_args()
    begin = time.monotonic()
    files = changed_files(arguments.base)
    if not files:
        print("quick: nothing changed")
        return 0
    plan = make_plan(files)
    print(f"quick: {len(files)} changed files")
    if plan.without_test:
        print(f"quick: no quick test for {', '.join(sorted(plan.without_test))}; make test covers them")
    if arguments.list:
        for name in [*sorted(plan.c_programs), *sorted(plan.pytest_files), *sorted(plan.pages)]:
            print(f"  {name}")
        return 0
    passed = run(plan)
    print(f"quick: {'all passed' if passed else 'FAILED'} in {time.monotonic() - begin:.0f} s; `make test` is the gate")
    return 0 if passed else 1


if __name__ == "__main__":
    sys.exit(main())
