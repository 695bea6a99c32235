"""Turns to send a message before one is known, as the MetaService takes them too."""

from lakemq.meta_service.api.reading_turns import ReadingTurns as ReadingTurns
