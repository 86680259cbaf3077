import sys
from dataclasses import replace
from pathlib import Path

import pytest

from tpsl.bench.contender import Contender, ContenderFailed
from tpsl.bench.measurements import BASELINE, ONE_PROCESS, OWN, QUICK, share_of_an_epoch, vault
from tpsl.bench.race import Pace, Standing, race
from tpsl.vault import place

SHAPE = QUICK.shape


@pytest.fixture(autouse=True)
def quick_contenders(quick_programs: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "executable", str(quick_programs / "python"))


def test_all_ways_of_this_package_stand_beside_plain_pytorch() -> None:
    told: list[str] = []
    contenders = [BASELINE, *OWN]
    standings = race(contenders, SHAPE, QUICK.pace, lambda done, total, note: told.append(note))
    assert [standing.name for standing in standings] == [contender.name for contender in contenders]
    assert all(standing.reason is None for standing in standings), standings
    assert standings[0].ratio == 1.0
    for standing in standings:
        assert standing.samples_per_second is not None and standing.samples_per_second > 0
        assert standing.quartiles is not None and standing.quartiles[0] <= standing.ratio <= standing.quartiles[1]
    assert told[-1] == f"round {QUICK.pace.rounds}"
    assert not place.home().exists(), "contenders leave the vault of their user alone"


def test_parties_that_share_the_fields_train_together() -> None:
    shape = replace(SHAPE, parties=2, classes=3)
    _, own = race([BASELINE, ONE_PROCESS], shape, QUICK.pace)
    assert own.reason is None


def test_a_contender_that_fails_says_why_and_the_others_go_on() -> None:
    broken = Contender("broken", "opacus_ghost", how="where Opacus is not installed")
    standings = race([BASELINE, broken], SHAPE, QUICK.pace)
    assert standings[0].samples_per_second is not None
    assert standings[1] == Standing("broken", broken.how, reason="ModuleNotFoundError: No module named 'opacus'")


def test_without_a_baseline_there_is_no_race() -> None:
    with pytest.raises(ContenderFailed, match=r"broken, the baseline, has failed: .*No module named 'nvflare'"):
        race([Contender("broken", "nvflare_split"), BASELINE], SHAPE, QUICK.pace)


def test_a_turn_is_about_as_long_as_the_pace_says() -> None:
    pace = Pace(turn_seconds=1.0, most_records=800)
    assert [pace.steps_of_a_turn(seconds, 100) for seconds in (10.0, 1.0, 0.25, 0.001)] == [1, 1, 4, 8]
    assert pace.steps_of_a_turn(0.001, 1000) == 1


def test_the_vault_is_measured_against_an_epoch() -> None:
    figures = vault(replace(QUICK, vault_records=500))
    assert [figure.name for figure in figures] == ["create", "release", "look up", "verify"]
    trained = Standing(ONE_PROCESS.name, "", samples_per_second=2 * figures[0].records_per_second)
    assert share_of_an_epoch(figures[0], [trained]) == 2.0
    assert share_of_an_epoch(figures[0], []) is None
