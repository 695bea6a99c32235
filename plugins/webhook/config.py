"""Section `[plugins.webhook]`."""

from __future__ import annotations

from typing import Literal, Self

from pydantic import Field, field_validator, model_validator

from lakemq.broker_core.api.settings import PluginSettings, Section
from lakemq.broker_core.api.state.internal_topics import users_topic
from lakemq.broker_core.api.topic_filters import is_filter

_NAME = r"^[A-Za-z0-9][A-Za-z0-9._-]{0,99}$"


class WantedSettings(Section):
    """Which records are sent: those that meet all that is given."""

    key: str | None = None
    """The key is this text."""
    key_prefix: str = ""
    """The key begins with this text."""
    key_filter: str = ""
    """The key matches this MQTT topic filter: the key of what MQTT clients publish is its name."""
    headers: dict[str, str] = Field(default_factory=dict, max_length=16)
    """Each of these headers has this text as a value."""

    @field_validator("key_filter")
    @classmethod
    def _filter(cls, value: str) -> str:
        if value and not is_filter(value):
            raise ValueError(f"{value!r} is no MQTT topic filter")
        return value


class HookSettings(Section):
    """One webhook."""

    name: str = Field(pattern=_NAME)
    """Names it for ever: the consumer group `webhook-<name>` keeps how far it is."""
    topic: str = Field(min_length=1)
    """The topic whose records are sent; it may be created later."""
    url: str = Field(pattern=r"^https?://[^/]")
    """Where they are sent, by POST. Redirects are not followed."""
    start: Literal["latest", "earliest"] = "latest"
    """Where a new webhook begins. Partitions that are added later are sent from their beginning."""
    wanted: WantedSettings = WantedSettings()
    """Which records are sent; left out: all."""
    headers: dict[str, str] = Field(default_factory=dict)
    """Headers sent along; `${NAME}` stands for an environment variable, for secrets."""
    secret_env: str = ""
    """Environment variable with the secret that requests are signed with (Standard Webhooks);
    empty: they are not signed."""
    records_max: int = Field(default=100, ge=1, le=10_000)
    """Records of one request."""
    bytes_max: int = Field(default=1024 * 1024, ge=1024, le=64 * 1024 * 1024)
    """Keys and values of one request; a larger record is sent alone."""
    calls_max: int = Field(default=4, ge=1, le=256)
    """Requests under way at a time; of one partition there is one."""
    timeout_ms: int = Field(default=10_000, ge=10, le=600_000)
    """How long an answer may take (ms)."""
    retry_min_ms: int = Field(default=500, ge=10)
    """Wait before the first retry, doubled by each further one (ms)."""
    retry_max_ms: int = Field(default=60_000, ge=10)
    """Longest wait (ms)."""
    refused: Literal["retry", "skip"] = "retry"
    """What happens to records that are answered with 4xx, but 408, 425 and 429: they are sent again
    as all that fails, or counted, logged and left out."""
    commit_ms: int = Field(default=500, ge=10, le=1_000)
    """How often it is stored how far the webhook is (ms); what came since is sent again after a
    crash."""

    @field_validator("topic")
    @classmethod
    def _users(cls, value: str) -> str:
        return users_topic(value)

    @model_validator(mode="after")
    def _fits(self) -> Self:
        if self.retry_max_ms < self.retry_min_ms:
            raise ValueError("retry_max_ms is less than retry_min_ms")
        return self


class WebhookSettings(PluginSettings):
    """`[plugins.webhook]`. Sends records of topics to HTTP services, each at least once."""

    hooks: list[HookSettings] = Field(default_factory=list, max_length=1000)
    """The webhooks, alike on all nodes: the one that coordinates a webhook's group runs it."""

    @model_validator(mode="after")
    def _names(self) -> Self:
        names = [each.name for each in self.hooks]
        twice = {name for name in names if names.count(name) > 1}
        if twice:
            raise ValueError(f"several webhooks are named {', '.join(sorted(twice))}")
        return self
