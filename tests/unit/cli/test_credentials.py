"""Checks: commands on a cluster sign their requests with the credentials of the environment, and print no secret."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from pathlib import Path

import pytest

from cometmq.remoting.bodies.routes import BrokerData, ClusterInfo
from cometmq.remoting.codes import RequestCode
from cometmq.remoting.command import Command
from cometmq.remoting.signing import signature_of
from support.command_line import run
from support.peer import Peer

SECRET = "s3cret-of-the-test"
VARIABLES = ("COMETMQ_ACCESS_KEY", "COMETMQ_SECRET_KEY", "COMETMQ_SECURITY_TOKEN", "COMETMQ_CREDENTIALS")


def knows_a_cluster(peer: Peer, connection: socket.socket, request: Command) -> bytes:
    """A name server and a broker that knows no topic."""
    if request.code == RequestCode.GET_BROKER_CLUSTER_INFO:
        broker = BrokerData(cluster="c", broker_name="a", broker_addresses={0: peer.address})
        info = ClusterInfo(brokers={"a": broker}, clusters={"c": ("a",)})
        return request.response(0, body=info.to_json()).encode()
    return request.response(17, remark="no such topic").encode()


@pytest.fixture
def server() -> Iterator[Peer]:
    with Peer(knows_a_cluster) as peer:
        yield peer


@pytest.fixture(autouse=True)
def no_credentials(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in VARIABLES:
        monkeypatch.delenv(name, raising=False)


def signed(server: Peer, *, access_key: str, secret: str = SECRET) -> set[str | None]:
    """Return the tokens of the requests, all of which must be signed."""
    assert server.requests
    for request in server.requests:
        assert request.fields["AccessKey"] == access_key
        assert request.fields["Signature"] == signature_of(request.fields, request.body, secret_key=secret)
    return {request.fields.get("SecurityToken") for request in server.requests}


@pytest.mark.parametrize(
    "command",
    [
        ["cluster", "show"],
        ["cluster", "status"],
        ["topic", "list"],
        ["group", "list"],
        ["offset", "show", "g"],
        ["message", "peek", "t"],
        ["message", "send", "t", "--text", "x"],
        ["produce", "t", "--count", "1"],
        ["consume", "t", "--until-end"],
        ["consume", "t", "--group", "g", "--until-end"],
    ],
    ids=lambda command: " ".join(command[:2]),
)
def test_every_request_of_a_command_is_signed(
    server: Peer, monkeypatch: pytest.MonkeyPatch, command: list[str]
) -> None:
    monkeypatch.setenv("COMETMQ_ACCESS_KEY", "operator")
    monkeypatch.setenv("COMETMQ_SECRET_KEY", SECRET)
    outcome = run(*command, "--namesrv", server.address)
    assert signed(server, access_key="operator") == {None}
    assert SECRET not in outcome.out + outcome.err


def test_without_credentials_nothing_is_signed(server: Peer) -> None:
    run("cluster", "show", "--namesrv", server.address)
    assert {name for request in server.requests for name in request.fields} == {"topic"}


def test_file_of_upstreams_form_gives_credentials_and_variables_replace_them(
    server: Peer, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    file = tmp_path / "tools.yml"
    file.write_text(f"# comment\n\naccessKey: operator\nsecretKey = '{SECRET}'\nsecurityToken: T\n", encoding="utf-8")
    file.chmod(0o600)
    monkeypatch.setenv("COMETMQ_CREDENTIALS", str(file))
    run("cluster", "show", "--namesrv", server.address)
    assert signed(server, access_key="operator") == {"T"}
    server.requests.clear()
    monkeypatch.setenv("COMETMQ_ACCESS_KEY", "other")
    run("cluster", "show", "--namesrv", server.address)
    assert signed(server, access_key="other") == {"T"}


@pytest.mark.parametrize(
    ("content", "mode", "variables", "text"),
    [
        (None, 0, {"COMETMQ_ACCESS_KEY": "a"}, "secretKey is missing beside accessKey: set COMETMQ_SECRET_KEY"),
        (None, 0, {"COMETMQ_SECRET_KEY": SECRET}, "accessKey is missing beside secretKey: set COMETMQ_ACCESS_KEY"),
        (None, 0, {"COMETMQ_CREDENTIALS": "nowhere"}, "cannot read nowhere: No such file or directory"),
        (f"accessKey: a\nsecretKey: {SECRET}\n", 0o640, {}, "other users can read"),
        (
            f"accessKey: a\nsecret: {SECRET}\n",
            0o600,
            {},
            "line 2: expected accessKey, secretKey, securityToken",
        ),
        (f"accessKey a\n{SECRET}\n", 0o600, {}, "line 1: expected accessKey"),
        (
            None,
            0,
            {"COMETMQ_ACCESS_KEY": "a", "COMETMQ_SECRET_KEY": f"{SECRET}\udcff"},
            "secret_key must be text that UTF-8 can encode",
        ),
        (
            None,
            0,
            {"COMETMQ_ACCESS_KEY": "a", "COMETMQ_SECRET_KEY": "b", "COMETMQ_SECURITY_TOKEN": f"{SECRET}\udcff"},
            "security_token must be text that UTF-8 can encode",
        ),
    ],
)
def test_unusable_credentials_are_refused_without_the_secret(
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    content: str | None,
    mode: int,
    variables: dict[str, str],
    text: str,
) -> None:
    if content is not None:
        file = tmp_path / "credentials"
        file.write_text(content, encoding="utf-8")
        file.chmod(mode)
        monkeypatch.setenv("COMETMQ_CREDENTIALS", str(file))
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    outcome = run("cluster", "show", "--namesrv", "127.0.0.1:1")
    assert outcome.code == 2
    assert text in " ".join(outcome.err.split())
    assert SECRET not in outcome.out + outcome.err


def test_file_in_another_encoding_is_refused(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    file = tmp_path / "credentials"
    file.write_bytes(f"accessKey: a\nsecretKey: {SECRET}\xe9\n".encode("latin-1"))
    file.chmod(0o600)
    monkeypatch.setenv("COMETMQ_CREDENTIALS", str(file))
    outcome = run("cluster", "show", "--namesrv", "127.0.0.1:1")
    assert outcome.code == 2
    assert f"{file} is not UTF-8 text" in " ".join(outcome.err.split())
    assert SECRET not in outcome.out + outcome.err


def test_file_that_is_too_large_is_refused(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """A value that its end cuts off would sign with another secret."""
    file = tmp_path / "credentials"
    file.write_text(f"accessKey: a\n# {'x' * 65_536}\nsecretKey: {SECRET}\n", encoding="utf-8")
    file.chmod(0o600)
    monkeypatch.setenv("COMETMQ_CREDENTIALS", str(file))
    outcome = run("cluster", "show", "--namesrv", "127.0.0.1:1")
    assert outcome.code == 2
    assert f"{file} has more than 65,536 bytes" in " ".join(outcome.err.split())
