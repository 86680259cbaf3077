"""Formulas become MathML when the site is built: browsers show it as it is, without scripts, fonts or a network."""

import html
import re
from typing import Any

from latex2mathml.converter import convert
from mkdocs.exceptions import PluginError

# What the Markdown extension `arithmatex` makes of `$...$` and of `$$...$$`.
_FORMULA = re.compile(r'<(span|div) class="arithmatex">\\[(\[](.*?)\\[)\]]</\1>', re.DOTALL)
_TAG = re.compile(r"<[^>]*>")


def on_page_content(content: str, page: Any, **_: Any) -> str:
    """Return the page with its formulas as MathML; a command that is not understood ends the build."""

    def formula(found: re.Match[str]) -> str:
        latex = html.unescape(found[2]).strip()
        mathml = convert(latex, display="block" if found[1] == "div" else "inline")
        # What the converter does not know it shows as it is.
        if "\\" in html.unescape(_TAG.sub("", mathml)):
            raise PluginError(f"{page.file.src_uri}: cannot write this formula as MathML: {latex}")
        return mathml

    return _FORMULA.sub(formula, content)
