"""Avazu's click-through rate prediction (Kaggle 2014): `train.csv`, 40,428,967 records after a header.

The label is `click`, the record id is `id`. Everything else is categorical: 21 columns as they stand, and `hour`
(YYMMDDHH), which becomes hour of day and weekday. The publisher's lines are in order of time, and a chronological
split checks that they still are.
"""

from tpsl.data.clicklog.layout import Kind, Layout

_COLUMNS: dict[str, Kind] = {
    "id": "id",
    "click": "label",
    "hour": "hour",
    "C1": "integer",
    "banner_pos": "integer",
    "site_id": "hex",
    "site_domain": "hex",
    "site_category": "hex",
    "app_id": "hex",
    "app_domain": "hex",
    "app_category": "hex",
    "device_id": "hex",
    "device_ip": "hex",
    "device_model": "hex",
    "device_type": "integer",
    "device_conn_type": "integer",
    **{f"C{number}": "integer" for number in range(14, 22)},
}

LAYOUT = Layout("avazu", _COLUMNS, delimiter=",", header=True)
