"""tpsl: transcript private split learning.

Two organisations train one network, one with the features, one with the labels; what crosses the border is
differentially private in each label.
"""

__version__ = "0.1.0"
