"""Goal: one account can't take up all names of a node, by itself or over restarts, and who is alone
is kept from nothing.
"""

from __future__ import annotations

import pytest

from lakemq.broker_core.api.errors import InvalidRequest
from lakemq.broker_core.api.limits.name_shares import NameShares
from lakemq.broker_core.api.types import ANONYMOUS, Principal

ANN, BOB = Principal("ann"), Principal("bob")


class Node:
    def __init__(self, names: set[str], most: int = 100) -> None:
        self.names = names
        self.shares = NameShares("queues", names, names_max=most, user_share_max=0.5)

    def make(self, principal: Principal, *names: str) -> None:
        for name in names:
            self.shares.take(name, principal)
            self.names.add(name)

    def fill(self, principal: Principal) -> int:
        """How many names it got until it was refused."""
        for count in range(1000):
            try:
                self.make(principal, f"{principal.name} {len(self.names)} {count}")
            except InvalidRequest as error:
                assert f"{principal.name} has {count} queues, the maximum for one user" in str(
                    error
                )
                return count
        raise AssertionError


def test_a_user_has_a_share() -> None:
    node = Node(set())
    assert node.fill(ANN) == 50
    node.make(BOB, *map(str, range(50)))
    with pytest.raises(InvalidRequest, match="there are 100 queues, the maximum"):
        node.make(Principal("carl"), "x")
    node.make(Principal("carl"), next(iter(node.names)))  # one that is there


def test_names_that_are_gone_are_given_back() -> None:
    node = Node(set())
    node.fill(ANN)
    node.names.clear()
    assert node.fill(ANN) == 50


def test_who_is_alone_has_everything_until_others_come() -> None:
    node = Node(set())
    node.make(ANONYMOUS, *map(str, range(60)))
    node.make(ANN, "a")
    with pytest.raises(InvalidRequest, match="anonymous has 60 queues"):
        node.make(ANONYMOUS, "one more")
    assert Node(set()).fill(ANN) == 50


def test_restarts_do_not_give_one_account_everything() -> None:
    names: set[str] = set()
    for _ in range(5):
        Node(names).fill(ANN)
    assert len(names) < 100
    Node(names).make(BOB, "b")


def test_the_broker_itself_is_not_counted_short() -> None:
    node = Node(set())
    node.make(ANN, "a")
    node.make(Principal("n1", "node"), *map(str, range(99)))
