"""One page of metrics for all processes of a node, in Prometheus' text format."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from lakemq.broker_core.api.types import NodeInfo

LABEL = "process"
"""Names the process that a sample is of."""


def siblings(nodes: Sequence[NodeInfo], node_id: str) -> list[str]:
    """Node ids of the other processes of this one's machine."""
    machine = next((each.machine for each in nodes if each.node_id == node_id), node_id)
    return [each.node_id for each in nodes if each.machine == machine and each.node_id != node_id]


def joined(texts: Mapping[str, str]) -> str:
    """Of texts by process; each sample gets the label `process`. Samples of one metric lie
    together, as the format wants it."""
    heads: dict[str, list[str]] = {}
    samples: dict[str, list[str]] = {}
    for process, text in texts.items():
        label, name = f'{LABEL}="{process}"', ""
        told = set(heads)
        for line in text.splitlines():
            if line.startswith("#"):
                # HELP and TYPE come before a metric's samples, with its name third.
                name = line.split(" ", 3)[2]
                if name not in told:
                    heads.setdefault(name, []).append(line)
            elif line:
                samples.setdefault(name, []).append(_labelled(line, label))
    names = heads | samples
    return "".join(
        f"{line}\n" for name in names for line in (*heads.get(name, ()), *samples.get(name, ()))
    )


def _labelled(sample: str, label: str) -> str:
    name, brace, rest = sample.partition("{")
    if brace and " " not in name:
        return f"{name}{{{label},{rest}"
    name, _, value = sample.partition(" ")
    return f"{name}{{{label}}} {value}"
