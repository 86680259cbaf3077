"""The label party's file: the shelf of each paragraph."""

from library import paragraphs


class Shelves:
    """The shelf of each paragraph, under the feature party's ids."""

    def __init__(self) -> None:
        found = paragraphs()
        self.ids = [paragraph.id for paragraph in found]
        self.labels = [paragraph.shelf for paragraph in found]
