"""Goal: who subscribes to a topic that is not there is told, again after a while, and no more once
it is there.
"""

from __future__ import annotations

import logging

import pytest

from lakemq.broker_core.api.errors import NotAuthorized, UnknownTopic
from lakemq.plugins.native.sdk.group.topic_watch import watch_for_topics


async def test_each_that_is_missing_is_named_until_it_is_there(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.WARNING)
    answers = {
        "there": [None],
        "typo": [UnknownTopic("typo")] * 3 + [None],
        "later": [UnknownTopic("later"), None],
        "hidden": [NotAuthorized("hidden")],
    }

    async def describe(name: str) -> None:
        if (error := answers[name].pop(0)) is not None:
            raise error

    await watch_for_topics(list(answers), "g", describe, again_s=0)
    text = "group g waits for topics that do not exist (yet): "
    assert [each.getMessage() for each in caplog.records] == [
        text + "'typo', 'later'",
        text + "'typo'",
        text + "'typo'",
    ]
    assert not any(answers.values())
