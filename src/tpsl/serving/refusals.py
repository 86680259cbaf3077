"""Why a request is refused: the kinds of reasons, each with its status at the HTTP door and over gRPC."""

from __future__ import annotations

from enum import Enum
from http import HTTPStatus

from grpc import StatusCode


class Reason(Enum):
    """A kind of refusal. Metrics count refusals by the names here, in lower case."""

    MALFORMED = HTTPStatus.BAD_REQUEST, StatusCode.INVALID_ARGUMENT
    FORBIDDEN = HTTPStatus.FORBIDDEN, StatusCode.PERMISSION_DENIED
    NOT_FOUND = HTTPStatus.NOT_FOUND, StatusCode.NOT_FOUND
    KEY_IN_USE = HTTPStatus.CONFLICT, StatusCode.ALREADY_EXISTS
    TOO_LARGE = HTTPStatus.REQUEST_ENTITY_TOO_LARGE, StatusCode.OUT_OF_RANGE
    UNKNOWN_VERSION = HTTPStatus.PRECONDITION_FAILED, StatusCode.FAILED_PRECONDITION
    BAD_PEER = HTTPStatus.BAD_GATEWAY, StatusCode.INTERNAL
    BUSY = HTTPStatus.SERVICE_UNAVAILABLE, StatusCode.RESOURCE_EXHAUSTED
    UNREACHABLE = HTTPStatus.SERVICE_UNAVAILABLE, StatusCode.UNAVAILABLE
    TOO_LATE = HTTPStatus.GATEWAY_TIMEOUT, StatusCode.DEADLINE_EXCEEDED

    @property
    def http(self) -> HTTPStatus:
        """The status at the HTTP door."""
        return self.value[0]

    @property
    def grpc(self) -> StatusCode:
        """The status over gRPC."""
        return self.value[1]


class Refusal(Exception):
    """A request that is refused; the message is the sentence that the caller reads."""

    def __init__(self, reason: Reason, sentence: str) -> None:
        super().__init__(sentence)
        self.reason = reason
