"""What stands on a port of this machine can be asked by any page that its user's browser shows; here is who may."""

from __future__ import annotations

import re
from collections.abc import Sequence

OWN_NAMES = re.compile(r"(127\.0\.0\.1|localhost)(:\d{1,5})?", re.ASCII | re.IGNORECASE)
"""Under what names this machine is asked, at any port, for tunnels; any other name is a trick (DNS rebinding)."""
NUMBERS = re.compile(r"(\d{1,3}(\.\d{1,3}){3}|\[[\da-f:]+\])(:\d{1,5})?", re.ASCII | re.IGNORECASE)
"""An address in numbers, at any port. No site has one for a name of its own, so it cannot be that trick."""


def is_asked_from_here(hosts: Sequence[str], site: str | None, mode: str | None, *, or_by_number: bool = False) -> bool:
    """Whether the reader or the page itself asks, and not another site through the reader's browser.

    `hosts` are the headers Host of the request, `site` and `mode` its Sec-Fetch-Site and Sec-Fetch-Mode. With
    `or_by_number` programs on other machines may ask too, under any address in numbers.
    """
    if len(hosts) != 1 or not (OWN_NAMES.fullmatch(hosts[0]) or (or_by_number and NUMBERS.fullmatch(hosts[0]))):
        return False
    # Browsers say who asks. Following a link is fine; using what is here from another page is not.
    return site in (None, "none", "same-origin") or mode == "navigate"
