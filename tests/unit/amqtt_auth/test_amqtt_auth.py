"""Goal: plugins written for amqtt decide here as they do there."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest
from amqtt.plugins.base import BaseAuthPlugin, BaseTopicPlugin
from pwdlib import PasswordHash
from pwdlib.hashers.argon2 import Argon2Hasher

from lakemq.broker_core.access import Access
from lakemq.broker_core.api.access import (
    AccessContext,
    Credentials,
    Operation,
    Principal,
    Resource,
)
from lakemq.broker_core.api.errors import NotAuthenticated, PluginError
from lakemq.plugins.amqtt_auth.adapter import AmqttAuthenticator, AmqttAuthorizer, Loaded, load
from lakemq.plugins.amqtt_auth.config import AmqttPluginSettings

HERE = AccessContext("mqtt", "c1", qos=0, retain=False)


def loaded(path: str, **config: Any) -> Loaded:
    return load([AmqttPluginSettings(path=path, config=config)])


def shown(username: str | None, password: bytes | None = None) -> Credentials:
    return Credentials("mqtt", "c1", "10.0.0.1", username, password)


async def test_amqtts_password_file(tmp_path: Path) -> None:
    file = tmp_path / "passwd"
    file.write_text(f"ann:{PasswordHash((Argon2Hasher(),)).hash('hunter2')}\n")
    made = loaded("amqtt.plugins.authentication.FileAuthPlugin", password_file=str(file))
    access = Access([AmqttAuthenticator(made.authenticators)], [], anonymous="never")
    assert await access.authenticate(shown("ann", b"hunter2")) == Principal("ann")
    for user, password in (("ann", b"wrong"), ("bob", b"hunter2"), (None, None)):
        with pytest.raises(NotAuthenticated):
            await access.authenticate(shown(user, password))


async def test_amqtts_anonymous_plugin() -> None:
    path = "amqtt.plugins.authentication.AnonymousAuthPlugin"
    judge = AmqttAuthenticator(loaded(path, allow_anonymous=True).authenticators)
    principal = await judge.authenticate(shown(None))
    assert principal is not None and principal.kind == "anonymous"
    judge = AmqttAuthenticator(loaded(path, allow_anonymous=False).authenticators)
    with pytest.raises(NotAuthenticated):
        await judge.authenticate(shown(None))


def test_amqtts_topic_lists() -> None:
    path = "amqtt.plugins.topic_checking.TopicAccessControlListPlugin"
    with pytest.warns(DeprecationWarning, match="subscribe-acl"):  # which its Config does not have
        made = loaded(path, publish_acl={"ann": ["a/+"]}, acl={"ann": ["a/#"]})
    judge = AmqttAuthorizer(made.topic_plugins)
    ann = Principal("ann")
    for operation, name, verdict in [
        (Operation.WRITE, "a/1", True),
        (Operation.WRITE, "b", False),
        (Operation.READ, "a/1/2", True),
        (Operation.READ, "#", False),
    ]:
        assert judge.authorize(ann, operation, Resource("topic_name", name), HERE) is verdict
    assert judge.authorize(ann, Operation.READ, Resource("topic", "mqtt"), HERE) is None
    eve = Principal("eve")
    assert not judge.authorize(eve, Operation.WRITE, Resource("topic_name", "a/1"), HERE)


class Silent(BaseAuthPlugin):
    async def authenticate(self, *, session: Any) -> bool | None:
        return None


class Broken(BaseAuthPlugin):
    async def authenticate(self, *, session: Any) -> bool | None:
        raise RuntimeError("hunter2")


class Slow(BaseTopicPlugin):
    async def topic_filtering(self, **asked: Any) -> bool | None:
        await asyncio.sleep(0)
        return True


async def test_who_says_nothing_leaves_it_and_who_fails_lets_nobody_in(
    caplog: pytest.LogCaptureFixture,
) -> None:
    silent = AmqttAuthenticator(loaded(f"{__name__}.Silent").authenticators)
    assert await silent.authenticate(shown("ann")) is None
    broken = AmqttAuthenticator(loaded(f"{__name__}.Broken").authenticators)
    with pytest.raises(NotAuthenticated):
        await broken.authenticate(shown("ann"))
    assert "Broken: RuntimeError" in caplog.text and "hunter2" not in caplog.text


def test_a_topic_plugin_that_waits_is_refused(caplog: pytest.LogCaptureFixture) -> None:
    judge = AmqttAuthorizer(loaded(f"{__name__}.Slow").topic_plugins)
    assert (
        judge.authorize(Principal("a"), Operation.READ, Resource("topic_name", "t"), HERE) is False
    )
    assert "Slow waits" in caplog.text


@pytest.mark.parametrize(
    ("path", "config", "said"),
    [
        ("amqtt.plugins.nothing.There", {}, "No module named"),
        ("amqtt.plugins.authentication.NoSuch", {}, "NoSuch"),
        ("amqtt.session.Session", {}, "neither a BaseAuthPlugin nor"),
        ("amqtt.plugins.authentication.AnonymousAuthPlugin", {"allow": 1}, "config: "),
    ],
)
def test_what_can_not_be_loaded(path: str, config: dict[str, Any], said: str) -> None:
    with pytest.raises(PluginError, match=said) as caught:
        loaded(path, **config)
    assert path in str(caught.value)
