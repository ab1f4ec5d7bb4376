"""Hostile requests, each with every answer that it must get. README.md is generated from these tables.

The server allows the topics `attacked` and `also-shown`. The topic `hidden` exists but is not allowed. Pages of
https://a.example may read the streams.
"""

from __future__ import annotations

import base64
import json

from tests.attacks.kit import CLOSED, Case, request, to_bytes

STREAM = "200 stream"
POSITION = "400 InvalidAssignmentError"
PARAMETER = "400 InvalidParameterError"
NOT_HTTP = "400 BadRequestError"
NO_TOPIC = "404 TopicNotAvailableError"
NO_PATH = "404 NotFoundError"
NOT_ACCEPTABLE = "406 NotAcceptableError"
METHOD = "405 MethodNotAllowedError"
LINE_TOO_LONG = "414 RequestTooLargeError"
HEADER_TOO_LARGE = "431 HeaderTooLargeError"

ENTRY = '{"topic":"attacked","partition":0,"offset":0}'
SMUGGLED = request("/hidden")  # the request that a smuggling attempt hides


def entry(**members: object) -> str:
    return json.dumps([{"topic": "attacked", "partition": 0, "offset": 0} | members], separators=(",", ":"))


def number(text: str) -> str:
    return f'[{{"topic":"attacked","partition":0,"offset":{text}}}]'


def compact(text: str) -> str:
    return f"~~{base64.urlsafe_b64encode((text + ' ' * (-len(text) % 3)).encode()).decode()}~"


POSITIONS = [
    *(Case(name, request("/attacked", b"Last-Event-ID: " + to_bytes(text)), (answer,)) for name, text, answer in (
        ("an empty value counts as absent", "", STREAM),
        ("a word", "garbage", POSITION),
        ("truncated JSON", entry()[:-2], POSITION),
        ("JSON followed by a second value", f"[{ENTRY}][]", POSITION),
        ("JSON with single quotes", "['attacked']", POSITION),
        ("JSON with a comment", '/**/["attacked"]', POSITION),
        ("null", "null", POSITION),
        ("a number", "5", POSITION),
        ("an object instead of an array", ENTRY, POSITION),
        ("an empty array", "[]", POSITION),
        ("a nested array", '[["attacked"]]', POSITION),
        ("30,000 opening brackets", "[" * 30_000, POSITION),
        ("30,000 nested arrays", "[" * 30_000 + "]" * 30_000, POSITION),
        ("objects nested 5,000 deep", '[{"topic":' * 5000, POSITION),
        ("offset NaN", number("NaN"), POSITION),
        ("offset -Infinity", number("-Infinity"), POSITION),
        ("offset 1e999", number("1e999"), POSITION),
        ("offset 1.5", number("1.5"), POSITION),
        ("offset 1.0, an integral float", number("1.0"), POSITION),
        ("offset -2", number("-2"), POSITION),
        ("offset true", number("true"), POSITION),
        ("offset null", number("null"), POSITION),
        ("offset as a string", number('"0"'), POSITION),
        ("offset 007", number("007"), POSITION),
        ("offset 0x10", number("0x10"), POSITION),
        ("offset 2^63", entry(offset=2**63), POSITION),
        ("offset 2^63 - 1, after the end of the log", entry(offset=2**63 - 1), POSITION),
        ("offset of 60,000 digits", number("9" * 60_000), POSITION),
        ("partition -1", entry(partition=-1), POSITION),
        ("partition 2^31", entry(partition=2**31), POSITION),
        ("partition 2^32, which wraps to 0 in 32 bits", entry(partition=2**32), POSITION),
        ("partition 2^64", entry(partition=2**64), POSITION),
        ("a partition that does not exist", entry(partition=2**31 - 1), POSITION),
        ("timestamp 2^63", entry(timestamp=2**63), POSITION),
        ("timestamp 2^63 - 1", '[{"topic":"attacked","partition":0,"timestamp":9223372036854775807}]', STREAM),
        ("a repeated partition", f"[{ENTRY},{ENTRY}]", POSITION),
        ("a repeated member", number('0,"offset":1'), POSITION),
        ("member topic twice, the second with another topic", f'[{ENTRY[:-1]},"topic":"hidden"}}]', POSITION),
        ("member topic twice, the second name escaped", f'[{ENTRY[:-1]},"\\u0074opic":"hidden"}}]', POSITION),
        ("an unknown member", entry(admin=True), POSITION),
        ("member __proto__", entry(__proto__={"offset": 1}), POSITION),
        ("two topic IDs for one topic", f'[{ENTRY[:-1]},"topic_id":"x"}},{ENTRY[:-1].replace("0", "1", 1)},'
         '"topic_id":"y"}]', POSITION),
        ("a topic ID of 5,000 letters", entry(topic_id="a" * 5000), POSITION),
        ("an unknown topic ID: the topic is read from its start", entry(topic_id="AAAAAAAA"), STREAM),
        ("leader epoch -1", entry(leader_epoch=-1), POSITION),
        ("leader epoch 2^31", entry(leader_epoch=2**31), POSITION),
        ("leader epoch as a string", entry(leader_epoch="5"), POSITION),
        ("a leader epoch that the log does not know", entry(leader_epoch=2**31 - 1, topic_id=""), STREAM),
        ("a leader epoch without an offset", '[{"topic":"attacked","partition":0,"timestamp":1,"leader_epoch":5}]',
         POSITION),
        ("member only as a string", entry(topic_id="", only="yes"), POSITION),
        ("4,000 topic names", json.dumps(["attacked"] * 4000, separators=(",", ":")), POSITION),
        ("1,300 partitions", json.dumps([json.loads(ENTRY) | {"partition": n} for n in range(1300)],
         separators=(",", ":")), POSITION),
        ("60 topics", json.dumps([f"t{n}" for n in range(60)]), PARAMETER),
        ("60,000 leading spaces", " " * 60_000 + '["attacked"]', STREAM),
        ("one byte more than the limit", '["' + "a" * 65_533 + '"]', HEADER_TOO_LARGE),
        ("a topic that is not allowed", entry(topic="hidden"), NO_TOPIC),
        ("an allowed topic and one that is not allowed", '["attacked","hidden"]', NO_TOPIC),
        ("one of Kafka's internal topics", entry(topic="__consumer_offsets"), NO_TOPIC),
        ("an allowed topic that is not in the path", '["also-shown"]', STREAM),
        ("a wildcard", '["*"]', POSITION),
        ("two dots as a topic name", '[".."]', POSITION),
        ("a topic with a line break", '["attacked\\n"]', POSITION),
        ("a topic with an escaped NUL", '["attacked\\u0000"]', POSITION),
        ("a lone surrogate", '["\\ud800"]', POSITION),
        ("bytes that are not UTF-8", b'["\xff\xfe"]', POSITION),
        ("dots in overlong UTF-8", b'["\xc0\xae\xc0\xae"]', POSITION),
        ("a byte order mark", b'\xef\xbb\xbf["attacked"]', POSITION),
        ("UTF-16", '["attacked"]'.encode("utf-16-le"), NOT_HTTP),
        ("an unescaped tab in a name", '["\t"]', POSITION),
        ("an unescaped NUL", b'["\0"]', NOT_HTTP),
        ("a terminal escape sequence", b'["\x1b[2J"]', NOT_HTTP),
        ("a script", "<script>alert(1)</script>", POSITION),
        ("compact: not base64", "~~AA!A~", POSITION),
        ("compact: empty", "~~~", POSITION),
        ("compact: not ASCII", "~~é~", POSITION),
        ("compact: binary", "~~_____w==~", POSITION),
        ("compact: partition -1", compact("\nattacked i -1:0"), POSITION),
        ("compact: partition 2^32", compact("\nattacked i 4294967296:0"), POSITION),
        ("compact: an offset of 5,000 digits", compact("\nattacked i :" + "9" * 5000), POSITION),
        ("compact: non-ASCII digits", compact("\nattacked i :\u0663"), POSITION),
        ("compact: a NUL in the topic", compact("\nattacked\0 i :0"), POSITION),
        ("compact: 5,000 partitions in few bytes", compact("\nattacked i " + ":0 " * 5000), POSITION),
        ("compact: leader epoch -1", compact("\nattacked i :0e-1"), POSITION),
        ("compact: leader epoch 2^31", compact("\nattacked i :0e2147483648"), POSITION),
        ("compact: no number after e", compact("\nattacked i :0e"), POSITION),
        ("compact: without the last ~, as if it were cut off", compact("\nattacked i :0")[:-1], POSITION),
        ("compact: a topic that is not allowed", compact("\nhidden i :0"), NO_TOPIC),
    )),
    Case("a folded header line", request("/attacked", 'Last-Event-ID: ["attacked",\r\n "hidden"]'), (NOT_HTTP,)),
    Case("two complete fields", request("/attacked", *['Last-Event-ID: ["attacked"]'] * 2), (POSITION,)),
    Case(
        "one ID split over two fields, the second topic not allowed",
        request("/attacked", 'Last-Event-ID: ["attacked"', 'Last-Event-ID: "hidden"]'),
        (NO_TOPIC,),
    ),
    Case("Last_Event_ID with underscores: ignored", request("/attacked", 'Last_Event_ID: ["hidden"]'), (STREAM,)),
    Case(
        "an allowed ID in the header, another in the query: the header wins",
        request("/attacked?last_event_id=[%22hidden%22]", 'Last-Event-ID: ["attacked"]'),
        (STREAM,),
    ),
]  # fmt: skip

TOPICS = [
    Case(name, request(path), (answer,))
    for name, path, answer in (
        ("an unknown topic", "/unknown", NO_TOPIC),
        ("a topic that is not allowed", "/hidden", NO_TOPIC),
        ("a topic that is not allowed after one that is", "/attacked,hidden", NO_TOPIC),
        ("the same with an escaped comma", "/attacked%2Chidden", NO_TOPIC),
        ("one of Kafka's internal topics", "/__consumer_offsets", NO_TOPIC),
        ("an escaped internal topic", "/%5f%5fconsumer_offsets", NO_TOPIC),
        ("an allowed name in capitals", "/ATTACKED", NO_TOPIC),
        ("a wildcard", "/*", NO_TOPIC),
        ("a wildcard with a character class", "/[a]ttacked", NO_TOPIC),
        ("a repeated topic", "/attacked,attacked", STREAM),
        ("an empty name after a comma", "/attacked,", PARAMETER),
        ("only commas", "/,,,", PARAMETER),
        ("61 topics", "/" + ",".join(f"t{n}" for n in range(61)), PARAMETER),
        ("..", "/..", NO_TOPIC),
        (".. escaped", "/%2e%2e", NO_TOPIC),
        ("../hidden", "/../hidden", NO_PATH),
        ("..%2fhidden", "/..%2fhidden", NO_PATH),
        ("attacked/../hidden", "/attacked/../hidden", NO_PATH),
        ("backslashes", "/%5c..%5chidden", NO_TOPIC),
        ("a doubly escaped name", "/%2568idden", NO_TOPIC),
        ("a truncated escape", "/attacked%", NO_TOPIC),
        ("a %u escape", "/attacked%u0061", NO_TOPIC),
        ("250 letters", "/" + "a" * 250, NO_TOPIC),
        ("5,000 letters", "/" + "a" * 5000, NO_TOPIC),
        ("a NUL", "/attacked%00", NO_TOPIC),
        ("an escaped line break", "/atta%0Acked", NO_TOPIC),
        ("white space around an allowed name is ignored", "/%20attacked%0A", STREAM),
        ("header injection by line breaks", "/attacked%0d%0aSet-Cookie:%20a=b", NO_TOPIC),
        ("an emoji", "/%F0%9F%98%80", NO_TOPIC),
        ("bytes that are not UTF-8", "/%FF%FE", NO_TOPIC),
        ("overlong UTF-8", "/%C0%AE%C0%AE", NO_TOPIC),
        ("text that runs from right to left", "/attacked%E2%80%AE", NO_TOPIC),
        ("unescaped non-ASCII bytes", b"/attack\xc3\xa9d", NOT_HTTP),
        ("an unescaped space", "/attacked hidden", NOT_HTTP),
        ("a script", "/%3Cscript%3Ealert(1)%3C%2Fscript%3E", NO_PATH),
        ("a template", "/%7B%7B7*7%7D%7D", NO_TOPIC),
        ("a JNDI lookup", "/$%7Bjndi:ldap:x%7D", NO_TOPIC),
        ("a path that leaves the page's folder", "/-/page/../../streams.p", NO_PATH),
        ("the same path, escaped", "/-/page/%2e%2e/%2e%2e/streams.p", NO_PATH),
        ("a system file", "/-/page/%2fetc%2fpasswd", NO_PATH),
        (".git/config", "/.git/config", NO_PATH),
    )
]

QUERIES = [
    Case(name, request(path), (answer,))
    for name, path, answer in (
        ("an unknown parameter", "/attacked?admin=1", STREAM),
        ("topics=hidden", "/attacked?topics=hidden", STREAM),
        ("a JSONP callback", "/attacked?callback=alert", STREAM),
        ("an operator in brackets", "/attacked?timestamp[$gt]=0", STREAM),
        ("only separators", "/attacked?&&=&%&;", STREAM),
        ("7,000 letters", "/attacked?" + "a" * 7000, STREAM),
        ("1,000 parameters", "/attacked?" + "&".join(["a=1"] * 1000), STREAM),
        ("9,000 letters", "/attacked?" + "a" * 9000, LINE_TOO_LONG),
        ("an ID with a topic that is not allowed", "/attacked?last_event_id=[%22hidden%22]", NO_TOPIC),
        ("an empty ID counts as absent", "/attacked?last_event_id=", STREAM),
        (
            "two IDs: the first counts",
            "/attacked?last_event_id=[%22hidden%22]&last_event_id=[%22attacked%22]",
            NO_TOPIC,
        ),
        ("an ID with a line break", "/attacked?last_event_id=[%22%0d%0aid:0%22]", POSITION),
        ("an ID that is not UTF-8", "/attacked?lastEventId=[%22%FF%22]", POSITION),
        ("an empty timestamp", "/attacked?timestamp=", PARAMETER),
        ("timestamp=-1", "/attacked?timestamp=-1", PARAMETER),
        ("timestamp=1e9", "/attacked?timestamp=1e9", PARAMETER),
        ("timestamp=NaN", "/attacked?timestamp=NaN", PARAMETER),
        ("a superscript two as timestamp", "/attacked?timestamp=%C2%B2", PARAMETER),
        ("a timestamp of 5,000 digits", "/attacked?timestamp=" + "9" * 5000, PARAMETER),
        ("timestamp=2^63", "/attacked?timestamp=9223372036854775808", PARAMETER),
        ("since=NaN", "/attacked?since=NaN", PARAMETER),
        ("since a NUL", "/attacked?since=%00", PARAMETER),
        ("since 5,000 digits", "/attacked?since=" + "9" * 5000, PARAMETER),
        ("since the year 10000", "/attacked?since=10000-01-01", PARAMETER),
        ("timestamp and since", "/attacked?timestamp=0&since=2026-01-01", PARAMETER),
    )
]

HEADERS = [
    *(Case(name, request("/attacked", *lines), (answer,)) for name, lines, answer in (
        ("101 header fields", [f"X-{n}: 1" for n in range(101)], HEADER_TOO_LARGE),
        ("a field of 70,000 bytes", ["X: " + "a" * 70_000], HEADER_TOO_LARGE),
        ("200,000 bytes in total", ["X: " + "a" * 20_000] * 10, HEADER_TOO_LARGE),
        ("a name that contains a space", ["a b: c"], NOT_HTTP),
        ("a non-ASCII name", ["ü: c"], NOT_HTTP),
        ("an empty name", [": c"], NOT_HTTP),
        ("no colon", ["abc"], NOT_HTTP),
        ("a space before the colon", ["Accept : text/html"], NOT_HTTP),
        ("a NUL in a value", ["X: a\0b"], NOT_HTTP),
        ("a CR in a value", ["X: a\rb"], NOT_HTTP),
        ("an LF in a value", ["X: a\nY: b"], NOT_HTTP),
        ("two Host fields", ["Host: y"], NOT_HTTP),
        ("Accept: text/html", ["Accept: text/html"], NOT_ACCEPTABLE),
        ("Accept of 3,000 types", ["Accept: " + ",".join(["a/b;q=0.1"] * 3000)], NOT_ACCEPTABLE),
        ("Accept with an invalid quality", ["Accept: text/event-stream;q=x"], NOT_ACCEPTABLE),
        ("Accept with an unterminated string", ['Accept: text/event-stream;a="' + '\\"' * 5000], NOT_ACCEPTABLE),
        ("Range of a stream", ["Range: bytes=0-0"], STREAM),
        ("If-None-Match: *", ["If-None-Match: *"], STREAM),
        ("an invalid cookie", ["Cookie: ;;=;\xff=;a" + "=" * 5000], STREAM),
        ("an invalid Authorization", ["Authorization: Basic \xff\xff", "Authorization: Bearer"], STREAM),
        ("another method in X-HTTP-Method-Override", ["X-HTTP-Method-Override: DELETE"], STREAM),
        ("another path in X-Original-URL", ["X-Original-URL: /hidden", "X-Rewrite-URL: /hidden"], STREAM),
        ("another host in X-Forwarded-Host", ["X-Forwarded-Host: evil.example"], STREAM),
        ("another path in PATH_INFO", ["PATH_INFO: /hidden"], STREAM),
        ("a malformed X-Forwarded-For", ["X-Forwarded-For: ' OR 1=1 --, ::1, \t,,"], STREAM),
        ("an unknown expectation", ["Expect: 200-ok"], NOT_HTTP),
        ("an upgrade to HTTP/2", ["Connection: Upgrade, HTTP2-Settings", "Upgrade: h2c", "HTTP2-Settings: AA"], STREAM),
        ("an upgrade to a WebSocket", ["Connection: Upgrade", "Upgrade: websocket"], "400 WebsocketMismatch"),
        ("the allowed origin", ["Origin: https://a.example"], f"{STREAM} for https://a.example"),
        ("Origin: null", ["Origin: null"], STREAM),
        ("Origin: *", ["Origin: *"], STREAM),
        ("an origin with the same prefix", ["Origin: https://a.example.evil.example"], STREAM),
        ("an origin with the same suffix", ["Origin: https://evil-a.example"], STREAM),
        ("the allowed origin with http", ["Origin: http://a.example"], STREAM),
        ("the allowed origin with another port", ["Origin: https://a.example:8443"], STREAM),
        ("the allowed origin in capitals", ["Origin: HTTPS://A.EXAMPLE"], STREAM),
        ("the allowed origin and another in one field", ["Origin: https://a.example https://evil.example"], STREAM),
        ("the allowed origin, then another field", ["Origin: https://a.example", "Origin: https://evil.example"], STREAM),
        ("the allowed origin as a user name", ["Origin: https://a.example@evil.example"], STREAM),
    )),
    Case("another path in SCRIPT_NAME", request("/x/attacked", "SCRIPT_NAME: /x"), (NO_PATH,)),
]  # fmt: skip


METHODS = [
    *(Case(method, request("/attacked", method=method), (answer,)) for method, answer in (
        ("HEAD", STREAM),
        ("OPTIONS", "204"),
        ("POST", METHOD),
        ("PUT", METHOD),
        ("DELETE", METHOD),
        ("PATCH", METHOD),
        ("TRACE", METHOD),
        ("PROPFIND", METHOD),
        ("get", NOT_HTTP),
        ("G@T", NOT_HTTP),
        ("A" * 30, NOT_HTTP),
    )),
    Case("CONNECT to another host", request("evil.example:80", method="CONNECT"), (METHOD,)),
    Case("OPTIONS *", request("*", method="OPTIONS"), ("204",)),
    Case("GET *", request("*"), (NOT_HTTP,)),
    Case("HEAD of a topic that is not allowed", request("/hidden", method="HEAD"), ("404",)),
    Case("OPTIONS does not reveal which topics exist", request("/hidden", method="OPTIONS"), ("204",)),
    Case(
        "OPTIONS from an origin that is not allowed",
        request("/attacked", "Origin: https://evil.example", "Access-Control-Request-Method: GET", method="OPTIONS"),
        ("204",),
    ),
    Case("HTTP/1.0", b"GET /attacked HTTP/1.0\r\n\r\n", (STREAM,)),
    Case("HTTP/0.9", b"GET /attacked\r\n", (NOT_HTTP,)),
    Case("HTTP/1.10", b"GET /attacked HTTP/1.10\r\n\r\n", (NOT_HTTP,)),
    Case("HTTP/9.9", b"GET /attacked HTTP/9.9\r\n\r\n", (NOT_HTTP,)),
    Case("HTTP/2 without negotiation", b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\0\4\0\0\0\0\0", (NOT_HTTP,)),
    Case("TLS on a plain port", b"\x16\x03\x01\x00\xc8\x01\x00\x00\xc4\x03\x03" + b"\0" * 200, (CLOSED,)),
    Case("TLS that contains a line break", b"\x16\x03\x01\x00\xc8\x01\x0a" + b"\0" * 200, (NOT_HTTP,)),
    Case("plain text", b"hello\r\n\r\n", (NOT_HTTP,)),
    Case("an empty request", b"", (CLOSED,)),
    Case("a truncated request", request("/attacked")[:20], (CLOSED,)),
    Case("a request line of 10,000 bytes", request("/" + "a" * 10_000), (LINE_TOO_LONG,)),
    Case("a request line that never ends", b"GET /" + b"a" * 1_000_000, (LINE_TOO_LONG,)),
    Case("tabs in the request line", b"GET\t/attacked\tHTTP/1.1\r\n\r\n", (NOT_HTTP,)),
    Case("a space at the end of the request line", b"GET /attacked HTTP/1.1 \r\n\r\n", (NOT_HTTP,)),
    Case("another host in the request line", request("http://evil.example/attacked"), (STREAM,)),
    Case("another host, and a topic that is not allowed", request("http://evil.example/hidden"), (NO_TOPIC,)),
    Case("only a host in the request line", request("evil.example:80"), (NOT_HTTP,)),
    Case("two slashes", request("//attacked"), (STREAM,)),
    Case("two slashes and another host", request("//evil.example/attacked"), (NO_PATH,)),
    Case("no Host field", b"GET /attacked HTTP/1.1\r\n\r\n", (STREAM,)),
    Case("markup in Host", b'GET /unknown HTTP/1.1\r\nHost: "><script>\r\n\r\n', (NO_TOPIC,)),
    Case("the PROXY protocol", b"PROXY TCP4 1.1.1.1 2.2.2.2 1 2\r\n" + request("/attacked"), (NOT_HTTP,)),
]  # fmt: skip


def framed(*fields: str, method: str = "GET", path: str = "/unknown", body: bytes = b"") -> bytes:
    """A request whose body has unusual framing, followed by bytes that could be taken for another request."""
    return request(path, *fields, method=method, body=body) + SMUGGLED


CHUNKED = "Transfer-Encoding: chunked"
SMUGGLING = [
    Case("Content-Length, then chunked", framed("Content-Length: 5", CHUNKED, body=b"0\r\n\r\n"), (NOT_HTTP,)),
    Case("chunked, then Content-Length", framed(CHUNKED, "Content-Length: 5", body=b"0\r\n\r\n"), (NOT_HTTP,)),
    Case("chunked twice", framed(CHUNKED, CHUNKED, body=b"0\r\n\r\n"), (NOT_HTTP,)),
    Case("chunked, then identity", framed(CHUNKED, "Transfer-Encoding: identity", body=b"0\r\n\r\n"), (NOT_HTTP,)),
    Case("xchunked", framed("Transfer-Encoding: xchunked", body=b"0\r\n\r\n"), (NOT_HTTP,)),
    Case("gzip only", framed("Transfer-Encoding: gzip"), (NOT_HTTP,)),
    Case("gzip, then chunked: the connection is closed afterwards", framed("Transfer-Encoding: gzip, chunked",
         body=b"0\r\n\r\n"), (NO_TOPIC,)),
    Case("a space before the colon", framed("Transfer-Encoding : chunked", body=b"0\r\n\r\n"), (NOT_HTTP,)),
    Case("a control character before chunked", framed("Transfer-Encoding: \x0bchunked", body=b"0\r\n\r\n"), (NOT_HTTP,)),
    Case("chunked on a folded line", framed("Transfer-Encoding:\r\n chunked", body=b"0\r\n\r\n"), (NOT_HTTP,)),
    Case("Transfer_Encoding with an underscore: ignored", framed("Transfer_Encoding: chunked", body=b"0\r\n\r\n"),
         (NO_TOPIC, NOT_HTTP)),
    Case("chunked in HTTP/1.0", framed(CHUNKED).replace(b"HTTP/1.1", b"HTTP/1.0", 1), (NOT_HTTP,)),
    Case("an invalid chunk size", framed(CHUNKED, body=b"zz\r\n\r\n"), (NO_TOPIC, NOT_HTTP)),
    Case("a chunk size with a sign", framed(CHUNKED, body=b"+1\r\na\r\n0\r\n\r\n"), (NO_TOPIC, NOT_HTTP)),
    Case("a chunk size of 40 digits", framed(CHUNKED, body=b"f" * 40 + b"\r\na"), (NO_TOPIC,)),
    Case("a chunk longer than its size", framed(CHUNKED, body=b"1\r\nabc\r\n0\r\n\r\n"), (NO_TOPIC, NOT_HTTP)),
    Case("a line break in a chunk extension", framed(CHUNKED, body=b"1;a\nb\r\na\r\n0\r\n\r\n"), (NO_TOPIC, NOT_HTTP)),
    Case("Content-Length in the trailer", framed(CHUNKED, body=b"0\r\nContent-Length: 5\r\n\r\n"), (NO_TOPIC, NOT_HTTP)),
    Case("two different lengths", framed("Content-Length: 0", "Content-Length: 5"), (NOT_HTTP,)),
    Case("the same length twice", framed("Content-Length: 0", "Content-Length: 0"), (NOT_HTTP,)),
    Case("a list of lengths", framed("Content-Length: 0, 0"), (NOT_HTTP,)),
    Case("a length of -1", framed("Content-Length: -1"), (NOT_HTTP,)),
    Case("a length of +5", framed("Content-Length: +5"), (NOT_HTTP,)),
    Case("a length of 0x5", framed("Content-Length: 0x5"), (NOT_HTTP,)),
    Case("a length of a superscript two", framed("Content-Length: \xb2"), (NOT_HTTP,)),
    Case("a length of 5,000 digits", framed("Content-Length: " + "9" * 5000), (NOT_HTTP,)),
    Case("the body of a GET is skipped", framed(f"Content-Length: {len(SMUGGLED)}", body=SMUGGLED),
         (NO_TOPIC, NO_TOPIC)),
    Case("the body of a stream request is never read", framed(f"Content-Length: {len(SMUGGLED)}", path="/attacked",
         body=SMUGGLED), (STREAM,)),
    Case("a body that never arrives", request("/unknown", "Content-Length: 5", method="POST"), (METHOD,)),
    Case("a gzip body is never decompressed", framed("Content-Encoding: gzip", "Content-Length: 4", method="POST",
         path="/attacked", body=b"\x1f\x8b\x08\0"), (METHOD, NO_TOPIC)),
    Case("100-continue", framed("Expect: 100-continue", "Content-Length: 0", method="POST", path="/attacked"),
         ("100", METHOD, NO_TOPIC)),
    Case("bare LF as line ends", b"GET /attacked HTTP/1.1\nHost: x\n\n" + SMUGGLED, (NOT_HTTP,)),
    Case("a bare LF in the header", b"GET /attacked HTTP/1.1\r\nHost: x\nX: y\r\n\r\n" + SMUGGLED, (NOT_HTTP,)),
    Case("bare CR as line ends", b"GET /attacked HTTP/1.1\rHost: x\r\r", (CLOSED,)),
    Case("leading empty lines", b"\r\n\r\n" + SMUGGLED, (NOT_HTTP,)),
    Case("three pipelined requests", SMUGGLED * 3, (NO_TOPIC,) * 3),
    Case("a request after a stream request is never answered", request("/attacked") + SMUGGLED, (STREAM,)),
]  # fmt: skip

TABLES = {
    "Last-Event-ID": POSITIONS,
    "Topic names": TOPICS,
    "Queries": QUERIES,
    "Header fields": HEADERS,
    "Methods, versions and request lines": METHODS,
    "Request smuggling": SMUGGLING,
}
