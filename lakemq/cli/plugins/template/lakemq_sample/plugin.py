"""Hooks only: LakeMQ calls them when it starts. Delete those that you do not need."""

from __future__ import annotations

from collections.abc import Iterable

from lakemq.broker_core.api.hooks import hookimpl
from lakemq.broker_core.api.ports import Interceptor, PluginContext
from lakemq.broker_core.api.settings import PluginSettings
from lakemq_sample.interceptor import SizeLimit
from lakemq_sample.settings import SampleSettings


@hookimpl
def register_settings() -> type[PluginSettings]:
    return SampleSettings


@hookimpl
def register_interceptors(context: PluginContext) -> Iterable[Interceptor]:
    assert isinstance(context.settings, SampleSettings)
    return [SizeLimit(context.settings.value_max_bytes)]
