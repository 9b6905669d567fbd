"""Who serves in the tests of clients: each scenario runs, word for word the same, against our servers and theirs."""

from __future__ import annotations

import itertools

import pytest

from interop.harness import Headers, Landscape, Maker

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
