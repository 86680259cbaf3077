from pathlib import Path

import numpy as np

from tpsl.vault.spill_file import SpillFile


def opened_in(folder: Path) -> list[Path]:
    """What files of a folder this process has open."""
    links = [handle.readlink() for handle in Path("/proc/self/fd").iterdir() if handle.is_symlink()]
    return [file for file in links if str(file).startswith(f"{folder}/")]


def test_parts_come_back_from_a_file_without_a_name(tmp_path: Path) -> None:
    rng, parts = np.random.default_rng(0), [b""] * 3
    with SpillFile(tmp_path, 3) as file:
        for number in range(3000):
            piece = f"person-{number}".encode() * int(rng.integers(0, 120))
            file.write(number % 3, memoryview(np.frombuffer(piece, np.int8)) if number % 2 else piece)
            parts[number % 3] += piece
        assert [file.read(part) for part in (2, 0, 1)] == [parts[2], parts[0], parts[1]]
        assert len(b"".join(parts)) > 1 << 20 and len(opened_in(tmp_path)) == 1
        assert list(tmp_path.iterdir()) == []
    assert opened_in(tmp_path) == []
