"""Exponential backoff with jitter, for every plugin: the MetaService's own."""

from lakemq.meta_service.api.backoff import Backoff as Backoff
