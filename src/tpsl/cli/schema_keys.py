"""Every key of a job and of a local file, read from their schemas.

`--set`, completion, `tpsl help keys` and the documentation take names, values and descriptions from here: none of them
is written a second time. A key has the name that `--set` takes: `training.epochs`, or `local.wait` for a local file.
"""

from __future__ import annotations

import json
import types
from collections.abc import Iterator
from dataclasses import dataclass
from difflib import get_close_matches
from functools import lru_cache
from pathlib import Path
from typing import Annotated, Any, Literal, Union, get_args, get_origin

from pydantic import BaseModel
from pydantic.fields import FieldInfo

from tpsl.registry import Registry
from tpsl.training.job import Job
from tpsl.training.local import Local

_SPOKEN = {
    bool: "true or false",
    int: "integer",
    float: "number",
    str: "text",
    Path: "path",
    tuple: "list",
    list: "list",
}
_FILE, _LABEL = "data.features[].", "data.label."


class UnknownKey(ValueError):
    """A key that no schema has; the sentence names the nearest ones."""


@dataclass(frozen=True)
class Key:
    """One key; `source` is the data source that has it, if not all have."""

    name: str
    field: FieldInfo
    source: str = ""
    is_part: bool = False
    """Whether it has keys and no value."""

    @property
    def description(self) -> str:
        """What the schema says of it."""
        return self.field.description or ""

    @property
    def default(self) -> str:
        """The default as YAML takes it; nothing if there is none, or if it is a part with keys of its own."""
        value = self.field.get_default(call_default_factory=True)
        if self.field.is_required() or value is None or self.is_part:
            return ""
        return str(value) if isinstance(value, BaseModel | str) else json.dumps(value)

    @property
    def choices(self) -> tuple[str, ...]:
        """The values it can have, if they are names."""
        if registry := _registry(self.field):
            return registry.names()
        literals = [arm for arm in _arms(self.field.annotation) if get_origin(arm) is Literal]
        return tuple(str(value) for literal in literals for value in get_args(literal))

    @property
    def type(self) -> Any:
        """The Python type of its values: one of bool, int, float, str, Path, tuple and dict, or a model."""
        arm = next(iter(_arms(self.field.annotation)), str)
        return type(get_args(arm)[0]) if get_origin(arm) is Literal else get_origin(arm) or arm

    @property
    def values(self) -> str:
        """What it takes, in words."""
        return ", ".join(self.choices) or _SPOKEN.get(self.type, "mapping")


def all_keys() -> tuple[Key, ...]:
    """Return every key that has a value, those of the job first; one that several data sources have comes for each.

    A party's file is described once, as `data.features[]`: `data.label` takes the same keys and two more.
    """
    keys = [key for key in _walked() if not key.is_part]
    of_label = {_LABEL + key.name.removeprefix(_FILE) for key in keys if key.name.startswith(_FILE)}
    return tuple(key for key in keys if key.name not in of_label)


@lru_cache(maxsize=1)
def settable_keys() -> dict[str, tuple[Key, ...]]:
    """Return the keys that `--set` takes, by name, parts of a job included."""
    found: dict[str, tuple[Key, ...]] = {}
    for key in _walked():
        if "[]" not in key.name:
            found[key.name] = (*found.get(key.name, ()), key)
    return found


@lru_cache(maxsize=1)
def _walked() -> tuple[Key, ...]:
    return (*_keys_of(Job, ""), *_keys_of(Local, "local."))


def key_named(name: str, source: str = "") -> Key:
    """Return the key of this name, of this data source if it matters."""
    known = settable_keys()
    if name in known:
        return next((key for key in known[name] if key.source == source), known[name][0])
    ends = [other for other in known if other.rpartition(".")[2] == name.rpartition(".")[2]]
    near = list(dict.fromkeys([*ends, *get_close_matches(name, known, 3)]))[:3]
    hint = f"near are {', '.join(near)}" if near else "`tpsl help keys` lists them"
    raise UnknownKey(f"there is no key {name!r}; {hint}")


def choices_of(name: str) -> tuple[str, ...]:
    """Return the values that a key can have in any data source, if they are names."""
    return tuple(dict.fromkeys(choice for key in settable_keys().get(name, ()) for choice in key.choices))


def key_above(name: str) -> Key:
    """Return the key of this name, or the one of free content (a mapping) that the name lies in."""
    known, parts = settable_keys(), name.split(".")
    for length in range(1, len(parts)):
        key = next(iter(known.get(".".join(parts[:length]), ())), None)
        if key is not None and (key.type is dict or _is_value(key.type)):
            return key
    return key_named(name)


def _keys_of(model: type[BaseModel], prefix: str, source: str = "") -> Iterator[Key]:
    for name, field in model.model_fields.items():
        registry = _registry(field)
        arms = [registry.get(part) for part in registry.names()] if registry else _arms(field.annotation)
        below = [arm for arm in arms if _is_part(arm)]
        lists = [get_args(arm)[0] for arm in arms if get_origin(arm) in (tuple, list)]
        elements = [element for element in lists if _is_part(element)]
        yield Key(prefix + name, field, source, is_part=bool(below or elements))
        for arm in below:
            variant = arm.model_fields["source"].default if "source" in arm.model_fields else source
            yield from _keys_of(arm, f"{prefix}{name}.", variant)
        for element in elements:
            yield from _keys_of(element, f"{prefix}{name}[].", source)


def _registry(field: FieldInfo) -> Registry[Any] | None:
    """Return the registry that has a field's values, or their models."""
    return next((known for known in field.metadata if isinstance(known, Registry)), None)


def _arms(annotation: Any) -> list[Any]:
    """Return the alternatives of a type, without None and without what only validates."""
    if get_origin(annotation) is Annotated:
        return _arms(get_args(annotation)[0])
    if get_origin(annotation) in (Union, types.UnionType):
        return [arm for alternative in get_args(annotation) for arm in _arms(alternative)]
    return [] if annotation is type(None) else [annotation]


def _is_value(annotation: Any) -> bool:
    """Whether a schema stands for one value, which is written as a small mapping."""
    return getattr(annotation, "is_value", False) is True


def _is_part(annotation: Any) -> bool:
    """Whether a type is a schema whose fields are keys."""
    return isinstance(annotation, type) and issubclass(annotation, BaseModel) and not _is_value(annotation)
