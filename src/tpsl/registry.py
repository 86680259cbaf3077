"""Parts that users bring: known by a name that was registered, or made by a factory that a party's own file names.

A registered name may stand in a job, because registering is an act of the party itself: its own code calls
`register`, or a package that it installed declares an entry point. Nothing is ever imported because the other side
named it. A factory is a path such as `my_networks:left_half`; it may stand only where a party writes for itself.
"""

from __future__ import annotations

import importlib
import os
import sys
from collections.abc import Callable, Iterable, Iterator
from importlib.metadata import entry_points
from typing import Any, Generic, TypeVar

Part = TypeVar("Part")
_used: dict[str, None] = {}
"""The modules that `use` has imported, in that order."""


class ExtensionError(ValueError):
    """A user's module or factory that cannot be used; the sentence says which and why."""


class UnknownName(ExtensionError):
    """A name that nothing was registered under; the sentence lists the known ones."""


class Registry(Generic[Part]):
    """Parts of one kind by name: those of this package, those that were registered, those of entry points.

    The entry points of the group `tpsl.<kind>s` are read when a name is asked for that is not known yet; the object
    that an entry point loads is the part itself.
    """

    def __init__(self, kind: str) -> None:
        self.kind = kind
        self._parts: dict[str, Part] = {}
        self._asked_packages = False

    @property
    def group(self) -> str:
        """The group of entry points that packages declare such parts in: the plural of the kind."""
        return f"tpsl.{self.kind}{'es' if self.kind.endswith('s') else 's'}"

    def register(self, name: str, part: Part) -> Part:
        """Make a part known; a name that is taken by another one is an error."""
        if self._parts.get(name, part) is not part:
            raise ExtensionError(f"the {self.kind} {name!r} is registered already")
        self._parts[name] = part
        return part

    def get(self, name: str) -> Part:
        """Return the part of this name."""
        if name not in self._parts:
            self._ask_packages()
        if name not in self._parts:
            raise UnknownName(f"unknown {self.kind} {name!r}; known are {', '.join(self._parts)}")
        return self._parts[name]

    def names(self) -> tuple[str, ...]:
        """Return all known names, those of this package first."""
        self._ask_packages()
        return tuple(self._parts)

    def __contains__(self, name: object) -> bool:
        return name in self.names()

    def __iter__(self) -> Iterator[str]:
        return iter(self.names())

    def _ask_packages(self) -> None:
        if self._asked_packages:
            return
        for point in entry_points(group=self.group):
            try:
                part = point.load()
            except Exception as error:
                raise ExtensionError(f"the {self.kind} {point.name!r} of {point.value} {_failed(error)}") from error
            self.register(point.name, part)
        self._asked_packages = True  # only now: a package that cannot be loaded is an error every time


def use(modules: Iterable[str]) -> None:
    """Import modules that register parts when they are imported; those in the current folder are found too."""
    for name in modules:
        _module(name, f"the module {name!r}")
        _used[name] = None


def used() -> tuple[str, ...]:
    """Return the modules that were imported by `use`: what another process of this program imports first."""
    return tuple(_used)


def imported(path: str, what: str) -> Any:
    """Return what `package.module:name` names; `what` (as "the bottom half") begins the sentence if that fails."""
    module, colon, name = path.partition(":")
    if not (colon and module and name):
        raise ExtensionError(f"{what}: {path!r} is not of the form package.module:name")
    try:
        return getattr(_module(module, f"{what} {path}"), name)
    except AttributeError:
        raise ExtensionError(f"{what} {path}: the module {module} has no {name}") from None


def called(what: str, part: Callable[..., Any], /, *given: Any, **named: Any) -> Any:
    """Return what a part makes of what it is given; `what` (as "the logger 'csv'") begins the sentence if that fails.

    An ExtensionError passes as it is: that is how a part says itself what is wrong.
    """
    try:
        return part(*given, **named)
    except ExtensionError:
        raise
    except Exception as error:
        raise ExtensionError(f"{what} fails ({_named(error)})") from error


def _module(name: str, what: str) -> Any:
    here = os.getcwd()  # noqa: PTH109 - mechanisms, which use this, know no paths
    if here not in sys.path:
        sys.path.insert(0, here)
    try:
        return importlib.import_module(name)
    except Exception as error:
        raise ExtensionError(f"{what} {_failed(error)}") from error


def _failed(error: Exception) -> str:
    looked = "; modules are found in the current folder and among installed packages"
    return f"cannot be imported ({_named(error)})" + (looked if isinstance(error, ModuleNotFoundError) else "")


def _named(error: Exception) -> str:
    return f"{type(error).__name__}: {' '.join(str(error).split()) or 'no reason given'}"
