"""Makes three files from the table of codes, ``csrc/wire/codes.toml``.

``csrc/wire/cmq_codes.h`` for the engine, ``src/cometmq/remoting/codes.py`` for the control plane, and
``docs/compatibility.md`` for people. A test fails where one of them is not what the table gives.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

ROOT = Path(__file__).resolve().parent.parent
TABLE = "csrc/wire/codes.toml"

_WHERE = ("c", "python", "later", "never")
_FROM = ("client", "admin", "broker", "namesrv", "controller")
_TO = ("broker", "namesrv", "client", "controller", "container")
_REQUEST_KEYS = frozenset({"code", "since", "from", "to", "where", "module", "test", "note"})
_RESPONSE_KEYS = frozenset({"code", "since", "meaning"})


class TableError(ValueError):
    """The table has an entry that cannot be used; the text names it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """One request code."""

    name: str
    code: int
    since: str
    sender: str
    to: tuple[str, ...]
    where: str
    module: str
    test: str
    note: str

    @property
    def is_served(self) -> bool:
        """True where something here serves it, or sends it to clients."""
        return self.where in ("c", "python")


@dataclass(frozen=True, slots=True, kw_only=True)
class Response:
    """One response code."""

    name: str
    code: int
    since: str
    meaning: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Difference:
    """Where an answer differs from upstream's on purpose."""

    what: str
    why: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Feature:
    """A feature of upstream's that no request code shows, and its state here."""

    feature: str
    here: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Table:
    """The whole table, in the order of the codes."""

    requests: tuple[Request, ...]
    responses: tuple[Response, ...]
    features: tuple[Feature, ...]
    differences: tuple[Difference, ...]


def read_table(text: str) -> Table:
    """Read and check the table.

    Raises:
        TableError: an unknown key, a wrong value, or a code that comes twice.
    """
    document = tomllib.loads(text)
    if set(document) != {"request", "response", "feature", "difference"}:
        raise TableError(f"the table has {', '.join(sorted(document))}, not request, response, feature and difference")
    requests = [_request(name, entry) for name, entry in document["request"].items()]
    responses = [_response(name, entry) for name, entry in document["response"].items()]
    differences = [Difference(what=entry["what"], why=entry["why"]) for entry in document["difference"]]
    return Table(
        requests=tuple(_by_code(requests)),
        responses=tuple(_by_code(responses)),
        features=tuple(Feature(feature=entry["feature"], here=entry["here"]) for entry in document["feature"]),
        differences=tuple(differences),
    )


def _by_code(entries: list[Any]) -> list[Any]:
    codes = [entry.code for entry in entries]
    for code in codes:
        if codes.count(code) > 1:
            raise TableError(f"the code {code} comes twice")
    return sorted(entries, key=lambda entry: int(entry.code))


def _request(name: str, entry: Mapping[str, Any]) -> Request:
    _check_keys(name, entry, _REQUEST_KEYS)
    request = Request(
        name=name,
        code=int(entry["code"]),
        since=str(entry["since"]),
        sender=str(entry["from"]),
        to=tuple(entry["to"]),
        where=str(entry["where"]),
        module=str(entry.get("module", "")),
        test=str(entry.get("test", "")),
        note=str(entry.get("note", "")),
    )
    if request.sender not in _FROM or not request.to or not set(request.to) <= set(_TO):
        raise TableError(f"{name}: from {request.sender} to {', '.join(request.to)}")
    if request.where not in _WHERE:
        raise TableError(f"{name}: where is one of {', '.join(_WHERE)}, not {request.where}")
    if request.is_served != bool(request.module and request.test):
        raise TableError(f"{name}: module and test go with where = c or python, and with nothing else")
    if not request.is_served and not request.note:
        raise TableError(f"{name}: a code that is not served says in note what it comes with, or why it never does")
    return request


def _response(name: str, entry: Mapping[str, Any]) -> Response:
    _check_keys(name, entry, _RESPONSE_KEYS)
    return Response(name=name, code=int(entry["code"]), since=str(entry["since"]), meaning=str(entry["meaning"]))


def _check_keys(name: str, entry: Mapping[str, Any], known: frozenset[str]) -> None:
    if not set(entry) <= known:
        raise TableError(f"{name}: unknown keys {', '.join(sorted(set(entry) - known))}")


# --- C ----------------------------------------------------------------------------------------------------------------


def c_header(table: Table) -> str:
    """Return ``csrc/wire/cmq_codes.h``."""
    lines = [
        "/* cmq_codes: request and response codes.",
        " *",
        f" * Made from {TABLE} by tools/make_codes.py; do not edit. Where each request is served stands there.",
        " */",
        "#ifndef CMQ_CODES_H",
        "#define CMQ_CODES_H",
        "",
        "typedef enum cmq_request_code {",
        *_c_constants("CMQ_REQUEST", ((request.name, request.code) for request in table.requests)),
        "} cmq_request_code;",
        "",
        "typedef enum cmq_response_code {",
        *_c_constants("CMQ_RESPONSE", ((response.name, response.code) for response in table.responses)),
        "} cmq_response_code;",
        "",
        "#endif",
    ]
    return "\n".join(lines) + "\n"


def _c_constants(prefix: str, constants: Iterable[tuple[str, int]]) -> list[str]:
    lines = [f"    {prefix}_{name} = {code}," for name, code in constants]
    lines[-1] = lines[-1].removesuffix(",")
    return lines


# --- Python -----------------------------------------------------------------------------------------------------------


def python_module(table: Table) -> str:
    """Return ``src/cometmq/remoting/codes.py``."""
    served = [request for request in table.requests if request.where == "python"]
    lines = [
        '"""Request and response codes, and where each is served.',
        "",
        f"Made from ``{TABLE}`` by ``tools/make_codes.py``; do not edit.",
        '"""',
        "",
        "from __future__ import annotations",
        "",
        "import enum",
        "from collections.abc import Mapping",
        "",
        "__all__ = [",
        '    "BROKER_REQUESTS",',
        '    "ENGINE_REQUESTS",',
        '    "NAMESRV_REQUESTS",',
        '    "NEVER_REQUESTS",',
        '    "NOT_YET_REQUESTS",',
        '    "RequestCode",',
        '    "ResponseCode",',
        "]",
        "",
        "",
        "class RequestCode(enum.IntEnum):",
        '    """The operation that a request asks for."""',
        "",
        *(f"    {request.name} = {request.code}" for request in table.requests),
        "",
        "",
        "class ResponseCode(enum.IntEnum):",
        '    """How a request ended."""',
        "",
        *(f"    {response.name} = {response.code}" for response in table.responses),
        "",
        "",
        *_python_set(
            "ENGINE_REQUESTS",
            "Requests that the engine's socket loops answer themselves.",
            [request for request in table.requests if request.where == "c"],
        ),
        *_python_set(
            "BROKER_REQUESTS",
            "Requests that a broker's control plane answers.",
            [request for request in served if "broker" in request.to],
        ),
        *_python_set(
            "NAMESRV_REQUESTS",
            "Requests that a name server answers.",
            [request for request in served if "namesrv" in request.to],
        ),
        *_python_map(
            "NOT_YET_REQUESTS",
            "Requests that are answered with code 3 for now, and what they will come with.",
            [request for request in table.requests if request.where == "later"],
        ),
        *_python_map(
            "NEVER_REQUESTS",
            "Requests that are answered with code 3 for good, and why.",
            [request for request in table.requests if request.where == "never"],
        ),
    ]
    return "\n".join(lines).rstrip("\n") + "\n"


def _python_set(name: str, what: str, requests: list[Request]) -> list[str]:
    members = [f"        RequestCode.{request.name}," for request in requests]
    return [f"{name}: frozenset[RequestCode] = frozenset(", "    {", *members, "    }", ")", f'"""{what}"""', ""]


def _python_map(name: str, what: str, requests: list[Request]) -> list[str]:
    members = [f'    RequestCode.{request.name}: "{request.note}",' for request in requests]
    return [f"{name}: Mapping[RequestCode, str] = {{", *members, "}", f'"""{what}"""', ""]


# --- People -----------------------------------------------------------------------------------------------------------

_INTRODUCTION = """\
CometMQ speaks the remoting protocol of Apache RocketMQ 5.3.3, in both header formats (JSON and ROCKETMQ), and reports
version 479 (5.3.3). It is tested with clients, `mqadmin`, brokers and name servers of the 4.9 and 5.x lines, and its
frames were compared with those that real 4.9.7 and 5.3.3 servers and clients exchanged.

*Since* is upstream's first release that knows the code; 4.2 stands for it and everything before, and *ours* for codes
that no release of upstream's has, which its clients never send and its brokers answer with code 3. *Served in* says
which part answers: the engine's socket loops (C), or the control plane (Python). A code may move between the two
without a client noticing. Every code that is not served is answered with code 3 (`REQUEST_CODE_NOT_SUPPORTED`).
"""
_STORE_FILES = """\
## Store files

The directory is RocketMQ's format byte for byte: commit log, consume queues, index, checkpoint, and the JSON files
under `config/`. It is tested against stores that RocketMQ 4.9.7, 5.3.3 and 5.5.0 wrote and, both ways, against their
real brokers with the official Java client: a broker opens a store that CometMQ wrote, and the reverse, after clean
stops and crashes of either. The short form of the Java tests, 65 tests, passed with 5.4.0 and with 5.5.0 in place of
5.3.3 (`make test-java-short RELEASE=5.5.0`, commit e0e67f6f, 8 minutes each on a busy two-core machine). The long
form was not run with these two. Both take the same lock, so only one of them writes at a time.

Since 5.4 a broker enters the tags of messages into the index, beside unique ids and keys. CometMQ continues the index
the way that its newest entries show; `messageIndexTags=ON` or `OFF` decides it. A broker of any version reads either.
Look-ups by tag (`store.find(tag=)`, QUERY_MESSAGE with `indexType` T) use the queues, which have the tags of all
messages.
"""
_SERVED_BY = {"c": "C", "python": "Python"}
_SECTIONS = (
    ("Served by the broker", "broker", ""),
    ("Served by the name server", "namesrv", ""),
    ("Sent to clients", "client", "The broker asks, or tells, a connected client."),
)


def document(table: Table) -> str:
    """Return ``docs/compatibility.md``."""
    served = [request for request in table.requests if request.is_served]
    lines = [
        "# Compatibility with Apache RocketMQ",
        "",
        f"Made from `{TABLE}` by `make codes`; do not edit.",
        "",
        *_INTRODUCTION.splitlines(),
        "",
        *_STORE_FILES.splitlines(),
        "",
        "## Features beside the request codes",
        "",
        "| feature of upstream's | here |",
        "|---|---|",
        *(f"| {feature.feature} | {feature.here} |" for feature in table.features),
        "",
    ]
    for title, server, text in _SECTIONS:
        rows = [request for request in served if server in request.to]
        lines += [f"## {title}", ""] + ([text, ""] if text else [])
        lines += ["| code | name | since | sent by | served in | test | remarks |", "|---|---|---|---|---|---|---|"]
        lines += [_served_row(request) for request in rows]
        lines.append("")
    for title, where, heading in (("Not yet", "later", "comes with"), ("Never", "never", "why")):
        rows = [request for request in table.requests if request.where == where]
        lines += [f"## {title}", "", f"| code | name | since | {heading} |", "|---|---|---|---|"]
        lines += [f"| {request.code} | {request.name} | {request.since} | {request.note} |" for request in rows]
        lines.append("")
    lines += ["## Response codes", "", "| code | name | since | meaning |", "|---|---|---|---|"]
    lines += [f"| {r.code} | {r.name} | {r.since} | {r.meaning} |" for r in table.responses]
    lines += [
        "",
        "4.9 uses 209, 210 and 211 for failures of its access control, which this table leaves out.",
        "",
        "## Other answers than upstream's, on purpose",
        "",
        "| difference | reason |",
        "|---|---|",
        *(f"| {difference.what} | {difference.why} |" for difference in table.differences),
    ]
    return "\n".join(lines) + "\n"


def _served_row(request: Request) -> str:
    where = f"{_SERVED_BY[request.where]}: `{request.module}`"
    return (
        f"| {request.code} | {request.name} | {request.since} | {request.sender} | {where} "
        f"| `{request.test}` | {request.note} |"
    )


def generated(root: Path = ROOT) -> dict[str, str]:
    """Return path and text of each file that the table under ``root`` gives."""
    table = read_table((root / TABLE).read_text("utf-8"))
    return {
        "csrc/wire/cmq_codes.h": c_header(table),
        "src/cometmq/remoting/codes.py": python_module(table),
        "docs/compatibility.md": document(table),
    }


def main() -> int:
    """Write the files that differ; return the exit code."""
    try:
        files = generated()
    except TableError as error:
        print(f"{TABLE}: {error}", file=sys.stderr)
        return 1
    for path, text in files.items():
        target = ROOT / path
        if not target.exists() or target.read_text("utf-8") != text:
            target.write_text(text, "utf-8")
            print(f"codes: wrote {path}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
