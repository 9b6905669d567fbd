"""Additions of ``make docs`` to MkDocs: pages of the API, and links that leave ``docs/``.

A page of the API is a list of names in ``API``. Links to files outside of ``docs/`` become links to the repository,
where the environment's COMETMQ_REPOSITORY has its address, and the bare name elsewhere. A link to a file that is not
there, and a name without a docstring, are warnings: ``--strict`` ends the build with them.
"""

from __future__ import annotations

import importlib
import inspect
import logging
import os
import posixpath
import re
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from mkdocs.structure.files import Files

ROOT = Path(__file__).resolve().parent.parent
REPOSITORY = os.environ.get("COMETMQ_REPOSITORY", "").rstrip("/")
_LOG = logging.getLogger("mkdocs.hooks.cometmq")
_LINK = re.compile(r"(!?)\[((?:[^\[\]]|\[[^\]]*\])*)\]\(((?:\.\./)+[^)#\s]*)(#[^)\s]*)?\)")
_FENCE = re.compile(r"^(```\w+) .+$", re.MULTILINE)
"""The marks behind a block's language are for tests/docs/test_readme.py."""
_PAGE_LINK = re.compile(r"\[(?:[\w-]+/)*([\w-]+)\.md\]\((?=[\w./-]+\.md)")
"""Links whose text is a file's name; a site has no files."""

API = {
    "store": (
        "The store: cometmq",
        "cometmq",
        ("open", "Store", "Consumer", "Cursor", "Reader", "Retention", "FlushMode", "StartFrom"),
    ),
    "messages": (
        "Messages and results: cometmq",
        "cometmq",
        (
            "Message",
            "AppendResult",
            "AppendManyResult",
            "HandedOff",
            "GroupProgress",
            "QueueInfo",
            "StoreInfo",
            "StoreOpening",
            "TopicInfo",
        ),
    ),
    "errors": ("Errors: cometmq", "cometmq", ()),
    "aio": ("asyncio: cometmq.aio", "cometmq.aio", ()),
    "client": ("The client: cometmq.client", "cometmq.client", ()),
    "admin": ("Administration: cometmq.admin", "cometmq.admin", ()),
    "admin_aio": ("Administration with asyncio: cometmq.admin.aio", "cometmq.admin.aio", ()),
    "testing": ("Testing: cometmq.testing", "cometmq.testing", ()),
}
"""Pages: their title, their module, and the names; all public ones, or all exceptions, where none is named."""


def names_of(page: str) -> list[str]:
    """Return what a page shows."""
    _, module_name, names = API[page]
    module = importlib.import_module(module_name)
    if names:
        return list(names)
    public = [name for name in module.__all__ if not name.startswith("_")]
    if page == "errors":
        return [name for name in public if _is_exception(getattr(module, name))]
    return public


def _is_exception(value: object) -> bool:
    return isinstance(value, type) and issubclass(value, BaseException)


def undocumented() -> list[str]:
    """Return public names of the pages, and public members of their classes, that have no docstring."""
    missing = []
    for page, (_, module_name, _) in API.items():
        module = importlib.import_module(module_name)
        for name in names_of(page):
            value = getattr(module, name)
            if not (inspect.isclass(value) or callable(value)):
                continue  # constants have theirs in the source
            if not inspect.getdoc(value):
                missing.append(f"{module_name}.{name}")
            if inspect.isclass(value):
                missing += [f"{module_name}.{name}.{member}" for member in _members_without(value)]
    return missing


def _members_without(value: type) -> list[str]:
    return [
        name
        for name, member in vars(value).items()
        if not name.startswith("_")
        and (callable(member) or isinstance(member, property | classmethod | staticmethod))
        and not inspect.getdoc(getattr(value, name))
    ]


# --- MkDocs' events ---------------------------------------------------------------------------------------------------


def on_files(files: Files, config: Any) -> Files:
    """Add the pages that are not files in ``docs/``."""
    from mkdocs.structure.files import File

    for page, (title, module_name, _) in API.items():
        blocks = [f"::: {module_name}.{name}\n" for name in names_of(page)]
        text = "\n".join([f"# {title}\n", f"```python\nimport {module_name}\n```\n", *blocks])
        files.append(File.generated(config, f"api/{page}.md", content=text))
    changelog = (
        (ROOT / "CHANGELOG.md")
        .read_text(encoding="utf-8")
        .replace("](docs/", "](")
        .replace("](examples/", "](../examples/")
    )
    files.append(File.generated(config, "changelog.md", content=changelog))
    for name in undocumented():
        _LOG.warning("%s has no docstring", name)
    return files


def on_page_markdown(markdown: str, page: Any, **_: Any) -> str:
    """Turn links out of ``docs/`` into links to the repository, or into names; drop the tests' marks of blocks."""
    folder = posixpath.dirname(posixpath.join("docs", page.file.src_uri))

    def outside(match: re.Match[str]) -> str:
        image, text, target, anchor = match[1], match[2], match[3], match[4] or ""
        path = posixpath.normpath(posixpath.join(folder, target))
        if path.startswith("docs/") or path == "docs":
            return match[0]
        if not (ROOT / path).exists():
            _LOG.warning("%s links to %s, which is not there", page.file.src_uri, path)
        if path == "CHANGELOG.md":
            return f"[{text}]({posixpath.relpath('docs/changelog.md', folder)}{anchor})"
        return f"{image}[{text}]({REPOSITORY}/{path}{anchor})" if REPOSITORY else text

    return _PAGE_LINK.sub(r"[\1](", _LINK.sub(outside, _FENCE.sub(r"\1", markdown)))
