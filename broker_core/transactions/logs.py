"""The topic of transactions: states of the schedulers, and of owners of former builds."""

from __future__ import annotations

import asyncio
from typing import Final

from lakemq.broker_core.api.ports import Broker
from lakemq.broker_core.api.state.state_topic import StateTopic
from lakemq.broker_core.api.transactions.types import Owner
from lakemq.broker_core.api.types import Acks, AppendResult
from lakemq.broker_core.transactions.formats import (
    TRANSACTIONS_TOPIC,
    decode_owner,
    decode_state,
    encode_owner,
    encode_state,
)
from lakemq.broker_core.transactions.state import OwnerState

PARTITIONS: Final = 4


class OwnerStates:
    """The newest state of each owner, on disk."""

    def __init__(self, broker: Broker) -> None:
        self._broker = broker
        self._topic = StateTopic(
            broker,
            TRANSACTIONS_TOPIC,
            partitions=PARTITIONS,
            acks=Acks.REPLICATED,
            large_values=True,
        )

    async def ensure(self) -> None:
        """Create the topic of transactions if there is none."""
        await self._topic.ensure()

    def append(self, owner: Owner, state: OwnerState | None) -> asyncio.Future[AppendResult]:
        """`None` deletes the owner. Done when it is on disk."""
        key = encode_owner(owner)
        value = None if state is None else encode_state(state)
        return self._topic.write({key: value}, partition=self._topic.partition_of(key))

    async def load(self) -> dict[Owner, OwnerState]:
        """The states of all owners; a state that cannot be decoded leaves the one before."""
        found: dict[Owner, OwnerState] = {}
        async for record in self._topic.records():
            try:
                owner = decode_owner(record.key)
                if record.value is None:
                    found.pop(owner, None)
                else:
                    found[owner] = decode_state(record.value)
            except ValueError as error:
                self._topic.skip(record, error)
        return found
