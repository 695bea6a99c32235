"""Binds producer ids to principals: the id itself holds a keyed hash of its owner.

bit 63   0: the id of an idempotent producer is not negative
bit 62   1: given to a client; 0: the broker's own, or given before ids had owners
28 bits  keyed hash (BLAKE2b) of number, kind and name of the principal
34 bits  number, new for every id of the cluster
"""

from __future__ import annotations

import hashlib
from typing import Final

from lakemq.broker_core.api.errors import NotAuthorized, Unavailable
from lakemq.broker_core.api.types import Principal

SECRET_BYTES: Final = 32
_GIVEN: Final = 1 << 62
_NUMBER_BITS: Final = 34
_TAG_BITS: Final = 28
_NUMBER_MASK: Final = (1 << _NUMBER_BITS) - 1


class ProducerOwners:
    """`unowned_until_ms`: until when (ms since the epoch) clients may write with an id without an
    owner, as those have who were running when this version came."""

    def __init__(self, secret: bytes, unowned_until_ms: int) -> None:
        self._secret = secret
        self._unowned_until_ms = unowned_until_ms

    def id_for(self, number: int, principal: Principal) -> int:
        """The id made of the number for the principal."""
        if number > _NUMBER_MASK:
            raise Unavailable("there are no producer ids left")
        # The owner is in the id itself, so any node can check it without asking.
        return _GIVEN | self._tag(number, principal) << _NUMBER_BITS | number

    def check(self, producer_id: int, principal: Principal, now_ms: int) -> None:
        """NotAuthorized: the id is another's. Plugins and nodes (principals of kind `node`) write
        with ids of the broker's own."""
        if principal.kind == "node":
            return
        if producer_id & _GIVEN:
            if self.id_for(producer_id & _NUMBER_MASK, principal) == producer_id:
                return
        elif now_ms < self._unowned_until_ms:
            return
        raise NotAuthorized(f"producer id {producer_id} was not given to {principal.name}")

    def _tag(self, number: int, principal: Principal) -> int:
        said = b"\0".join((b"%d" % number, principal.kind.encode(), principal.name.encode()))
        digest = hashlib.blake2b(said, digest_size=8, key=self._secret).digest()
        return int.from_bytes(digest) >> 64 - _TAG_BITS
