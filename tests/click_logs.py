"""Invented click logs in the genuine formats of their publishers."""

import random
from collections.abc import Callable

Lines = Callable[..., list[str]]


def criteo_lines(rows: int, seed: int = 0) -> list[str]:
    """Invent lines of Criteo's `train.txt`."""
    rng = random.Random(seed)
    lines = []
    for _ in range(rows):
        numbers = ["" if rng.random() < 0.2 else str(rng.randint(-3, 500)) for _ in range(13)]
        categories = [
            "" if rng.random() < 0.1 else f"{rng.randint(0, field) * 0x1F3A5B7D:08x}"[-8:] for field in range(26)
        ]
        lines.append("\t".join([str(rng.randint(0, 1)), *numbers, *categories]))
    return lines


def avazu_lines(rows: int, seed: int = 0) -> list[str]:
    """Invent lines of Avazu's `train.csv`, the header first."""
    rng = random.Random(seed)
    header = (
        "id,click,hour,C1,banner_pos,site_id,site_domain,site_category,app_id,app_domain,app_category,device_id,"
        "device_ip,device_model,device_type,device_conn_type,C14,C15,C16,C17,C18,C19,C20,C21"
    )
    ids = [rng.randrange(10**15, 2**64) for _ in range(rows)]
    lines = [header]
    for row in range(rows):
        hexadecimal = [f"{rng.randint(0, 5) * 0x2A3B4C5D:08x}"[-8:] for _ in range(9)]
        day, hour_of_day = divmod(row * 240 // rows, 24)
        hour = f"1410{21 + day:02d}{hour_of_day:02d}"
        integers = ["320", "50", "1722", "0", "35", rng.choice(["-1", "100084"]), "79"]
        values = [
            ids[row],
            rng.randint(0, 1),
            hour,
            1005,
            0,
            *hexadecimal,
            1,
            0,
            rng.choice(["15706", "15704"]),
            *integers,
        ]
        lines.append(",".join(str(value) for value in values))
    return lines
