"""The options' starts and ends, resolved against the existing queues; and their missing messages."""

from __future__ import annotations

import logging
from collections.abc import Mapping

from cometmq.errors import CorruptRecord
from cometmq.spark.catalog import Catalog, Ends, OpenCatalog
from cometmq.spark.errors import DataLoss, OptionError
from cometmq.spark.offsets import EARLIEST, LATEST, Position, QueueKey, parse_offsets
from cometmq.spark.options import ReadOptions
from cometmq.spark.planning import QueueRange

__all__ = ["EndPolicy", "LossPolicy", "batch_ranges", "starting_position"]

_log = logging.getLogger("cometmq.spark")


class LossPolicy:
    """The action where messages are missing: fail, or log a warning and go on."""

    def __init__(self, *, fail: bool) -> None:
        """``fail``: the option failOnDataLoss."""
        self._fail = fail

    def lost(self, what: str) -> None:
        """Fail, or log a warning.

        Raises:
            DataLoss: messages must not be missing.
        """
        if self._fail:
            raise DataLoss(f"{what}; set the option failOnDataLoss=false to read the remaining messages")
        _log.warning("%s; reading the remaining messages (failOnDataLoss=false)", what)


class EndPolicy:
    """The action where a store's log is damaged at its readable end: fail, or log a warning once and go on."""

    def __init__(self, *, skip: bool) -> None:
        """``skip``: the option onCorrupt is skip."""
        self._skip = skip
        self._warned = False

    def check(self, catalog: OpenCatalog) -> None:
        """Fail, or log a warning, where messages behind the ends cannot be read.

        Raises:
            CorruptRecord: onCorrupt is fail.
        """
        try:
            catalog.check_end()
        except CorruptRecord as error:
            if not self._skip:
                text = f"{error}; option onCorrupt=skip reads the messages before the damage"
                raise CorruptRecord(text, offset=error.offset) from error
            if not self._warned:
                _log.warning("onCorrupt=skip: only the messages before the damage are read: %s", error)
            self._warned = True


def batch_ranges(catalog: Catalog, queues: Mapping[QueueKey, Ends], options: ReadOptions) -> list[QueueRange]:
    """Return what a batch reads of each queue. Its ends are fixed here, once.

    Raises:
        OptionError: a start or an end cannot be used.
        DataLoss: messages that were asked for have expired.
    """
    policy = LossPolicy(fail=options.fail_on_data_loss)
    starts = _resolved(catalog, queues, options, "starting", EARLIEST)
    ends = _resolved(catalog, queues, options, "ending", LATEST)
    ranges = []
    for key in sorted(queues):
        start = _checked(starts[key], key, queues[key], "startingOffsets", policy)
        end = _checked(ends[key], key, queues[key], "endingOffsets", policy)
        ranges.append(QueueRange.of(key, start, max(start, end)))
    return ranges


def starting_position(catalog: Catalog, queues: Mapping[QueueKey, Ends], options: ReadOptions) -> Position:
    """Return where a stream begins in each queue that is there. Raises as :func:`batch_ranges`."""
    policy = LossPolicy(fail=options.fail_on_data_loss)
    starts = _resolved(catalog, queues, options, "starting", LATEST)
    return {key: _checked(starts[key], key, queues[key], "startingOffsets", policy) for key in queues}


def _checked(offset: int, key: QueueKey, limits: Ends, option: str, policy: LossPolicy) -> int:
    """Return an offset within the queue."""
    if offset > limits.high:
        raise OptionError(option, f"{offset} is beyond the end of {key.named}, which has {limits.low} to {limits.high}")
    if offset < limits.low:
        policy.lost(f"option {option}: {offset} in {key.named} has expired; its first message is {limits.low}")
        return limits.low
    return offset


def _offset_at(catalog: Catalog, key: QueueKey, time_ms: int, limits: Ends) -> int:
    """Return the offset of a time within the ends that were looked up before; the queue may have grown since."""
    return min(max(catalog.offset_at(key, time_ms), limits.low), limits.high)


def _resolved(
    catalog: Catalog, queues: Mapping[QueueKey, Ends], options: ReadOptions, side: str, otherwise: int
) -> Position:
    """Return an offset for every queue; those that JSON leaves out get ``otherwise``."""
    starting = side == "starting"
    time_ms = options.starting_timestamp_ms if starting else options.ending_timestamp_ms
    by_time = options.starting_offsets_by_timestamp if starting else options.ending_offsets_by_timestamp
    text = options.starting_offsets if starting else options.ending_offsets
    asked: int | Position = otherwise
    if time_ms is not None:
        return {key: _offset_at(catalog, key, time_ms, limits) for key, limits in queues.items()}
    if by_time is not None:
        option = f"{side}OffsetsByTimestamp"
        times = parse_offsets(by_time, option, lowest=0)
        known = _known(times, queues, option)
        asked = {key: _offset_at(catalog, key, time, queues[key]) for key, time in known.items()}
    elif text is not None:
        option = f"{side}Offsets"
        asked = parse_offsets(text, option)
        if isinstance(asked, dict):
            asked = _known(asked, queues, option)
    found = {}
    for key, limits in queues.items():
        offset = asked.get(key, otherwise) if isinstance(asked, dict) else asked
        found[key] = limits.low if offset == EARLIEST else limits.high if offset == LATEST else offset
    _refuse_latest_start(asked, options, starting=starting, batch=otherwise == EARLIEST)
    return found


def _refuse_latest_start(asked: int | Position, options: ReadOptions, *, starting: bool, batch: bool) -> None:
    if starting and batch and options.starting_offsets is not None:
        latest = asked == LATEST or (isinstance(asked, dict) and LATEST in asked.values())
        if latest:
            raise OptionError("startingOffsets", "a batch cannot start at latest: there would be nothing to read")
    if not starting and options.ending_offsets is not None:
        earliest = asked == EARLIEST or (isinstance(asked, dict) and EARLIEST in asked.values())
        if earliest:
            raise OptionError("endingOffsets", "a batch cannot end at earliest: there would be nothing to read")


def _known(asked: int | Position, queues: Mapping[QueueKey, Ends], option: str) -> Position:
    """Return what was asked for by the queues that are there; a queue's broker need not be named where it is clear."""
    if not isinstance(asked, dict):
        return {}
    there: dict[tuple[str, int], list[QueueKey]] = {}
    for key in queues:
        there.setdefault((key.topic, key.queue_id), []).append(key)
    found: Position = {}
    for key, number in asked.items():
        found_key = _only(key, there, option)
        if found_key in found:
            why = "" if found_key.broker else "; a store is one broker's"
            raise OptionError(option, f"the queue {key.queue_id} of {key.topic!r} stands under two brokers{why}")
        found[found_key] = number
    return found


def _only(asked: QueueKey, there: Mapping[tuple[str, int], list[QueueKey]], option: str) -> QueueKey:
    topic, queue, broker = asked
    fitting = [key for key in there.get((topic, queue), []) if not broker or not key.broker or key.broker == broker]
    if len(fitting) == 1:
        return fitting[0]
    if fitting:
        names = ", ".join(sorted(key.broker for key in fitting))
        example = f'{{"{topic}": {{"{fitting[0].broker}": {{"{queue}": 0}}}}}}'
        raise OptionError(option, f"{topic!r} has a queue {queue} at each of {names}: say which, as in {example}")
    known = sorted(key for keys in there.values() for key in keys if key.topic == topic)
    if not known:
        raise OptionError(option, f"{topic!r} is not read")
    listed = [f"{key.broker}/{key.queue_id}" for key in known] if known[0].broker else [key.queue_id for key in known]
    where = f" at {broker}" if known[0].broker and broker else ""
    raise OptionError(option, f"the topic {topic!r} has no queue {queue}{where}; there are {listed}")
