"""amqtt's `BaseAuthPlugin` and `BaseTopicPlugin` behind LakeMQ's `Authenticator` and `Authorizer`.

amqtt asks topic plugins by coroutine for every publish. LakeMQ's authorizers answer at once, and
their answers are kept per connection and topic name: a topic plugin whose coroutine waits for
something (a database, a web service) is refused, and so is what it was asked about.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass
from importlib import import_module
from typing import Any, Final

from amqtt.contexts import Action, BaseContext
from amqtt.plugins.base import BaseAuthPlugin, BaseTopicPlugin
from amqtt.session import Session
from dacite import Config, DaciteError, from_dict

from lakemq.broker_core.api.errors import NotAuthenticated, PluginError
from lakemq.broker_core.api.types import AccessContext, Credentials, Operation, Principal, Resource
from lakemq.plugins.amqtt_auth.config import AmqttPluginSettings

_log = logging.getLogger(__name__)
_ACTIONS: Final = {Operation.WRITE: Action.PUBLISH, Operation.READ: Action.SUBSCRIBE}


@dataclass(frozen=True)
class Loaded:
    """Plugins by what they do; one may do both."""

    authenticators: Sequence[BaseAuthPlugin]
    topic_plugins: Sequence[BaseTopicPlugin]


def load(plugins: Sequence[AmqttPluginSettings]) -> Loaded:
    """Raises PluginError, naming the plugin that can't be loaded."""
    made = [_load(each) for each in plugins]
    return Loaded(
        [each for each in made if isinstance(each, BaseAuthPlugin)],
        [each for each in made if isinstance(each, BaseTopicPlugin)],
    )


def _load(settings: AmqttPluginSettings) -> BaseAuthPlugin | BaseTopicPlugin:
    module, _, name = settings.path.rpartition(".")
    try:
        found: Any = getattr(import_module(module), name)
    except (ImportError, AttributeError) as error:
        raise PluginError(f"{settings.path}: {error}") from None
    kind = found
    if not (isinstance(found, type) and issubclass(found, BaseAuthPlugin | BaseTopicPlugin)):
        raise PluginError(f"{settings.path} is neither a BaseAuthPlugin nor a BaseTopicPlugin")
    context = BaseContext()
    context.logger = _log.getChild(name)
    try:
        config: Any = from_dict(kind.Config, settings.config, Config(strict=True))
        context.config = config
        made: BaseAuthPlugin | BaseTopicPlugin = kind(context)
    except DaciteError as error:
        raise PluginError(f"{settings.path}: config: {error}") from None
    except Exception as error:  # whatever the plugin's constructor raises
        raise PluginError(f"{settings.path}: {type(error).__name__}: {error}") from error
    return made


def _session(client_id: str, username: str | None, host: str) -> Session:
    session = Session()
    session.client_id = client_id
    session.username = username
    session.remote_address = host
    return session


class AmqttAuthenticator:
    """Asks authentication plugins about each client, as amqtt's broker does: one that says no
    is obeyed, and one yes is needed."""

    def __init__(self, plugins: Sequence[BaseAuthPlugin]) -> None:
        self._plugins = tuple(plugins)

    def handles(self, credentials: Credentials) -> bool:
        """Whether there is a user name, which a plugin of amqtt may check."""
        return credentials.username is not None

    async def authenticate(self, credentials: Credentials) -> Principal | None:
        """The user, if no plugin refuses and one accepts; None: no plugin knows the user."""
        session = _session(credentials.client_id, credentials.username, credentials.peer_host)
        if credentials.password is not None:
            session.password = credentials.password.decode("utf-8", "replace")
        accepted = False
        for plugin in self._plugins:
            try:
                verdict = await plugin.authenticate(session=session)
            except Exception as error:  # a plugin that fails authenticates no client
                _log.error("%s: %s", type(plugin).__name__, type(error).__name__)
                verdict = False
            if verdict is not None and not verdict:
                # None leaves the decision to the next plugin; False is a refusal, whatever the
                # others say.
                raise NotAuthenticated("wrong user or password")
            accepted |= bool(verdict)
        if not accepted:
            return None
        if session.username is None or getattr(session, "is_anonymous", False):
            return Principal("anonymous", "anonymous")
        return Principal(session.username)


class AmqttAuthorizer:
    """Asks topic plugins about MQTT topic names and filters; other resources are not theirs."""

    def __init__(self, plugins: Sequence[BaseTopicPlugin]) -> None:
        self._plugins = tuple(plugins)

    def authorize(
        self,
        principal: Principal,
        operation: Operation,
        resource: Resource,
        context: AccessContext,
    ) -> bool | None:
        """Whether the plugins allow a publish or a subscription; None: they do not decide it."""
        action = _ACTIONS.get(operation)
        if resource.kind != "topic_name" or action is None:
            return None
        username = principal.name if principal.kind == "user" else None
        session = _session(context.client_id, username, context.peer_host)
        verdicts = [_asked(each, session, resource.name, action) for each in self._plugins]
        if False in verdicts:
            return False
        return True if True in verdicts else None


def _asked(plugin: BaseTopicPlugin, session: Session, name: str, action: Action) -> bool | None:
    """The answer of a coroutine that does not wait; False for one that does."""
    asking = plugin.topic_filtering(session=session, topic=name, action=action)
    try:
        # Run to its end here, without an event loop: a coroutine that yields waits for something.
        asking.send(None)
    except StopIteration as answer:
        return None if answer.value is None else bool(answer.value)
    except Exception as error:  # a plugin that fails allows nothing
        _log.error("%s: %s", type(plugin).__name__, type(error).__name__)
        return False
    asking.close()
    _log.error("%s waits for something, which a topic plugin can't here", type(plugin).__name__)
    return False
