"""The servers in the tests of clients: each scenario runs, word for word the same, against our servers and theirs."""

from __future__ import annotations

import itertools

import pytest

from interop.java_client import Headers
from interop.sites import Landscape, Maker

in_full_only = pytest.mark.java(full=True)
"""On a scenario that the short form leaves out; of the others it takes the first landscape."""


def _parametrized(landscapes: list[Landscape]) -> pytest.MarkDecorator:
    """The first landscape is the one of the short form."""
    first, *others = landscapes
    params = [
        pytest.param(first, id=str(first)),
        *(pytest.param(one, id=str(one), marks=in_full_only) for one in others),
    ]
    return pytest.mark.parametrize("session_site", params, indirect=True, scope="session")


OURS = Landscape(Maker.OURS, Maker.OURS)
_UPSTREAM = Landscape(Maker.JAVA, Maker.JAVA)

# Ours first; upstream alone proves that the scenario is right; the mixed ones, that both sides mean the same.
_PAIRS = [Landscape(namesrv, broker) for namesrv, broker in itertools.product(reversed(Maker), repeat=2)]

in_each_pair = _parametrized(_PAIRS)
"""Name server and broker: ours and ours, ours and upstream's, upstream's and ours, upstream's and upstream's."""

for_each_client = _parametrized(
    [
        *_PAIRS,
        *(Landscape(maker, maker, headers=Headers.ROCKETMQ) for maker in reversed(Maker)),
        *(Landscape(maker, maker, version="4.9.7") for maker in reversed(Maker)),
    ]
)
"""The same, and with binary headers, and with a client of 4.9."""

ours_and_upstream = _parametrized([OURS, _UPSTREAM])
"""For what has both kinds of broker in it anyway: under our name server, and under upstream's."""

ours_only = _parametrized([OURS])


_OLD = Landscape(version="4.9.7", server_version="4.9.7")

runs_in_make_test = pytest.mark.runs_in_make_test
"""On what needs no Java: `make test` runs it, and `make test-java-short` not again."""


def on_each_server(
    *, short: bool = True, quick: bool = True, ours: bool = True, old: bool = True
) -> pytest.MarkDecorator:
    """Our client on our servers, in `make test`; on upstream's of 5.3.3, in the short form too; and of 4.9.7.

    Args:
        short: False leaves 5.3.3 to the full form.
        quick: False leaves ours to it, too.
        ours: False for what only upstream's servers do.
        old: False for what 4.9.7 does not have.
    """
    upstream = pytest.mark.java if short else in_full_only
    params = [pytest.param(Landscape(), id="upstream-5.3.3", marks=upstream)]
    if old:
        params.append(pytest.param(_OLD, id="upstream-4.9.7", marks=in_full_only))
    if ours:
        params.insert(0, pytest.param(OURS, id="ours", marks=runs_in_make_test if quick else in_full_only))
    return pytest.mark.parametrize("session_servers", params, indirect=True, scope="session")


def beside_java(*, short: bool = True, old: bool = True, ours: bool = True) -> pytest.MarkDecorator:
    """Our client and the Java client on upstream's servers, both of 5.3.3 and both of 4.9.7, and on ours.

    Args:
        short: False leaves all to the full form.
        old: False for what 4.9.7 does not have.
        ours: False for what only upstream's servers do.
    """
    params = [pytest.param(Landscape(), id="upstream-5.3.3", marks=pytest.mark.java if short else in_full_only)]
    if old:
        params.append(pytest.param(_OLD, id="upstream-4.9.7", marks=in_full_only))
    if ours:
        params.append(pytest.param(OURS, id="ours-with-java", marks=in_full_only))
    return pytest.mark.parametrize("session_company", params, indirect=True, scope="session")
