"""Programs that start in a moment behave as if they had been started anew."""

import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

SOON = 10.0


def start(programs: Path, script: Path, *arguments: str, **how: Any) -> subprocess.Popen[str]:
    pipes = dict.fromkeys(("stdin", "stdout", "stderr"), subprocess.PIPE)
    return subprocess.Popen([programs / "python", script, *arguments], text=True, **(pipes | how))


def ends(process: int) -> bool:
    """Whether a process that is no child of this one is gone soon."""
    until = time.monotonic() + SOON
    while Path(f"/proc/{process}").exists() and time.monotonic() < until:
        time.sleep(0.01)
    return not Path(f"/proc/{process}").exists()


def test_arguments_folder_environment_streams_and_status(quick_programs: Path, tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text(
        "import os, sys\nprint(sys.argv[1:], os.getcwd(), dict(os.environ), sys.stdin.read())\n"
        "print('torch' in sys.modules, __name__, file=sys.stderr)\nsys.exit(7)"
    )
    place = tmp_path / "ø place"
    place.mkdir()
    program = start(quick_programs, script, "a b", "é", cwd=place, env={"ONE": "1"})
    out, err = program.communicate("typed", timeout=SOON)
    assert out.startswith(f"['a b', 'é'] {place} {{'ONE': '1'")
    assert out.endswith("} typed\n")
    assert (err, program.returncode) == ("True __main__\n", 7)


def test_an_error_is_told_and_output_goes_where_the_shell_says(quick_programs: Path, tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text("import sys\nprint(sys.argv[1])\nif sys.argv[1] == 'three': 1 / 0")
    shell = '"$0" "$1" one > out; "$0" "$1" two >> out; "$0" "$1" three'
    words = ["bash", "-c", shell, str(quick_programs / "python"), str(script)]
    done = subprocess.run(words, cwd=tmp_path, capture_output=True, text=True, timeout=SOON)
    assert (tmp_path / "out").read_text() == "one\ntwo\n"
    assert done.stdout == "three\n"
    assert "ZeroDivisionError" in done.stderr
    assert done.returncode == 1


def test_signals_reach_it_and_a_kill_ends_it(quick_programs: Path, tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text(
        "import os, time\ntry:\n    print(os.getpid(), flush=True)\n    time.sleep(60)\n"
        "except KeyboardInterrupt:\n    print('interrupted')"
    )
    stopped, killed = (start(quick_programs, script) for _ in range(2))
    numbers = [int(program.stdout.readline()) for program in (stopped, killed)]
    stopped.send_signal(signal.SIGINT)
    assert (stopped.communicate(timeout=SOON)[0], stopped.returncode) == ("interrupted\n", 0)
    killed.kill()
    killed.communicate(timeout=SOON)
    assert ends(numbers[1])


def test_tpsl_is_the_installed_script(quick_programs: Path) -> None:
    words = ["vault", "verify", "nowhere"]
    quick, slow = (
        subprocess.run([folder / "tpsl", *words], capture_output=True, text=True, timeout=60)
        for folder in (quick_programs, Path(sys.executable).parent)
    )
    assert (quick.stdout, quick.stderr, quick.returncode) == (slow.stdout, slow.stderr, slow.returncode)
    assert quick.stderr.startswith("error: ")
