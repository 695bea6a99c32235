"""Goal: a changed file is taken whole or not at all, and everybody hears what became of it."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from importlib.metadata import EntryPoint
from pathlib import Path
from types import ModuleType

import pytest

from lakemq.broker_core.api.errors import ConfigError, InvalidRequest, LakeMQError, PluginError
from lakemq.broker_core.api.hooks import ENTRY_POINT_GROUP, hookimpl
from lakemq.broker_core.api.settings import PluginSettings, Reloadable
from lakemq.broker_core.configuration.config import Config, Kept, load_config
from lakemq.broker_core.plugin_host import PluginHost
from lakemq.reloading import Reloads


class LineSettings(PluginSettings):
    port: int = 7
    """A port."""
    lines_max: Reloadable[int] = 10
    """Most lines."""


class Part:
    """Implements `Reconfigurable`; `raises` to refuse, `fails` to break its word."""

    def __init__(self) -> None:
        self.settings = LineSettings()
        self.raises: Exception | None = None
        self.fails = False

    def reconfigure(self, settings: LineSettings) -> Callable[[], None]:
        if self.raises is not None:
            raise self.raises

        def apply() -> None:
            if self.fails:
                raise ValueError("broken")
            self.settings = settings

        return apply


class Bench:
    """What a node has of it: a file, two plugins with a part each, sections in use."""

    def __init__(self, folder: Path) -> None:
        self.file = folder / "lakemq.toml"
        self.parts = {name: Part() for name in ("a", "b")}
        self.used: list[Config] = []
        self.reloads: Reloads

    def start(self, text: str, variables: dict[str, str] | None = None) -> None:
        self.file.write_text(text)
        config = load_config(self.file, variables or {})
        points = [EntryPoint(name, f"reloaded_{name}", ENTRY_POINT_GROUP) for name in "abc"]
        host = PluginHost(config.source, points)
        host.load()
        host.collect("register_interceptors", lambda plugin: {"context": None})
        self.reloads = Reloads(config, host, lambda before, after: self.used.append(after))

    async def reload(self, text: str, *, dry_run: bool = False) -> tuple[list[str], list[str]]:
        self.file.write_text(text)
        done = await self.reloads.reload(dry_run=dry_run)
        return [each.setting for each in done.applied], [each.setting for each in done.restart]

    async def pending(self) -> dict[str, str]:
        return {
            each.setting: each.pending for each in await self.reloads.settings() if each.pending
        }


@pytest.fixture
def bench(tmp_path: Path) -> Iterator[Bench]:
    made = Bench(tmp_path)
    for name in "abc":
        module = sys.modules[f"reloaded_{name}"] = ModuleType(f"reloaded_{name}")
        part = made.parts.get(name)
        hooks = {"register_settings": lambda: LineSettings}
        if part is not None:
            hooks["register_interceptors"] = lambda context, part=part: part
        for hook, function in hooks.items():
            setattr(module, hook, hookimpl(function))
    yield made
    for name in "abc":
        del sys.modules[f"reloaded_{name}"]


BOTH = "[plugins.a]\n[plugins.b]\n[plugins.c]\n"


async def test_what_can_be_used_is_used_and_the_rest_named(bench: Bench) -> None:
    bench.start(BOTH)
    text = "[plugins.a]\nlines_max = 3\nport = 8\n[plugins.b]\n[plugins.c]\nlines_max = 4\n"
    text += "[topics]\nretention_ms = 5\n[node]\nid = 'other'\n"
    would = await bench.reload(text, dry_run=True)
    assert bench.used == [] and bench.parts["a"].settings.lines_max == 10
    assert await bench.reload(text) == would
    assert sorted(would[0]) == ["plugins.a.lines_max", "topics.retention_ms"]
    # No part of `c` takes settings.
    needs_restart = ["node.id", "plugins.a.port", "plugins.c.lines_max"]
    assert sorted(would[1]) == needs_restart
    assert sorted(bench.reloads.restart_pending()) == needs_restart
    assert await bench.pending() == dict.fromkeys(needs_restart, "restart")
    (used,) = bench.used
    assert (used.topics.retention_ms, used.node.id) == (5, "node-1")
    assert bench.parts["a"].settings == LineSettings(lines_max=3)
    states = {each.setting: each for each in await bench.reloads.settings()}
    assert (states["topics.retention_ms"].value, states["topics.retention_ms"].source) == (
        5,
        "file",
    )
    assert (states["node.id"].value, states["node.id"].source) == ("node-1", "default")
    assert states["node.id"].written == "other"
    # Back again: nothing is left to be done.
    assert await bench.reload(BOTH) == (["topics.retention_ms", "plugins.a.lines_max"], [])
    assert await bench.pending() == {}


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("[topics]\nretention_ms = 'x'\n", r"lakemq\.toml:2: topics\.retention_ms"),
        ("[topics\n", "not TOML"),
        (BOTH + "[plugins.none]\n", "no plugin of that name"),
        (BOTH + "[topics]\nretention_ms = 1\n[plugins.d]\n", "no plugin"),
        ("[plugins.a]\nlines_max = 3\n[plugins.b]\nlines = 3\n", r"lakemq\.toml:4: .*lines_max"),
    ],
)
async def test_a_wrong_file_changes_nothing(
    bench: Bench, text: str, said: str, caplog: pytest.LogCaptureFixture
) -> None:
    bench.start(BOTH)
    with pytest.raises(LakeMQError, match=said):
        await bench.reload(text)
    assert bench.used == [] and bench.parts["a"].settings == LineSettings()
    assert "the configuration was not reloaded" in caplog.text
    bench.file.unlink()
    with pytest.raises(ConfigError, match="No such file"):
        await bench.reloads.reload()


async def test_one_part_that_refuses_stops_all(bench: Bench) -> None:
    bench.start(BOTH)
    text = "[plugins.a]\nlines_max = 3\n[plugins.b]\nlines_max = 3\n[topics]\nretention_ms = 5\n"
    refusals = ((ConfigError("b: too few"), ConfigError), (ValueError("oh"), PluginError))
    for raised, expected in refusals:
        bench.parts["b"].raises = raised
        with pytest.raises(expected, match=str(raised)):
            await bench.reload(text)
        assert bench.used == [] and bench.parts["a"].settings == LineSettings()
    bench.parts["b"].raises = None
    await bench.reload(text)
    assert bench.parts["a"].settings == bench.parts["b"].settings == LineSettings(lines_max=3)


async def test_a_part_that_breaks_its_word_harms_no_other(
    bench: Bench, caplog: pytest.LogCaptureFixture
) -> None:
    bench.start(BOTH)
    bench.parts["a"].fails = True
    await bench.reload("[plugins.a]\nlines_max = 3\n[plugins.b]\nlines_max = 3\n[plugins.c]\n")
    assert bench.parts["b"].settings == LineSettings(lines_max=3)
    assert "restart the node" in caplog.text


async def test_a_plugin_that_is_switched_needs_a_restart(bench: Bench) -> None:
    bench.start("[plugins.a]\n")
    off_and_on = "[plugins.a]\nenabled = false\nlines_max = 3\n[plugins.b]\n"
    assert await bench.reload(off_and_on) == ([], ["plugins.a.enabled", "plugins.b.enabled"])
    assert await bench.pending() == {
        "plugins.a.enabled": "restart", "plugins.b.enabled": "restart",
    }  # fmt: skip
    assert bench.parts["a"].settings == LineSettings()


async def test_variables_stay_before_the_file(bench: Bench) -> None:
    bench.start(BOTH, {"LAKEMQ_TOPICS__RETENTION_MS": "9"})
    assert await bench.reload(BOTH + "[topics]\nretention_ms = 5\n") == ([], [])
    states = {each.setting: each for each in await bench.reloads.settings()}
    assert (states["topics.retention_ms"].value, states["topics.retention_ms"].source) == (
        9, "variable",
    )  # fmt: skip


async def in_use(bench: Bench, setting: str) -> tuple[object, str, str]:
    """(value, source, what it waits for)."""
    states = {each.setting: each for each in await bench.reloads.settings()}
    return states[setting].value, states[setting].source, states[setting].pending


async def test_dynamic_settings_come_before_the_file_and_the_nodes_own_first(bench: Bench) -> None:
    bench.start(BOTH + "[topics]\nretention_ms = 5\n", {"LAKEMQ_TOPICS__PARTITIONS": "2"})
    own = Kept("node=node-1", "topics.retention_ms", 8)
    others = [
        Kept("node=node-2", "topics.retention_ms", 9), Kept("cluster", "topics.retention_ms", 7),
        Kept("cluster", "topics.partitions", 3), Kept("cluster", "plugins.a.lines_max", 4),
    ]  # fmt: skip
    await bench.reloads.use_dynamic([own, *others])
    assert await in_use(bench, "topics.retention_ms") == (8, "node=node-1", "")
    assert await in_use(bench, "topics.partitions") == (3, "cluster", "")
    assert bench.parts["a"].settings == LineSettings(lines_max=4)
    await bench.reloads.use_dynamic(others)
    assert await in_use(bench, "topics.retention_ms") == (7, "cluster", "")
    # A reload of the file leaves them where they are; without them the file counts again.
    await bench.reload("[plugins.a]\nlines_max = 9\n[plugins.b]\n[plugins.c]\n")
    assert await in_use(bench, "plugins.a.lines_max") == (4, "cluster", "")
    await bench.reloads.use_dynamic([])
    assert await in_use(bench, "plugins.a.lines_max") == (9, "file", "")
    assert await in_use(bench, "topics.partitions") == (2, "variable", "")
    assert await in_use(bench, "topics.retention_ms") == (7 * 24 * 3_600_000, "default", "")


async def test_a_dynamic_change_does_not_read_the_file(bench: Bench) -> None:
    bench.start(BOTH)
    bench.file.write_text("[topics\n")
    await bench.reloads.use_dynamic([Kept("cluster", "topics.retention_ms", 7)])
    assert bench.used[-1].topics.retention_ms == 7


BAD = (
    (Kept("cluster", "topics.retention_ms", "x"), "set for cluster: it takes a whole number"),
    (Kept("cluster", "topics.retention_ms", [1]), "set for cluster: it takes a whole number"),
    (Kept("cluster", "topics.retention_msx", 1), "did you mean 'retention_ms'"),
    (Kept("cluster", "node.id", "x"), "only the file says it"),
    (Kept("cluster", "plugins.c.lines_max", 4), "only the file says it"),
    (Kept("cluster", "security.unmatched", "allow"), "only the file says it"),
    (Kept("cluster", "plugins.d.lines_max", 4), "no such section"),
    (Kept("cluster", "topics", 4), "no such section"),
    (Kept("cluster", "", 4), "no such section"),
)
"""Dynamic settings that can't be used, and why."""


async def test_bad_ones_are_left_out_logged_once_and_refused(
    bench: Bench, caplog: pytest.LogCaptureFixture
) -> None:
    bench.start(BOTH)
    kept = [each for each, _ in BAD]
    good = Kept("cluster", "topics.retention_ms", 7)
    for more in (1, 2):
        await bench.reloads.use_dynamic([*kept, good, Kept("cluster", "topics.partitions", more)])
    assert await in_use(bench, "topics.retention_ms") == (7, "cluster", "")
    assert len(bench.used) == 2 and bench.used[-1].topics.partitions == 2
    said = [each.getMessage() for each in caplog.records if "ignoring" in each.getMessage()]
    assert len(said) == len(set(said)) > 5
    for each, why in BAD:
        with pytest.raises(InvalidRequest, match=why):
            await bench.reloads.set(each.scope, each.setting, each.value)
    for scope in ("", "topic=t", "node=", "node=a/b", "node=" + "n" * 64):
        with pytest.raises(InvalidRequest, match="neither cluster nor node"):
            await bench.reloads.set(scope, "topics.retention_ms", 7)
