"""Everything that kafkasse may have to tell a stranger has gone wrong, as one tree.

    KafkasseError                  500
    ├── BadRequest                 400
    │   ├── InvalidPosition        400   name "InvalidAssignmentError"
    │   └── InvalidParameter       400
    ├── TopicNotAvailable          404   does not exist or is not allowed: nobody is told which
    ├── MethodNotAllowed           405
    ├── NotAcceptable              406
    ├── RequestTooLarge            414   the request line
    │   └── HeaderTooLarge         431   a header field
    ├── TooManyStreams             429   this client has its share
    ├── ConfigurationError         500   what the operator wrote cannot work
    ├── FilterError                500   a filterer raised: the stream cannot know what it may show
    ├── Unavailable                503   come back later: Retry-After says when
    │   ├── KafkaUnavailable       503
    │   ├── ServerFull             503
    │   └── ServerStopping         503
    ├── TopicGone                  410   deleted while it was being read
    └── CommandError                     the command line: one clear sentence, exit code 1

The body of an HTTP error and the data of an `error` event are the same object, `problem()`. It holds no stack trace, no
broker address and no secret: a message that could hold one goes to the log, never into `detail`.
"""

from __future__ import annotations

from typing import Any, ClassVar


class KafkasseError(Exception):
    """The root. `detail` is a sentence for the person at the other end; `extra` what a program needs to mend its request."""

    status: ClassVar[int] = 500
    title: ClassVar[str] = "Internal error"
    name: ClassVar[str] = "KafkaSSEError"

    def __init__(self, detail: str, **extra: Any) -> None:
        super().__init__(detail)
        self.detail = detail
        self.extra = extra

    @property
    def headers(self) -> dict[str, str]:
        """HTTP header fields that belong to this error."""
        return {}

    def problem(self) -> dict[str, Any]:
        """This error as an object of RFC 9457, with KafkaSSE's `name`, `message` and `origin` beside it."""
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
    title = "The request cannot be understood"
    name = "BadRequestError"


class InvalidPosition(BadRequest):
    title = "Last-Event-ID is not a position"
    name = "InvalidAssignmentError"


class InvalidParameter(BadRequest):
    title = "A query parameter is not valid"
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
    title = "No format that you accept"
    name = "NotAcceptableError"


class RequestTooLarge(KafkasseError):
    status = 414
    title = "The request is too large"
    name = "RequestTooLargeError"


class HeaderTooLarge(RequestTooLarge):
    status = 431
    title = "A header field is too large"
    name = "HeaderTooLargeError"


class TopicGone(KafkasseError):
    status = 410
    title = "The topic was deleted"
    name = "TopicGoneError"


class ConfigurationError(KafkasseError):
    title = "The server is not configured to answer this"
    name = "ConfigurationError"


class FilterError(KafkasseError):
    title = "The filter failed"
    name = "FilterError"


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


class Unavailable(_WithRetryAfter):
    status = 503
    title = "Not available now"
    name = "UnavailableError"


class KafkaUnavailable(Unavailable):
    title = "Kafka cannot be reached"
    name = "KafkaUnavailableError"


class ServerFull(Unavailable):
    title = "The server has as many streams as it may have"
    name = "ServerFullError"


class ServerStopping(Unavailable):
    title = "The server is stopping"
    name = "ServerStoppingError"


class CommandError(KafkasseError):
    """A command cannot go on. `detail` is all that the person in front of the terminal sees, so it says what to do."""

    title = "Command failed"
    name = "CommandError"


def problem_type(class_name: str) -> str:
    """The `type` of a problem: NotFound is urn:kafkasse:problem:not-found."""
    words = "".join(f"-{letter.lower()}" if letter.isupper() else letter for letter in class_name)
    return f"urn:kafkasse:problem:{words.lstrip('-')}"
