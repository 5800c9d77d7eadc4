"""Writes `docs/scenario.md` from the models: `python -m pdenv.scenario_docs docs/scenario.md`."""

from __future__ import annotations

import json
import sys
from typing import Any

from pydantic import BaseModel
from pydantic.fields import FieldInfo

from pdenv.fields import allowed, unit, walk
from pdenv.scenario import Scenario, scenario_names

_HEAD = """# Scenario keys

Written by `python -m pdenv.scenario_docs docs/scenario.md`; change the descriptions in the code, not here.

A scenario is a YAML file; `pdenv scenario show NAME` prints a preset in full. Presets: {presets}.
Times are seconds, bandwidth is bytes/s one way, memory is bytes. `[]` marks an item of a list and `NAME` a
name of your choice. An unknown key, a key given twice, NaN and infinity are errors. A key can be changed
without editing the file: `--set workload.rate_per_s=3 --set prefill.0.max_batch_tokens=4096`. What the numbers do is in
[model.md](model.md).
"""


def markdown() -> str:
    """The page: for each mapping of the tree a table of key, unit, default, range and meaning."""
    presets = ", ".join(f"`{name}`" for name in scenario_names())
    parts = [_HEAD.format(presets=presets)]
    for place, model, leaves in walk(Scenario):
        parts.append(f"## {f'`{place}`' if place else 'Top level'}\n")
        parts.append(_summary(model))
        if leaves:
            parts.append(_table(leaves))
    return "\n".join(part for part in parts if part)


def _summary(model: type[BaseModel]) -> str:
    """The first paragraph of a model's docstring."""
    first = (model.__doc__ or "").strip().split("\n\n")[0]
    return " ".join(first.split()) + "\n" if first else ""


def _table(leaves: list[tuple[str, FieldInfo]]) -> str:
    rows = ["| key | unit | default | range | meaning |", "| --- | --- | --- | --- | --- |"]
    for name, field in leaves:
        cells = (f"`{name}`", unit(name) or "–", _default(field), _range(field), field.description or "")
        rows.append("| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |")
    return "\n".join(rows) + "\n"


def _range(field: FieldInfo) -> str:
    return allowed(field) or "–"


def _default(field: FieldInfo) -> str:
    if field.is_required():
        return "required"
    value: Any = field.get_default(call_default_factory=True, validated_data={})
    if value is None:
        return "–"
    if isinstance(value, tuple):
        value = list(value)
    return f"`{value:g}`" if isinstance(value, float) else f"`{json.dumps(value)}`".replace('"', "")


if __name__ == "__main__":
    from pdenv.atomic import write_text

    write_text(sys.argv[1], markdown())
