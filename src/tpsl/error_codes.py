"""A stable code for each kind of error, for programs: `--json` prints it, tests compare it.

A code is the name of the class in lower case with hyphens, without "Error" (`UnknownKey` is `unknown-key`, `VaultError`
is `vault`), unless the class has an attribute `code`. Sentences may change; codes do not.
"""

from __future__ import annotations

import re

_STANDARD = {
    ValueError: "invalid-value",
    KeyError: "missing-key",
    OSError: "operating-system",
    KeyboardInterrupt: "interrupted",
}
"""Python's own classes that say too little by their name."""


def code_of(error: BaseException | type[BaseException]) -> str:
    """Return the code of an error, or of a class of errors."""
    kind = error if isinstance(error, type) else type(error)
    code = getattr(error, "code", None)
    if isinstance(code, str):
        return code
    if kind in _STANDARD:
        return _STANDARD[kind]
    name = kind.__name__
    return re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "-", name.removesuffix("Error") or name).lower()
