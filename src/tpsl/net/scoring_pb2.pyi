from google.protobuf.internal import containers as _containers
from google.protobuf.internal import enum_type_wrapper as _enum_type_wrapper
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class ScoreRequest(_message.Message):
    __slots__ = ("party", "version", "shares")
    PARTY_FIELD_NUMBER: _ClassVar[int]
    VERSION_FIELD_NUMBER: _ClassVar[int]
    SHARES_FIELD_NUMBER: _ClassVar[int]
    party: str
    version: str
    shares: _containers.RepeatedCompositeFieldContainer[Share]
    def __init__(
        self,
        party: _Optional[str] = ...,
        version: _Optional[str] = ...,
        shares: _Optional[_Iterable[_Union[Share, _Mapping]]] = ...,
    ) -> None: ...

class Share(_message.Message):
    __slots__ = ("key", "records", "numbers")
    KEY_FIELD_NUMBER: _ClassVar[int]
    RECORDS_FIELD_NUMBER: _ClassVar[int]
    NUMBERS_FIELD_NUMBER: _ClassVar[int]
    key: str
    records: int
    numbers: bytes
    def __init__(
        self, key: _Optional[str] = ..., records: _Optional[int] = ..., numbers: _Optional[bytes] = ...
    ) -> None: ...

class ScoreAnswer(_message.Message):
    __slots__ = ("outcomes", "waits")
    OUTCOMES_FIELD_NUMBER: _ClassVar[int]
    WAITS_FIELD_NUMBER: _ClassVar[int]
    outcomes: _containers.RepeatedCompositeFieldContainer[Outcome]
    waits: bool
    def __init__(
        self, outcomes: _Optional[_Iterable[_Union[Outcome, _Mapping]]] = ..., waits: _Optional[bool] = ...
    ) -> None: ...

class Outcome(_message.Message):
    __slots__ = ("scores", "code", "sentence")
    SCORES_FIELD_NUMBER: _ClassVar[int]
    CODE_FIELD_NUMBER: _ClassVar[int]
    SENTENCE_FIELD_NUMBER: _ClassVar[int]
    scores: bytes
    code: int
    sentence: str
    def __init__(
        self, scores: _Optional[bytes] = ..., code: _Optional[int] = ..., sentence: _Optional[str] = ...
    ) -> None: ...

class HealthCheckRequest(_message.Message):
    __slots__ = ("service",)
    SERVICE_FIELD_NUMBER: _ClassVar[int]
    service: str
    def __init__(self, service: _Optional[str] = ...) -> None: ...

class HealthCheckResponse(_message.Message):
    __slots__ = ("status",)
    class ServingStatus(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
        __slots__ = ()
        UNKNOWN: _ClassVar[HealthCheckResponse.ServingStatus]
        SERVING: _ClassVar[HealthCheckResponse.ServingStatus]
        NOT_SERVING: _ClassVar[HealthCheckResponse.ServingStatus]
        SERVICE_UNKNOWN: _ClassVar[HealthCheckResponse.ServingStatus]

    UNKNOWN: HealthCheckResponse.ServingStatus
    SERVING: HealthCheckResponse.ServingStatus
    NOT_SERVING: HealthCheckResponse.ServingStatus
    SERVICE_UNKNOWN: HealthCheckResponse.ServingStatus
    STATUS_FIELD_NUMBER: _ClassVar[int]
    status: HealthCheckResponse.ServingStatus
    def __init__(self, status: _Optional[_Union[HealthCheckResponse.ServingStatus, str]] = ...) -> None: ...
