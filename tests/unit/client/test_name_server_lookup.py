"""Checks: a client without name servers asks a web server for them, and one that has some does not."""

from __future__ import annotations

import http.server
import threading
from collections.abc import Iterator

import pytest

from cometmq.client.producer import Producer
from cometmq.testing import cluster


class Web(http.server.ThreadingHTTPServer):
    """A web server that tells one list of name servers, and keeps the paths that it was asked for."""

    def __init__(self) -> None:
        self.answer = ""
        self.paths: list[str] = []
        super().__init__(("127.0.0.1", 0), _Handler)

    @property
    def domain(self) -> str:
        """Its host and port."""
        return f"127.0.0.1:{self.server_port}"


class _Handler(http.server.BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        assert isinstance(self.server, Web)
        self.server.paths.append(self.path)
        body = self.server.answer.encode()
        self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *args: object) -> None:
        """Say nothing."""


@pytest.fixture
def web() -> Iterator[Web]:
    with Web() as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        yield server
        server.shutdown()
        thread.join()


def test_name_servers_come_from_the_web_server(web: Web, monkeypatch: pytest.MonkeyPatch) -> None:
    """Promise 53: by the option, and by the environment's variable; the first line of the answer counts."""
    monkeypatch.delenv("NAMESRV_ADDR", raising=False)
    with cluster() as servers:
        web.answer = f"{servers.name_server_address}\nanother:1\n"
        with Producer("p", name_server_domain=web.domain) as producer:
            assert producer.send("Looked", b"1").queue_offset == 0
        assert web.paths == ["/rocketmq/nsaddr"]
        monkeypatch.setenv("rocketmq.namesrv.domain", web.domain)
        monkeypatch.setenv("rocketmq.namesrv.domain.subgroup", "mine")
        with Producer("p", unit_name="u") as producer:
            producer.send("Looked", b"2")
        assert web.paths[1:] == ["/rocketmq/mine-u?nofix=1"]


def test_name_servers_of_the_user_come_first(web: Web, monkeypatch: pytest.MonkeyPatch) -> None:
    """Promise 53: nobody asks the web server then."""
    with cluster() as servers:
        with Producer("p", name_servers=servers.name_server_address, name_server_domain=web.domain) as producer:
            producer.send("Given", b"1")
        monkeypatch.setenv("NAMESRV_ADDR", servers.name_server_address)
        with Producer("p", name_server_domain=web.domain) as producer:
            producer.send("Given", b"2")
    assert not web.paths
