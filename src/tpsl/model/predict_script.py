"""Use this exported half, without tpsl: raw records in, embeddings or probabilities out.

A feature party:    python predict.py --records records.csv --out embeddings.npy
The label party:    python predict.py --share PARTY=embeddings.npy --records own.csv --out probabilities.npy

`--records` are this party's own, in the order of everybody else's: a .csv or .tsv file with a header, plain or .gz,
or, where the half reads inputs of the party's own, an .npz file of them. A label party without features has none.
"""

import argparse
import csv
import gzip
import json
import re
from pathlib import Path
from typing import Any

import numpy as np

HERE = Path(__file__).parent
OPENERS: dict[str, Any] = {".gz": gzip.open}


def read_records(path: Path) -> dict[str, Any]:
    """Return what the half reads of this party's records, by name."""
    if not (HERE / "encoder.json").exists():
        return dict(np.load(path))
    from tpsl.data.row_encoder import RowEncoder

    encoder = json.loads((HERE / "encoder.json").read_text(encoding="utf-8"))
    with OPENERS.get(path.suffix, open)(path, "rt", newline="", encoding="utf-8-sig") as file:
        header = re.sub('"[^"]*"', "", file.readline())
        delimiter = "\t" if ".tsv" in path.suffixes else max(",;\t|", key=header.count)
        file.seek(0)
        records = list(csv.DictReader(file, delimiter=delimiter))
    if delimiter == ";":  # there 1,5 is a number
        encoder["decimal"] = ","
    categorical, numeric = RowEncoder(encoder).encode(records)
    return {"categorical": categorical, "numeric": numeric}


def run_torch(inputs: dict[str, Any]) -> Any:
    """Return what the half makes of its inputs, by PyTorch."""
    import torch

    half = torch.export.load(HERE / "half.pt2").module()
    with torch.no_grad():
        return half(*(torch.from_numpy(np.ascontiguousarray(array)) for array in inputs.values())).numpy()


def run_onnx(inputs: dict[str, Any]) -> Any:
    """Return what the half makes of its inputs, by ONNX Runtime."""
    import onnxruntime

    return onnxruntime.InferenceSession(HERE / "half.onnx").run(None, inputs)[0]


def main() -> None:
    """Read records and shares, and write what the half makes of them."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--records", type=Path, help="this party's own records")
    parser.add_argument("--share", action="append", default=[], metavar="PARTY=FILE", help="a party's embeddings")
    parser.add_argument("--engine", choices=["torch", "onnx"], default="torch")
    parser.add_argument("--out", type=Path, required=True)
    arguments = parser.parse_args()
    try:
        given = read_records(arguments.records) if arguments.records else {}
    except ValueError as error:
        parser.error(f"{arguments.records}: {error}")
    for share in arguments.share:
        party, _, path = share.partition("=")
        given[f"share_{party}"] = np.load(path)
    wanted = [part["name"] for part in json.loads((HERE / "card.json").read_text(encoding="utf-8"))["inputs"]]
    missing = [name for name in wanted if name not in given]
    if missing:
        parser.error(f"the half also reads {', '.join(missing)}")
    inputs = {name: given[name] for name in wanted}
    np.save(arguments.out, run_torch(inputs) if arguments.engine == "torch" else run_onnx(inputs))


if __name__ == "__main__":
    main()
