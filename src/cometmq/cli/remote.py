"""The part that commands on a cluster share: its address options, and the session with it."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Annotated, Any, TypeAlias

import typer
from typer.core import TyperGroup

from cometmq.cli.credentials import hooks_of_environment
from cometmq.cli.failures import ExitCode, fail, usage
from cometmq.errors import InvalidArgument

if TYPE_CHECKING:
    from cometmq.admin import Admin, BrokerRef

__all__ = [
    "BrokerAddress",
    "BrokerName",
    "ClusterName",
    "Namesrv",
    "Yes",
    "confirmed",
    "connected",
    "group_of",
    "pairs_of",
    "report_lost",
]

Namesrv: TypeAlias = Annotated[
    str | None,
    typer.Option(
        "--namesrv",
        "-n",
        metavar="HOST:PORT",
        help="Name servers, separated by ';' (default: $COMETMQ_NAMESRV, $NAMESRV_ADDR, 127.0.0.1:9876).",
        show_default=False,
    ),
]
BrokerAddress: TypeAlias = Annotated[
    str | None,
    typer.Option("--broker", metavar="HOST:PORT", help="Use this broker, without a name server."),
]
ClusterName: TypeAlias = Annotated[str | None, typer.Option("--cluster", metavar="NAME", help="Limit to this cluster.")]
BrokerName: TypeAlias = Annotated[
    str | None, typer.Option("--broker-name", metavar="NAME", help="Limit to this broker.")
]
Yes: TypeAlias = Annotated[bool, typer.Option("--yes", "-y", help="Skip the confirmation prompt.")]


@contextmanager
def connected(namesrv: str | None, broker: str | None) -> Iterator[Admin]:
    """Return the session with the cluster that the options name."""
    if namesrv is not None and broker is not None:
        raise typer.BadParameter("--namesrv and --broker exclude each other: give one")
    import cometmq.admin
    from cometmq.admin.addresses import namesrv_of_environment
    from cometmq.errors import BrokerError, ConnectionLost
    from cometmq.remoting.addresses import parse_addresses
    from cometmq.remoting.codes import ResponseCode

    with usage():
        session = cometmq.admin.connect(namesrv=namesrv, broker=broker, rpc_hooks=hooks_of_environment())
    asked = broker if broker is not None else namesrv if namesrv is not None else namesrv_of_environment()
    try:
        with session as admin:
            yield admin
    except BrokerError as error:
        if error.code != ResponseCode.REQUEST_CODE_NOT_SUPPORTED or error.address not in parse_addresses(asked):
            raise
        other = _what_it_is(error.address, wanted_broker=broker is not None)
        if other is None:
            raise
        raise InvalidArgument(other) from error
    except ConnectionLost as error:
        # The cause is the system's where no connection was made. A broker that name servers know is another matter.
        if not isinstance(error.__cause__, OSError) or not any(one in error.message for one in parse_addresses(asked)):
            raise
        where = "--broker" if broker is not None else "--namesrv or COMETMQ_NAMESRV"
        raise ConnectionLost(
            f"{error.message}. Start one there (`cometmq serve PATH`) or choose another with {where}"
        ) from error


def report_lost(lost: Sequence[BrokerRef]) -> None:
    """Name the brokers that could not be asked, and end with :attr:`ExitCode.FAILED` where there are any."""
    from cometmq.admin.servers import lost_broker

    for broker in lost:
        fail(str(lost_broker(broker)))
    if lost:
        raise typer.Exit(ExitCode.FAILED)


def _what_it_is(address: str, *, wanted_broker: bool) -> str | None:
    """Return what to say of a server that does not know what it was asked, where it is of the other kind.

    Args:
        address: the server.
        wanted_broker: it was given for a broker, else for a name server.
    """
    import cometmq.admin
    from cometmq.errors import Error

    try:
        if wanted_broker:
            with cometmq.admin.connect(namesrv=address, rpc_hooks=hooks_of_environment()) as admin:
                admin.cluster.brokers()
            return f"{address} is a name server, not a broker: pass it as --namesrv"
        with cometmq.admin.connect(broker=address, rpc_hooks=hooks_of_environment()) as admin:
            admin.cluster.broker_config()
    except Error:  # of neither kind, or gone meanwhile: the first error says more
        return None
    return (
        f"{address} is a broker, not a name server: use the name server that the "
        "broker is registered with, or pass the broker as --broker where the command has that option"
    )


_UsageError: Any = typer.BadParameter.__bases__[0]  # click's; typer bundles click under another name


class _Group(TyperGroup):
    """A group whose error about an unknown command lists its commands, unless a similar name is suggested."""

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        try:
            return super().resolve_command(ctx, args)
        except _UsageError as error:
            if "Did you mean" not in error.message:
                error.message = f"{error.message} Commands: {', '.join(self.list_commands(ctx))}."
            raise


def group_of(name: str, text: str) -> typer.Typer:
    """Return an empty group of commands."""
    return typer.Typer(name=name, cls=_Group, help=text, no_args_is_help=True, rich_markup_mode=None)


def confirmed(question: str, *, yes: bool, json: bool) -> None:
    """Ask before something that cannot be undone; without a terminal, and for scripts, ``--yes`` has to answer.

    Raises:
        typer.Exit: the answer was no (1), or nobody can be asked (2).
    """
    if yes:
        return
    if json or not sys.stdin.isatty():
        fail(f"{question} Not a terminal, cannot prompt: pass --yes")
        raise typer.Exit(ExitCode.USAGE)
    if not typer.confirm(question):
        raise typer.Exit(ExitCode.REPAIRABLE)


def pairs_of(texts: list[str] | None, option: str) -> Mapping[str, str]:
    """Return what repeated ``NAME=VALUE`` options say.

    Raises:
        typer.BadParameter: one of them has another form.
    """
    pairs = {}
    for text in texts or []:
        name, equals, value = text.partition("=")
        if not equals or not name:
            raise typer.BadParameter(f"{option} {text!r} is not NAME=VALUE")
        pairs[name] = value
    return pairs
