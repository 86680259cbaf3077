from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from typing import ClassVar as _ClassVar, Optional as _Optional

DESCRIPTOR: _descriptor.FileDescriptor

class ScoreRequest(_message.Message):
    __slots__ = ("party", "version", "key", "records", "numbers")
    PARTY_FIELD_NUMBER: _ClassVar[int]
    VERSION_FIELD_NUMBER: _ClassVar[int]
    KEY_FIELD_NUMBER: _ClassVar[int]
    RECORDS_FIELD_NUMBER: _ClassVar[int]
    NUMBERS_FIELD_NUMBER: _ClassVar[int]
    party: str
    version: str
    key: str
    records: int
    numbers: bytes
    def __init__(
        self,
        party: _Optional[str] = ...,
        version: _Optional[str] = ...,
        key: _Optional[str] = ...,
        records: _Optional[int] = ...,
        numbers: _Optional[bytes] = ...,
    ) -> None: ...

class ScoreAnswer(_message.Message):
    __slots__ = ("scores",)
    SCORES_FIELD_NUMBER: _ClassVar[int]
    scores: bytes
    def __init__(self, scores: _Optional[bytes] = ...) -> None: ...
