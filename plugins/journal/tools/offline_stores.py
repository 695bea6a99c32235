"""Opens object stores for `lakemq journal verify`. Edge: reads the configuration."""

from __future__ import annotations

import tomllib
from functools import cache
from pathlib import Path

from pydantic import ValidationError

from lakemq.broker_core.api.errors import ConfigError
from lakemq.plugins.journal.segment.files import Files
from lakemq.plugins.journal.settings import JournalSettings
from lakemq.plugins.journal.tiering.object_store import ObjectStore, open_store
from lakemq.plugins.journal.tools.offline import OpenStore


def store_opener(files: Files, config: Path | None) -> OpenStore:
    """Opens stores with the `tiering_options` of a node's configuration; without one, with what the
    store's usual variables say. ConfigError: it can't be read."""
    options = _options(config) if config is not None else {}

    @cache
    def opened(url: str) -> ObjectStore:
        return open_store(files, url, options)

    return opened


def _options(config: Path) -> dict[str, str]:
    try:
        with config.open("rb") as file:
            section = tomllib.load(file).get("plugins", {}).get("journal", {})
        settings = JournalSettings.model_validate(section)
    except OSError as error:
        raise ConfigError(f"{config}: {error.strerror}") from None
    except tomllib.TOMLDecodeError as error:
        raise ConfigError(f"{config}: {error}") from None
    except ValidationError as error:
        first = error.errors(include_input=False)[0]
        where = ".".join(map(str, ("plugins", "journal", *first["loc"])))
        raise ConfigError(f"{config}: {where}: {first['msg']}") from None
    return {name: secret.get_secret_value() for name, secret in settings.tiering_options.items()}
