"""What a tree of pydantic models says about itself: the model at a place, the values a field allows."""

from __future__ import annotations

import types
from collections.abc import Iterator, Mapping, Sequence
from typing import Annotated, Any, Literal, Union, get_args, get_origin

from pydantic import BaseModel
from pydantic.fields import FieldInfo

Loc = tuple[int | str, ...]
Leaves = list[tuple[str, FieldInfo]]

_UNITS = {
    "bytes_per_s": "bytes/s",
    "bytes_per_token": "bytes/token",
    "usd_per_hour": "USD/h",
    "per_s": "1/s",
    "bytes": "bytes",
    "tokens": "tokens",
    "s": "s",
}
_BOUNDS = (("gt", ">"), ("ge", "≥"), ("lt", "<"), ("le", "≤"))
_KINDS = {int: "integer", float: "number", str: "text", bool: "true or false"}


def bare(annotation: Any) -> Any:
    """The annotation without `Annotated` and without `None`."""
    while get_origin(annotation) is Annotated:
        annotation = get_args(annotation)[0]
    if get_origin(annotation) in (Union, types.UnionType):
        members = [m for m in get_args(annotation) if m is not type(None)]
        if len(members) == 1:
            return bare(members[0])
    return annotation


def models_of(annotation: Any) -> list[type[BaseModel]]:
    """The models that an annotation may hold: one, the members of a union, or none."""
    annotation = bare(annotation)
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return [annotation]
    if get_origin(annotation) in (Union, types.UnionType):
        return [model for member in get_args(annotation) for model in models_of(member)]
    return []


def item_of(annotation: Any) -> Any:
    """The type of the items of a list or of the values of a mapping, else None."""
    annotation = bare(annotation)
    origin, args = get_origin(annotation), get_args(annotation)
    if origin in (tuple, list, Sequence) and args:
        return args[0]
    if origin in (dict, Mapping):
        return args[1]
    return None


def tag_of(model: type[BaseModel]) -> str:
    """The value of `kind` that selects this member of a union, else ''."""
    field = model.model_fields.get("kind")
    values = get_args(bare(field.annotation)) if field else ()
    return str(values[0]) if values else ""


def _chosen(annotation: Any, value: Any) -> type[BaseModel] | None:
    models = models_of(annotation)
    kind = value.get("kind") if isinstance(value, Mapping) else None
    tagged = [m for m in models if kind is not None and tag_of(m) == kind]
    return next(iter(tagged or models), None)


def _child(value: Any, part: int | str) -> Any:
    if isinstance(value, Mapping) or (isinstance(value, list) and isinstance(part, int)):
        try:
            return value[part]  # type: ignore[index]
        except (KeyError, IndexError, TypeError):
            return None
    return None


def follow(root: type[BaseModel], loc: Loc, data: Any) -> tuple[Loc, FieldInfo | None, type[BaseModel] | None]:
    """Follow a pydantic error location through the models and the data that was validated.

    Returns the location without the tags of unions, the last field met, and the model that holds
    (or should hold) the last part.
    """
    annotation: Any = root
    path: list[int | str] = []
    field, holder, value = None, None, data
    for part in loc:
        model = _chosen(annotation, value)
        if model is not None:
            known = isinstance(part, str) and part in model.model_fields
            present = isinstance(value, Mapping) and part in value
            if not known and not present:
                continue  # the tag of a union
            holder = model
            field = model.model_fields[str(part)] if known else None
            annotation = field.annotation if field else None
        elif (item := item_of(annotation)) is not None:
            holder, annotation = None, item
        else:
            continue
        path.append(part)
        value = _child(value, part)
    return tuple(path), field, holder


def dotted(loc: Loc) -> str:
    return ".".join(str(part) for part in loc)


def unit(name: str) -> str:
    """The unit that a field's name ends with, else ''."""
    for suffix, text in _UNITS.items():
        if name == suffix or name.endswith("_" + suffix):
            return text
    return ""


def allowed(field: FieldInfo) -> str:
    """The values a field takes, e.g. `number > 0 and ≤ 1`, `bf16 | fp8`; '' where the description says it."""
    return _allowed(field.annotation, field.metadata)


def _allowed(annotation: Any, metadata: Sequence[Any]) -> str:
    rules = [*metadata, *_rules(annotation)]
    annotation = bare(annotation)
    if get_origin(annotation) is Literal:
        return " | ".join(str(v) for v in get_args(annotation))
    item = item_of(annotation)
    if item is not None:
        inner = "mapping" if models_of(item) else _allowed(item, ())
        is_map = get_origin(annotation) in (dict, Mapping)
        return f"{'mapping of' if is_map else 'list of'} {inner or 'values'}"
    if models_of(annotation):
        return "mapping"
    kind = _KINDS.get(annotation, "")
    limits = [
        f"{sign} {getattr(rule, name):g}"
        for rule in rules
        for name, sign in _BOUNDS
        if isinstance(getattr(rule, name, None), int | float)
    ]
    return f"{kind} {' and '.join(limits)}".strip() if kind else ""


def _rules(annotation: Any) -> list[Any]:
    """What `Annotated` says about a type or, in an optional one, about the type beside None."""
    found: list[Any] = []
    for member in (annotation, *get_args(annotation)):
        if get_origin(member) is Annotated:
            for rule in get_args(member)[1:]:
                found += rule.metadata if isinstance(rule, FieldInfo) else [rule]
    return found


def walk(root: type[BaseModel], prefix: str = "") -> Iterator[tuple[str, type[BaseModel], Leaves]]:
    """Every mapping of the tree: its dotted place, its model and its leaf fields, parents first."""
    leaves = [(n, f) for n, f in root.model_fields.items() if not _branches(f.annotation)]
    yield prefix, root, leaves
    for name, field in root.model_fields.items():
        for suffix, model in _branches(field.annotation):
            yield from walk(model, f"{prefix}.{name}{suffix}".lstrip("."))


def _branches(annotation: Any) -> list[tuple[str, type[BaseModel]]]:
    models = models_of(annotation)
    if models:
        return [(f" ({tag_of(m)})" if len(models) > 1 else "", m) for m in models]
    item = item_of(annotation)
    if item is None:
        return []
    suffix = ".NAME" if get_origin(bare(annotation)) in (dict, Mapping) else "[]"
    return [(suffix, model) for model in models_of(item)]
