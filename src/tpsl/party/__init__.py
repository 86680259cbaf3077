"""What one side does in one step: pure computation, no sockets, no files."""

from tpsl.party.feature_party import FeatureParty
from tpsl.party.label_party import LabelParty

__all__ = ["FeatureParty", "LabelParty"]
