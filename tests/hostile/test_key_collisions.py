"""Checks: keys that all have one hash, which anybody can send, make no query read the whole log.

Java's hash of "Aa" is that of "BB", so 14 such pairs make 16,384 keys of one hash.
"""

from __future__ import annotations

import itertools
from pathlib import Path

from cometmq.remoting.codes import RequestCode, ResponseCode
from support.broker_twins import Rig

PAIRS = 14
SENT = 11_000


def colliding() -> list[str]:
    keys = ("".join(pairs) for pairs in itertools.product(("Aa", "BB"), repeat=PAIRS))
    return list(itertools.islice(keys, SENT + 2))


def test_a_query_reads_a_bounded_number_of_other_keys(tmp_path: Path) -> None:
    old, *keys, new = colliding()
    with Rig(tmp_path) as rig:
        rig.store.append("t", b"old", keys=old)
        rig.store.append_many("t", [b"x"] * SENT, keys=keys)
        rig.store.append("t", b"new", keys=new)

        def asked(key: str) -> tuple[int, str | None]:
            fields = {"topic": "t", "key": key, "maxNum": "8", "beginTimestamp": "0", "endTimestamp": str(2**62)}
            answer = rig.run(RequestCode.QUERY_MESSAGE, fields)
            return answer.code, answer.remark

        assert asked(new)[0] == ResponseCode.SUCCESS, "found before the bound, which ends the search"
        code, remark = asked(old)
        assert code == ResponseCode.SYSTEM_ERROR
        assert "read 10000 messages of other keys with the same hash" in (remark or "")
        assert asked("another")[0] == ResponseCode.QUERY_NOT_FOUND
        # The owner of the store is not bounded.
        assert [bytes(one.body) for one in rig.store.find("t", old)] == [b"old"]
