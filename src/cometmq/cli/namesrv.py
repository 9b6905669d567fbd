"""``cometmq namesrv``: a name server of its own."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from cometmq.cli.arguments import Json
from cometmq.cli.failures import reported, usage
from cometmq.cli.logs import logs_on_stderr
from cometmq.cli.running import descriptors_for_clients, stopping_by_signals

__all__ = ["namesrv"]


@reported()
def namesrv(
    listen: Annotated[
        str | None,
        typer.Option("--listen", metavar="HOST:PORT", help="Address (default 127.0.0.1:9876); port 0: any free port."),
    ] = None,
    kv_config: Annotated[
        Path | None,
        typer.Option("--kv-config", metavar="FILE", help="kvConfig.json; without it, keys are lost at exit."),
    ] = None,
    config: Annotated[
        Path | None,
        typer.Option(
            "--config",
            metavar="FILE",
            help="namesrv.properties, or a cometmq.toml with [namesrv].",
            show_default=False,
        ),
    ] = None,
    insecure_listen: Annotated[
        bool,
        typer.Option("--insecure-listen", help="Bind a non-loopback address without authentication."),
    ] = False,
    json: Json = False,
) -> None:
    """Run a name server: brokers register, clients look up routes.

    Works with RocketMQ's brokers, clients and mqadmin. Routes come from the brokers and live in memory; only the file
    of --kv-config is on disk. Runs until SIGTERM, SIGHUP or Ctrl-C.

    \b
    Exit codes:
      0   stopped by SIGTERM, SIGHUP or Ctrl-C
      2   usage error
      3   failed to start; stderr has the reason

    \b
    Examples:
      cometmq namesrv
      cometmq namesrv --listen 127.0.0.1:0 --json
      cometmq namesrv --listen 0.0.0.0:9876 --insecure-listen
    """
    from cometmq.namesrv.server import NamesrvServer
    from cometmq.namesrv.settings import load_namesrv_settings
    from cometmq.remoting.addresses import listen_host, parse_address

    overrides: dict[str, object] = {}
    if listen is not None:
        with usage():
            host, overrides["listen_port"] = parse_address(listen)
            overrides["bind_address"] = listen_host(host)
    if kv_config is not None:
        overrides["kv_config_path"] = kv_config
    settings = load_namesrv_settings(config, overrides=overrides)
    with (
        logs_on_stderr(as_json=json),
        descriptors_for_clients(),
        stopping_by_signals() as stopping,
        NamesrvServer(settings, insecure_listen=insecure_listen) as server,
    ):
        if not json:
            typer.echo(f"name server listening on {server.address}; press Ctrl-C to stop")
        stopping.wait()
