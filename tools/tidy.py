"""Finds our own mistakes in the tree: ``python tools/tidy.py`` prints them and exits 1; a test runs the same.

Each check takes a path and its text and yields findings; :data:`CHECKS` lists them with the files they look at.
"""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path, PurePosixPath
from typing import NamedTuple

ROOT = Path(__file__).resolve().parent.parent

FILE_BYTES_MAX = 200_000
COLUMNS_MAX = 120
C_FUNCTION_LINES_MAX = 70
FILE_LINES_MAX = 700
TEST_LINES_MAX = 1000  # a table of cases is long without being hard to read

# Written with a break in the middle, so that this file does not find itself.
_MACHINE_PATHS = re.compile(r"(?<![\w./-])/(?:wor[k]|roo[t]|hom[e]/\w+|tm[p]/gold)/")
_HOSTS = re.compile(
    r"\b(?:pyp[i]\.org|pythonhoste[d]\.org|repo1?\.mave[n]\.(?:apache\.)?org|deb\.debia[n]\.org|npmj[s]\.org)"
)
_REMINDERS = re.compile(r"\b(?:TOD[O]|FIXM[E]|XX[X]|HAC[K])\b")

# The file layer: the only places that may ask the operating system about files.
_FILE_LAYER = re.compile(r"csrc/base/cmq_(?:file\w*|host|lock|map_guard|nofollow)\.c")
_FILE_CALL = re.compile(
    r"(?<![\w.>])(open|openat|creat|fopen|pread|preadv|pwrite|pwritev|mmap|munmap|mremap|msync|fsync|fdatasync|"
    r"sync_file_range|rename|renameat|unlink|unlinkat|remove|mkdir|rmdir|ftruncate|truncate|fallocate|"
    r"posix_fallocate|opendir|lockf|flock|fcntl)\s*\("
)
_C_COMMENT = re.compile(r"/\*.*?\*/", re.DOTALL)
_C_STRING = re.compile(r'"(?:[^"\\\n]|\\.)*"')


class Finding(NamedTuple):
    """One mistake."""

    path: str
    line: int
    text: str

    def __str__(self) -> str:
        """Return it as compilers print theirs."""
        return f"{self.path}:{self.line}: {self.text}"


def line_of(text: str, at: int) -> int:
    """Return the line number, from 1, of a position."""
    return text.count("\n", 0, at) + 1


def forbidden_words(path: str, text: str) -> Iterator[Finding]:
    """Paths of one machine, hosts of registries, and reminders that nobody will read."""
    for pattern, what in [
        (_MACHINE_PATHS, "names a path of one machine"),
        (_HOSTS, "names a registry's host"),
        (_REMINDERS, "is a reminder: do it, or write an issue and the condition that ends it"),
    ]:
        for match in pattern.finditer(text):
            yield Finding(path, line_of(text, match.start()), f"{match.group()!r} {what}")


def without_comments_and_strings(text: str) -> str:
    """Blank them out, keeping every line where it is."""

    def blank(match: re.Match[str]) -> str:
        return "".join("\n" if char == "\n" else " " for char in match.group())

    return _C_STRING.sub(blank, _C_COMMENT.sub(blank, text))


def file_calls(path: str, text: str) -> Iterator[Finding]:
    """Files are touched through cmq_fs only, or power loss and failing disks cannot be tested."""
    if _FILE_LAYER.fullmatch(path):
        return
    code = without_comments_and_strings(text)
    for match in _FILE_CALL.finditer(code):
        yield Finding(path, line_of(code, match.start()), f"calls {match.group(1)}() itself; go through cmq_file.h")


def c_head(path: str, text: str) -> Iterator[Finding]:
    """Each engine file begins by saying what it is; a header also says what threads may do."""
    stem = PurePosixPath(path).stem
    if not text.startswith(f"/* {stem}:"):
        yield Finding(path, 1, f"does not begin with '/* {stem}: ...'")
    # Inline functions and macros alone have no threads of their own; an internal header shares its module's rules.
    exempt = "static inline" in text or stem == "cmq_assert" or stem.endswith("_internal")
    declares = ");" in without_comments_and_strings(text)
    if path.endswith(".h") and declares and "Threads:" not in text and not exempt:
        yield Finding(path, 1, "does not say 'Threads:'")


def file_length(path: str, text: str) -> Iterator[Finding]:
    """Files that should be split."""
    lines, lines_max = text.count("\n"), FILE_LINES_MAX if path.startswith(("csrc/", "src/")) else TEST_LINES_MAX
    if lines > lines_max:
        yield Finding(path, 1, f"has {lines} lines; split it before {lines_max}")


def c_function_length(path: str, text: str) -> Iterator[Finding]:
    """Functions that should be split."""
    start = 0
    for number, line in enumerate(text.splitlines(), 1):
        if line == "{":
            start = number
        elif line == "}" and start:
            if number - start - 1 > C_FUNCTION_LINES_MAX:
                yield Finding(path, start, f"function of {number - start - 1} lines; at most {C_FUNCTION_LINES_MAX}")
            start = 0


def columns(path: str, text: str) -> Iterator[Finding]:
    """Long lines."""
    for number, line in enumerate(text.splitlines(), 1):
        if len(line) > COLUMNS_MAX:
            yield Finding(path, number, f"has {len(line)} columns; at most {COLUMNS_MAX}")


class Check(NamedTuple):
    """A check and the paths that it looks at."""

    name: str
    paths: re.Pattern[str]
    find: Callable[[str, str], Iterator[Finding]]


CHECKS = [
    Check("forbidden words", re.compile(r"(?!tests/golden/|LICENSE).*"), forbidden_words),
    Check("file calls", re.compile(r"csrc/.*\.[ch]"), file_calls),
    Check("C head", re.compile(r"csrc/.*\.[ch]"), c_head),
    Check("file length", re.compile(r"(?:csrc|src|tests|benchmarks|tools|examples)/.*\.(?:[ch]|py)"), file_length),
    Check("C function length", re.compile(r"(?:csrc|tests/c|benchmarks)/.*\.[ch]"), c_function_length),
    Check("columns", re.compile(r"(?!tests/golden/).*\.(?:[ch]|px[di]|pyx|sh)"), columns),
]


def tracked_files(root: Path = ROOT) -> list[str]:
    """Return the paths that git tracks and that are there, relative to the root."""
    listed = subprocess.run(["git", "ls-files", "-z"], cwd=root, capture_output=True, check=True).stdout
    return [name for name in listed.decode().split("\0") if name and (root / name).is_file()]


def large_file(path: str, size: int) -> Iterator[Finding]:
    """Large files belong into tests/golden, or not into the tree."""
    if size > FILE_BYTES_MAX and not path.startswith("tests/golden/"):
        yield Finding(path, 1, f"has {size} bytes; at most {FILE_BYTES_MAX} outside tests/golden")


def findings(root: Path = ROOT) -> list[Finding]:
    """Run every check over every tracked file."""
    found: list[Finding] = []
    for path in tracked_files(root):
        data = (root / path).read_bytes()
        found += large_file(path, len(data))
        if b"\0" in data[:8192]:
            continue
        text = data.decode("utf-8", "replace")
        for check in CHECKS:
            if check.paths.fullmatch(path):
                found += check.find(path, text)
    return found


def main() -> int:
    """Print what was found."""
    found = findings()
    for finding in found:
        print(finding)
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
