"""Goal: the admin API does what its OpenAPI document says, whatever it is sent: no answer of 500
and more, no status, content type or body that is not in the document, nothing wrong accepted."""

from __future__ import annotations

import contextlib
import warnings
from typing import Any

import pytest
from hypothesis import HealthCheck, Phase, errors, given, seed, settings

from tests.support.node.node import NodeProcess
from tests.support.seeds import seeds

with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    schemathesis = pytest.importorskip("schemathesis")
    from schemathesis import checks

EXAMPLES = min(50, len(seeds(1)))
"""Requests of each kind to each operation: in `make nightly` more than one."""
LEFT_OUT = {
    ("post", "/api/v1/nodes/{node}/drain"),
    ("post", "/api/v1/nodes/{node}/decommission"),
}
"""They would be carried out, and the node would lead nothing for the others."""


@pytest.mark.slow
def test_every_operation_keeps_the_document(fresh_node: NodeProcess) -> None:
    base = f"http://{fresh_node.addresses['admin']}"
    problems: list[str] = []
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        schema = schemathesis.openapi.from_url(f"{base}/api/v1/openapi.json")
        tried = 0
        for found in schema.get_all_operations():
            operation = found.ok()
            if (operation.method.lower(), operation.path) not in LEFT_OUT:
                for mode in schemathesis.GenerationMode:
                    tried += _tried(operation, mode, base, problems)
    assert problems == []
    assert tried > 100


def _tried(operation: Any, mode: Any, base: str, problems: list[str]) -> int:
    """How many requests were made; `problems` gets what was wrong."""
    tried = 0

    @seed(1 + seeds(1).start)
    @settings(
        max_examples=EXAMPLES, deadline=None, database=None, phases=[Phase.generate],
        suppress_health_check=list(HealthCheck),
    )  # fmt: skip
    @given(case=operation.as_strategy(generation_mode=mode))
    def run(case: Any) -> None:
        nonlocal tried
        tried += 1
        response = case.call(base_url=base)
        try:
            # A document can't say what is refused for its meaning, like a node that is not there.
            case.validate_response(response, excluded_checks=[checks.positive_data_acceptance])
        except BaseExceptionGroup as group:
            failed = "; ".join(type(each).__name__ for each in group.exceptions)
            asked = case.as_curl_command()[:600]
            problems.append(f"{failed}: {asked} -> {response.status_code} {response.text[:600]}")

    # Where nothing can be wrong with a request, none is made.
    with contextlib.suppress(errors.Unsatisfiable):
        run()
    return tried
