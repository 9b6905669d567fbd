"""Credentials of the commands on a cluster: from environment variables, or from a file that one of them names.

No command prints them, and no option takes a secret: every user of the machine can see command lines.
"""

from __future__ import annotations

import os
import stat
from pathlib import Path
from typing import TYPE_CHECKING, Final

from cometmq.errors import InvalidArgument

if TYPE_CHECKING:
    from cometmq.remoting.network import RpcHook

__all__ = ["hooks_of_environment"]

_FILE = "COMETMQ_CREDENTIALS"
_NAMES: Final = {
    "accessKey": "COMETMQ_ACCESS_KEY",
    "secretKey": "COMETMQ_SECRET_KEY",
    "securityToken": "COMETMQ_SECURITY_TOKEN",
}
_BYTES_MAX = 65_536
_OTHERS = stat.S_IRGRP | stat.S_IROTH


def hooks_of_environment() -> list[RpcHook]:
    """Return the hook that signs requests; an empty list without credentials.

    Raises:
        InvalidArgument: a credential is missing or invalid; the file cannot be read, is invalid, or other users can
            read it.
    """
    path = os.environ.get(_FILE)
    found = {} if not path else _read(Path(path))
    found |= {name: os.environ[variable] for name, variable in _NAMES.items() if os.environ.get(variable)}
    if not found:
        return []
    missing = [name for name in ("accessKey", "secretKey") if name not in found]
    if missing:
        raise InvalidArgument(
            f"{missing[0]} is missing beside {', '.join(found)}: set {_NAMES[missing[0]]}, or add it to the file of "
            f"{_FILE}"
        )
    from cometmq.client import RequestSigner

    return [RequestSigner(found["accessKey"], found["secretKey"], security_token=found.get("securityToken"))]


def _read(path: Path) -> dict[str, str]:
    """Return the credentials of a file: lines ``accessKey: NAME`` or ``accessKey = NAME``, as in ``tools.yml``."""
    try:
        with path.open("rb") as file:
            mode, data = os.fstat(file.fileno()).st_mode, file.read(_BYTES_MAX + 1)
    except OSError as error:
        raise InvalidArgument(f"{_FILE}: cannot read {path}: {error.strerror}") from error
    if mode & _OTHERS:
        raise InvalidArgument(f"{_FILE}: other users can read {path}: chmod 600 {path}")
    if len(data) > _BYTES_MAX:
        raise InvalidArgument(f"{_FILE}: {path} has more than {_BYTES_MAX:,} bytes: it is no file of credentials")
    try:
        lines = data.decode("utf-8-sig").splitlines()
    except UnicodeDecodeError:  # it contains the secret
        raise InvalidArgument(f"{_FILE}: {path} is not UTF-8 text") from None
    found: dict[str, str] = {}
    for number, line in enumerate(lines, 1):
        text = line.strip()
        if not text or text.startswith("#"):
            continue
        at = min((at for at in (text.find(":"), text.find("=")) if at >= 0), default=-1)
        name, value = text[: max(at, 0)].strip(), text[at + 1 :].strip().strip("\"'")
        if name not in _NAMES or not value:  # the line may hold a secret, so it is not quoted
            raise InvalidArgument(f"{path}, line {number}: expected {', '.join(_NAMES)}, such as accessKey: NAME")
        found[name] = value
    return found
