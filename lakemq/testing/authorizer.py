"""What every authorizer must do: the suite for the ports `Authorizer` and `AskingAuthorizer`."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Sequence
from typing import Final, NamedTuple

import pytest

from lakemq.broker_core.api.errors import Undecided
from lakemq.broker_core.api.ports import AskingAuthorizer, Authorizer
from lakemq.broker_core.api.types import (
    ANONYMOUS,
    NO_CONTEXT,
    AccessContext,
    Operation,
    Principal,
    Resource,
)

DECIDE_MAX_S: Final = 60
KINDS: Final = ("topic", "topic_name", "group", "cluster", "sink", "transaction", "schema", "other")
NAMES: Final = ("", "a", "a/b", "+/#", "$SYS/x", "%c", "\x00", "x" * 65_535, "ü/../*", "__internal")


class Question(NamedTuple):
    """What an authorizer is asked: the arguments of `authorize`."""

    principal: Principal
    operation: Operation
    resource: Resource
    context: AccessContext = NO_CONTEXT


async def answered(authorizer: Authorizer, question: Question) -> bool | None:
    """What it answers, after `decide` where it has to ask another service."""
    try:
        return authorizer.authorize(*question)
    except Undecided:
        assert isinstance(authorizer, AskingAuthorizer), "only an AskingAuthorizer is undecided"
        assert question.resource.kind == "topic_name", "only these wait for `decide`"
    async with asyncio.timeout(DECIDE_MAX_S):
        await authorizer.decide(*question)
    return authorizer.authorize(*question)


class AuthorizerContract:
    """Give the fixtures `authorizer`, `allowed` and `denied` (questions that it answers True and
    False). `foreign` are questions that are not its own, answered None: override it where there
    are any.
    """

    pytestmark = pytest.mark.asyncio

    @pytest.fixture
    def foreign(self) -> Sequence[Question]:
        """Questions that are not the authorizer's own, which it answers None; by default none."""
        return ()

    async def test_it_answers_true_false_or_none(
        self,
        authorizer: Authorizer,
        allowed: Sequence[Question],
        denied: Sequence[Question],
        foreign: Sequence[Question],
    ) -> None:
        """Each sample gets exactly the answer that the fixtures promise."""
        for questions, wanted in ((allowed, True), (denied, False), (foreign, None)):
            for each in questions:
                answer = await answered(authorizer, each)
                assert answer is wanted, f"{each}: {answer!r} instead of {wanted}"

    async def test_no_answer_depends_on_what_was_asked_before(
        self, authorizer: Authorizer, allowed: Sequence[Question], denied: Sequence[Question]
    ) -> None:
        """A cache must not let one answer stand for another question."""
        for first, second in itertools.product(allowed, denied):
            for _ in range(2):
                assert await answered(authorizer, second) is False, second
                assert await answered(authorizer, first) is True, first

    async def test_any_question_gets_an_answer(
        self, authorizer: Authorizer, allowed: Sequence[Question]
    ) -> None:
        """Unknown kinds, odd names and every operation: True, False or None, and no exception but
        Undecided."""
        principals = [ANONYMOUS, Principal(""), *(each.principal for each in allowed[:1])]
        asked = itertools.product(principals, Operation, KINDS, NAMES)
        for principal, operation, kind, name in asked:
            question = Question(principal, operation, Resource(kind, name))
            try:
                answer = authorizer.authorize(*question)
            except Undecided:
                assert isinstance(authorizer, AskingAuthorizer) and kind == "topic_name", question
            else:
                assert answer is None or isinstance(answer, bool), f"{question}: {answer!r}"

    async def test_the_anonymous_are_not_taken_for_users_of_that_name(
        self, authorizer: Authorizer, allowed: Sequence[Question]
    ) -> None:
        """An anonymous client chooses its own client id, and that may be a user's name."""
        for each in allowed:
            if each.principal.kind == "user" and not each.principal.attributes:
                anonymous = Principal(each.principal.name, "anonymous")
                assert await answered(authorizer, each._replace(principal=anonymous)) is not True, (
                    each
                )
