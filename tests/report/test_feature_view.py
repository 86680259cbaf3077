"""The page of a feature party: nothing in it depends on true labels."""

import json
import shutil
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest

from tpsl.report.hero import promise_sentence
from tpsl.report.page import page, write_page
from tpsl.report.run_reading import read_feature_run, read_run
from tpsl.run.run_folder import RunFolder


def test_a_view_is_the_same_whatever_the_label_party_holds(copied: Callable[[str], Path], tmp_path: Path) -> None:
    run = copied("laplace")
    view = read_feature_run(run, "feature")
    write_page(tmp_path / "with.html", [view], title="A page")
    shutil.rmtree(run / "label")
    (run / "result.json").write_text("not even JSON")
    again = read_feature_run(run, "feature")
    write_page(tmp_path / "without.html", [again], title="A page")
    assert again == view
    assert (tmp_path / "with.html").read_bytes() == (tmp_path / "without.html").read_bytes()


FOUND = ("audit", "attacks")


def numbers_in(content: Any) -> set[float]:
    if isinstance(content, dict):
        return set().union(*map(numbers_in, content.values()))
    if isinstance(content, list):
        return set().union(*map(numbers_in, content))
    return {content} if isinstance(content, float) and not content.is_integer() else set()


def test_no_number_that_depends_on_true_labels_is_on_the_page(runs: Path, tmp_path: Path) -> None:
    label, feature = read_run(runs / "laplace"), read_feature_run(runs / "laplace", "feature")
    write_page(tmp_path / "page.html", [feature], title="A page")
    content = (tmp_path / "page.html").read_text(encoding="utf-8")
    shown = json.dumps(asdict(feature)) + content  # cells hold whole numbers, by which they are sorted
    files = [runs / "laplace" / "result.json", *(runs / "laplace" / "label" / f"{name}.json" for name in FOUND)]
    result, audit, found = (json.loads(file.read_text()) for file in files)
    tests = {key: value for key, value in result.items() if key.startswith("test_")}
    secret, attacks = [tests, list(label.curves), audit], found["attacks"].values()
    assert {attack["ceiling_low"] < attack["ceiling_high"] for attack in attacks} == {False, True}
    for attack in attacks:  # a proved ceiling follows from ε, an estimated one from true labels
        proved = {
            key for key in attack if key.startswith("ceiling") and attack["ceiling_low"] == attack["ceiling_high"]
        }
        secret.append({key: entry for key, entry in attack.items() if key not in {"closed_form", "roc"} | proved})
    numbers = {json.dumps(number) for number in set().union(*map(numbers_in, secret))}
    telling = {number for number in numbers if len(number) > 10}  # a short one, as 0.25, can be something else too
    assert len(telling) > 40  # there is something to search for
    assert not {number for number in telling if number in shown}
    assert label.ledger and not any(entry.hash[:12] in content for entry in label.ledger.entries)


def test_it_has_what_the_party_knows(runs: Path) -> None:
    view, result = read_feature_run(runs / "laplace", "feature"), RunFolder(runs / "laplace").party_result("feature")
    assert result is not None
    assert (view.party, view.state, view.train_records) == ("feature", "finished", 960)
    assert view.samples_per_second == result.samples_per_second
    theirs = read_run(runs / "laplace").promise
    assert view.promise == theirs
    # It sees no ledger, so it cannot speak of what is combined with other releases.
    assert "other releases of the same labels would add to that" in promise_sentence(view)
    for unknown in ("auc", "scores", "ledger", "attacks", "audited_epsilon", "test_records"):
        assert getattr(view, unknown) is None
    assert not view.curves and not view.audit_words and not view.local_head_words


def test_it_says_what_is_proved_about_labels_and_that_nothing_is_about_features(runs: Path, tmp_path: Path) -> None:
    view = read_feature_run(runs / "discrete", "feature")
    write_page(tmp_path / "page.html", [view], title="A page")
    content = (tmp_path / "page.html").read_text(encoding="utf-8")
    labels = "more than 1.65 times surer of a label"  # e^0.5, rounded up
    features = "nothing bounds what they reveal of the features behind them"
    for sentence in (labels, features):
        assert sentence in content
    assert labels in promise_sentence(view) and features in view.features_words
    assert view.features_words == read_run(runs / "discrete").features_words


def test_an_unfinished_part_is_shown_as_such(copied: Callable[[str], Path]) -> None:
    run = copied("laplace")
    (run / "feature" / "result.json").unlink()
    view = read_feature_run(run, "feature")
    assert (view.state, view.samples_per_second) == ("unfinished", None)
    assert view.step > 0


def test_errors_name_the_party(copied: Callable[[str], Path]) -> None:
    run = copied("laplace")
    with pytest.raises(ValueError, match=r"'nobody' is not a feature party of the job; they are feature$"):
        read_feature_run(run, "nobody")
    shutil.rmtree(run / "feature")
    with pytest.raises(ValueError, match=r"has no folder of the feature party 'feature'$"):
        read_feature_run(run, "feature")


def test_a_page_is_for_one_party(runs: Path) -> None:
    with pytest.raises(ValueError, match="a report is for one party, not for feature and label"):
        page([read_run(runs / "laplace"), read_feature_run(runs / "laplace", "feature")], title="")
