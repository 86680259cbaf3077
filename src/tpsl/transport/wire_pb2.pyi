from google.protobuf.internal import containers as _containers
from google.protobuf.internal import enum_type_wrapper as _enum_type_wrapper
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class Dtype(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    DTYPE_UNSPECIFIED: _ClassVar[Dtype]
    FLOAT32: _ClassVar[Dtype]
    BFLOAT16: _ClassVar[Dtype]
    FLOAT16: _ClassVar[Dtype]
    UINT8: _ClassVar[Dtype]
    INT8: _ClassVar[Dtype]
DTYPE_UNSPECIFIED: Dtype
FLOAT32: Dtype
BFLOAT16: Dtype
FLOAT16: Dtype
UINT8: Dtype
INT8: Dtype

class Frame(_message.Message):
    __slots__ = ("header", "payload")
    HEADER_FIELD_NUMBER: _ClassVar[int]
    PAYLOAD_FIELD_NUMBER: _ClassVar[int]
    header: Header
    payload: bytes
    def __init__(self, header: _Optional[_Union[Header, _Mapping]] = ..., payload: _Optional[bytes] = ...) -> None: ...

class Header(_message.Message):
    __slots__ = ("sequence", "acknowledged", "hello", "challenge", "proof", "welcome", "refusal", "heartbeat", "tensor", "rewind", "position", "start", "finished", "bye", "stop", "verdict", "announcement")
    SEQUENCE_FIELD_NUMBER: _ClassVar[int]
    ACKNOWLEDGED_FIELD_NUMBER: _ClassVar[int]
    HELLO_FIELD_NUMBER: _ClassVar[int]
    CHALLENGE_FIELD_NUMBER: _ClassVar[int]
    PROOF_FIELD_NUMBER: _ClassVar[int]
    WELCOME_FIELD_NUMBER: _ClassVar[int]
    REFUSAL_FIELD_NUMBER: _ClassVar[int]
    HEARTBEAT_FIELD_NUMBER: _ClassVar[int]
    TENSOR_FIELD_NUMBER: _ClassVar[int]
    REWIND_FIELD_NUMBER: _ClassVar[int]
    POSITION_FIELD_NUMBER: _ClassVar[int]
    START_FIELD_NUMBER: _ClassVar[int]
    FINISHED_FIELD_NUMBER: _ClassVar[int]
    BYE_FIELD_NUMBER: _ClassVar[int]
    STOP_FIELD_NUMBER: _ClassVar[int]
    VERDICT_FIELD_NUMBER: _ClassVar[int]
    ANNOUNCEMENT_FIELD_NUMBER: _ClassVar[int]
    sequence: int
    acknowledged: int
    hello: Hello
    challenge: Challenge
    proof: Proof
    welcome: Welcome
    refusal: Refusal
    heartbeat: Heartbeat
    tensor: Tensor
    rewind: Rewind
    position: Position
    start: Start
    finished: Finished
    bye: Bye
    stop: Stop
    verdict: Verdict
    announcement: Announcement
    def __init__(self, sequence: _Optional[int] = ..., acknowledged: _Optional[int] = ..., hello: _Optional[_Union[Hello, _Mapping]] = ..., challenge: _Optional[_Union[Challenge, _Mapping]] = ..., proof: _Optional[_Union[Proof, _Mapping]] = ..., welcome: _Optional[_Union[Welcome, _Mapping]] = ..., refusal: _Optional[_Union[Refusal, _Mapping]] = ..., heartbeat: _Optional[_Union[Heartbeat, _Mapping]] = ..., tensor: _Optional[_Union[Tensor, _Mapping]] = ..., rewind: _Optional[_Union[Rewind, _Mapping]] = ..., position: _Optional[_Union[Position, _Mapping]] = ..., start: _Optional[_Union[Start, _Mapping]] = ..., finished: _Optional[_Union[Finished, _Mapping]] = ..., bye: _Optional[_Union[Bye, _Mapping]] = ..., stop: _Optional[_Union[Stop, _Mapping]] = ..., verdict: _Optional[_Union[Verdict, _Mapping]] = ..., announcement: _Optional[_Union[Announcement, _Mapping]] = ...) -> None: ...

class Hello(_message.Message):
    __slots__ = ("party", "nonce", "fields")
    PARTY_FIELD_NUMBER: _ClassVar[int]
    NONCE_FIELD_NUMBER: _ClassVar[int]
    FIELDS_FIELD_NUMBER: _ClassVar[int]
    party: str
    nonce: bytes
    fields: _containers.RepeatedCompositeFieldContainer[Field]
    def __init__(self, party: _Optional[str] = ..., nonce: _Optional[bytes] = ..., fields: _Optional[_Iterable[_Union[Field, _Mapping]]] = ...) -> None: ...

class Challenge(_message.Message):
    __slots__ = ("nonce", "fields")
    NONCE_FIELD_NUMBER: _ClassVar[int]
    FIELDS_FIELD_NUMBER: _ClassVar[int]
    nonce: bytes
    fields: _containers.RepeatedCompositeFieldContainer[Field]
    def __init__(self, nonce: _Optional[bytes] = ..., fields: _Optional[_Iterable[_Union[Field, _Mapping]]] = ...) -> None: ...

class Proof(_message.Message):
    __slots__ = ("proof", "link", "received", "worker")
    PROOF_FIELD_NUMBER: _ClassVar[int]
    LINK_FIELD_NUMBER: _ClassVar[int]
    RECEIVED_FIELD_NUMBER: _ClassVar[int]
    WORKER_FIELD_NUMBER: _ClassVar[int]
    proof: bytes
    link: bytes
    received: int
    worker: Worker
    def __init__(self, proof: _Optional[bytes] = ..., link: _Optional[bytes] = ..., received: _Optional[int] = ..., worker: _Optional[_Union[Worker, _Mapping]] = ...) -> None: ...

class Worker(_message.Message):
    __slots__ = ("number", "count", "crew")
    NUMBER_FIELD_NUMBER: _ClassVar[int]
    COUNT_FIELD_NUMBER: _ClassVar[int]
    CREW_FIELD_NUMBER: _ClassVar[int]
    number: int
    count: int
    crew: bytes
    def __init__(self, number: _Optional[int] = ..., count: _Optional[int] = ..., crew: _Optional[bytes] = ...) -> None: ...

class Welcome(_message.Message):
    __slots__ = ("proof", "link", "received", "worker")
    PROOF_FIELD_NUMBER: _ClassVar[int]
    LINK_FIELD_NUMBER: _ClassVar[int]
    RECEIVED_FIELD_NUMBER: _ClassVar[int]
    WORKER_FIELD_NUMBER: _ClassVar[int]
    proof: bytes
    link: bytes
    received: int
    worker: Worker
    def __init__(self, proof: _Optional[bytes] = ..., link: _Optional[bytes] = ..., received: _Optional[int] = ..., worker: _Optional[_Union[Worker, _Mapping]] = ...) -> None: ...

class Refusal(_message.Message):
    __slots__ = ("reason",)
    REASON_FIELD_NUMBER: _ClassVar[int]
    reason: str
    def __init__(self, reason: _Optional[str] = ...) -> None: ...

class Field(_message.Message):
    __slots__ = ("name", "value")
    NAME_FIELD_NUMBER: _ClassVar[int]
    VALUE_FIELD_NUMBER: _ClassVar[int]
    name: str
    value: str
    def __init__(self, name: _Optional[str] = ..., value: _Optional[str] = ...) -> None: ...

class Heartbeat(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class Tensor(_message.Message):
    __slots__ = ("topic", "step", "part", "rows", "width", "dtype")
    TOPIC_FIELD_NUMBER: _ClassVar[int]
    STEP_FIELD_NUMBER: _ClassVar[int]
    PART_FIELD_NUMBER: _ClassVar[int]
    ROWS_FIELD_NUMBER: _ClassVar[int]
    WIDTH_FIELD_NUMBER: _ClassVar[int]
    DTYPE_FIELD_NUMBER: _ClassVar[int]
    topic: str
    step: int
    part: int
    rows: int
    width: int
    dtype: Dtype
    def __init__(self, topic: _Optional[str] = ..., step: _Optional[int] = ..., part: _Optional[int] = ..., rows: _Optional[int] = ..., width: _Optional[int] = ..., dtype: _Optional[_Union[Dtype, str]] = ...) -> None: ...

class Rewind(_message.Message):
    __slots__ = ("round",)
    ROUND_FIELD_NUMBER: _ClassVar[int]
    round: int
    def __init__(self, round: _Optional[int] = ...) -> None: ...

class Position(_message.Message):
    __slots__ = ("round", "checkpoints")
    ROUND_FIELD_NUMBER: _ClassVar[int]
    CHECKPOINTS_FIELD_NUMBER: _ClassVar[int]
    round: int
    checkpoints: _containers.RepeatedScalarFieldContainer[int]
    def __init__(self, round: _Optional[int] = ..., checkpoints: _Optional[_Iterable[int]] = ...) -> None: ...

class Start(_message.Message):
    __slots__ = ("round", "step", "division")
    ROUND_FIELD_NUMBER: _ClassVar[int]
    STEP_FIELD_NUMBER: _ClassVar[int]
    DIVISION_FIELD_NUMBER: _ClassVar[int]
    round: int
    step: int
    division: int
    def __init__(self, round: _Optional[int] = ..., step: _Optional[int] = ..., division: _Optional[int] = ...) -> None: ...

class Verdict(_message.Message):
    __slots__ = ("step", "best", "stop")
    STEP_FIELD_NUMBER: _ClassVar[int]
    BEST_FIELD_NUMBER: _ClassVar[int]
    STOP_FIELD_NUMBER: _ClassVar[int]
    step: int
    best: bool
    stop: bool
    def __init__(self, step: _Optional[int] = ..., best: _Optional[bool] = ..., stop: _Optional[bool] = ...) -> None: ...

class Announcement(_message.Message):
    __slots__ = ("identity", "records")
    IDENTITY_FIELD_NUMBER: _ClassVar[int]
    RECORDS_FIELD_NUMBER: _ClassVar[int]
    identity: bytes
    records: _containers.RepeatedScalarFieldContainer[int]
    def __init__(self, identity: _Optional[bytes] = ..., records: _Optional[_Iterable[int]] = ...) -> None: ...

class Finished(_message.Message):
    __slots__ = ("step",)
    STEP_FIELD_NUMBER: _ClassVar[int]
    step: int
    def __init__(self, step: _Optional[int] = ...) -> None: ...

class Bye(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class Stop(_message.Message):
    __slots__ = ("reason",)
    REASON_FIELD_NUMBER: _ClassVar[int]
    reason: str
    def __init__(self, reason: _Optional[str] = ...) -> None: ...
