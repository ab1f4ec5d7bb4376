"""The errors that kafkasse reports to clients and operators, as one class hierarchy.

    KafkasseError                  500
    ├── BadRequest                 400
    │   ├── InvalidPosition        400   name "InvalidAssignmentError", as in KafkaSSE
    │   └── InvalidParameter       400
    ├── TopicNotAvailable          404   the topic does not exist or is not allowed; the response is the same for both
    ├── MethodNotAllowed           405
    ├── NotAcceptable              406
    ├── RequestTooLarge            414   the request line is too long
    │   └── HeaderTooLarge         431   a header field is too long
    ├── TooManyStreams             429   this client has reached its limit; has Retry-After
    ├── TooManyRejections          429   too many requests of this client were rejected; has Retry-After
    ├── ConfigurationError         500   the configuration is invalid
    ├── FilterError                500   a filterer raised an exception
    ├── Unavailable                503   temporary; has Retry-After
    │   ├── KafkaUnavailable       503
    │   ├── ServerFull             503
    │   └── ServerStopping         503
    ├── TopicGone                  410   the topic was deleted while a client was reading it
    └── CommandError                     a command failed; the command line shows the message and exits with code 1

problem() returns the body of an HTTP error, which is also the data of an `error` event. It contains no stack trace, broker
address or secret: a message that may contain one goes to the log and not into `detail`.
"""

from __future__ import annotations

from typing import Any, ClassVar

ID_TOO_LONG_ADVICE = "Request fewer topics, or switch on compact event IDs in the server's configuration (compact_ids)."

UNEXPECTED = "Internal error. The server's log has the details."


class KafkasseError(Exception):
    """The base class of all errors.

    Args:
        detail: one or two sentences for the person who reads the response.
        extra: further members of the body, which help a program to correct its request.

    Attributes:
        status: the HTTP status.
        title: the same short text for all errors of a class.
        name: KafkaSSE's name of the error. Clients compare it, so it never changes.
    """

    status: ClassVar[int] = 500
    title: ClassVar[str] = "Internal error"
    name: ClassVar[str] = "KafkaSSEError"

    def __init__(self, detail: str, **extra: Any) -> None:
        super().__init__(detail)
        self.detail = detail
        self.extra = extra

    @property
    def headers(self) -> dict[str, str]:
        """The HTTP header fields that the response needs."""
        return {}

    def problem(self) -> dict[str, Any]:
        """Return this error as an RFC 9457 object with KafkaSSE's members `name`, `message` and `origin`."""
        return {
            "type": problem_type(type(self).__name__),
            "title": self.title,
            "status": self.status,
            "detail": self.detail,
            "name": self.name,
            "message": self.detail,
            "origin": "KafkaSSE",
            **self.extra,
        }


class BadRequest(KafkasseError):
    status = 400
    title = "Bad request"
    name = "BadRequestError"


class InvalidPosition(BadRequest):
    title = "Invalid Last-Event-ID"
    name = "InvalidAssignmentError"


class InvalidParameter(BadRequest):
    title = "Invalid query parameter"
    name = "InvalidParameterError"


class TopicNotAvailable(KafkasseError):
    status = 404
    title = "Topic not available"
    name = "TopicNotAvailableError"


class MethodNotAllowed(KafkasseError):
    status = 405
    title = "Method not allowed"
    name = "MethodNotAllowedError"

    @property
    def headers(self) -> dict[str, str]:
        return {"Allow": "GET, HEAD, OPTIONS"}


class NotAcceptable(KafkasseError):
    status = 406
    title = "Not acceptable"
    name = "NotAcceptableError"


class RequestTooLarge(KafkasseError):
    status = 414
    title = "Request line too long"
    name = "RequestTooLargeError"


class HeaderTooLarge(RequestTooLarge):
    status = 431
    title = "Header field too long"
    name = "HeaderTooLargeError"


class TopicGone(KafkasseError):
    status = 410
    title = "Topic deleted"
    name = "TopicGoneError"


class ConfigurationError(KafkasseError):
    title = "Invalid server configuration"
    name = "ConfigurationError"


class FilterError(KafkasseError):
    """A filterer raised an exception, which is the cause of this error.

    Attributes:
        record: the topic, partition and offset of the record.
        is_logged: whether the cause has been logged. All streams of a feed share one error, so only one of them logs it.
    """

    title = "Filter failed"
    name = "FilterError"
    record = ""
    is_logged = False


class _WithRetryAfter(KafkasseError):
    def __init__(self, detail: str, *, retry_after_s: int = 5, **extra: Any) -> None:
        super().__init__(detail, **extra)
        self.retry_after_s = retry_after_s

    @property
    def headers(self) -> dict[str, str]:
        return {"Retry-After": str(self.retry_after_s)}


class TooManyStreams(_WithRetryAfter):
    status = 429
    title = "Too many streams"
    name = "TooManyStreamsError"


class TooManyRejections(_WithRetryAfter):
    status = 429
    title = "Too many rejected requests"
    name = "TooManyRejectionsError"


class Unavailable(_WithRetryAfter):
    status = 503
    title = "Temporarily unavailable"
    name = "UnavailableError"


class KafkaUnavailable(Unavailable):
    title = "Kafka unavailable"
    name = "KafkaUnavailableError"


class ServerFull(Unavailable):
    title = "Server full"
    name = "ServerFullError"


class ServerStopping(Unavailable):
    title = "Server stopping"
    name = "ServerStoppingError"


class CommandError(KafkasseError):
    """A command failed. The terminal shows only `detail`, so `detail` says how to fix the problem."""

    title = "Command failed"
    name = "CommandError"


def problem_type(class_name: str) -> str:
    """Return the `type` of an error class: "urn:kafkasse:problem:bad-request" for BadRequest."""
    words = "".join(f"-{letter.lower()}" if letter.isupper() else letter for letter in class_name)
    return f"urn:kafkasse:problem:{words.lstrip('-')}"
