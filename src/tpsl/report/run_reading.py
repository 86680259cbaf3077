"""Which view of a run a reader gets: of the party that it is for, from the folder that is there."""

from __future__ import annotations

from pathlib import Path

from tpsl.data.dataset import feature_party_names
from tpsl.net.peers import LABEL_PARTY
from tpsl.report.feature_view import read_feature_run
from tpsl.report.handed_view import read_handed_view
from tpsl.report.known_vaults import Memory
from tpsl.report.label_view import read_run
from tpsl.report.run_view import RunView
from tpsl.training.run_folder import RunError, RunFolder

ANY_FEATURE_PARTY = "feature"
"""Stands for the one feature party that there is, whatever its name."""


def read_view(path: Path, party: str, name: str | None = None, *, memory: Memory | None = None) -> RunView:
    """Return the view of a run for a party; nothing in that of a feature party depends on true labels.

    A feature party's own folder says what it knows. Where only the label party's is, the view is what that party can
    hand over. `memory` is what runs remember of vaults, by default this one and those beside it.
    """
    if party == LABEL_PARTY:
        return read_run(path, name, memory=memory)
    run = RunFolder(path)
    party = _named(run, party)
    if run.label.is_dir() and not run.party(party).is_dir() and party in feature_party_names(run.job().data):
        return read_handed_view(path, party, name, memory=memory)
    return read_feature_run(path, party, name)


def _named(run: RunFolder, party: str) -> str:
    names = feature_party_names(run.job().data)
    if party != ANY_FEATURE_PARTY or party in names:
        return party
    there = [name for name in names if run.party(name).is_dir()] or list(names)
    if len(there) > 1:
        raise RunError(f"{run.path}: which feature party? Name it with --for: {', '.join(there)}")
    return there[0]
