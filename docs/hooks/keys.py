"""Tables of keys are written from the schemas when the site is built, so that none is missing and none is wrong.

`<!-- keys: training -->` becomes the table of all keys of that part, or of the one key that has this name; `data` has a
table for each source.
"""

import re
from itertools import groupby
from typing import Any

from mkdocs.exceptions import PluginError

from tpsl.cli.flags import Key, all_keys

_MARK = re.compile(r"<!-- keys: (\w+) -->")
_HEAD = "| key | takes | default | what it is |\n|---|---|---|---|\n"


def on_page_markdown(markdown: str, page: Any, **_: Any) -> str:
    """Return the page with tables in the place of each mark; a mark that no key fits ends the build."""

    def tables(mark: re.Match[str]) -> str:
        keys = [key for key in all_keys() if key.name.startswith(f"{mark[1]}.")]
        keys = keys or [key for key in all_keys() if key.name == mark[1]]
        if not keys:
            raise PluginError(f"{page.file.src_uri}: there are no keys for {mark[0]}")
        return "\n\n".join(
            (f"**{source}**\n\n" if source else "") + _HEAD + "\n".join(map(_row, group))
            for source, group in groupby(keys, key=lambda key: key.source)
        )

    return _MARK.sub(tables, markdown)


def _row(key: Key) -> str:
    cells = [f"`{key.name}`", key.values, f"`{key.default}`" if key.default else "–", key.description]
    return "| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |"
