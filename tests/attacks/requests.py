"""Hostile requests, each with all answers that it must get. docs/attacks.md is made of this table.

The server shows `attacked` and `also-shown`; `hidden` exists and is not allowed; pages of https://a.example may read.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Iterable

from tests.attacks.kit import CLOSED, Case, request

STREAM = "200 stream"
POSITION = "400 InvalidAssignmentError"
PARAMETER = "400 InvalidParameterError"
NOT_HTTP = "400 BadRequestError"
NO_TOPIC = "404 TopicNotAvailableError"
NO_PATH = "404 NotFound"
NOTHING = "406 NotAcceptableError"
METHOD = "405 MethodNotAllowedError"
LINE_TOO_LONG = "414 RequestTooLargeError"
HEADER_TOO_LARGE = "431 HeaderTooLargeError"

ENTRY = '{"topic":"attacked","partition":0,"offset":0}'
THE_NEXT = request("/hidden")  # what a smuggler would have answered


def entry(**members: object) -> str:
    return json.dumps([{"topic": "attacked", "partition": 0, "offset": 0} | members])


def number(text: str) -> str:
    return f'[{{"topic":"attacked","partition":0,"offset":{text}}}]'


def compact(text: str) -> str:
    return "~" + base64.urlsafe_b64encode((text + " " * (-len(text) % 3)).encode()).decode()


def ids(*rows: tuple[str, str | bytes, str]) -> Iterable[Case]:
    for name, text, answer in rows:
        value = text if isinstance(text, bytes) else text.encode()
        yield Case(name, request("/attacked", b"Last-Event-ID: " + value), (answer,))


def paths(*rows: tuple[str, str | bytes, str]) -> Iterable[Case]:
    for name, path, answer in rows:
        yield Case(name, request(path), (answer,))


def fields(*rows: tuple[str, Iterable[str | bytes], str]) -> Iterable[Case]:
    for name, lines, answer in rows:
        yield Case(name, request("/attacked", *lines), (answer,))


POSITIONS = [
    *ids(
        ("nothing at all", "", POSITION),
        ("a word", "garbage", POSITION),
        ("JSON that was cut off", entry()[:-2], POSITION),
        ("JSON with a second value behind it", f"[{ENTRY}][]", POSITION),
        ("JSON with single quotes", "['attacked']", POSITION),
        ("JSON with a comment", '/**/["attacked"]', POSITION),
        ("null", "null", POSITION),
        ("a number", "5", POSITION),
        ("an object in place of the array", ENTRY, POSITION),
        ("an empty array", "[]", POSITION),
        ("an array in an array", '[["attacked"]]', POSITION),
        ("30,000 brackets that open", "[" * 30_000, POSITION),
        ("30,000 brackets that open and close", "[" * 30_000 + "]" * 30_000, POSITION),
        ("objects nested 5,000 deep", '[{"topic":' * 5000, POSITION),
        ("offset NaN", number("NaN"), POSITION),
        ("offset -Infinity", number("-Infinity"), POSITION),
        ("offset 1e999", number("1e999"), POSITION),
        ("offset 1.5", number("1.5"), POSITION),
        ("offset 1.0, whole but a float", number("1.0"), POSITION),
        ("offset -1", number("-1"), POSITION),
        ("offset true", number("true"), POSITION),
        ("offset null", number("null"), POSITION),
        ("offset as text", number('"0"'), POSITION),
        ("offset 007", number("007"), POSITION),
        ("offset 0x10", number("0x10"), POSITION),
        ("offset 2^63", entry(offset=2**63), POSITION),
        ("offset 2^63 - 1, beyond the end", entry(offset=2**63 - 1), POSITION),
        ("offset of 60,000 digits", number("9" * 60_000), POSITION),
        ("partition -1", entry(partition=-1), POSITION),
        ("partition 2^31", entry(partition=2**31), POSITION),
        ("partition 2^32, which some take for 0", entry(partition=2**32), POSITION),
        ("partition 2^64", entry(partition=2**64), POSITION),
        ("a partition that the topic lacks", entry(partition=2**31 - 1), POSITION),
        ("timestamp 2^63", entry(timestamp=2**63), POSITION),
        ("the last timestamp there is", '[{"topic":"attacked","partition":0,"timestamp":9223372036854775807}]', STREAM),
        ("one partition twice", f"[{ENTRY},{ENTRY}]", POSITION),
        ("one member twice", number('0,"offset":1'), POSITION),
        ("the topic twice, another one second", f'[{ENTRY[:-1]},"topic":"hidden"}}]', POSITION),
        ("the topic twice, the second name escaped", f'[{ENTRY[:-1]},"\\u0074opic":"hidden"}}]', POSITION),
        ("a member of its own making", entry(admin=True), POSITION),
        ("__proto__ for a member", entry(__proto__={"offset": 1}), POSITION),
        ("two topic_ids of one topic", f'[{ENTRY[:-1]},"topic_id":"x"}},{ENTRY[:-1].replace("0", "1", 1)},'
         '"topic_id":"y"}]', POSITION),
        ("an topic_id of 5,000 letters", entry(topic_id="a" * 5000), POSITION),
        ("an topic_id that never was: from the start", entry(topic_id="AAAAAAAA"), STREAM),
        ("3,000 names", json.dumps(["attacked"] * 3000, separators=(",", ":")), POSITION),
        ("1,300 partitions", json.dumps([json.loads(ENTRY) | {"partition": n} for n in range(1300)],
         separators=(",", ":")), POSITION),
        ("60 topics", json.dumps([f"t{n}" for n in range(60)]), PARAMETER),
        ("60,000 spaces before it", " " * 60_000 + '["attacked"]', STREAM),
        ("one byte more than may be", '["' + "a" * 65_533 + '"]', HEADER_TOO_LARGE),
        ("a topic that is not allowed", entry(topic="hidden"), NO_TOPIC),
        ("one that is and one that is not allowed", '["attacked","hidden"]', NO_TOPIC),
        ("Kafka's own topic", entry(topic="__consumer_offsets"), NO_TOPIC),
        ("another topic than the path's, allowed", '["also-shown"]', STREAM),
        ("a glob", '["*"]', POSITION),
        ("two dots for a topic", '[".."]', POSITION),
        ("a topic with a line break", '["attacked\\n"]', POSITION),
        ("a topic with an escaped NUL", '["attacked\\u0000"]', POSITION),
        ("a lone surrogate", '["\\ud800"]', POSITION),
        ("bytes that are not UTF-8", b'["\xff\xfe"]', POSITION),
        ("dots in overlong UTF-8", b'["\xc0\xae\xc0\xae"]', POSITION),
        ("a byte order mark", b'\xef\xbb\xbf["attacked"]', POSITION),
        ("UTF-16", '["attacked"]'.encode("utf-16-le"), NOT_HTTP),
        ("a raw tab within a name", '["\t"]', POSITION),
        ("a raw NUL", b'["\0"]', NOT_HTTP),
        ("an escape sequence of terminals", b'["\x1b[2J"]', NOT_HTTP),
        ("a script", "<script>alert(1)</script>", POSITION),
        ("compact: no base64", "~AA!A", POSITION),
        ("compact: nothing in it", "~", POSITION),
        ("compact: letters beyond ASCII", "~é", POSITION),
        ("compact: binary", "~_____w==", POSITION),
        ("compact: partition -1", compact("\nattacked i -1:0"), POSITION),
        ("compact: partition 2^32", compact("\nattacked i 4294967296:0"), POSITION),
        ("compact: an offset of 5,000 digits", compact("\nattacked i :" + "9" * 5000), POSITION),
        ("compact: digits of another script", compact("\nattacked i :\u0663"), POSITION),
        ("compact: a NUL in the topic", compact("\nattacked\0 i :0"), POSITION),
        ("compact: 5,000 partitions in few bytes", compact("\nattacked i " + ":0 " * 5000), POSITION),
        ("compact: a topic that is not allowed", compact("\nhidden i :0"), NO_TOPIC),
    ),
    Case("folded into two lines", request("/attacked", 'Last-Event-ID: ["attacked",\r\n "hidden"]'), (NOT_HTTP,)),
    Case("two fields, both whole", request("/attacked", *['Last-Event-ID: ["attacked"]'] * 2), (POSITION,)),
    Case(
        "one id over two fields, the second not allowed",
        request("/attacked", 'Last-Event-ID: ["attacked"', 'Last-Event-ID: "hidden"]'),
        (NO_TOPIC,),
    ),
    Case("Last_Event_ID, which proxies do not see", request("/attacked", 'Last_Event_ID: ["hidden"]'), (STREAM,)),
    Case(
        "one in the header, a hidden one in the query: the header's",
        request("/attacked?last_event_id=[%22hidden%22]", 'Last-Event-ID: ["attacked"]'),
        (STREAM,),
    ),
]  # fmt: skip

TOPICS = [
    *paths(
        ("unknown", "/unknown", NO_TOPIC),
        ("not allowed", "/hidden", NO_TOPIC),
        ("not allowed, beside one that is", "/attacked,hidden", NO_TOPIC),
        ("the comma escaped", "/attacked%2Chidden", NO_TOPIC),
        ("Kafka's own", "/__consumer_offsets", NO_TOPIC),
        ("Kafka's own, escaped", "/%5f%5fconsumer_offsets", NO_TOPIC),
        ("in capitals", "/ATTACKED", NO_TOPIC),
        ("a star", "/*", NO_TOPIC),
        ("a class of a glob", "/[a]ttacked", NO_TOPIC),
        ("the same twice", "/attacked,attacked", STREAM),
        ("empty, after a comma", "/attacked,", PARAMETER),
        ("only commas", "/,,,", PARAMETER),
        ("61 of them", "/" + ",".join(f"t{n}" for n in range(61)), PARAMETER),
        ("..", "/..", NO_TOPIC),
        (".. escaped", "/%2e%2e", NO_TOPIC),
        ("../hidden", "/../hidden", NO_PATH),
        ("..%2fhidden", "/..%2fhidden", NO_PATH),
        ("attacked/../hidden", "/attacked/../hidden", NO_PATH),
        ("a backslash", "/%5c..%5chidden", NO_TOPIC),
        ("escaped twice", "/%2568idden", NO_TOPIC),
        ("an escape cut off", "/attacked%", NO_TOPIC),
        ("an escape of another kind", "/attacked%u0061", NO_TOPIC),
        ("250 letters", "/" + "a" * 250, NO_TOPIC),
        ("5,000 letters", "/" + "a" * 5000, NO_TOPIC),
        ("a NUL", "/attacked%00", NO_TOPIC),
        ("a line break within", "/atta%0Acked", NO_TOPIC),
        ("white space around it is not its own", "/%20attacked%0A", STREAM),
        ("a response's header", "/attacked%0d%0aSet-Cookie:%20a=b", NO_TOPIC),
        ("an emoji", "/%F0%9F%98%80", NO_TOPIC),
        ("bytes that are not UTF-8", "/%FF%FE", NO_TOPIC),
        ("overlong UTF-8", "/%C0%AE%C0%AE", NO_TOPIC),
        ("text that runs from right to left", "/attacked%E2%80%AE", NO_TOPIC),
        ("bytes beyond ASCII, unescaped", b"/attack\xc3\xa9d", NOT_HTTP),
        ("a space, unescaped", "/attacked hidden", NOT_HTTP),
        ("a script", "/%3Cscript%3Ealert(1)%3C%2Fscript%3E", NO_PATH),
        ("a template", "/%7B%7B7*7%7D%7D", NO_TOPIC),
        ("a lookup of a logger", "/$%7Bjndi:ldap:x%7D", NO_TOPIC),
        ("a file of the page's folder's parent", "/-/page/../../streams.p", NO_PATH),
        ("the same, escaped", "/-/page/%2e%2e/%2e%2e/streams.p", NO_PATH),
        ("a file of the system: slashes are merged", "/-/page/%2fetc%2fpasswd", "308"),
        (".git/config", "/.git/config", NO_PATH),
    ),
]

QUERIES = [
    *paths(
        ("an unknown parameter", "/attacked?admin=1", STREAM),
        ("topics=hidden", "/attacked?topics=hidden", STREAM),
        ("a callback", "/attacked?callback=alert", STREAM),
        ("an object's parameter", "/attacked?timestamp[$gt]=0", STREAM),
        ("only marks", "/attacked?&&=&%&;", STREAM),
        ("7,000 letters", "/attacked?" + "a" * 7000, STREAM),
        ("1,000 parameters", "/attacked?" + "&".join(["a=1"] * 1000), STREAM),
        ("9,000 letters", "/attacked?" + "a" * 9000, LINE_TOO_LONG),
        ("an id that is not allowed", "/attacked?last_event_id=[%22hidden%22]", NO_TOPIC),
        ("an empty id", "/attacked?last_event_id=", POSITION),
        ("an id twice: the first", "/attacked?last_event_id=[%22hidden%22]&last_event_id=[%22attacked%22]", NO_TOPIC),
        ("an id with a line break", "/attacked?last_event_id=[%22%0d%0aid:0%22]", POSITION),
        ("an id that is not UTF-8", "/attacked?lastEventId=[%22%FF%22]", POSITION),
        ("timestamp, empty", "/attacked?timestamp=", PARAMETER),
        ("timestamp=-1", "/attacked?timestamp=-1", PARAMETER),
        ("timestamp=1e9", "/attacked?timestamp=1e9", PARAMETER),
        ("timestamp=NaN", "/attacked?timestamp=NaN", PARAMETER),
        ("timestamp, a superscript two", "/attacked?timestamp=%C2%B2", PARAMETER),
        ("timestamp of 5,000 digits", "/attacked?timestamp=" + "9" * 5000, PARAMETER),
        ("timestamp=2^63", "/attacked?timestamp=9223372036854775808", PARAMETER),
        ("since=NaN", "/attacked?since=NaN", PARAMETER),
        ("since, a NUL", "/attacked?since=%00", PARAMETER),
        ("since of 5,000 digits", "/attacked?since=" + "9" * 5000, PARAMETER),
        ("since the year 10000", "/attacked?since=10000-01-01", PARAMETER),
        ("timestamp and since", "/attacked?timestamp=0&since=2026-01-01", PARAMETER),
    ),
]

HEADERS = [
    *fields(
        ("101 fields", [f"X-{n}: 1" for n in range(101)], HEADER_TOO_LARGE),
        ("one of 70,000 bytes", ["X: " + "a" * 70_000], HEADER_TOO_LARGE),
        ("200,000 bytes together", ["X: " + "a" * 20_000] * 10, HEADER_TOO_LARGE),
        ("a name with a space", ["a b: c"], NOT_HTTP),
        ("a name with a letter beyond ASCII", ["ü: c"], NOT_HTTP),
        ("no name", [": c"], NOT_HTTP),
        ("no colon", ["abc"], NOT_HTTP),
        ("a space before the colon", ["Accept : text/html"], NOT_HTTP),
        ("a NUL in a value", ["X: a\0b"], NOT_HTTP),
        ("a CR in a value", ["X: a\rb"], NOT_HTTP),
        ("an LF in a value", ["X: a\nY: b"], NOT_HTTP),
        ("a second Host", ["Host: y"], NOT_HTTP),
        ("Accept: text/html", ["Accept: text/html"], NOTHING),
        ("Accept of 3,000 types", ["Accept: " + ",".join(["a/b;q=0.1"] * 3000)], NOTHING),
        ("Accept with a quality that is no number", ["Accept: text/event-stream;q=x"], NOTHING),
        ("Accept of quotes that never end", ['Accept: text/event-stream;a="' + '\\"' * 5000], NOTHING),
        ("Range of a stream", ["Range: bytes=0-0"], STREAM),
        ("If-None-Match: *", ["If-None-Match: *"], STREAM),
        ("a cookie of garbage", ["Cookie: ;;=;\xff=;a" + "=" * 5000], STREAM),
        ("Authorization of garbage", ["Authorization: Basic \xff\xff", "Authorization: Bearer"], STREAM),
        ("another method in X-HTTP-Method-Override", ["X-HTTP-Method-Override: DELETE"], STREAM),
        ("another path in X-Original-URL", ["X-Original-URL: /hidden", "X-Rewrite-URL: /hidden"], STREAM),
        ("another host in X-Forwarded-Host", ["X-Forwarded-Host: evil.example"], STREAM),
        ("another path in PATH_INFO", ["PATH_INFO: /hidden"], STREAM),
        ("a proxy's line before the request", ["X-Forwarded-For: ' OR 1=1 --, ::1, \t,,"], STREAM),
        ("an expectation that nobody meets", ["Expect: 200-ok"], NOT_HTTP),
        ("an upgrade to HTTP/2", ["Connection: Upgrade, HTTP2-Settings", "Upgrade: h2c", "HTTP2-Settings: AA"], STREAM),
        ("an upgrade to a WebSocket", ["Connection: Upgrade", "Upgrade: websocket"], "400 WebsocketMismatch"),
        ("the origin that is allowed", ["Origin: https://a.example"], f"{STREAM} for https://a.example"),
        ("Origin: null", ["Origin: null"], STREAM),
        ("Origin: *", ["Origin: *"], STREAM),
        ("an origin that begins alike", ["Origin: https://a.example.evil.example"], STREAM),
        ("an origin that ends alike", ["Origin: https://evil-a.example"], STREAM),
        ("the origin without TLS", ["Origin: http://a.example"], STREAM),
        ("the origin at another port", ["Origin: https://a.example:8443"], STREAM),
        ("the origin in capitals", ["Origin: HTTPS://A.EXAMPLE"], STREAM),
        ("the origin and another in one field", ["Origin: https://a.example https://evil.example"], STREAM),
        ("the origin and another in two fields", ["Origin: https://a.example", "Origin: https://evil.example"], STREAM),
        ("the origin as a user's name", ["Origin: https://a.example@evil.example"], STREAM),
    ),
    Case("another path by SCRIPT_NAME", request("/x/attacked", "SCRIPT_NAME: /x"), (NO_PATH,)),
]  # fmt: skip


def methods(*rows: tuple[str, str]) -> Iterable[Case]:
    for method, answer in rows:
        yield Case(method, request("/attacked", method=method), (answer,))


METHODS = [
    *methods(
        ("HEAD", STREAM),
        ("OPTIONS", "204"),
        ("POST", METHOD),
        ("PUT", METHOD),
        ("DELETE", METHOD),
        ("PATCH", METHOD),
        ("TRACE", "405 MethodNotAllowed"),
        ("PROPFIND", "405 MethodNotAllowed"),
        ("get", NOT_HTTP),
        ("G@T", NOT_HTTP),
        ("A" * 30, NOT_HTTP),
    ),
    Case("CONNECT elsewhere", request("evil.example:80", method="CONNECT"), ("405 MethodNotAllowed",)),
    Case("OPTIONS of everything", request("*", method="OPTIONS"), ("204",)),
    Case("GET of everything", request("*"), (NOT_HTTP,)),
    Case("HEAD of what is not allowed", request("/hidden", method="HEAD"), ("404",)),
    Case("OPTIONS tells no stranger what exists", request("/hidden", method="OPTIONS"), ("204",)),
    Case(
        "OPTIONS from an origin that is not allowed",
        request("/attacked", "Origin: https://evil.example", "Access-Control-Request-Method: GET", method="OPTIONS"),
        ("204",),
    ),
    Case("HTTP/1.0", b"GET /attacked HTTP/1.0\r\n\r\n", (STREAM,)),
    Case("HTTP/0.9", b"GET /attacked\r\n", (NOT_HTTP,)),
    Case("HTTP/1.10", b"GET /attacked HTTP/1.10\r\n\r\n", (NOT_HTTP,)),
    Case("HTTP/9.9", b"GET /attacked HTTP/9.9\r\n\r\n", (NOT_HTTP,)),
    Case("HTTP/2 without asking", b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\0\4\0\0\0\0\0", (NOT_HTTP,)),
    Case("TLS where there is none", b"\x16\x03\x01\x00\xc8\x01\x00\x00\xc4\x03\x03" + b"\0" * 200, (CLOSED,)),
    Case("TLS that happens to hold a line", b"\x16\x03\x01\x00\xc8\x01\x0a" + b"\0" * 200, (NOT_HTTP,)),
    Case("words", b"hello\r\n\r\n", (NOT_HTTP,)),
    Case("nothing", b"", (CLOSED,)),
    Case("half a request", request("/attacked")[:20], (CLOSED,)),
    Case("a request line of 10,000 bytes", request("/" + "a" * 10_000), (LINE_TOO_LONG,)),
    Case("a request line that never ends", b"GET /" + b"a" * 1_000_000, (LINE_TOO_LONG,)),
    Case("tabs in the request line", b"GET\t/attacked\tHTTP/1.1\r\n\r\n", (NOT_HTTP,)),
    Case("a space at the end of the request line", b"GET /attacked HTTP/1.1 \r\n\r\n", (NOT_HTTP,)),
    Case("another host in the request line", request("http://evil.example/attacked"), (STREAM,)),
    Case("another host, and a hidden topic", request("http://evil.example/hidden"), (NO_TOPIC,)),
    Case("only a host in the request line", request("evil.example:80"), (NOT_HTTP,)),
    Case("two slashes", request("//attacked"), (STREAM,)),
    Case("two slashes, as another host's", request("//evil.example/attacked"), (NO_PATH,)),
    Case("no Host", b"GET /attacked HTTP/1.1\r\n\r\n", (STREAM,)),
    Case("a Host of markup", b'GET /unknown HTTP/1.1\r\nHost: "><script>\r\n\r\n', (NO_TOPIC,)),
    Case("the PROXY protocol", b"PROXY TCP4 1.1.1.1 2.2.2.2 1 2\r\n" + request("/attacked"), (NOT_HTTP,)),
]  # fmt: skip


def framed(*fields: str, method: str = "GET", path: str = "/unknown", body: bytes = b"") -> bytes:
    """A request whose body is framed in an odd way, and behind it what could be taken for another one."""
    return request(path, *fields, method=method, body=body) + THE_NEXT


CHUNKED = "Transfer-Encoding: chunked"
SMUGGLING = [
    Case("a length and chunks", framed("Content-Length: 5", CHUNKED, body=b"0\r\n\r\n"), (NOT_HTTP,)),
    Case("chunks and a length", framed(CHUNKED, "Content-Length: 5", body=b"0\r\n\r\n"), (NOT_HTTP,)),
    Case("chunked twice", framed(CHUNKED, CHUNKED, body=b"0\r\n\r\n"), (NOT_HTTP,)),
    Case("chunked, then identity", framed(CHUNKED, "Transfer-Encoding: identity", body=b"0\r\n\r\n"), (NOT_HTTP,)),
    Case("xchunked", framed("Transfer-Encoding: xchunked", body=b"0\r\n\r\n"), (NOT_HTTP,)),
    Case("gzip only", framed("Transfer-Encoding: gzip"), (NOT_HTTP,)),
    Case("gzip, then chunked: the last of its connection", framed("Transfer-Encoding: gzip, chunked",
         body=b"0\r\n\r\n"), (NO_TOPIC,)),
    Case("a space before the colon", framed("Transfer-Encoding : chunked", body=b"0\r\n\r\n"), (NOT_HTTP,)),
    Case("a control before chunked", framed("Transfer-Encoding: \x0bchunked", body=b"0\r\n\r\n"), (NOT_HTTP,)),
    Case("chunked on a folded line", framed("Transfer-Encoding:\r\n chunked", body=b"0\r\n\r\n"), (NOT_HTTP,)),
    Case("Transfer_Encoding, which is none", framed("Transfer_Encoding: chunked", body=b"0\r\n\r\n"),
         (NO_TOPIC, NOT_HTTP)),
    Case("chunks in HTTP/1.0", framed(CHUNKED).replace(b"HTTP/1.1", b"HTTP/1.0", 1), (NOT_HTTP,)),
    Case("a chunk's size that is no number", framed(CHUNKED, body=b"zz\r\n\r\n"), (NO_TOPIC, NOT_HTTP)),
    Case("a chunk's size with a sign", framed(CHUNKED, body=b"+1\r\na\r\n0\r\n\r\n"), (NO_TOPIC, NOT_HTTP)),
    Case("a chunk's size of 40 digits", framed(CHUNKED, body=b"f" * 40 + b"\r\na"), (NO_TOPIC,)),
    Case("a chunk longer than it says", framed(CHUNKED, body=b"1\r\nabc\r\n0\r\n\r\n"), (NO_TOPIC, NOT_HTTP)),
    Case("a line break in a chunk's extension", framed(CHUNKED, body=b"1;a\nb\r\na\r\n0\r\n\r\n"), (NO_TOPIC, NOT_HTTP)),
    Case("a length in the trailer", framed(CHUNKED, body=b"0\r\nContent-Length: 5\r\n\r\n"), (NO_TOPIC, NOT_HTTP)),
    Case("two lengths", framed("Content-Length: 0", "Content-Length: 5"), (NOT_HTTP,)),
    Case("the same length twice", framed("Content-Length: 0", "Content-Length: 0"), (NOT_HTTP,)),
    Case("a list of lengths", framed("Content-Length: 0, 0"), (NOT_HTTP,)),
    Case("a length of -1", framed("Content-Length: -1"), (NOT_HTTP,)),
    Case("a length of +5", framed("Content-Length: +5"), (NOT_HTTP,)),
    Case("a length of 0x5", framed("Content-Length: 0x5"), (NOT_HTTP,)),
    Case("a length of a superscript two", framed("Content-Length: \xb2"), (NOT_HTTP,)),
    Case("a length of 5,000 digits", framed("Content-Length: " + "9" * 5000), (NOT_HTTP,)),
    Case("a body on GET is passed over", framed(f"Content-Length: {len(THE_NEXT)}", body=THE_NEXT),
         (NO_TOPIC, NO_TOPIC)),
    Case("a body on a stream is never read", framed(f"Content-Length: {len(THE_NEXT)}", path="/attacked",
         body=THE_NEXT), (STREAM,)),
    Case("a body that does not come", request("/unknown", "Content-Length: 5", method="POST"), (METHOD,)),
    Case("a bomb in gzip is never unpacked", framed("Content-Encoding: gzip", "Content-Length: 4", method="POST",
         path="/attacked", body=b"\x1f\x8b\x08\0"), (METHOD, NO_TOPIC)),
    Case("100-continue", framed("Expect: 100-continue", "Content-Length: 0", method="POST", path="/attacked"),
         ("100", METHOD, NO_TOPIC)),
    Case("bare LF for line ends", b"GET /attacked HTTP/1.1\nHost: x\n\n" + THE_NEXT, (NOT_HTTP,)),
    Case("bare LF within the header", b"GET /attacked HTTP/1.1\r\nHost: x\nX: y\r\n\r\n" + THE_NEXT, (NOT_HTTP,)),
    Case("bare CR for line ends", b"GET /attacked HTTP/1.1\rHost: x\r\r", (CLOSED,)),
    Case("two empty lines before it", b"\r\n\r\n" + THE_NEXT, (NOT_HTTP,)),
    Case("three requests at once", THE_NEXT * 3, (NO_TOPIC,) * 3),
    Case("a request behind a stream is never answered", request("/attacked") + THE_NEXT, (STREAM,)),
]  # fmt: skip

TABLES = {
    "What is in Last-Event-ID": POSITIONS,
    "Names of topics": TOPICS,
    "Queries": QUERIES,
    "Header fields": HEADERS,
    "Methods, versions, request lines": METHODS,
    "Smuggling": SMUGGLING,
}
