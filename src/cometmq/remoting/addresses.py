"""Addresses as RocketMQ writes them: ``host:port``, IPv6 without brackets, lists with semicolons between them.

Source: remoting specification 7.1, 7.7.
"""

from __future__ import annotations

import socket
from ipaddress import ip_address

from cometmq.errors import InvalidArgument

__all__ = ["check_listen_host", "host_port", "listen_host", "own_address", "parse_address", "parse_addresses"]

_PORT_MAX = 65_535


def host_port(host: str, port: int) -> str:
    """Return a numeric address with its port; IPv6 in brackets."""
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def listen_host(host: str) -> str:
    """Return a host to listen on as a numeric address.

    Raises:
        InvalidArgument: it is neither numeric nor ``localhost``.
    """
    try:
        return str(ip_address("127.0.0.1" if host == "localhost" else host))
    except ValueError:
        raise InvalidArgument(f"cannot listen on {host!r}: give a numeric address such as 127.0.0.1") from None


def own_address(*, version: int = 4) -> str:
    """Return the address by which this machine would reach others; the loopback where it cannot. Nothing is sent.

    Args:
        version: 4 or 6, of the Internet Protocol.
    """
    family, other = (socket.AF_INET, "192.0.2.1") if version == 4 else (socket.AF_INET6, "2001:db8::1")
    with socket.socket(family, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect((other, 9))
            return str(probe.getsockname()[0])
        except OSError:
            return "127.0.0.1" if version == 4 else "::1"


def check_listen_host(host: str, *, insecure_listen: bool, danger: str) -> None:
    """Refuse to listen where others can connect, unless that is meant.

    Args:
        host: a numeric address.
        insecure_listen: it is meant.
        danger: the harm that anyone who reaches the port could do.

    Raises:
        InvalidArgument: it is not the loopback.
    """
    if insecure_listen or ip_address(host).is_loopback:
        return
    raise InvalidArgument(
        f"refusing to listen on {host}: anyone who reaches the port could {danger} without a password. "
        "Listen on 127.0.0.1, or give --insecure-listen (insecure_listen=True) where the network keeps others out"
    )


def parse_address(text: str) -> tuple[str, int]:
    """Return host and port of one address; the port stands behind the last colon, brackets around the host go away.

    Raises:
        InvalidArgument: the host or the port is missing, or the port is not one.
    """
    host, colon, port = text.strip().removeprefix("http://").rpartition(":")
    if host.startswith("[") and host.endswith("]"):
        host = host[1:-1]
    if not colon or not host or any(char.isspace() for char in host):
        raise InvalidArgument(f"{text!r} is not an address: write host:port")
    if not (port.isascii() and port.isdigit() and len(port) <= 5 and int(port) <= _PORT_MAX):
        raise InvalidArgument(f"{text!r} is not an address: the port is a number from 0 to {_PORT_MAX}")
    return host, int(port)


def parse_addresses(text: str) -> tuple[str, ...]:
    """Return the addresses of a list with semicolons or commas between them, in their order, each once.

    Raises:
        InvalidArgument: the list is empty, or one of them cannot be used.
    """
    parts = [part.strip().removeprefix("http://") for part in text.replace(",", ";").split(";")]
    found = tuple(dict.fromkeys(part for part in parts if part))
    if not found:
        raise InvalidArgument("no address was given: write host:port, several with ';' between them")
    for part in found:
        parse_address(part)
    return found
