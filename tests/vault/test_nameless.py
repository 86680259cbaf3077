from pathlib import Path

import numpy as np

from tpsl.vault.nameless import PartedFile


def on_disk(folder: Path) -> bytes:
    """What lies in the files without a name of this process in a folder."""
    found = []
    for handle in Path("/proc/self/fd").iterdir():
        if handle.is_symlink() and str(handle.readlink()).startswith(f"{folder}/"):
            found.append(handle.read_bytes())
    return b"".join(found)


def test_parts_come_back_and_the_disk_shows_none_of_them(tmp_path: Path) -> None:
    rng, parts = np.random.default_rng(0), [b""] * 3
    with PartedFile(tmp_path, 3) as file:
        for number in range(3000):
            piece = f"person-{number}".encode() * int(rng.integers(0, 120))
            file.write(number % 3, memoryview(np.frombuffer(piece, np.int8)) if number % 2 else piece)
            parts[number % 3] += piece
        stored = on_disk(tmp_path)
        assert [file.read(part) for part in (2, 0, 1)] == [parts[2], parts[0], parts[1]]
    assert len(stored) > 1 << 20
    assert b"person" not in stored
    assert max(np.bincount(np.frombuffer(stored, np.uint8))) < 1.1 * len(stored) / 256, "it does not look random"
    assert list(tmp_path.iterdir()) == []
