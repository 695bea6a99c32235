"""What every part of a plugin that takes settings while it runs must do: the suite for the port
`Reconfigurable`."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from lakemq.broker_core.api.errors import ConfigError
from lakemq.broker_core.api.settings import PluginSettings, Reconfigurable, is_reloadable

InUse = Callable[[], object]
"""What the part does with its settings, as a value that can be compared."""


class ReconfigurableContract:
    """Give `reconfigurable`, `in_use` (an `InUse` of it) and `settings`: others than it has, under
    which `in_use` gives another value.

        class TestMyLimits(ReconfigurableContract):
            @pytest.fixture
            def reconfigurable(self):
                return MyListener(MySettings())

            @pytest.fixture
            def in_use(self, reconfigurable):
                return lambda: reconfigurable.limit

            @pytest.fixture
            def settings(self):
                return MySettings(lines_max=5)
    """

    @pytest.fixture
    def refused(self) -> PluginSettings | None:
        """Settings that it does not agree to; None: there are none."""
        return None

    def test_the_settings_differ_in_what_is_reloadable_alone(
        self, reconfigurable: Reconfigurable, settings: PluginSettings
    ) -> None:
        """So does what a node hands over."""
        assert isinstance(reconfigurable, Reconfigurable)
        fields = type(settings).model_fields
        assert any(is_reloadable(info) for info in fields.values())
        changed = {name for name in fields if name in settings.model_fields_set}
        assert [name for name in changed if not is_reloadable(fields[name])] == []

    def test_nothing_changes_before_all_have_agreed(
        self, reconfigurable: Reconfigurable, in_use: InUse, settings: PluginSettings
    ) -> None:
        """The answer of `reconfigure` puts settings into use, also a second time."""
        before = in_use()
        apply = reconfigurable.reconfigure(settings)
        assert in_use() == before, "settings were used before the answer was called"
        apply()
        after = in_use()
        assert after != before, "the settings are not in use"
        reconfigurable.reconfigure(settings)()
        assert in_use() == after

    def test_a_refusal_changes_nothing(
        self, reconfigurable: Reconfigurable, in_use: InUse, refused: PluginSettings | None
    ) -> None:
        """ConfigError, with a sentence."""
        if refused is None:
            pytest.skip("it agrees to whatever is valid")
        before = in_use()
        with pytest.raises(ConfigError, match=r"\w"):
            reconfigurable.reconfigure(refused)
        assert in_use() == before
