"""Sums of encrypted labels: the label party learns nothing of the features, the feature party only noisy sums."""


class BlindError(ValueError):
    """What the other side sent is not what the blind statistic asks for; `code` says what."""

    def __init__(self, code: str, sentence: str) -> None:
        super().__init__(sentence)
        self.code = code
