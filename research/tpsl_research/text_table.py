"""Tables of text, as Markdown and as LaTeX (with the package booktabs)."""

from __future__ import annotations

from dataclasses import dataclass

_LATEX: dict[str, str | int | None] = {
    "\\": r"\textbackslash{}",
    "{": r"\{",
    "}": r"\}",
    "$": r"\$",
    "&": r"\&",
    "%": r"\%",
    "#": r"\#",
    "_": r"\_",
    "~": r"\textasciitilde{}",
    "^": r"\textasciicircum{}",
    "<": r"\textless{}",
    ">": r"\textgreater{}",
    "|": r"\textbar{}",
    '"': r"\textquotedbl{}",
    # At the beginning of a row these two would belong to the command that ends the row before.
    "[": "{[}",
    "*": "{*}",
    "–": "--",
    "−": "$-$",
    "’": "'",
    "ε": r"$\varepsilon$",
    "δ": r"$\delta$",
    "σ": r"$\sigma$",
    "∞": r"$\infty$",
    "≥": r"$\ge$",
    "±": r"$\pm$",
}
_MARKDOWN: dict[str, str | int | None] = {character: f"\\{character}" for character in "\\|*_`<>[]#"}


@dataclass(frozen=True)
class Table:
    """A table as rows of text: the first is the header, the first column names what a row is about."""

    title: str
    rows: tuple[tuple[str, ...], ...]

    def markdown(self, heading: str = "", *, escape: bool = True) -> str:
        """Return the table as Markdown below its title, every cell as it is; without `escape` cells may be Markdown."""
        escapes = str.maketrans(_MARKDOWN if escape else {})
        head, *body = [[cell.translate(escapes) for cell in row] for row in self.rows]
        aligned = ["---", *["---:"] * (len(head) - 1)]
        lines = ["| " + " | ".join(cells) + " |" for cells in (head, aligned, *body)]
        return "\n".join([f"{heading} {self.title}".lstrip(), "", *lines, ""])

    def latex(self, label: str) -> str:
        """Return the table as a float of LaTeX, every cell as it is."""
        head, *body = [" & ".join(map(latex_text, row)) + r" \\" for row in self.rows]
        lines = [
            "% needs \\usepackage{booktabs}",
            r"\begin{table}",
            r"\centering",
            rf"\caption{{{latex_text(self.title)}}}",
            rf"\label{{tab:{label}}}",
            rf"\begin{{tabular}}{{l{'r' * (len(self.rows[0]) - 1)}}}",
            r"\toprule",
            head,
            r"\midrule",
            *body,
            r"\bottomrule",
            r"\end{tabular}",
            r"\end{table}",
        ]
        return "\n".join([*lines, ""])


def latex_text(text: str) -> str:
    """Return LaTeX that prints this text and does nothing else."""
    return text.translate(str.maketrans(_LATEX))
