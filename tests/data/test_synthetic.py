import numpy as np
import pytest
from scipy import stats
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import roc_auc_score

from tpsl.data.config import SyntheticData
from tpsl.data.dataset import load, load_feature_party, load_label_party
from tpsl.data.party_file import numbered_ids
from tpsl.data.synthetic import CHUNK_ROWS, World
from tpsl.data.true_labels import reveal
from tpsl.tables import DataError
from tpsl_research.example_data import BayesOptimum


def best_possible(config: SyntheticData) -> float:
    """Return the AUC that the best classifier of two classes expects to reach."""
    optimum = BayesOptimum(2)
    for chunk in World(config).chunks():
        optimum.add(chunk.probabilities)
    return optimum.facts()["bayes_auc"]


def test_a_prefix_is_the_same_whatever_the_total() -> None:
    short = load(SyntheticData(rows=1000, numeric_fields=3, categorical_fields=4))
    long = load(SyntheticData(rows=CHUNK_ROWS + 500, numeric_fields=3, categorical_fields=4))
    ours, theirs = short.feature_parties["feature"], long.feature_parties["feature"]
    assert np.array_equal(reveal(short.labels), reveal(long.labels)[:1000])
    assert np.array_equal(ours.categorical, theirs.categorical[:1000])
    assert np.array_equal(ours.numeric, theirs.numeric[:1000])
    assert short.ids.equals(long.ids[:1000])
    assert not np.array_equal(theirs.numeric[:500], theirs.numeric[CHUNK_ROWS:])  # chunks are independent


def test_ids_are_numbered_through() -> None:
    first, stop = CHUNK_ROWS - 1, 2 * CHUNK_ROWS + 1
    assert numbered_ids(first, stop).to_pylist() == [f"{number:012}" for number in range(first, stop)]
    assert numbered_ids(3, 3).to_pylist() == []


def test_shape_and_names_follow_criteo() -> None:
    dataset = load(SyntheticData(rows=5000))
    features = dataset.feature_parties["feature"]
    assert features.categorical.shape == (5000, 26)
    assert features.numeric.shape == (5000, 13)
    assert features.categorical_fields[0] == "C1"
    assert features.numeric_fields[-1] == "I13"
    assert dataset.label_features is None
    assert dataset.ids[4999].as_py() == "000000004999"
    assert np.array_equal(dataset.ids.sort().to_pylist(), dataset.ids.to_pylist())
    assert abs(float(features.numeric.mean())) < 0.02
    assert abs(float(features.numeric.std()) - 1) < 0.02


def test_vocabularies_are_long_tailed_as_documented() -> None:
    config = SyntheticData(rows=CHUNK_ROWS, numeric_fields=0, categorical_fields=2, largest_vocabulary=50)
    features = load_feature_party(config, "feature").features
    values = features.categorical[:, 1] - 4
    chance = np.log1p(1 / np.arange(1.0, 51)) / np.log(51)
    assert features.embedding_rows == 54
    assert stats.chisquare(np.bincount(values, minlength=50), CHUNK_ROWS * chance).pvalue > 1e-6


@pytest.mark.parametrize("classes", [2, 5])
def test_labels_are_drawn_from_the_stated_probabilities(classes: int) -> None:
    world = World(SyntheticData(rows=CHUNK_ROWS, classes=classes))
    chunk = next(world.chunks())
    for number in range(classes):
        chance = chunk.probabilities[:, number]
        bins = np.digitize(chance, np.quantile(chance, np.linspace(0.05, 0.95, 19)))
        observed = np.bincount(bins, chunk.labels == number)
        expected, variance = np.bincount(bins, chance), np.bincount(bins, chance * (1 - chance))
        statistic = ((observed - expected) ** 2 / variance).sum()
        assert stats.chi2.sf(statistic, 20) > 1e-6


def test_bayes_auc_is_what_the_true_probability_reaches() -> None:
    config = SyntheticData(rows=CHUNK_ROWS)
    chunk = next(World(config).chunks())
    reached = roc_auc_score(chunk.labels, chunk.probabilities[:, 1])
    assert abs(best_possible(config) - reached) < 5 * 0.002  # the standard error at this size


def test_facts_of_the_default_configuration() -> None:
    assert reveal(load_label_party(SyntheticData()).labels).mean() == pytest.approx(0.25, abs=0.01)
    assert 0.78 < best_possible(SyntheticData()) < 0.85


def test_even_a_linear_model_of_the_numbers_learns_part_of_it() -> None:
    dataset = load(SyntheticData(rows=20_000))
    numeric = dataset.feature_parties["feature"].numeric
    model = LogisticRegression().fit(numeric[dataset.train], reveal(dataset.labels)[dataset.train])
    auc = roc_auc_score(reveal(dataset.labels)[dataset.test], model.predict_proba(numeric[dataset.test])[:, 1])
    assert 0.65 < auc < best_possible(SyntheticData(rows=20_000))


def test_no_signal_means_no_information() -> None:
    assert best_possible(SyntheticData(rows=2000, signal=0)) == pytest.approx(0.5)


def test_both_sides_alone_agree_with_the_whole() -> None:
    config = SyntheticData(rows=3000, classes=4, split="chronological")
    whole, feature, label = load(config), load_feature_party(config, "feature"), load_label_party(config)
    assert feature.ids.equals(label.records.ids)
    assert np.array_equal(feature.test, label.records.test)
    assert whole.test.tolist() == list(range(2400, 3000))
    assert whole.classes == 4
    assert set(reveal(whole.labels).tolist()) == set(range(4))


def test_seeds_give_different_worlds() -> None:
    one, other = (reveal(load_label_party(SyntheticData(rows=1000, seed=seed)).labels) for seed in (0, 1))
    assert not np.array_equal(one, other)


@pytest.mark.parametrize("fields", [(0, 3), (3, 0), (1, 1)])
def test_any_mixture_of_fields_carries_the_whole_signal(fields: tuple[int, int]) -> None:
    config = SyntheticData(
        rows=CHUNK_ROWS, numeric_fields=fields[0], categorical_fields=fields[1], largest_vocabulary=100
    )
    assert best_possible(config) > 0.75


def test_progress_ends_at_the_number_of_rows() -> None:
    heard: list[tuple[int, int, str]] = []
    load_label_party(SyntheticData(rows=CHUNK_ROWS + 1), progress=lambda *news: heard.append(news))
    assert [(done, total) for done, total, _ in heard] == [(CHUNK_ROWS, CHUNK_ROWS + 1), (CHUNK_ROWS + 1,) * 2]


def test_an_embedding_table_beyond_32_bits_is_refused() -> None:
    with pytest.raises(DataError, match="largest_vocabulary"):
        load_feature_party(SyntheticData(rows=10, categorical_fields=1000, largest_vocabulary=10**8), "feature")
