"""Reads a scenario from YAML, applies overrides, and says where a problem is and what would be right."""

from __future__ import annotations

import math
import re
import reprlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any, TypeVar

import yaml
from pydantic import BaseModel, ValidationError
from pydantic.fields import FieldInfo

from pdenv.errors import InputError, nearest
from pdenv.fields import Loc, allowed, dotted, follow, models_of, tag_of
from pdenv.scenario_checks import ScenarioProblems

M = TypeVar("M", bound=BaseModel)

_MOST_SHOWN = 20
_LIMITS = ("greater_than", "greater_than_equal", "less_than", "less_than_equal", "finite_number")
_MAX_BYTES = 5_000_000


class _Loader(yaml.SafeLoader):
    """`yaml.SafeLoader` that reads 4e11 as a number (YAML 1.2) and refuses a key given twice."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        seen: dict[tuple[str, str], int] = {}
        for key, _ in node.value:
            if not isinstance(key, yaml.ScalarNode):
                continue
            first = seen.setdefault((key.tag, key.value), id(key))
            if first != id(key):
                problem = f"key '{key.value}' is given twice; keep one"
                raise yaml.constructor.ConstructorError(None, None, problem, key.start_mark)
        return super().construct_mapping(node, deep=deep)


_Loader.add_implicit_resolver(
    "tag:yaml.org,2002:float",
    re.compile(r"^[-+]?[0-9][0-9_]*(\.[0-9_]*)?[eE][-+]?[0-9]+$"),
    list("-+0123456789"),
)


def parse(text: str, where: str) -> tuple[Any, yaml.Node | None]:
    """The data, and the nodes that know their lines."""
    try:
        loader = _Loader(text)
        try:
            node = loader.get_single_node()
            return (None if node is None else loader.construct_document(node)), node
        finally:
            loader.dispose()
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        place = f"{where}:{mark.line + 1}" if mark else where
        raise InputError(f"not valid YAML: {error.problem or error.context}", where=place) from None
    except yaml.YAMLError as error:
        raise InputError(f"not valid YAML: {' '.join(str(error).split())}", where=where) from None
    except RecursionError:
        raise InputError("not valid YAML: nested too deeply", where=where) from None
    except (ValueError, OverflowError, AttributeError, TypeError, KeyError) as error:
        # PyYAML's constructors leak these for an impossible date, a bad binary or an odd tag.
        raise InputError(f"not valid YAML: {' '.join(str(error).split())}", where=where) from None


def _line(node: yaml.Node | None, loc: Loc) -> int | None:
    """The line of the deepest part of a location that the file contains."""
    line = None
    for part in loc:
        step = None
        if isinstance(node, yaml.MappingNode):
            step = next((kv for kv in node.value if kv[0].value == str(part)), None)
        elif isinstance(node, yaml.SequenceNode) and isinstance(part, int) and part < len(node.value):
            step = (node.value[part], node.value[part])
        if step is None:
            break
        line, node = step[0].start_mark.line + 1, step[1]
    return line


# ---- finding the file ----------------------------------------------------------------------------


def read_scenario(model: type[M], presets: Path, name_or_path: str | Path, overrides: Mapping[str, Any]) -> M:
    """A validated scenario; see `pdenv.scenario.load_scenario`."""
    path, where = _find(presets, name_or_path)
    data, node = parse(_read(path, where), where)
    if data is None:
        raise InputError("is empty; a scenario needs at least decode and workload", where=where)
    if not isinstance(data, dict):
        raise InputError("is not a mapping; write `key: value` lines", where=f"{where}:1")
    changed = [_override(model, data, key, value) for key, value in overrides.items()]
    try:
        return model.model_validate(data)
    except ValidationError as error:
        problems = _problems(model, error, data)
    except RecursionError:
        raise InputError("refers to itself; remove the anchor", where=where) from None
    raise InputError(_report(problems, where, node, changed))


def _find(presets: Path, name_or_path: str | Path) -> tuple[Path, str]:
    text = str(name_or_path)
    names = sorted(path.stem for path in presets.glob("*.yaml"))
    if text in names:
        return presets / f"{text}.yaml", f"{text} (preset)"
    path = Path(name_or_path)
    looks_like_path = isinstance(name_or_path, Path) or path.suffix in (".yaml", ".yml") or "/" in text
    try:
        exists = path.exists()
    except (OSError, ValueError):  # too long, or a null byte
        exists = False
    if exists and text:
        return path, text
    if looks_like_path:
        raise InputError("no such scenario file", where=text)
    raise InputError(f"unknown scenario '{text}'{nearest(text, names)} (or give the path of a YAML file)")


def _read(path: Path, where: str) -> str:
    try:
        with path.open("rb") as file:
            data = file.read(_MAX_BYTES + 1)
    except OSError as error:
        raise InputError(f"cannot be read: {(error.strerror or str(error)).lower()}", where=where) from None
    if len(data) > _MAX_BYTES:
        raise InputError(f"is larger than {_MAX_BYTES // 10**6} MB; this is not a scenario", where=where)
    try:
        return data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = data[: error.start].count(b"\n") + 1
        raise InputError("is not UTF-8 text; a scenario is a YAML file", where=f"{where}:{line}") from None


# ---- overrides -----------------------------------------------------------------------------------


def _override(model: type[BaseModel], data: dict, key: str, value: Any) -> Loc:
    """Set one dotted key in the raw data; returns its location."""
    where = f"override {key}"
    if isinstance(value, str):
        value = parse(value, where)[0]
    elif isinstance(value, BaseModel):
        value = value.model_dump(exclude_unset=True)
    loc: Loc = tuple(int(part) if part.isascii() and part.isdigit() else part for part in key.split("."))
    at: Any = data
    for depth in range(1, len(loc)):
        at = _step_into(model, data, at, loc[:depth], where)
    last = loc[-1]
    if isinstance(at, list):
        _check_index(at, loc, where)
        at[last] = value  # type: ignore[index]
    elif isinstance(at, dict):
        at[str(last)] = value
    else:
        raise InputError(f"{dotted(loc[:-1])} has no keys; it is {reprlib.repr(at)}", where=where)
    return loc


def _step_into(model: type[BaseModel], data: dict, at: Any, loc: Loc, where: str) -> Any:
    """The mapping or list one step further, made from the defaults where the file does not give it."""
    part = loc[-1]
    if isinstance(at, list):
        _check_index(at, loc, where)
        return at[part]  # type: ignore[index]
    if not isinstance(at, dict):
        raise InputError(f"{dotted(loc[:-1])} has no keys; it is {reprlib.repr(at)}", where=where)
    if at.get(str(part)) is None:
        at[str(part)] = _default(model, loc, data)
    return at[str(part)]


def _check_index(items: list, loc: Loc, where: str) -> None:
    name, index = dotted(loc[:-1]), loc[-1]
    if not isinstance(index, int):
        raise InputError(f"{name} is a list; write {name}.0 for its first item", where=where)
    if index >= len(items):
        raise InputError(f"{name} has {len(items)} items, counted from 0; there is no {dotted(loc)}", where=where)


def _default(model: type[BaseModel], loc: Loc, data: dict) -> Any:
    """What the tree holds at a place that the file leaves out; an empty mapping where there is no default."""
    path, field, _ = follow(model, loc, data)
    if field is None or path != loc or field.is_required():
        return {}
    return _plain(field.get_default(call_default_factory=True, validated_data={}))


def _plain(value: Any) -> Any:
    """Models and tuples as the mappings and lists of a file; only what they state themselves."""
    if value is None:
        return {}
    if isinstance(value, BaseModel):
        return value.model_dump(mode="json", exclude_unset=True)
    if isinstance(value, Mapping):
        return {key: _plain(item) for key, item in value.items()}
    return [_plain(item) for item in value] if isinstance(value, tuple | list) else value


# ---- what was wrong ------------------------------------------------------------------------------


def _problems(model: type[BaseModel], error: ValidationError, data: Any) -> list[tuple[Loc, str]]:
    found: list[tuple[Loc, str]] = []
    for item in error.errors(include_url=False):
        cause = item.get("ctx", {}).get("error")
        if isinstance(cause, ScenarioProblems):
            found += cause.problems
        else:
            loc, field, holder = follow(model, item["loc"], data)
            found.append((loc, _said(dict(item), loc, field, holder)))
    # A list with a bad item is also reported as a list; once is enough.
    inner = {loc[:depth] for loc, _ in found for depth in range(1, len(loc))}
    return [(loc, text) for loc, text in found if loc not in inner] or found


def _said(item: dict[str, Any], loc: Loc, field: FieldInfo | None, holder: type[BaseModel] | None) -> str:
    """What is wrong and what would be right, for one of pydantic's errors."""
    kind, ctx = item["type"], item.get("ctx", {})
    if kind == "extra_forbidden" and holder is not None:
        return f"unknown key '{loc[-1]}'{nearest(str(loc[-1]), holder.model_fields)}"
    if kind == "missing":
        return f"is missing; {field.description if field else 'it is required'}"
    if kind == "value_error":
        return str(ctx["error"])
    if kind in ("union_tag_invalid", "union_tag_not_found"):
        tags = [tag_of(model) for model in models_of(field.annotation)] if field else []
        return f"kind must be one of {', '.join(tags)}"
    limits = allowed(field) if field is not None and not isinstance(loc[-1], int) else ""
    if kind in ("model_type", "model_attributes_type", "dict_type"):
        rule = "must be a mapping of keys and values"
    elif kind == "tuple_type":
        rule = "must be a list"
    elif kind in _LIMITS and limits:
        rule = f"must be {limits}"
    else:
        message = item["msg"][:1].lower() + item["msg"][1:]
        rule = message.replace("input should be ", "must be ").replace("should have", "must have")
        rule += f"; allowed: {limits}" if limits and kind != "literal_error" else ""
    return f"is {_shown(item.get('input'))}; {rule}"


def _shown(value: Any) -> str:
    """A value in one short line."""
    return " ".join(reprlib.repr(value).split())


def _report(problems: list[tuple[Loc, str]], where: str, node: yaml.Node | None, changed: list[Loc]) -> str:
    """One line a problem, in the order of the file."""
    rows: list[tuple[float, str]] = []
    for loc, text in problems:
        override = next((key for key in changed if key[: len(loc)] == loc or loc[: len(key)] == key), None)
        line = None if override else _line(node, loc)
        place = f"override {dotted(override)}" if override else (f"{where}:{line}" if line else where)
        rows.append((line or math.inf, f"{place}: {dotted(loc)}: {text}" if loc else f"{place}: {text}"))
    lines = [" ".join(text.splitlines()) for _, text in sorted(rows, key=lambda row: row[0])]
    if len(lines) > _MOST_SHOWN:
        lines = [*lines[:_MOST_SHOWN], f"{where}: and {len(lines) - _MOST_SHOWN} more problems"]
    return "\n".join(lines)
