"""`tpsl figures`: figures and tables for a paper."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from tpsl.cli.console import JsonFlag, notice, print_json, progress_bar, say
from tpsl.files import make_private_folder

if TYPE_CHECKING:
    from tpsl.report.figures import Format


def figures(
    runs: Annotated[list[Path], typer.Argument(help="Run folders.", show_default=False)],
    out: Annotated[Path, typer.Option(help="Folder for the files; made if it is not there.")] = Path("figures"),
    formats: Annotated[str, typer.Option("--format", help="Formats of the figures, with commas.")] = "png,svg,pdf",
    json: JsonFlag = False,
) -> None:
    """Draw figures and write tables about runs, for a paper.

    Figures: test AUC against ε and against attack AUC, training curves, the ROC curves of attacks. Tables, as LaTeX and
    Markdown: all runs, all attacks. They depend on true labels, so they are the label party's.
    """
    chosen = _formats(formats)

    from tpsl.report.figures import write_figures
    from tpsl.report.paper_tables import write_tables
    from tpsl.report.reading import read_run

    with progress_bar("reading runs") as progress:
        views = []
        for done, run in enumerate(runs):
            progress(done, len(runs), run.name)
            views.append(read_run(run))
        if out.exists() and not out.is_dir():
            raise NotADirectoryError(f"cannot write figures to {out}: it is no folder")
        make_private_folder(out)
        progress(len(runs), len(runs), "drawing")
        drawn, left_out = write_figures(views, out, chosen)
        files = [*drawn, *write_tables(views, out)]
    if json:
        print_json({"files": [str(path) for path in files], "left_out": left_out})
        return
    for path in files:
        say(str(path))
    for name, reason in left_out.items():
        notice(f"{name}: not drawn, it {reason}")


def _formats(text: str) -> list[Format]:
    known: tuple[Format, ...] = ("png", "svg", "pdf")
    wanted = [part.strip().lower() for part in text.split(",")]
    unknown = [part for part in wanted if part not in known]
    if unknown:
        raise ValueError(f"--format: {unknown[0]!r} is none of {', '.join(known)}")
    return [kind for kind in known if kind in wanted]
