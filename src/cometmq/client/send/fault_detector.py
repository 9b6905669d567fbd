"""The detector of producers: asks brokers that are noted as faulty whether they answer again.

From an answer on they are tried again; without the detector a fault lasts its time.

Threads: the loop's. Source: consumption specification 2.5.
"""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING

from cometmq.errors import Error
from cometmq.remoting.codes import RequestCode
from cometmq.remoting.members import request

if TYPE_CHECKING:
    from cometmq.client.instance.instance import ClientInstance
    from cometmq.client.send.faults import FaultTable
    from cometmq.client.send.producer_settings import ProducerSettings

__all__ = ["FaultDetector"]

_PERIOD_S = 3.0
_PROBE_TOPIC = "SELF_TEST_TOPIC"  # whether there is such a queue does not matter

_log = logging.getLogger(__name__)


class FaultDetector:
    """Looks after the brokers that one producer has noted."""

    def __init__(self, instance: ClientInstance, settings: ProducerSettings, faults: FaultTable) -> None:
        """Ask nobody yet.

        Args:
            instance: reaches the brokers.
            settings: the producer's.
            faults: the brokers that are noted; answers are noted there too.
        """
        self._instance = instance
        self._settings = settings
        self._faults = faults
        self._timer: asyncio.TimerHandle | None = None

    def start(self) -> None:
        """Ask every three seconds from now on."""
        self._timer = self._instance.loop.call_later(_PERIOD_S, self._ask)

    def stop(self) -> None:
        """Ask no more."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _ask(self) -> None:
        now_ms = int(self._instance.loop.time() * 1000)
        for name in self._faults.take_probes(now_ms=now_ms, period_ms=self._settings.detect_interval_ms):
            self._instance.spawn(self._probe(name))
        self.start()

    async def _probe(self, broker_name: str) -> None:
        address = self._instance.master_address(broker_name)
        if address is None:
            self._faults.forget(broker_name)
            return
        question = request(RequestCode.GET_MAX_OFFSET, topic=_PROBE_TOPIC, queueId=0)
        try:
            await self._instance.network.invoke(address, question, timeout_ms=self._settings.detect_timeout_ms)
        except Error as error:
            _log.debug("broker %s does not answer yet: %s", broker_name, error)
        else:
            self._faults.answered(broker_name)
