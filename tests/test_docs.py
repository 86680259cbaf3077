"""Every code block of the documentation is run; the rules stand in docs/architecture.md, "The documentation"."""

from __future__ import annotations

import contextlib
import html
import io
import json
import os
import pkgutil
import re
import shlex
import signal
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest
import torch
import typer
import yaml
from markdown_it import MarkdownIt
from tests.ports import free_port

from tpsl.cli.flags import all_keys
from tpsl.cli.main import app, main
from tpsl.run.job import Job, load_job, make_job
from tpsl.run.local import load_local
from tpsl.vault.storage import FORMAT

ROOT = Path(__file__).parents[1]
README = ROOT / "README.md"
PAGES = [README, *sorted((ROOT / "docs").rglob("*.md"))]
PATIENCE = 120.0
"""Seconds for the processes of a block."""

NUMBER = r"[-\d.,:]+"


@dataclass(frozen=True)
class Block:
    """A fenced block and where it stands."""

    page: Path
    line: int
    language: str
    title: str
    text: str
    mark: str = ""
    """What a comment right above it says to the test; readers do not see it."""

    def __str__(self) -> str:
        return f"{self.page.relative_to(ROOT)}, line {self.line}"

    @property
    def in_terminal(self) -> bool:
        return self.language == "bash" and self.title.startswith("terminal")


def blocks_of(page: Path) -> list[Block]:
    """Return the code blocks of a page; a block without a language has the language ''."""
    tokens = MarkdownIt().parse(page.read_text(encoding="utf-8"))
    found = []
    for above, token in zip([None, *tokens], tokens, strict=False):
        if token.type in ("fence", "code_block"):
            assert token.map is not None
            language, _, rest = token.info.strip().partition(" ")
            title = re.fullmatch(r'(?:title="([^"]*)")?', rest.strip())
            assert title, f"{page}, line {token.map[0] + 1}: not a title: {rest}"
            comment = re.fullmatch(r"<!-- (.*) -->", above.content.strip()) if above else None
            mark = comment[1] if comment else ""
            found.append(Block(page, token.map[0] + 1, language, title[1] or "", token.content, mark))
    return found


def commands_of(text: str) -> list[str]:
    """Return the commands of a shell block, one a line; a backslash at the end joins lines."""
    lines = text.replace("\\\n", " ").splitlines()
    return [line for line in lines if line.strip() and not line.lstrip().startswith("#")]


def plain_tpsl(command: str) -> list[str] | None:
    """Return the arguments of a command that is `tpsl` and needs nothing of a shell."""
    lexer = shlex.shlex(command, posix=True, punctuation_chars=True)
    lexer.whitespace_split = True
    words = list(lexer)
    if words[:1] == ["tpsl"] and not any(set(word) & set("|&;<>()$*?") for word in words):
        return words[1:]
    return None


def check_command(arguments: list[str]) -> None:
    """Raise unless `tpsl` has such a command with such options; nothing is run."""
    command: Any = typer.main.get_command(app)
    context: Any = None
    while True:
        context = command.make_context("tpsl", list(arguments), parent=context)
        if not hasattr(command, "resolve_command"):
            return
        _, command, arguments = command.resolve_command(context, [*context._protected_args, *context.args])


@dataclass
class Page:
    """The run of one page: its folder, its Python variables, and what the last block has printed."""

    folder: Path
    ports: dict[str, str]
    programs: Path
    printed: str = ""
    variables: dict[str, Any] = field(default_factory=lambda: {"__name__": "docs"})

    def run(self, blocks: list[Block]) -> None:
        waiting = [replace(block, text=self._here(block.text)) for block in blocks]
        while waiting:
            together = [waiting.pop(0)]
            while together[0].in_terminal and waiting and waiting[0].in_terminal:
                together.append(waiting.pop(0))
            try:
                if together[0].in_terminal:
                    self.printed = in_shells(together, self.folder, self.programs)
                else:
                    kind = "example" if together[0].title.startswith("examples/") else together[0].language
                    getattr(self, "do_" + kind)(together[0])
            except BaseException as error:
                error.add_note(f"in {together[0]}")
                raise

    def _here(self, text: str) -> str:
        """Take ports that are free; wait less for programs that have begun in a moment; train for two epochs at most.

        Pages show what comes out, and that it is the same on two paths, not how good it is.
        """
        for known, free in self.ports.items():
            text = re.sub(rf"\b{known}\b", free, text)
        text = re.sub(r"\bepochs: (?:[3-9]|\d\d+)", "epochs: 2", text)
        return re.sub(r"^sleep \d+$", "sleep 1", text, flags=re.MULTILINE)

    def do_bash(self, block: Block) -> None:
        if block.mark.startswith("not run"):
            return
        self.printed = ""
        shell: list[str] = []
        for command in commands_of(block.text):
            arguments = plain_tpsl(command)
            if block.mark.startswith("checked, not run"):
                for part in re.split(r"&&|;", command):
                    if (words := plain_tpsl(part)) is not None:
                        check_command(words)
            elif arguments is None:
                shell.append(command)
            else:
                self._flush(block, shell)
                self.printed += in_process(arguments)
        self._flush(block, shell)

    def _flush(self, block: Block, shell: list[str]) -> None:
        """Lines that need a shell run together in one."""
        if shell:
            self.printed += in_shells([replace(block, text="\n".join(shell))], self.folder, self.programs)
            shell.clear()

    def do_python(self, block: Block) -> None:
        output = io.StringIO()
        # So that a traceback names the page and its line.
        code = compile("\n" * block.line + block.text, str(block.page), "exec")
        with contextlib.redirect_stdout(output):
            exec(code, self.variables)
        self.printed = output.getvalue()

    def do_yaml(self, block: Block) -> None:
        if not block.title:
            make_job(yaml.safe_load(block.text), {}, str(block))
            return
        file = self.folder / block.title
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(block.text, encoding="utf-8")
        (load_local if file.name == "local.yaml" else load_job)(file)

    def do_example(self, block: Block) -> None:
        text = self._here((ROOT / block.title).read_text(encoding="utf-8"))
        assert block.text == text, f"not what stands in {block.title}"
        (self.folder / Path(block.title).name).write_text(text, encoding="utf-8")

    def do_text(self, block: Block) -> None:
        if block.title.startswith("output"):
            require_lines(block.text, self.printed, any_number="numbers" in block.title)
        elif block.title:
            assert (self.folder / block.title).read_text(encoding="utf-8").startswith(block.text)


def in_process(arguments: list[str]) -> str:
    """Run `tpsl` in this process, in the current folder; return what it printed. It must succeed."""
    output = io.StringIO()
    threads = torch.get_num_threads()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys, "argv", ["tpsl", *arguments])
        with contextlib.redirect_stdout(output), contextlib.redirect_stderr(output), pytest.raises(SystemExit) as end:
            main()
    torch.set_num_threads(threads)  # `--threads` is for this command, not for the tests that follow
    assert not end.value.code, f"tpsl {shlex.join(arguments)}: {output.getvalue()}"
    return output.getvalue()


def in_shells(blocks: list[Block], folder: Path, programs: Path) -> str:
    """Run each block in a shell of its own, all at once; return what they printed. All must succeed."""
    path = os.pathsep.join([str(programs), str(Path(sys.executable).parent), os.environ["PATH"]])
    shells = [
        subprocess.Popen(
            ["bash", "-e", "-c", block.text],
            cwd=folder,
            env={**os.environ, "PATH": path},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            start_new_session=True,
        )
        for block in blocks
    ]
    try:
        printed = [shell.communicate(timeout=PATIENCE)[0] for shell in shells]
    finally:
        for shell in shells:
            if shell.poll() is None:
                os.killpg(shell.pid, signal.SIGKILL)
                shell.wait()
    for block, shell, output in zip(blocks, shells, printed, strict=True):
        assert shell.returncode == 0, f"{block}: {block.text}{output}"
    return "".join(printed)


def require_lines(expected: str, printed: str, *, any_number: bool) -> None:
    """Each expected line must be among the printed ones, in this order, whatever the white space."""
    rest = [" ".join(line.split()) for line in printed.splitlines()]
    for line in expected.splitlines():
        pattern = re.escape(" ".join(line.split())).replace("…", ".*")
        if any_number:
            pattern = re.sub(r"\d(?:[\d,:]|\\[.-](?=\d))*", lambda _: NUMBER, pattern)
        for at, candidate in enumerate(rest):
            if re.fullmatch(pattern, candidate):
                rest = rest[at + 1 :]
                break
        else:
            raise AssertionError(f"not printed: {line}\nbut:\n{printed}")


@pytest.fixture
def free_ports() -> dict[str, str]:
    """Ports that pages name, and free ones in their place."""
    return {port: str(free_port()) for port in ("7443", "8080", "8081")}


def name(page: Path) -> str:
    return str(page.relative_to(ROOT))


@pytest.mark.parametrize("page", PAGES, ids=name)
def test_the_test_knows_what_every_block_is(page: Path) -> None:
    known = ("bash", "python", "yaml", "text", *(["sh"] if page == README else []))
    assert [str(block) for block in blocks_of(page) if block.language not in known] == []


@pytest.mark.parametrize("page", [page for page in PAGES if page != README and blocks_of(page)], ids=name)
def test_blocks_run(
    page: Path, tmp_path: Path, free_ports: dict[str, str], quick_programs: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Page(tmp_path, free_ports, quick_programs).run(blocks_of(page))


def test_blocks_of_the_readme(tmp_path: Path, quick_programs: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    blocks = blocks_of(README)
    shell = [replace(block, language="bash", mark="checked, not run") for block in blocks if block.language == "sh"]
    assert shell
    Page(tmp_path, {}, quick_programs).run(shell + [block for block in blocks if block.language != "sh"])


def test_the_readmes_commands_for_own_data_work_as_they_stand(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    rows = [f"C{number},{number * 37 % 101},{'north' if number % 3 else 'south'}\n" for number in range(600)]
    Path("features.csv").write_text("customer,visits,region\n" + "".join(rows))
    labels = [f"C{number},{'yes' if number * 37 % 101 > 50 else 'no'}\n" for number in range(600)]
    Path("labels.csv").write_text("customer,bought\n" + "".join(reversed(labels)))
    (block,) = [block for block in blocks_of(README) if "tpsl init features.csv labels.csv" in block.text]
    typed = [plain_tpsl(command) for command in commands_of(block.text)]
    assert typed[-1] == ["ui"], "which goes on until it is stopped"
    printed = {words[0]: in_process(words) for words in typed[:-1] if words is not None}
    assert list(printed) == ["init", "train", "attack", "report", "vault"]
    assert "not measured" not in printed["report"] and "that runs name" not in printed["report"]
    first, plain = (
        json.loads((Path("runs") / name / "label" / "ledger.json").read_text()) for name in ("first", "plain")
    )
    assert (first["epsilon"], plain["epsilon"]) == (1.0, None)
    assert "ε = 1" in printed["vault"] and "1 label in the vault" in printed["vault"]
    assert ">shortest distance</text>" in Path("report.html").read_text(encoding="utf-8")


def test_titles_do_not_speak_of_tests() -> None:
    blocks = [block for page in PAGES for block in blocks_of(page)]
    assert [str(block) for block in blocks if re.search(r"not run|\btests?\b", block.title)] == []


def test_the_job_page_shows_defaults() -> None:
    shown = yaml.safe_load(blocks_of(ROOT / "docs" / "job.md")[0].text)
    assert make_job(shown, {}, "the page") == Job()


def test_the_site_shows_every_key_and_its_default(site: Path) -> None:
    page = (site / "reference" / "keys.html").read_text(encoding="utf-8")
    cells = {html.unescape(found) for found in re.findall(r"<td><code>(.*?)</code></td>", page)}
    parts = {key.name.partition(".")[0] for key in all_keys() if "." in key.name}
    keys = [key for key in all_keys() if key.name not in parts]
    assert len(keys) > 100
    assert [key.name for key in keys if key.name not in cells] == []
    assert [key.name for key in keys if key.default and key.default not in cells] == []
    assert [key.name for key in all_keys() if not key.description] == []


def test_the_site_shows_every_command_and_every_option(site: Path) -> None:
    page = (site / "reference" / "commands.html").read_text(encoding="utf-8")
    sections = dict(re.findall(r'<h[2-4] id="(tpsl[^"]*)">(.*?)(?=<h[2-4] |$)', page, flags=re.DOTALL))
    commands = commands_below(typer.main.get_command(app), ["tpsl"])
    assert len(commands) > 30
    assert set(sections) == {"-".join(path) for path, _ in commands}
    for path, parameters in commands:
        rows = re.findall(r"<tr>\s*<td><code>([^<]*)</code></td>\s*<td>[^<]+", sections["-".join(path)])
        shown = {name for names in map(html.unescape, rows) for name in (names, *re.split(r"[ ,.]+", names))}
        assert [name for name in parameters if name not in shown] == [], path


def commands_below(command: Any, path: list[str]) -> list[tuple[list[str], list[str]]]:
    """Return the path of every command, and the names of its options and arguments."""
    context = command.context_class(command, info_name=path[-1])
    options = [each.opts[0] for each in command.get_params(context) if each.param_type_name == "option"]
    arguments = [(each.metavar or each.name) for each in command.get_params(context) if each.opts[0] not in options]
    found = [(path, [name for name in (*options, *arguments) if name not in ("-h", "--help")])]
    for name in command.list_commands(context) if hasattr(command, "list_commands") else ():
        found += commands_below(command.get_command(context, name), [*path, name])
    return found


def test_names_of_python_in_the_documentation_exist() -> None:
    """Those of two parts may be groups of entry points."""
    missing = []
    for page in PAGES:
        for found in set(re.findall(r"`(tpsl(?:\.\w+){2,})\b", page.read_text(encoding="utf-8"))):
            try:
                pkgutil.resolve_name(found)
            except (ImportError, AttributeError):
                missing.append(f"{name(page)}: {found}")
    assert missing == []


def test_the_format_of_vaults_is_the_one_that_is_documented() -> None:
    said = re.findall(r"present format, (\d+)", (ROOT / "docs" / "privacy.md").read_text(encoding="utf-8"))
    assert said == [str(FORMAT)]


def test_links_of_the_readme() -> None:
    text = README.read_text(encoding="utf-8")
    targets = re.findall(r'\]\(([^)#]+)|(?:src|href)="([^"#]+)', text)
    local = {one or other for one, other in targets if "://" not in one + other}
    assert local
    assert [target for target in sorted(local) if not (ROOT / target).exists()] == []


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """The site, built as `make docs` builds it; a warning is an error."""
    folder = tmp_path_factory.mktemp("site")
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(folder)]
    quiet = {**os.environ, "NO_MKDOCS_2_WARNING": "1"}  # about its successor, in every build
    done = subprocess.run(command, cwd=ROOT, env=quiet, capture_output=True, text=True, timeout=PATIENCE)
    assert done.returncode == 0, done.stdout + done.stderr
    yield folder


def test_the_site_fetches_nothing(site: Path) -> None:
    loads = re.compile(
        r'<(?:script|img|iframe)[^>]* src="(?:https?:)?//'
        r'|<link[^>]* rel="(?:stylesheet|preconnect)"[^>]* href="(?:https?:)?//'
    )
    pages = list(site.rglob("*.html"))
    assert len(pages) > len(PAGES) / 2
    assert [str(page) for page in pages if loads.search(page.read_text(encoding="utf-8"))] == []


def test_formulas_are_mathml(site: Path) -> None:
    page = (site / "mathematics.html").read_text(encoding="utf-8")
    assert page.count("<math") > 100
    assert "arithmatex" not in page


@pytest.mark.parametrize(("width", "scheme"), [(1400, "light"), (390, "dark")])
def test_the_site_opens_without_a_complaint(site: Path, browser: Any, width: int, scheme: str) -> None:
    for page in ("index.html", "mathematics.html", "what-epsilon-buys.html", "reference/commands.html"):
        browser.open(site / page, width=width, scheme=scheme)
        assert browser.console() == []
        assert [address for address in browser.requests() if not address.startswith(("file:", "data:", "blob:"))] == []
        assert browser.run("return document.documentElement.scrollWidth") == width
        dark = browser.run("return getComputedStyle(document.body).colorScheme") == "dark"
        assert dark == (scheme == "dark")


@pytest.mark.parametrize("width", [1400, 390])
def test_the_words_of_drawings_can_be_read(site: Path, browser: Any, width: int) -> None:
    for page, drawing in (("index.html", "protocol"), ("architecture.html", "house")):
        browser.open(site / page, width=width)
        shown = (
            "const image = document.querySelector(`img[src*=${arguments[0]}]`); return [image.currentSrc, image.width]"
        )
        address, wide = browser.run(shown, drawing)
        words = (site / "images" / address.rpartition("/")[2]).read_text(encoding="utf-8")
        view = re.search(r'viewBox="0 0 (\d+) ', words)
        assert view
        assert min(map(float, re.findall(r'font-size="([\d.]+)"', words))) * wide / int(view[1]) >= 12
        assert "prefers-color-scheme: dark" in words


# The rules themselves: what must fail does.


def test_output_that_was_not_printed_is_found() -> None:
    require_lines("a 1\nc", "a  1\nb\nc\n", any_number=False)
    require_lines(
        "AUC 0.63 [0.60, 0.66]\n12,000 at 2026-11-15", "AUC 0.5 [0.4, 0.61]\n7 at 2027-01-02", any_number=True
    )
    require_lines("claimed …", "claimed ε", any_number=False)
    for expected, printed, any_number in [
        ("a 1", "a 2", False),
        ("a\nb", "b\na", False),
        ("a 1", "b 2", True),
        ("a", "a b", False),
    ]:
        with pytest.raises(AssertionError, match="not printed"):
            require_lines(expected, printed, any_number=any_number)


def test_commands_that_do_not_exist_are_found() -> None:
    check_command(["train", "--data", "flights"])
    check_command(["vault", "ledger", "somewhere"])
    for wrong in (["train", "--dta", "flights"], ["vault", "leger"], ["trian"], ["train", "--rows", "many"]):
        with pytest.raises(typer.TyperException):
            check_command(wrong)


def test_a_file_that_is_not_shown_as_it_is_fails_its_page(tmp_path: Path) -> None:
    file = "examples/digits/left.yaml"
    text = (ROOT / file).read_text(encoding="utf-8")
    block = Block(ROOT / "docs" / "start.md", 1, "yaml", file, text)
    Page(tmp_path, {}, tmp_path).run([block])
    assert (tmp_path / "left.yaml").exists()
    with pytest.raises(AssertionError, match=f"not what stands in {file}"):
        Page(tmp_path, {}, tmp_path).run([replace(block, text=text.replace("left", "write"))])


def test_a_block_that_fails_fails_its_page(
    tmp_path: Path, quick_programs: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    for language, text, error in [
        ("bash", "false", AssertionError),
        ("bash", "tpsl vault verify nowhere", AssertionError),
        ("bash", "tpsl vault verify nowhere > verified.txt", AssertionError),
        ("python", "1 / 0", ZeroDivisionError),
        ("yaml", "training: {epoch: 1}", ValueError),
    ]:
        with pytest.raises(error):
            Page(tmp_path, {}, quick_programs).run([Block(ROOT / "docs" / "start.md", 1, language, "", text)])
