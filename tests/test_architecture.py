"""Goal: the house rules that a linter does not know are kept by machine."""

from __future__ import annotations

import ast
import inspect
import re
import subprocess
import sys
import tomllib
from collections import Counter
from collections.abc import Iterator
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import grimp
import pytest
from pydantic import BaseModel

from lakemq.broker_core.api.hooks import PluginHooks
from lakemq.broker_core.configuration.config import SECTIONS, ConfigSource
from lakemq.broker_core.plugin_host import HOOKS, PluginHost
from lakemq.plugins.admin.api.descriptions import texts_of

ROOT = Path(__file__).parents[1]
ROOMS = ("lakemq", "meta_service", "broker_core", "plugins", "spark_plugin", "pyspark_lakemq")
FILE_LINES_MAX = 600
FUNCTION_LINES_MAX = 60
FOLDER_MODULES_MAX = 15
LARGE_FILES: dict[str, int] = {}
"""Files over the limit, with their size: an entry may only shrink."""
LONG_FUNCTIONS: dict[str, int] = {}
"""Functions over the limit, with their size: an entry may only shrink."""
NEVER_IN_PURE = ("asyncio", "socket", "ssl", "grpc")

_IMPORT_ALONE = """
import importlib, os, sys, traceback, types

def imported(module):  # in a process that has imported nothing else
    parts = module.split(".")
    for size in range(1, len(parts)):  # parents without their __init__, which may do more
        name = ".".join(parts[:size])
        parent = types.ModuleType(name)
        parent.__path__ = ["/".join([{root!r}, *parts[:size]])]
        sys.modules[name] = parent
    importlib.import_module(module)
    return [name for name in {never!r} if name in sys.modules]

for module in {modules!r}:
    sys.stdout.flush()
    if os.fork():
        os.wait()
        continue
    try:
        print(module, *imported(module))
    except BaseException:
        print(module, "can't be imported alone:", traceback.format_exc().replace(chr(10), " "))
    sys.stdout.flush()
    os._exit(0)
"""


def pyproject() -> dict[str, object]:
    return tomllib.loads((ROOT / "pyproject.toml").read_text())


def pure_modules() -> list[str]:
    contracts = pyproject()["tool"]["importlinter"]["contracts"]  # type: ignore[index]
    (contract,) = [each for each in contracts if each["name"].startswith("Pure modules")]
    return sorted(contract["source_modules"])


def sources() -> Iterator[Path]:
    for room in ROOMS:
        for path in sorted((ROOT / room).rglob("*.py")):
            if "_pb2" not in path.name:
                yield path


@pytest.fixture(scope="module")
def reached() -> dict[str, list[str]]:
    """What each pure module imports of what it never may. A fork for each is quicker than a new
    interpreter, of which there would be hundreds."""
    modules = pure_modules()
    code = _IMPORT_ALONE.format(modules=modules, root=str(ROOT), never=NEVER_IN_PURE)
    run = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True
    )
    return {line.split()[0]: line.split()[1:] for line in run.stdout.splitlines()}


@pytest.mark.parametrize("module", pure_modules())
def test_pure_modules_reach_no_io(module: str, reached: dict[str, list[str]]) -> None:
    assert reached[module] == [], f"{module} imports {' '.join(reached[module])}"


def test_files_stay_small() -> None:
    sizes = {str(path.relative_to(ROOT)): len(path.read_text().splitlines()) for path in sources()}
    over = {name: size for name, size in sizes.items() if size > FILE_LINES_MAX}
    assert over == LARGE_FILES, "split the file; an entry of LARGE_FILES may only shrink"


def test_functions_stay_short() -> None:
    over = {}
    for path in sources():
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                lines = code_lines(node)
                if lines > FUNCTION_LINES_MAX:
                    over[f"{path.relative_to(ROOT)}:{node.name}"] = lines
    assert over == LONG_FUNCTIONS, "split the function; an entry may only shrink"


def code_lines(node: ast.FunctionDef | ast.AsyncFunctionDef) -> int:
    """Lines of a function without its docstring."""
    size = (node.end_lineno or node.lineno) - node.lineno + 1
    first = node.body[0]
    if isinstance(first, ast.Expr) and isinstance(first.value, ast.Constant):
        size -= (first.end_lineno or first.lineno) - first.lineno + 1
    return size


def test_folders_hold_few_modules() -> None:
    """Modules of its own; those of inner folders, generated code and `__init__` do not count."""
    modules = Counter(
        str(path.relative_to(ROOT).parent)
        for room in (*ROOMS, "tests", "tools", "benchmarks")
        for path in (ROOT / room).rglob("*.py")
        if "_pb2" not in path.name and path.name not in ("__init__.py", "conftest.py")
    )
    over = {folder: count for folder, count in modules.items() if count > FOLDER_MODULES_MAX}
    assert over == {}, "give the folder inner packages"


def test_no_import_cycle() -> None:
    """`TYPE_CHECKING` counts too: who needs a name to be typed, knows the module."""
    graph = grimp.build_graph("lakemq", "pyspark_lakemq", cache_dir=None)
    imports = {each: graph.find_modules_directly_imported_by(each) for each in graph.modules}
    try:
        TopologicalSorter(imports).prepare()
    except CycleError as error:
        pytest.fail("import cycle: " + " <- ".join(error.args[1]))


def glossary() -> list[tuple[str, str]]:
    """(term, words that are not said for it) of CONTRIBUTING.md's glossary."""
    section = (ROOT / "CONTRIBUTING.md").read_text().split("## Glossary")[1]
    rows = [line.split("|")[1:-1] for line in section.splitlines() if line.startswith("| ")]
    return [(row[0].strip(), row[3].strip()) for row in rows[1:]]


def test_the_glossary_names_meaning_and_source() -> None:
    section = (ROOT / "CONTRIBUTING.md").read_text().split("## Glossary")[1]
    rows = [line.split("|")[1:-1] for line in section.splitlines() if line.startswith("| ")]
    assert len(rows) > 30
    assert [row for row in rows if len(row) != 4 or not all(map(str.strip, row[:3]))] == []


def test_the_code_uses_the_words_of_the_glossary() -> None:
    """In names, messages, comments and docstrings; a name is read by its words."""
    banned = [word.strip() for _, words in glossary() for word in words.split(",") if word.strip()]
    pattern = re.compile(rf"(?<![a-z])(?:{'|'.join(map(re.escape, banned))})(?![a-z])")
    found = [
        f"{path.relative_to(ROOT)}:{number}: {match[0]}"
        for path in sources()
        for number, line in enumerate(path.read_text().splitlines(), 1)
        for match in pattern.finditer(spoken(line))
    ]
    assert found == [], "CONTRIBUTING.md's glossary has the term"


def spoken(line: str) -> str:
    """Names taken apart into lower-case words: `_openLane` and `open_lane` are `open lane`."""
    return re.sub(r"(?<=[a-z0-9])(?=[A-Z])", " ", line).replace("_", " ").lower()


@pytest.mark.parametrize("hook", HOOKS)
def test_every_hook_is_documented_and_tested(hook: str) -> None:
    page = (ROOT / "docs/plugins.md").read_text()
    assert f"### `{hook}`" in page, f"docs/plugins.md has no section for {hook}"
    section = page.split(f"### `{hook}`")[1].split("\n### ")[0]
    arguments = [name for name in inspect.signature(getattr(PluginHooks, hook)).parameters]
    for argument in arguments[1:]:
        assert f"`{argument}`" in section, f"{hook}: argument {argument} is not documented"
    tests = [path for path in (ROOT / "tests").rglob("*.py") if path != Path(__file__)]
    examples = list((ROOT / "examples").rglob("*.py"))
    assert any(re.search(rf"\b{hook}\b", path.read_text()) for path in tests + examples)


def settings_models() -> list[tuple[str, type[BaseModel]]]:
    host = PluginHost(ConfigSource("(defaults)"))
    host.load()
    plugins = {f"plugins.{name}": model for name, model in host.settings_models().items()}
    return sorted({**SECTIONS, **plugins}.items())


@pytest.mark.parametrize(("section", "model"), settings_models())
def test_every_setting_is_documented(section: str, model: type[BaseModel]) -> None:
    page = (ROOT / "docs/configuration.md").read_text()
    assert f"## `[{section}]`" in page
    table = page.split(f"## `[{section}]`")[1].split("\n## ")[0]
    for name in model.model_fields:
        assert texts_of(model).get(name), f"{section}.{name} has no description"
        assert f"| `{name}` |" in table


def test_only_lakemq_testing_needs_pytest() -> None:
    """And the tests of a new plugin, which `lakemq plugin new` copies."""
    pattern = re.compile(r"^\s*(from|import) (pytest|lakemq\.testing)", re.MULTILINE)
    users = {path for path in sources() if pattern.search(path.read_text())}
    assert {str(path.parent.relative_to(ROOT)) for path in users} == {
        "lakemq/testing", "lakemq/cli/plugins/template/tests"
    }  # fmt: skip


def test_no_address_of_a_registry_is_written_down() -> None:
    listed = subprocess.run(
        ["git", "ls-files", "--cached", "--others", "--exclude-standard"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
    ).stdout.split()
    pattern = re.compile(
        r"(index-url|find-links|pypi\.org/simple|files\.pythonhosted|repo1?\.maven)"
    )
    guilty = [
        name
        for name in listed
        if Path(name).suffix in {".txt", ".toml", ".cfg", ".md", ".yml", ".yaml", ".py", ".sh", ""}
        and (ROOT / name).is_file()
        and (ROOT / name) != Path(__file__)
        and pattern.search((ROOT / name).read_text(errors="replace"))
    ]
    assert guilty == []


def test_constraints_pin_exactly() -> None:
    lines = (ROOT / "constraints.txt").read_text().split("\n")[:-1]
    assert lines and all(
        re.fullmatch(r"[A-Za-z0-9._-]+==[A-Za-z0-9.!+_-]+", line) for line in lines
    )
