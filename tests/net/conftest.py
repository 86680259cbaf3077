import threading
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from tests.net.scene import Scene, eventually

from tpsl.net.certificates import create_authority, issue


@pytest.fixture
def make_scene(certificates: Path, capfd: pytest.CaptureFixture[str]) -> Iterator[Callable[..., Scene]]:
    """Make label parties; none of them leaves a thread, nor writes a traceback."""
    made: list[Scene] = []

    def make(*parties: str, **options: Any) -> Scene:
        made.append(Scene(certificates, parties or ("airport",), **options))
        return made[-1]

    yield make
    for scene in reversed(made):
        scene.open.close()
    assert eventually(lambda: not [t for t in threading.enumerate() if t.name.startswith("tpsl")])
    assert "Traceback" not in capfd.readouterr().err


@pytest.fixture
def scene(make_scene: Callable[..., Scene]) -> Scene:
    """A label party for airport and bank that is lost patience with soon."""
    return make_scene("airport", "bank", silence=1)


@pytest.fixture(scope="module")
def strangers(tmp_path_factory: pytest.TempPathFactory, certificates: Path) -> Path:
    """Certificates that must not be accepted: of another authority, and ours of another day or another party."""
    folder = tmp_path_factory.mktemp("strangers")
    create_authority(folder / "authority")
    issue(folder / "authority", folder / "label", "label")
    issue(folder / "authority", folder / "airport", "airport")
    then = datetime.now(UTC) - timedelta(days=30)
    soon = datetime.now(UTC) + timedelta(days=2)
    ours = certificates / "authority"
    issue(ours, folder / "expired", "airport", days=10, now=then)
    issue(ours, folder / "expired_label", "label", days=10, now=then)
    issue(ours, folder / "early", "airport", days=10, now=soon)
    issue(ours, folder / "early_label", "label", days=10, now=soon)
    issue(ours, folder / "shop", "shop")
    return folder
