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

class Header(_message.Message):
    __slots__ = ("session", "number", "step", "part", "pending", "numbers", "secret", "fields", "text", "tensor")
    SESSION_FIELD_NUMBER: _ClassVar[int]
    NUMBER_FIELD_NUMBER: _ClassVar[int]
    STEP_FIELD_NUMBER: _ClassVar[int]
    PART_FIELD_NUMBER: _ClassVar[int]
    PENDING_FIELD_NUMBER: _ClassVar[int]
    NUMBERS_FIELD_NUMBER: _ClassVar[int]
    SECRET_FIELD_NUMBER: _ClassVar[int]
    FIELDS_FIELD_NUMBER: _ClassVar[int]
    TEXT_FIELD_NUMBER: _ClassVar[int]
    TENSOR_FIELD_NUMBER: _ClassVar[int]
    session: bytes
    number: int
    step: int
    part: int
    pending: bool
    numbers: _containers.RepeatedScalarFieldContainer[int]
    secret: bytes
    fields: _containers.RepeatedCompositeFieldContainer[Field]
    text: str
    tensor: Tensor
    def __init__(
        self,
        session: _Optional[bytes] = ...,
        number: _Optional[int] = ...,
        step: _Optional[int] = ...,
        part: _Optional[int] = ...,
        pending: _Optional[bool] = ...,
        numbers: _Optional[_Iterable[int]] = ...,
        secret: _Optional[bytes] = ...,
        fields: _Optional[_Iterable[_Union[Field, _Mapping]]] = ...,
        text: _Optional[str] = ...,
        tensor: _Optional[_Union[Tensor, _Mapping]] = ...,
    ) -> None: ...

class Field(_message.Message):
    __slots__ = ("name", "value")
    NAME_FIELD_NUMBER: _ClassVar[int]
    VALUE_FIELD_NUMBER: _ClassVar[int]
    name: str
    value: str
    def __init__(self, name: _Optional[str] = ..., value: _Optional[str] = ...) -> None: ...

class Tensor(_message.Message):
    __slots__ = ("rows", "width", "dtype")
    ROWS_FIELD_NUMBER: _ClassVar[int]
    WIDTH_FIELD_NUMBER: _ClassVar[int]
    DTYPE_FIELD_NUMBER: _ClassVar[int]
    rows: int
    width: int
    dtype: Dtype
    def __init__(
        self, rows: _Optional[int] = ..., width: _Optional[int] = ..., dtype: _Optional[_Union[Dtype, str]] = ...
    ) -> None: ...
