"""A cache of answers with an expiry, bounded per client and in total."""

from __future__ import annotations

from collections import OrderedDict
from typing import Generic, TypeVar

Answer = TypeVar("Answer")
Question = tuple[str, ...]


class Answers(Generic[Answer]):
    """Client -> question -> answer. A client that asks about very many things forgets its own
    first; where all together are too many, the client goes that was answered longest ago."""

    def __init__(self, per_client_max: int, total_max: int) -> None:
        self._per_client_max = per_client_max
        self._total_max = total_max
        self._clients: OrderedDict[str, OrderedDict[Question, tuple[int, Answer]]] = OrderedDict()
        self._count = 0

    def __len__(self) -> int:
        return self._count

    def get(self, client: str, question: Question, now_ms: int) -> tuple[Answer] | None:
        """The answer in a tuple; None: there is none that still holds."""
        mine = self._clients.get(client)
        found = mine.get(question) if mine is not None else None
        return (found[1],) if found is not None and now_ms < found[0] else None

    def put(self, client: str, question: Question, answer: Answer, until_ms: int) -> None:
        """Remember an answer until `until_ms`; the oldest of the client or of all make room."""
        mine = self._clients.setdefault(client, OrderedDict())
        self._clients.move_to_end(client)
        self._count += question not in mine
        mine[question] = (until_ms, answer)
        mine.move_to_end(question)
        if len(mine) > self._per_client_max:
            mine.popitem(last=False)
            self._count -= 1
        # Whole clients go: one that asks much pays first, by its own bound above.
        while self._count > self._total_max and len(self._clients) > 1:
            _, gone = self._clients.popitem(last=False)
            self._count -= len(gone)
