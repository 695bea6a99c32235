"""Goal: the reference of the SDK has every option and field, and nothing that is not for users."""

from __future__ import annotations

import dataclasses
import inspect
import re

import lakemq
from tools.sdk_reference import sdk_reference


def test_every_option_and_field_is_there() -> None:
    page = sdk_reference()
    seen = 0
    for name in lakemq.__all__:
        one = getattr(lakemq, name)
        if not inspect.isclass(one):
            continue
        section = re.split(rf"\n### {name}\n", page)
        if dataclasses.is_dataclass(one):
            fields = [each.name for each in dataclasses.fields(one)]
        else:
            fields = list(getattr(one, "_fields", ())) or list(
                one.__annotations__ if hasattr(one, "__total__") else ()
            )
        for field in fields:
            seen += 1
            assert f"- **`{field}: " in section[1].split("\n### ")[0], f"{name}.{field}"
    assert seen > 150


def test_types_in_signatures_are_explained_and_internals_are_left_out() -> None:
    page = sdk_reference()
    for name in ("Where", "Start", "Serializing", "DeliveryCallback", "Mechanism", "OnCorrupt"):
        assert f"\n### {name}\n" in page
    told = page.split("## Types in signatures")[0]
    assert not re.findall(r"\bpb\.|\bgrpc\.|Internal:|`routes`|`session`|commit_request", told)
