"""A writer that is killed: acknowledged messages are there, whatever they hold; bytes that recovery cuts are kept."""

from __future__ import annotations

import logging
from pathlib import Path

import pytest

import cometmq
from support.command_line import run, run_json
from support.killed_writer import write_and_die


def flip(path: Path, offset: int) -> None:
    """Flip a byte of the body of message `offset`, which a reader finds."""
    with cometmq.open(path, mode="r") as store:
        message = store.get("orders", 0, offset)
        at = message.physical_offset + 88 + 3
    with (path / "commitlog" / f"{0:020d}").open("r+b") as file:
        file.seek(at)
        byte = file.read(1)[0]
        file.seek(at)
        file.write(bytes([byte ^ 0x20]))


@pytest.mark.parametrize(
    "properties",
    ['{"a": "\\0" * 1100, "b": "x"}', '{"a": "\\0"}', '{"__CRC32#": "1234567890"}', '{"a": "x" * 600, "z": "\\0" * 3}'],
)
def test_content_is_not_taken_for_torn(tmp_path: Path, properties: str) -> None:
    write_and_die(
        tmp_path,
        f"""
for number in range(23):
    store.append("orders", b"before")
for number in range(90):
    store.append("orders", b"x" * number * 7, properties={properties})
for number in range(500):
    store.append("orders", b"behind", tags="t")
store.append("orders", b"last", properties={properties})
""",
    )
    with cometmq.open(tmp_path) as store:
        assert store.queues("orders")[0].max_offset == 614
        assert store.opening().cut_bytes == 0
        message = store.get("orders", 0, 613)
        assert message.body.tobytes() == b"last"
        expected = eval(properties)
        expected.pop("__CRC32#", None)
        assert message.properties == expected


def test_whole_records_behind_a_cut_come_back(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    write_and_die(tmp_path, "for n in range(5000): store.append('orders', b'm%d' % n, keys=f'k{n}')")
    flip(tmp_path, 100)
    (tmp_path / "cometmq" / "follow").unlink()  # as after a power loss: nobody knows what was acknowledged
    with caplog.at_level(logging.WARNING, "cometmq.store"), cometmq.open(tmp_path) as store:
        opening = store.opening()
        assert opening.removed_records == 4899
        assert opening.removed is not None
        name = Path(opening.removed).name
        assert name in caplog.text
    assert "--restore-removed" in run("inspect", tmp_path).out
    kinds = [problem["kind"] for problem in run_json("verify", tmp_path, "--json")["problems"]]
    assert kinds == ["removed"]
    outcome = run("repair", tmp_path, "--restore-removed", name)
    assert (outcome.code, outcome.err) == (0, "")
    assert "appended 4,899 records" in outcome.out
    assert "nothing to do" in run("repair", tmp_path, "--restore-removed", name).out
    assert run_json("verify", tmp_path, "--json")["problems"] == []
    with cometmq.open(tmp_path, mode="r") as store:
        bodies = [message.body.tobytes() for message in store.read("orders")]
        assert bodies == [b"m%d" % number for number in range(5000) if number != 100]
        assert [message.queue_offset for message in store.find("orders", "k4999")] == [4998]


@pytest.mark.parametrize("offset", [100, 1999])
def test_acknowledged_damage_is_refused(tmp_path: Path, offset: int) -> None:
    write_and_die(tmp_path, "for n in range(2000): store.append('orders', b'm%d' % n)")
    flip(tmp_path, offset)
    for _ in range(2):
        with pytest.raises(cometmq.CorruptRecord, match="cometmq repair"):
            cometmq.open(tmp_path)
    assert run("verify", tmp_path).code == 4
    assert run("repair", tmp_path, "--fill", "--yes").code == 0
    with cometmq.open(tmp_path) as store:
        assert store.queues("orders")[0].max_offset == (2000 if offset < 1999 else 1999)
        assert store.append("orders", b"next").physical_offset > 0
        bodies = [message.body.tobytes() for message in store.read("orders")]
        assert bodies == [b"m%d" % number for number in range(2000) if number != offset] + [b"next"]
    assert run("verify", tmp_path).code == 0


def test_records_cut_by_a_repair_are_restored(tmp_path: Path) -> None:
    with cometmq.open(tmp_path) as store:
        for number in range(300):
            store.append("orders", b"m%d" % number)
    flip(tmp_path, 200)
    outcome = run("repair", tmp_path, "--cut", "--yes")
    assert outcome.code == 0
    name = Path(outcome.lines[-1].removeprefix("what was there before is in ")).name
    assert "appended 99 records" in run("repair", tmp_path, "--restore-removed", name).out
    with cometmq.open(tmp_path, mode="r") as store:
        bodies = [message.body.tobytes() for message in store.read("orders")]
        assert bodies == [b"m%d" % number for number in range(300) if number != 200]


def test_unknown_names_are_refused(tmp_path: Path) -> None:
    with cometmq.open(tmp_path) as store:
        store.append("orders", b"x")
        with pytest.raises(cometmq.NotFound):
            store.restore_removed("20200101T000000Z")
        with pytest.raises(cometmq.InvalidArgument):
            store.restore_removed("../..")
    assert run("repair", tmp_path, "--restore-removed", "none").code == 3
    assert run("repair", tmp_path, "--restore-removed", "none", "--cut").code == 2
