"""The errors that kafkasse reports to clients and operators, as one class hierarchy.

    KafkasseError                  500
    ├── BadRequest                 400
    │   ├── InvalidPosition        400   name "InvalidAssignmentError", as in KafkaSSE
    │   └── InvalidParameter       400
    │       └── InvalidFilter      400   the filter expression is invalid; has its position and a picture
    ├── Unauthorized               401   no guard of the route knows the visitor; has WWW-Authenticate
    ├── Forbidden                  403   the visitor may not read the route
    ├── NotFound                   404   the URL is unknown
    ├── TopicNotAvailable          404   the topic does not exist or is not allowed; the response is the same for both
    ├── MethodNotAllowed           405
    ├── NotAcceptable              406
    ├── RequestTooLarge            414   the request line is too long
    │   └── HeaderTooLarge         431   a header field is too long
    ├── TooManyStreams             429   this client has reached its limit; has Retry-After
    ├── TooManySelections          429   this client's address uses half of a limited number of places; has Retry-After
    ├── TooManyRejections          429   too many requests of this client were rejected; has Retry-After
    ├── ConfigurationError         500   the configuration is invalid
    ├── FilterError                500   a filterer raised an exception
    ├── Unavailable                503   temporary; has Retry-After
    │   ├── KafkaUnavailable       503
    │   ├── AccessUnavailable      503   a token cannot be checked now
    │   ├── ArchiveUnavailable     503   the archive of older records cannot be read now
    │   ├── RegistryUnavailable    503   the schema registry does not answer, or rejects our requests
    │   ├── ServerFull             503
    │   └── ServerStopping         503
    ├── KafkaTooOld                503   a broker does not support what kafkasse needs; permanent, but has Retry-After
    ├── TopicGone                  410   the topic was deleted while a client was reading it
    ├── OffsetGone                 410   the log no longer holds the records at an offset; has the next offset
    └── CommandError                     a command failed; the command line shows the message and exits with code 1

problem() returns the body of an HTTP error, which is also the data of an `error` event. It contains no stack trace, broker
address or secret: a message that may contain one goes to the log and not into `detail`.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from difflib import get_close_matches
from typing import Any, ClassVar

ID_TOO_LONG_ADVICE = "Request fewer topics, or switch on compact event IDs in the server's configuration (compact_ids)."

URN = "urn:kafkasse:problem:"

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
        cause: why the error occurs. The page of the error shows it.
        fix: how the client or the operator can correct it.
        reason: the cause, for the log and for commands; may be "". It may contain addresses, so clients never see it.
        headers: the HTTP header fields that the response needs.
    """

    status: ClassVar[int] = 500
    title: ClassVar[str] = "Internal error"
    name: ClassVar[str] = "KafkaSSEError"
    cause: ClassVar[str] = (
        "An unexpected error occurred in the server. The response does not contain the message of the error, because "
        "the message may contain a secret."
    )
    fix: ClassVar[str] = "Report `request_id` to the operator, who finds the error in the server's log."

    def __init__(self, detail: str, **extra: Any) -> None:
        super().__init__(detail)
        self.detail = detail
        self.extra = extra
        self.reason = ""
        self.headers: dict[str, str] = {}

    def problem(self, types: str = URN) -> dict[str, Any]:
        """Return this error as an RFC 9457 object with KafkaSSE's members `name`, `message` and `origin`.

        Args:
            types: the start of `type`: the URL path of the pages that describe the errors, or URN if the path is unknown.
        """
        return {
            "type": types + page_name(type(self)),
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
    cause = "The request is not valid HTTP, or the stream has so many partitions that its event IDs would be too long."
    fix = "Read `detail`. Send a valid request, or request fewer topics."


class InvalidPosition(BadRequest):
    title = "Invalid Last-Event-ID"
    name = "InvalidAssignmentError"
    cause = (
        "The event ID is not valid, or it names a partition that does not exist or an offset beyond the end "
        "of its partition."
    )
    fix = (
        "Send an event ID exactly as you received it. Without a valid one, start without an event ID or at a "
        "time (`?since=`)."
    )


class InvalidParameter(BadRequest):
    title = "Invalid query parameter"
    name = "InvalidParameterError"
    cause = "A query parameter or the path is not valid, or the request names too many topics."
    fix = "Correct the parameter that `detail` names."


class InvalidFilter(InvalidParameter):
    title = "Invalid filter"
    name = "InvalidFilterError"
    cause = "The filter expression (`?filter=`) is not valid CEL, or it exceeds a limit on expressions."
    fix = "Correct the expression. `reason` says what is wrong, `line` and `column` say where, and `picture` shows it."


class NotFound(KafkasseError):
    status = 404
    title = "Not found"
    name = "NotFoundError"
    cause = "The server has no stream, page or document at this URL."
    fix = "Correct the URL. If the server has a catalog, `/-/catalog` lists its streams."


class _WithChallenge(KafkasseError):
    """An error with WWW-Authenticate, which says how a client can identify itself; "" if it cannot."""

    def __init__(self, detail: str, challenge: str = "", **extra: Any) -> None:
        super().__init__(detail, **extra)
        if challenge:
            self.headers["WWW-Authenticate"] = challenge


class Unauthorized(_WithChallenge):
    status = 401
    title = "Unauthorized"
    name = "UnauthorizedError"
    cause = (
        "The stream needs a token or a login, or the token is not valid, for example because it has expired or belongs "
        "to a guard of another stream."
    )
    fix = (
        "Log in, or send a valid token. `WWW-Authenticate` names the guards of the stream, and `detail` says what is "
        "wrong."
    )


class Forbidden(_WithChallenge):
    status = 403
    title = "Forbidden"
    name = "ForbiddenError"
    cause = (
        "The server knows who you are, but you may not read this stream, or a page of another origin sent the cookie."
    )
    fix = "Use a token with the necessary claims, or ask the operator for access."


class TopicNotAvailable(KafkasseError):
    status = 404
    title = "Topic not available"
    name = "TopicNotAvailableError"
    cause = (
        "A topic does not exist, or the server does not allow it. The response does not say which, so that "
        "nobody can search for topics."
    )
    fix = "Check the spelling of the topics in `topics`. Ask the operator to allow them."


class MethodNotAllowed(KafkasseError):
    status = 405
    title = "Method not allowed"
    name = "MethodNotAllowedError"
    cause = "The method is not GET, HEAD or OPTIONS. Some libraries send POST to read a stream."
    fix = (
        "Send a GET request without a body. If you sent POST, `instead` is the request to send: put "
        "parameters into the query and the event ID into the header `Last-Event-ID`."
    )

    def __init__(self, detail: str, *, allow: str = "GET, HEAD, OPTIONS", **extra: Any) -> None:
        super().__init__(detail, **extra)
        self.headers["Allow"] = allow


class NotAcceptable(KafkasseError):
    status = 406
    title = "Not acceptable"
    name = "NotAcceptableError"
    cause = "The header `Accept` excludes all content types that the server offers."
    fix = "Send `Accept: text/event-stream` or one of the types in `offered`."


class RequestTooLarge(KafkasseError):
    status = 414
    title = "Request line too long"
    name = "RequestTooLargeError"
    cause = "The request line, or an event ID in the query, is too long."
    fix = (
        "Send the event ID in the header `Last-Event-ID`, request fewer topics, or ask the operator to set "
        "`compact_ids`."
    )


class HeaderTooLarge(RequestTooLarge):
    status = 431
    title = "Header field too long"
    name = "HeaderTooLargeError"
    cause = "A header field is too long. Usually it is the event ID of a stream with many partitions."
    fix = "Request fewer topics, or ask the operator to set `compact_ids`."


class TopicGone(KafkasseError):
    status = 410
    title = "Topic deleted"
    name = "TopicGoneError"
    cause = (
        "The topic was deleted while the client was reading it, or it was recreated without the partitions "
        "that the client selected."
    )
    fix = "Start without an event ID, once the topic exists again."


class OffsetGone(KafkasseError):
    status = 410
    title = "Offset gone"
    name = "OffsetGoneError"
    cause = (
        "The records at the requested offset no longer exist: Kafka's retention has removed them, the log was truncated, or "
        "the topic was deleted and recreated."
    )
    fix = "`gaps` says what is missing. Continue at `next_offset`, or start again with `offset=-1`."


class ConfigurationError(KafkasseError):
    title = "Invalid server configuration"
    name = "ConfigurationError"
    cause = "Kafka rejects the server's credentials or settings, or the app runs under a web server without gevent."
    fix = "The operator finds the setting to correct in the server's log."


class FilterError(KafkasseError):
    """A filterer raised an exception, which is the cause of this error.

    Attributes:
        record: the topic, partition and offset of the record.
        is_logged: whether the cause has been logged. All streams of a feed share one error, so only one of them logs it.
    """

    title = "Filter failed"
    name = "FilterError"
    cause = (
        "The server's filter failed for a record. The stream ended, because the filter did not decide about the record."
    )
    fix = "The operator finds the record and the line that failed in the server's log."
    record = ""
    is_logged = False


class _WithRetryAfter(KafkasseError):
    def __init__(self, detail: str, *, retry_after_s: int = 5, **extra: Any) -> None:
        super().__init__(detail, **extra)
        self.headers["Retry-After"] = str(retry_after_s)


class TooManyStreams(_WithRetryAfter):
    status = 429
    title = "Too many streams"
    name = "TooManyStreamsError"
    cause = "This client has as many open streams as the server allows (`max_streams_per_client`)."
    fix = (
        "Close a stream, or wait as long as `Retry-After` says. Read several topics over one stream. Share "
        "one stream among the tabs of a browser."
    )


class TooManySelections(_WithRetryAfter):
    status = 429
    title = "Too many selections"
    name = "TooManySelectionsError"
    cause = (
        "The streams of this client's address have as many different filters, or selections of topics, as the server "
        "allows for one address: half of `max_client_filters`, or 500 selections of topics."
    )
    fix = (
        "Close a stream, or wait as long as `Retry-After` says. Use the same filters and topics in several streams. If all "
        "clients seem to have one address, the operator sets `trusted_proxies`."
    )


class TooManyRejections(_WithRetryAfter):
    status = 429
    title = "Too many rejected requests"
    name = "TooManyRejectionsError"
    cause = "The client repeats requests that the server rejects."
    fix = "Correct the request. Wait as long as `Retry-After` says."


class Unavailable(_WithRetryAfter):
    status = 503
    title = "Temporarily unavailable"
    name = "UnavailableError"
    cause = "The server cannot open the stream now."
    fix = "Wait as long as `Retry-After` says, then retry."


class KafkaUnavailable(Unavailable):
    title = "Kafka unavailable"
    name = "KafkaUnavailableError"
    cause = "Kafka does not respond."
    fix = "Wait as long as `Retry-After` says, then retry. The operator checks the brokers and the network."


class KafkaTooOld(_WithRetryAfter):
    status = 503
    title = "Kafka too old"
    name = "KafkaTooOldError"
    cause = (
        "Kafka is older than version 0.11, or the service lacks a request of Kafka's protocol that the server needs."
    )
    fix = "The operator upgrades Kafka. The server's log names the request."


class AccessUnavailable(Unavailable):
    title = "Access check unavailable"
    name = "AccessUnavailableError"
    cause = "The server cannot check tokens, for example because the keys of their issuer are unavailable."
    fix = "Wait as long as `Retry-After` says, then retry. The server's log has the reason."


class ArchiveUnavailable(Unavailable):
    title = "Archive unavailable"
    name = "ArchiveUnavailableError"
    cause = (
        "The stream starts before the oldest record in Kafka, and the server cannot read its archive of older records."
    )
    fix = "Wait as long as `Retry-After` says, then retry, or start later. The server's log has the reason."


class RegistryUnavailable(Unavailable):
    title = "Schema registry unavailable"
    name = "RegistryUnavailableError"
    cause = "The server cannot read the schemas of the records, because the schema registry is unavailable."
    fix = "Wait as long as `Retry-After` says, then reconnect. The server's log has the reason."


class ServerFull(Unavailable):
    title = "Server full"
    name = "ServerFullError"
    cause = "The server has as many open streams, streams of as many different selections, or open files as it allows."
    fix = "Wait as long as `Retry-After` says, then retry. The operator adds workers or raises `max_streams` or `ulimit -n`."


class ServerStopping(Unavailable):
    title = "Server stopping"
    name = "ServerStoppingError"
    cause = "The server is stopping, for example because a new version starts."
    fix = "Wait as long as `Retry-After` says, then retry."


class CommandError(KafkasseError):
    """A command failed. The terminal shows only `detail`, so `detail` says how to fix the problem."""

    title = "Command failed"
    name = "CommandError"
    cause = "A command of the command line failed. The server never sends this error."
    fix = "Follow the message of the command."


def did_you_mean(name: str, known: Iterable[str]) -> str:
    """Return ` (did you mean NAME?)` with the known name that is most similar to `name`, or ""."""
    close = get_close_matches(name, list(known), 1)
    return f" (did you mean {close[0]}?)" if close else ""


def page_name(error_class: type[KafkasseError]) -> str:
    """Return the last part of an error's `type`, which is the name of its page: "bad-request" for BadRequest."""
    words = "".join(f"-{letter.lower()}" if letter.isupper() else letter for letter in error_class.__name__)
    return words.lstrip("-")


def pages() -> dict[str, type[KafkasseError]]:
    """Return the class of each error that a server can send, by the name of its page."""
    return {page_name(error): error for error in documented() if error is not CommandError}


def documented(root: type[KafkasseError] = KafkasseError) -> Iterator[type[KafkasseError]]:
    """Yield the classes of all errors, in the order of the diagram at the top of this module.

    Errors that only commands raise are represented by CommandError.
    """
    if not root.__name__.startswith("_"):
        yield root
    if root is not CommandError:
        for subclass in root.__subclasses__():
            yield from documented(subclass)
