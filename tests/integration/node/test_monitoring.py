"""Goal: examples/monitoring works as it stands: rules, dashboard, runbooks, a real Prometheus."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import time
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Final

import pytest
import yaml

from tests.support.node.node import NodeProcess, ports_kept
from tests.support.node.otlp_collector import Collector
from tests.support.node.ports import free_port

FOLDER: Final = Path("examples/monitoring").absolute()
WAIT_S: Final = 60
_METRIC: Final = re.compile(r"\b(?:lakemq|process|system)_[a-z0-9_]+")
needs_prometheus = pytest.mark.skipif(
    shutil.which("prometheus") is None or shutil.which("promtool") is None,
    reason="prometheus and promtool are not installed (apt install prometheus)",
)


def rules() -> list[dict[str, Any]]:
    (group,) = yaml.safe_load((FOLDER / "alerts.yml").read_text())["groups"]
    found: list[dict[str, Any]] = group["rules"]
    return found


def documented() -> set[str]:
    """Names in Prometheus of docs/metrics.md."""
    page = Path("docs/metrics.md").read_text()
    return set(re.findall(r"^\| `[^`]+` \| `([^`]+)`", page, re.MULTILINE))


def test_rules_and_dashboard_use_metrics_that_there_are() -> None:
    dashboard = json.loads((FOLDER / "dashboard.json").read_text())
    expressions = [each["expr"] for each in rules()]
    expressions += [panel["targets"][0]["expr"] for panel in dashboard["panels"]]
    assert len(expressions) == 18 + 22
    for expression in expressions:
        # Names of labels are no metrics.
        used = set(_METRIC.findall(re.sub(r"\{[^}]*\}", "", expression)))
        assert used <= documented() and (used or "up{" in expression), expression


def test_each_alert_has_a_runbook_and_a_test() -> None:
    headings = re.findall(r"^## (\w+)$", Path("docs/runbooks.md").read_text(), re.MULTILINE)
    assert headings == [each["alert"] for each in rules()]
    for each in rules():
        assert each["annotations"]["runbook_url"].endswith(f"runbooks.md#{each['alert'].lower()}")
    tests = yaml.safe_load((FOLDER / "alerts_test.yml").read_text())["tests"]
    fired = [
        case["alertname"]
        for one in tests
        for case in one["alert_rule_test"]
        if case.get("exp_alerts")
    ]
    assert fired == headings


@needs_prometheus
@pytest.mark.parametrize(
    "check", ["check rules alerts.yml", "check config prometheus.yml", "test rules alerts_test.yml"]
)
def test_promtool_agrees(check: str) -> None:
    run = subprocess.run(
        ["promtool", *check.split()], cwd=FOLDER, capture_output=True, text=True, timeout=120,
        check=False,
    )  # fmt: skip
    assert run.returncode == 0, run.stdout + run.stderr


def collector() -> dict[str, Any]:
    found: dict[str, Any] = yaml.safe_load((FOLDER / "collector.yaml").read_text())
    return found


def test_pipelines_of_the_collector_use_what_is_there_and_all_of_it() -> None:
    config = collector()
    pipelines = config["service"]["pipelines"]
    assert pipelines.keys() == {"metrics", "traces"}
    for kind in ("receivers", "processors", "exporters"):
        used = {name for each in pipelines.values() for name in each[kind]}
        assert used == config[kind].keys()
    for each in pipelines.values():
        assert each["processors"][0] == "memory_limiter", "it has to refuse before others keep"
    compose = yaml.safe_load((FOLDER / "compose.yaml").read_text())["services"]
    for source in (volume.split(":")[0] for each in compose.values() for volume in each["volumes"]):
        assert not source.startswith("./") or (FOLDER / source).is_file()


def test_a_node_pushes_what_the_collector_takes(tmp_path: Path) -> None:
    lines = re.findall(r"^export (.*)$", (FOLDER / "README.md").read_text(), re.MULTILINE)
    told = dict(word.split("=", 1) for line in lines for word in line.split())
    port = collector()["receivers"]["otlp"]["protocols"]["http"]["endpoint"]
    assert told["OTEL_EXPORTER_OTLP_ENDPOINT"] == f"http://{port}"
    with Collector() as there:
        told["OTEL_EXPORTER_OTLP_ENDPOINT"] = there.url
        told["OTEL_METRIC_EXPORT_INTERVAL"] = "250"
        with NodeProcess(tmp_path, environment=told):
            pushed = there.metrics.get(timeout=WAIT_S)
    (of_node,) = pushed.resource_metrics
    said = {each.key: each.value.string_value for each in of_node.resource.attributes}
    assert (said["service.name"], said["service.instance.id"]) == ("lakemq", "node-1")
    names = {metric.name for scope in of_node.scope_metrics for metric in scope.metrics}
    page = re.findall(r"^\| `([^`]+)` \|", Path("docs/metrics.md").read_text(), re.MULTILINE)
    assert len(names) > 100 and names <= set(page)


@needs_prometheus
def test_prometheus_takes_what_the_collector_writes(prometheus: Prometheus) -> None:
    """Of an empty body it says that this is no remote write; without the receiver it is 404."""
    path = urllib.parse.urlsplit(collector()["exporters"]["prometheusremotewrite"]["endpoint"]).path
    prometheus.until(lambda: prometheus.ask("status/flags") is not None)
    with pytest.raises(urllib.error.HTTPError) as refused:
        urllib.request.urlopen(urllib.request.Request(prometheus.url + path, b""), timeout=10)
    with refused.value:
        assert refused.value.code == 400


class Prometheus:
    """Prometheus of `examples/monitoring`, in a hurry."""

    def __init__(self, folder: Path, target: str) -> None:
        self.url = f"http://127.0.0.1:{free_port()}"
        config = (FOLDER / "prometheus.yml").read_text().replace("127.0.0.1:9703", target)
        config = config.replace("15s", "250ms")
        (folder / "prometheus.yml").write_text(config)
        alerts = (FOLDER / "alerts.yml").read_text()
        (folder / "alerts.yml").write_text(re.sub(r"for: \w+", "for: 0s", alerts))
        compose = yaml.safe_load((FOLDER / "compose.yaml").read_text())
        asked = compose["services"]["prometheus"]["command"]
        options = [each for each in asked if each.startswith("--web.enable")]
        self.log = folder / "prometheus.log"
        with self.log.open("w") as log:
            self.process = subprocess.Popen(
                ["prometheus", f"--config.file={folder / 'prometheus.yml'}",
                 f"--storage.tsdb.path={folder / 'tsdb'}",
                 f"--web.listen-address={self.url.removeprefix('http://')}", *options],
                stdout=log, stderr=log,
            )  # fmt: skip

    def ask(self, path: str, **query: str) -> Any:
        """`data` of an answer of the API; None while Prometheus starts."""
        url = f"{self.url}/api/v1/{path}?{urllib.parse.urlencode(query)}"
        try:
            with urllib.request.urlopen(url, timeout=10) as answer:
                return json.load(answer)["data"]
        except (urllib.error.URLError, ConnectionError):
            return None

    def value(self, expression: str) -> float | None:
        """Of the first series."""
        found = self.ask("query", query=expression)
        return float(found["result"][0]["value"][1]) if found and found["result"] else None

    def firing(self) -> set[str]:
        found = self.ask("alerts") or {"alerts": []}
        return {each["labels"]["alertname"] for each in found["alerts"]}

    def until(self, holds: Callable[[], bool]) -> None:
        deadline = time.monotonic() + WAIT_S
        while not holds():
            assert time.monotonic() < deadline, self.log.read_text()[-2000:]
            time.sleep(0.1)


@pytest.fixture
def node(tmp_path: Path) -> Iterator[NodeProcess]:
    config = ports_kept().replace("[admin]\nport = 0", f"[admin]\nport = {free_port()}")
    node = NodeProcess(tmp_path / "node", config).start()
    yield node
    node.kill()


@pytest.fixture
def prometheus(node: NodeProcess, tmp_path: Path) -> Iterator[Prometheus]:
    prometheus = Prometheus(tmp_path, node.addresses["admin"])
    yield prometheus
    prometheus.process.kill()
    prometheus.process.wait()


@needs_prometheus
def test_a_killed_node_fires_an_alert_until_it_is_back(
    node: NodeProcess, prometheus: Prometheus
) -> None:
    prometheus.until(lambda: prometheus.value("lakemq_meta_raft_leader") == 1)
    assert "LakeMQNodeDown" not in prometheus.firing()
    node.kill()
    prometheus.until(lambda: "LakeMQNodeDown" in prometheus.firing())
    node.start()
    prometheus.until(lambda: "LakeMQNodeDown" not in prometheus.firing())
