from pathlib import Path

import pytest
import yaml
from pydantic import TypeAdapter, ValidationError

from tpsl.data.config import AnyData, DataConfig, FlightsData, SyntheticData, TableData
from tpsl_research.clicklog import AvazuData, CriteoData

CONFIG: TypeAdapter[AnyData] = TypeAdapter(DataConfig)

TABLE = """
source: table
features:
  - {path: bank.parquet, id: customer, categorical: [branch, job], numeric: [balance]}
  - {path: shop.csv, party: shop, id: customer, numeric: [spent], missing: ["", NA]}
label: {path: loans.csv, id: customer, label: defaulted, categorical: [product]}
"""


def parse(text: str) -> AnyData:
    return CONFIG.validate_python(yaml.safe_load(text))


def test_source_chooses_the_kind_and_defaults_fill_the_rest() -> None:
    assert parse("{source: flights}") == FlightsData()
    assert parse("{source: synthetic, rows: 50}") == SyntheticData(rows=50)
    assert parse("{source: criteo, path: train.txt}") == CriteoData(path=Path("train.txt"))
    assert parse("{source: avazu, path: train.csv}") == AvazuData(path=Path("train.csv"))
    table = parse(TABLE)
    assert isinstance(table, TableData)
    assert [file.party for file in table.features] == ["feature", "shop"]
    assert table.features[0].categorical == ("branch", "job")
    assert table.label.party == "label"


def test_a_source_that_no_package_brings_is_named_with_those_that_are_there() -> None:
    with pytest.raises(ValidationError, match=r"unknown source .census.; known are flights, .*, criteo"):
        parse("{source: census}")
    with pytest.raises(ValidationError, match="`source`, the name of a data source"):
        parse("{rows: 100}")


@pytest.mark.parametrize(
    "text", ["{source: flights, rows: 100}", "{source: synthetic, classes: 7}", "{source: criteo, path: a/b}", TABLE]
)
def test_a_configuration_survives_the_way_through_json(text: str) -> None:
    config = parse(text)
    assert CONFIG.validate_python(config.model_dump(mode="json")) == config
    assert CONFIG.validate_json(config.model_dump_json()) == config


@pytest.mark.parametrize(
    ("text", "culprit"),
    [
        ("{source: flight}", "flight"),
        ("{source: flights, layuot: all}", "layuot"),
        ("{source: flights, layout: everything}", "layout"),
        ("{source: flights, test_fraction: 1.0}", "test_fraction"),
        ("{source: flights, test_fraction: 0}", "test_fraction"),
        ("{source: flights, split_seed: -1}", "split_seed"),
        ("{source: flights, split_seed: '1'}", "split_seed"),
        ("{source: flights, rows: true}", "rows"),
        ("{source: synthetic, classes: 1}", "classes"),
        ("{source: criteo}", "path"),
        ("{source: avazu, path: train.csv, min_count: 0}", "min_count"),
        ("{source: avazu, path: train.csv, layout: all}", "layout"),
        ("{source: synthetic, numeric_fields: 0, categorical_fields: 0}", "nothing to learn from"),
        (TABLE.replace("party: shop", "party: feature"), "'feature'"),
        (TABLE.replace("party: shop", "party: label"), "'label'"),
        (TABLE.replace("numeric: [spent]", "numeric: []"), "shop.csv"),
        (TABLE.replace("[branch, job]", "[branch, balance]"), "'balance'"),
        (TABLE.replace("[product]", "[product, defaulted]"), "'defaulted'"),
        (TABLE + "split: chronological", "bank.parquet: a chronological split needs `time`"),
        (TABLE + "class_values: [no, yes, maybe]", "class_values"),
        (TABLE + "class_values: ['no', 'no']", "class_values"),
        (TABLE + "hash_buckets: 0", "hash_buckets"),
        (TABLE.replace("label: defaulted", "lable: defaulted"), "lable"),
    ],
)
def test_a_mistake_is_named(text: str, culprit: str) -> None:
    with pytest.raises(ValidationError) as error:
        parse(text)
    assert culprit in str(error.value)


def test_a_configuration_cannot_be_changed() -> None:
    with pytest.raises(ValidationError, match="frozen"):
        FlightsData().rows = 5  # type: ignore[misc]


def test_words_that_yaml_takes_for_booleans_are_named() -> None:
    with pytest.raises(ValidationError, match="put such values in quotes"):
        CONFIG.validate_python(yaml.safe_load(TABLE + "class_values: [no, yes]"))
