"""``cometmq broker`` and ``cometmq serve``: a broker of its own, or with a name server in the same process."""

from __future__ import annotations

import errno
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, TypeAlias

import typer

import cometmq
from cometmq.cli.arguments import Json
from cometmq.cli.failures import fail, reported, usage
from cometmq.cli.logs import logs_on_stderr
from cometmq.cli.running import descriptors_for_clients, stopping_by_signals

if TYPE_CHECKING:
    from cometmq.broker.config import BrokerConfig
    from cometmq.broker.server import Broker

__all__ = ["broker", "serve"]

_Listen: TypeAlias = Annotated[
    str | None,
    typer.Option("--listen", metavar="HOST:PORT", help="Address (default 127.0.0.1:10911); port 0: any free port."),
]
_Config: TypeAlias = Annotated[
    Path | None,
    typer.Option(
        "--config", metavar="FILE", help="RocketMQ's broker.properties, or a cometmq.toml.", show_default=False
    ),
]
_Name: TypeAlias = Annotated[
    str | None, typer.Option("--name", help="Broker name (default: the host name).", show_default=False)
]
_Set: TypeAlias = Annotated[
    list[str] | None,
    typer.Option("--set", metavar="NAME=VALUE", help="Setting by RocketMQ's or CometMQ's name; repeatable."),
]
_Insecure: TypeAlias = Annotated[
    bool,
    typer.Option("--insecure-listen", help="Bind a non-loopback address without authentication."),
]


_GIVEN_HERE = "keyword arguments"
"""How a mistake in a setting names those of ``--set``."""


def _settings(pairs: list[str] | None) -> dict[str, object]:
    found: dict[str, object] = {}
    for pair in pairs or []:
        name, equals, value = pair.partition("=")
        if not equals or not name:
            raise typer.BadParameter(f"{pair!r} is not NAME=VALUE")
        found[name.strip()] = value
    return found


def _loaded(
    path: Path | None,
    *,
    config: Path | None,
    listen: str | None,
    insecure_listen: bool,
    pairs: list[str] | None,
    named: dict[str, str | None],
) -> BrokerConfig:
    from cometmq.broker.config import load_broker_config
    from cometmq.errors import InvalidArgument
    from cometmq.remoting.addresses import listen_host, parse_address, parse_addresses
    from cometmq.store_config.errors import SettingError, suggestion
    from cometmq.store_config.setting_names import similar_names

    settings = _settings(pairs) | {name: value for name, value in named.items() if value is not None}
    with usage():
        if listen is not None and not listen.startswith(":"):
            listen_host(parse_address(listen)[0])
        if named.get("namesrvAddr") is not None:
            parse_addresses(str(named["namesrvAddr"]))
    _refuse_contradictions(settings, path=path, listen=listen)
    try:
        loaded = load_broker_config(
            path, config=config, listen=listen, insecure_listen=insecure_listen, settings=settings
        )
    except SettingError as error:
        if error.key not in settings or error.source != _GIVEN_HERE:
            raise
        raise typer.BadParameter(f"--set {error.key}: {error.reason}") from None
    except InvalidArgument as error:
        if path is not None or config is not None:
            raise
        raise typer.BadParameter(str(error)) from None
    source = loaded.settings_file
    for name in loaded.unknown:
        fail(f"warning: {source}: unknown RocketMQ broker setting {name}{suggestion(similar_names(name))}")
    for name in loaded.repeated:
        fail(f"warning: {source}: {name} is given more than once; the last value is in force")
    if loaded.unused_file is not None:
        fail(f"warning: {loaded.unused_file} is not used, as --config is given; move its settings there and delete it")
    if loaded.without_effect is not None:
        fail(f"warning: {loaded.without_effect}")
    return loaded


def _refuse_contradictions(settings: dict[str, object], *, path: Path | None, listen: str | None) -> None:
    """Refuse settings of ``--set`` that an argument of the command replaces."""
    from cometmq.store_config.setting_names import find_setting

    for key, value in settings.items():
        field = find_setting(key)
        if field == "store_path_root_dir" and path is not None and Path(str(value)) != path:
            raise typer.BadParameter(f"--set {key}={value} contradicts the store directory {path}; give one of them")
        is_replaced = field == "listen_port" or (field == "bind_address" and not (listen or ":").startswith(":"))
        if is_replaced and listen is not None:
            raise typer.BadParameter(f"--set {key}={value} contradicts --listen {listen}; give one of them")


def _listening(running: Broker) -> str:
    return f"broker {running.name} (CometMQ {cometmq.__version__}) listening on {running.address}"


def _started(life: ExitStack, config: BrokerConfig) -> Broker:
    """Run a broker until the end of ``life``.

    Raises:
        InvalidArgument: this machine does not have the address; the system's error does not name it.
    """
    from cometmq.broker.server import Broker
    from cometmq.errors import Error, InvalidArgument

    try:
        return life.enter_context(Broker(config))
    except OSError as error:
        if isinstance(error, Error) or error.errno != errno.EADDRNOTAVAIL:
            raise
        raise InvalidArgument(f"cannot listen on {config.host}: not an address of this machine") from error


@reported()
def broker(
    path: Annotated[
        Path | None,
        typer.Argument(help="Store directory, new or existing (default: storePathRootDir).", show_default=False),
    ] = None,
    listen: _Listen = None,
    namesrv: Annotated[
        str | None,
        typer.Option("--namesrv", metavar="HOST:PORT[;...]", help="Name servers to register with.", show_default=False),
    ] = None,
    name: _Name = None,
    config: _Config = None,
    settings: _Set = None,
    insecure_listen: _Insecure = False,
    json: Json = False,
) -> None:
    """Run a broker on a store for RocketMQ clients and mqadmin.

    The broker acknowledges a message once it is on disk, unless flushDiskType=ASYNC_FLUSH is set. It runs until SIGTERM
    or Ctrl-C, then rejects new requests, completes those in flight, flushes the store and unregisters.

    \b
    Exit codes:
      0   stopped by SIGTERM, SIGHUP or Ctrl-C
      2   usage error
      3   failed to start; stderr has the reason

    \b
    Examples:
      cometmq broker data/ --namesrv 127.0.0.1:9876
      cometmq broker --config broker.properties
      cometmq broker data/ --listen 127.0.0.1:0 --set flushDiskType=ASYNC_FLUSH --json
    """
    loaded = _loaded(
        path,
        config=config,
        listen=listen,
        insecure_listen=insecure_listen,
        pairs=settings,
        named={"namesrvAddr": namesrv, "brokerName": name},
    )
    with (
        logs_on_stderr(as_json=json),
        descriptors_for_clients(),
        stopping_by_signals() as stopping,
        ExitStack() as life,
    ):
        running = _started(life, loaded)
        if not json:
            typer.echo(f"{_listening(running)}; press Ctrl-C to stop")
        stopping.wait()


@reported()
def serve(
    path: Annotated[Path, typer.Argument(help="Store directory, new or existing.", show_default=False)],
    listen: _Listen = None,
    namesrv_listen: Annotated[
        str,
        typer.Option("--namesrv-listen", metavar="HOST:PORT", help="Name server's address; port 0: any free port."),
    ] = "127.0.0.1:9876",
    name: _Name = None,
    config: _Config = None,
    settings: _Set = None,
    insecure_listen: _Insecure = False,
    json: Json = False,
) -> None:
    """Run a name server and a broker in one process: all that RocketMQ clients need.

    The broker acknowledges a message once it is on disk, unless flushDiskType=ASYNC_FLUSH is set. It runs until SIGTERM
    or Ctrl-C and stops as `cometmq broker` does.

    \b
    Exit codes:
      0   stopped by SIGTERM, SIGHUP or Ctrl-C
      2   usage error
      3   failed to start; stderr has the reason

    \b
    Examples:
      cometmq serve data/
      cometmq serve data/ --listen 127.0.0.1:0 --namesrv-listen 127.0.0.1:0 --json
    """
    from cometmq.namesrv.server import NamesrvServer
    from cometmq.namesrv.settings import load_namesrv_settings
    from cometmq.remoting.addresses import host_port, listen_host, parse_address

    with usage():
        host, port = parse_address(namesrv_listen)
        listen_host(host)
    wildcards = {"0.0.0.0": "127.0.0.1", "::": "::1"}
    local_host = wildcards.get(listen_host(host), listen_host(host))
    kv_config = path / "namesrv" / "kvConfig.json"
    name_server_settings = load_namesrv_settings(
        None, overrides={"bind_address": host, "listen_port": port, "kv_config_path": kv_config}
    )
    # Report a mistake in the broker's settings before anything listens.
    loaded = _loaded(
        path,
        config=config,
        listen=listen,
        insecure_listen=insecure_listen,
        pairs=settings,
        named={"brokerName": name},
    )
    with (
        logs_on_stderr(as_json=json),
        descriptors_for_clients(),
        stopping_by_signals() as stopping,
        ExitStack() as life,
    ):
        name_server = life.enter_context(NamesrvServer(name_server_settings, insecure_listen=insecure_listen))
        running = _started(life, loaded.registered_with(host_port(local_host, name_server.port)))
        if not json:
            typer.echo(f"name server listening on {name_server.address}")
            typer.echo(f"{_listening(running)}; press Ctrl-C to stop both")
        stopping.wait()
