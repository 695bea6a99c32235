"""Goal: heartbeats say how busy this process is."""

from pathlib import Path

from lakemq.node_load import NodeLoad


def test_cpu_is_the_mean_of_some_seconds(tmp_path: Path) -> None:
    now_s, cpu_s = 100.0, 7.0
    load = NodeLoad(tmp_path, lambda: now_s, lambda: cpu_s)
    assert load()["cpu_ratio"] == 0.0
    now_s, cpu_s = 104.0, 11.0
    assert load()["cpu_ratio"] == 0.0, "too early to tell"
    now_s, cpu_s = 110.0, 12.0
    assert load()["cpu_ratio"] == 0.5
    now_s, cpu_s = 112.0, 14.0
    assert load()["cpu_ratio"] == 0.5
    now_s, cpu_s = 120.0, 12.0
    assert load()["cpu_ratio"] == 0.0
    assert 0.0 < load()["disk_used_ratio"] < 1.0
