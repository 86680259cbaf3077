"""Criteo's display advertising challenge (Kaggle 2014): `train.txt`, 45,840,617 lines.

A line has 40 values between tabs and there is no header: the label (clicked or not), thirteen counts I1 to I13, which
may be negative or missing, and 26 categories C1 to C26, eight hexadecimal digits or missing. The file has no record
ids, so a record's id is its line number, twelve digits from `000000000001`. The publisher's lines are in order of time;
without times in the file nobody can check that they still are.
"""

from tpsl.data.clicklog.layout import Kind, Layout

_COLUMNS: dict[str, Kind] = {
    "label": "label",
    **{f"I{number}": "number" for number in range(1, 14)},
    **{f"C{number}": "hex" for number in range(1, 27)},
}

LAYOUT = Layout("criteo", _COLUMNS, delimiter="\t", header=False)
