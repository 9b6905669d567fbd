"""Hooks of requests that clusters with access control ask for: signatures, and the namespace beside them.

A signature is the HMAC-SHA1 of the values of all fields, in the order of the fields' names, followed by the body. It
covers every field, so the hook that signs is the last one. Neither replaces encryption: an observer of a request can
read it, and send it again.

Thread safety: any thread. Source: remoting specification 6.1; specification of transactions and filters 5.4.
"""

from __future__ import annotations

import hmac
from base64 import b64encode
from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING

from cometmq.errors import InvalidArgument

if TYPE_CHECKING:
    from cometmq.remoting.command import Command

__all__ = ["NamespaceFields", "RequestSigner", "signature_of"]

_SIGNATURE = "Signature"


def signature_of(fields: Mapping[str, str], body: bytes, *, secret_key: str) -> str:
    """Return the signature of a request; a field ``Signature`` is not part of it."""
    names = sorted((name for name in fields if name != _SIGNATURE), key=_utf16)
    # Each by itself: an encoding error contains the whole text, and the other values include credentials.
    content = b"".join(fields[name].encode("utf-8") for name in names) + body
    return b64encode(hmac.digest(secret_key.encode("utf-8"), content, "sha1")).decode("ascii")


def _utf16(name: str) -> bytes:
    """Return a key that sorts names as Java does, by UTF-16 code units."""
    return name.encode("utf-16-be")


def _text(name: str, value: object) -> str:
    if not isinstance(value, str) or not value.strip():
        raise InvalidArgument(f"{name} must be a text that is not empty")
    try:
        value.encode("utf-8")
    except UnicodeEncodeError:  # it contains the text, which may be a secret
        raise InvalidArgument(f"{name} must be text that UTF-8 can encode") from None
    return value


class RequestSigner:
    """Signs every request of a client with an access key, as Java's ``AclClientRPCHook`` does.

    Give it as the last of ``rpc_hooks``.
    """

    def __init__(self, access_key: str, secret_key: str, *, security_token: str | None = None) -> None:
        """Keep the credentials.

        Args:
            access_key: the user's name.
            secret_key: signs; it is not sent.
            security_token: a token that is sent and signed, too, of clusters with temporary credentials.

        Raises:
            InvalidArgument: one is empty, or cannot be encoded in UTF-8.
        """
        self._own = {"AccessKey": _text("access_key", access_key)}
        if security_token is not None:
            self._own["SecurityToken"] = _text("security_token", security_token)
        self._secret_key = _text("secret_key", secret_key)

    def __repr__(self) -> str:
        """Return the access key, and nothing of the secret."""
        return f"RequestSigner({self._own['AccessKey']!r})"

    def before_request(self, address: str, request: Command) -> Command:
        """Return the request with its signature."""
        fields = {**request.fields, **self._own}
        fields[_SIGNATURE] = signature_of(fields, request.body, secret_key=self._secret_key)
        return replace(request, fields=fields)

    def after_answer(self, address: str, request: Command, answer: Command) -> None:
        """Take note of nothing: answers are not signed."""


class NamespaceFields:
    """Adds the namespace of the second kind (``namespaceV2``) to every request. Give it before a signer."""

    def __init__(self, namespace: str) -> None:
        """``namespace`` is its name.

        Raises:
            InvalidArgument: it is empty, or no text.
        """
        self._own = {"ns": _text("namespace", namespace), "nsd": "true"}

    def __repr__(self) -> str:
        """Return the namespace."""
        return f"NamespaceFields({self._own['ns']!r})"

    def before_request(self, address: str, request: Command) -> Command:
        """Return the request with its namespace."""
        return replace(request, fields={**request.fields, **self._own})

    def after_answer(self, address: str, request: Command, answer: Command) -> None:
        """Take note of nothing."""
