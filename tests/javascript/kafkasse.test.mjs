// The JavaScript client against a server that follows a script. Run by tests/javascript/test_javascript.py.

import assert from "node:assert/strict";
import fs, { mkdtempSync, readFileSync, writeFileSync } from "node:fs";
import { createServer } from "node:http";
import { syncBuiltinESMExports } from "node:module";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { afterEach, beforeEach, mock, test } from "node:test";

import { Fallback, Parser, Stream, StreamError } from "../../kafkasse/assets/javascript/kafkasse.js";
import { fileStore } from "../../kafkasse/assets/javascript/node.js";

const STREAM = { "Content-Type": "text/event-stream; charset=utf-8" };
const PROBLEM = { "Content-Type": "application/problem+json" };
const START = 'retry: 1\n\nevent: position\ndata: {}\nid: 0\n\n';

let server, url, requests, urls, script, streams;

/** Each response of the server is the next function of `script`; the last one repeats. */
beforeEach(async () => {
  [requests, urls, script, streams] = [[], [], [], []];
  server = createServer((request, response) => {
    requests.push(request.headers);
    urls.push(request.url);
    (script.length > 1 ? script.shift() : script[0])(response);
  });
  await new Promise((resolve) => server.listen(0, "127.0.0.1", resolve));
  url = `http://127.0.0.1:${server.address().port}/t`;
});

afterEach(async () => {
  for (const stream of streams) stream.close();
  server.closeAllConnections();
  await new Promise((resolve) => server.close(resolve));
});

const open = (options) => {
  streams.push(new Stream(url, options));
  return streams.at(-1);
};

/** Open a stream that skips its waits. It adds the reasons of its retries to `reasons`. */
function openHasty(options, reasons = []) {
  const onState = ({ state, reason }) => {
    if (state !== "retrying") return;
    reasons.push(reason);
    setImmediate(() => stream.retry());
  };
  const stream = open({ ...options, onState });
  return stream;
}

const message = (id, data = `{"n":${id}}`) => `event: message\ndata: ${data}\nid: ${id}\n\n`;

/** A response that stays open, ends, or breaks after its text. */
const sends = (text, then = "stays") => (response) => {
  response.writeHead(200, STREAM);
  response.write(text, () => {
    if (then === "ends") response.end();
    if (then === "breaks") response.destroy();
  });
};

const answers = (status, headers = {}, problem = { status, detail: `no: ${status}` }) => (response) => {
  response.writeHead(status, { ...PROBLEM, ...headers }).end(JSON.stringify(problem));
};

/** Read `count` messages, and return their IDs. */
async function read(stream, count) {
  const ids = [];
  for await (const event of stream) {
    if (event.type === "message") ids.push(event.id);
    if (ids.length === count) {
      await stream.commit(event);
      break;
    }
  }
  return ids;
}

for (const then of ["ends", "breaks"]) {
  test(`A stream that ${then} resumes after the last event.`, async () => {
    script = [sends(START + message(1), then), sends(START + message(2))];

    assert.deepEqual(["1", "2"], await read(open(), 2));
    assert.deepEqual([undefined, "1"], requests.map((headers) => headers["last-event-id"]));
  });
}

test("An event that is cut at any character arrives once.", async () => {
  const whole = START + message(1);
  script = [...whole].map((_, at) => sends(whole.slice(0, at), "breaks"));
  script.push(sends(message(1)));

  assert.deepEqual(["1"], await read(openHasty(), 1));
  assert.ok(requests.slice(1).every((headers) => [undefined, "0"].includes(headers["last-event-id"])));
});

/** When a client polls. The Python clients are tested with this table, too. */
const FALLBACK = JSON.parse(readFileSync(new URL("../client/fallback_contract.json", import.meta.url), "utf8"));

for (const { name, connections } of FALLBACK) {
  test(`The client falls back to long polls as the contract says: ${name}.`, () => {
    const fallback = new Fallback();
    for (const { silent = false, received, seconds, polls_next } of connections) {
      fallback.ended(silent, received, seconds * 1000);
      assert.equal(polls_next, fallback.polls);
    }
  });
}

const blocked = {
  headers: () => {},
  "the body": (response) => {
    response.writeHead(200, STREAM);
    response.flushHeaders();
  },
};

for (const [part, holds] of Object.entries(blocked)) {
  test(`While a proxy holds back ${part}, long polls continue at the position.`, async () => {
    script = [holds, sends(START + message(6), "ends"), sends(START + message(7), "ends"), answers(404)];
    url += "?a=b";
    const states = [];
    const stream = open({ lastEventId: "5", timeoutMs: 500, onState: (state) => states.push(state) });
    const ids = [];

    await assert.rejects(stream.run({ message: ({ id }) => ids.push(id) }), { status: 404 });

    assert.deepEqual(["6", "7"], ids);
    assert.deepEqual(["/t?a=b", ...Array(3).fill("/t?a=b&live=events")], urls);
    assert.deepEqual(["5", "5", "6", "7"], requests.map((headers) => headers["last-event-id"]));
    const names = states.map(({ state }) => state);
    assert.deepEqual(["retrying", "connecting", "open", "closed"], names.slice(names.indexOf("retrying")));
    assert.match(states[names.indexOf("retrying")].reason, /long polls/);
  });
}

test("A poll without events is not repeated at once.", async () => {
  script = [blocked.headers, sends(START, "ends"), sends(START + message(1), "ends")];
  const reasons = [];

  assert.deepEqual(["1"], await read(openHasty({ timeoutMs: 500 }, reasons), 1));
  assert.deepEqual(["The server ended the stream."], reasons.slice(1));
});

/** Stop the clock. Returns a function that delays a response. */
function stopClock(t) {
  let now = 0;
  mock.method(Date, "now", () => now);
  t.after(() => mock.restoreAll());
  return (seconds, respond) => (response) => {
    now += 1000 * seconds;
    respond(response);
  };
}

for (const [name, text, seconds] of [["a quiet topic", "", 8], ["a busy topic", message(6), 0]]) {
  test(`Long polls of ${name} need no position events.`, async (t) => {
    const takes = stopClock(t);
    const poll = takes(seconds, sends(`retry: 1000\n\nid: 5\n\n${text}`, "ends"));
    script = [takes(5, answers(504)), poll, poll, answers(404)];
    const reasons = [];

    await assert.rejects(openHasty({ lastEventId: "5" }, reasons).run({}), { status: 404 });

    assert.deepEqual(["no: 504 The next requests are long polls."], reasons);
  });
}

test("After a 504 of a proxy, the stream waits as long as Retry-After says.", async (t) => {
  script = [stopClock(t)(5, answers(504, { "Retry-After": "40" }))];
  const waitMs = await new Promise((resolve) => {
    open({ onState: ({ state, retryAt }) => state === "retrying" && resolve(retryAt - Date.now()) }).run({});
  });

  assert.ok(waitMs >= 40_000);
});

test("A token that expires between two long polls is replaced without a wait.", async () => {
  const reasons = [];
  script = [blocked.headers, sends(START + message(1), "ends"), answers(401), sends(START + message(2))];

  assert.deepEqual(["1", "2"], await read(openHasty({ timeoutMs: 500, token: () => "t" }, reasons), 2));
  assert.equal(1, reasons.length);
});

/** When a client retries. All clients of this repository are tested with this table. */
const CONTRACT = JSON.parse(readFileSync(new URL("../client/retry_contract.json", import.meta.url), "utf8"));

for (const { status, retry_after, is_retried } of CONTRACT.responses) {
  test(`Status ${status} with Retry-After ${retry_after} ${is_retried ? "is retried" : "ends the stream"}.`, async () => {
    script = [answers(status, retry_after === null ? {} : { "Retry-After": retry_after }), sends(START + message(1))];
    const reasons = [];
    const reading = read(openHasty({}, reasons), 1);

    if (is_retried) {
      assert.deepEqual(["1"], await reading);
      assert.deepEqual([`no: ${status}`], reasons);
    } else {
      await assert.rejects(reading, (error) => {
        return error instanceof StreamError && error.status === status && error.message === `no: ${status}`;
      });
      assert.equal(1, requests.length);
    }
  });
}

for (const { data, is_retried } of CONTRACT.error_events) {
  test(`An error event with ${data} ${is_retried ? "is retried" : "ends the stream"}.`, async () => {
    const failure = (text) => `event: error\ndata: ${text}\n\n`;
    script = [sends(START + message(1) + failure(data), "ends"), sends(START + message(2) + failure('{"status":410}'))];
    const seen = [];
    const reading = (async () => {
      for await (const { type, id } of openHasty()) if (type !== "position") seen.push([type, id]);
    })();

    await assert.rejects(reading, { status: is_retried ? 410 : JSON.parse(data).status });
    assert.deepEqual(is_retried ? [["message", "1"], ["message", "2"]] : [["message", "1"]], seen);
    assert.deepEqual(is_retried ? [undefined, "1"] : [undefined], requests.map((headers) => headers["last-event-id"]));
  });
}

test("The stream waits as long as Retry-After says.", async () => {
  script = [answers(503, { "Retry-After": "40" }), sends(START)];
  const before = Date.now();
  const retryAt = await new Promise((resolve) => {
    const stream = open({ onState: (state) => state.state === "retrying" && resolve(state.retryAt) });
    stream.run({});
  });

  assert.ok(retryAt - before >= 40_000);
});

test("Retry-After may be a date.", async () => {
  const before = Date.now();
  script = [answers(503, { "Retry-After": new Date(before + 40_000).toUTCString() })];
  const retryAt = await new Promise((resolve) => {
    open({ onState: (state) => state.state === "retrying" && resolve(state.retryAt) }).run({});
  });

  assert.ok(retryAt - before >= 39_000); // The date has whole seconds.
});

test("The stream does not connect again before the wait is over.", async () => {
  script = [answers(503, { "Retry-After": "1" }), sends(START + message(1))];
  const before = Date.now();

  await read(open(), 1);

  assert.ok(Date.now() - before >= 1000);
});

/** Return the first waits of a stream, in milliseconds, if the random part of each wait has its average. */
async function waits(count) {
  mock.method(Date, "now", () => 0);
  mock.method(Math, "random", () => 0.5);
  const found = [];
  const stream = open({
    onState({ state, retryAt }) {
      if (state !== "retrying") return;
      found.push(retryAt);
      setImmediate(() => (found.length === count ? stream.close() : stream.retry()));
    },
  });
  await stream.run({}).finally(() => mock.restoreAll());
  return found;
}

test("The wait doubles after each failure, up to 30 s, plus at most one half.", async () => {
  script = [answers(503)];

  assert.deepEqual([1000, 2000, 4000, 8000, 16_000, 30_000, 30_000].map((ms) => 1.25 * ms), await waits(7));
});

test("The first wait is that of the server's retry field. A stream with only a position does not reset the wait.", async () => {
  const position = "retry: 2000\n\nevent: position\ndata: {}\nid: 0\n\n";
  script = [position, `${position}event: error\ndata: {"status":503}\n\n`, position].map((text) => sends(text, "ends"));

  assert.deepEqual([2500, 5000, 10_000], await waits(3));
});

test("An event resets the wait.", async () => {
  const start = START.replace("retry: 1", "retry: 2000");
  script = [sends(start, "ends"), sends(start + message(1), "ends")];

  assert.deepEqual([2500, 2500], await waits(2));
});

test("The field `retry: 0` disables only the first wait.", async () => {
  script = [sends(START.replace("retry: 1", "retry: 0") + message(1), "ends"), answers(503)];

  assert.deepEqual([0, 200, 400, 800].map((ms) => 1.25 * ms), await waits(4));
});

test("A server that cannot be reached is retried.", async () => {
  script = [sends(START + message(1))];
  const errors = [new TypeError("fetch failed", { cause: new Error("refused") })];
  const reasons = [];
  const fetch = (...all) => (errors.length ? Promise.reject(errors.pop()) : globalThis.fetch(...all));

  assert.deepEqual(["1"], await read(openHasty({ fetch }, reasons), 1));
  assert.deepEqual(["The server cannot be reached: refused"], reasons);
});

test("An error whose body does not arrive completely ends the stream.", async () => {
  script = [(response) => response.writeHead(403, { ...PROBLEM, "Content-Length": 100 }).write("{")];

  await assert.rejects(open({ timeoutMs: 50 }).run({}), { status: 403 });
});

test("An application can retry other statuses.", async () => {
  script = [answers(404), sends(START + message(1))];

  assert.deepEqual(["1"], await read(openHasty({ retryOn: [404] }), 1));
});

test("A response that is not an event stream is an error.", async () => {
  script = [(response) => response.writeHead(200, { "Content-Type": "text/html" }).write("<html>")]; // The page may be endless.

  await assert.rejects(open().run({}), /is not an event stream/);
});

test("An unknown option, or a handler with the name of no event type, is an error.", async () => {
  assert.throws(() => open({ tokens: "t" }), { name: "TypeError", message: /^"tokens" is not one of token, headers,/ });
  await assert.rejects(open().run({ mesage() {} }), { name: "TypeError", message: /^"mesage" is not one of message, delete,/ });
});

for (const options of [{ token: "s3cret\nA: b" }, { headers: { "X-Key": "s3cret\u20ac" } }, { lastEventId: "s3cret\u20ac" }]) {
  test(`A header that cannot be sent is an error without its value: ${Object.keys(options)}.`, async () => {
    await assert.rejects(open(options).run({}), (error) => error instanceof StreamError && !error.message.includes("s3cret"));
  });
}

test("A request that fetch rejects is an error without the password in the URL.", async () => {
  url = url.replace("//", "//u:s3cret@");

  await assert.rejects(open().run({}), (error) => error instanceof StreamError && !error.message.includes("s3cret"));
});

test("An option of the wrong type ends the stream.", async () => {
  script = [answers(404)];

  await assert.rejects(open({ retryOn: 404 }).run({}), TypeError);
});

test("After a stream was open, a response that is not a stream is retried.", async () => {
  const page = (response) => response.writeHead(200, { "Content-Type": "text/html" }).end("<html>");
  script = [sends(START + message(1), "ends"), page, sends(START + message(2))];

  assert.deepEqual(["1", "2"], await read(openHasty(), 2));
});

test("After a 401, the stream asks for a new token and connects at once.", async () => {
  script = [sends(START + message(1), "ends"), answers(401), sends(START + message(2))];
  const asked = [];
  const token = async ({ refresh }) => {
    asked.push(refresh);
    return refresh ? "new" : "old";
  };

  assert.deepEqual(["1", "2"], await read(open({ token, headers: { "X-Tenant": "a" } }), 2));
  assert.deepEqual([false, false, true], asked);
  assert.deepEqual(["Bearer old", "Bearer old", "Bearer new"], requests.map((headers) => headers.authorization));
  assert.deepEqual(["1", "a"], [requests[2]["last-event-id"], requests[2]["x-tenant"]]);
});

test("Headers can be a function, which provides a new value after a 401.", async () => {
  script = [answers(401), sends(START + message(1))];
  const headers = async ({ refresh }) => ({ "X-Key": refresh ? "new" : "old" });

  assert.deepEqual(["1"], await read(open({ headers }), 1));
  assert.deepEqual(["old", "new"], requests.map((each) => each["x-key"]));
});

test("An application can pass options to fetch, but not replace the headers that resume the stream.", async () => {
  script = [sends(START + message(3))];
  const seen = [];
  const fetch = (url, options) => seen.push(options) && globalThis.fetch(url, options);
  const request = { credentials: "include", headers: { "Last-Event-ID": "0" } };

  assert.deepEqual(["3"], await read(open({ fetch, request, lastEventId: "2", store: { load: () => "1", save() {} } }), 1));
  assert.deepEqual(["include", "no-store"], [seen[0].credentials, seen[0].cache]);
  assert.equal("2", requests[0]["last-event-id"]); // It takes precedence over the position in the store.
});

test("A second 401 with a new token ends the stream.", async () => {
  script = [answers(401)];

  await assert.rejects(open({ token: () => "bad" }).run({}), { status: 401 });
  assert.equal(2, requests.length);
});

test("Each token of a quiet stream may expire.", async () => {
  const expires = [sends(START, "ends"), answers(401)];
  script = [...expires, ...expires, sends(START + message(1))];

  assert.deepEqual(["1"], await read(open({ token: ({ refresh }) => `${refresh}` }), 1));
  const asked = requests.map((headers) => headers.authorization.replace("Bearer ", ""));
  assert.deepEqual(["false", "false", "true", "false", "true"], asked);
});

test("After an error event with the status 401, the stream waits before it uses a new token.", async () => {
  const failure = 'event: error\ndata: {"status":401}\nid: 1\n\n';
  script = [sends(START + failure, "ends"), sends(START + failure, "ends"), sends(START + message(1))];
  const [asked, reasons] = [[], []];
  const token = ({ refresh }) => asked.push(refresh);

  assert.deepEqual(["1"], await read(openHasty({ token }, reasons), 1));
  assert.deepEqual([false, true, true], asked);
  assert.equal(2, reasons.length);
});

test("A token function that fails is called again.", async () => {
  script = [sends(START + message(1))];
  let calls = 0;
  const token = () => (calls++ ? "t" : Promise.reject(new Error("the issuer is down")));

  assert.deepEqual(["1"], await read(openHasty({ token }), 1));
});

test("A token function with a name that is not defined ends the stream.", async () => {
  await assert.rejects(open({ token: () => missing.token() }).run({}), { name: "ReferenceError", message: "missing is not defined" });
});

test("A token function whose fetch fails is called again.", async () => {
  script = [sends(START + message(1))];
  let calls = 0;
  const token = () => (calls++ ? "t" : Promise.reject(new TypeError("Failed to fetch")));

  assert.deepEqual(["1"], await read(openHasty({ token }), 1));
});

test("A token function that hangs is called again, and causes no long polls.", async () => {
  script = [sends(START + message(1))];
  const reasons = [];
  let calls = 0;
  const token = () => (calls++ ? "t" : new Promise(() => {}));

  assert.deepEqual(["1"], await read(openHasty({ token, timeoutMs: 500 }, reasons), 1));
  assert.deepEqual(["The token or the headers are not available: timeout"], reasons);
});

test("close() ends the wait for a token, and leaves no timer.", async () => {
  const set = mock.method(globalThis, "setInterval");
  const clear = mock.method(globalThis, "clearInterval");
  const stream = open({ token: () => new Promise(() => stream.close()) });

  await stream.run({});
  await new Promise(setImmediate);

  mock.restoreAll();
  const timers = set.mock.calls.map(({ result }) => result);
  assert.equal(1, timers.length);
  assert.ok(clear.mock.calls.some(({ arguments: [timer] }) => timer === timers[0]));
});

test("A stream that is closed while it connects asks for no token.", async () => {
  let calls = 0;
  const stream = open({ token: () => calls++, onState: ({ state }) => state === "connecting" && stream.close() });

  await stream.run({});

  assert.equal(0, calls);
});

test("An error event moves the position.", async () => {
  script = [sends(`${START}${message(1)}event: error\ndata: {"status":503}\nid: 9\n\n`, "ends"), sends(message(10))];

  assert.deepEqual(["1", "10"], await read(openHasty(), 2));
  assert.equal("9", requests[1]["last-event-id"]);
});

test("A connection that is silent is replaced.", async () => {
  script = [sends(START + message(1)), sends(START + message(2))];
  let now = 0; // The clock moves only after a message, so a slow machine makes no difference.
  mock.method(Date, "now", () => now);
  const ids = [];
  for await (const { type, id } of open({ timeoutMs: 50 })) {
    if (type !== "message") continue;
    ids.push(id);
    now += 1000;
    if (ids.length === 2) break;
  }
  mock.restoreAll();

  assert.deepEqual(["1", "2"], ids);
});

test("The position is stored after the event was processed.", async () => {
  script = [sends(START + message(1) + message(2))];
  const saved = [];
  const store = { load: async () => "0", save: async (id) => saved.push(id) };
  const seen = [];

  const failing = open({ store }).run({
    message({ id }) {
      seen.push([id, [...saved]]);
      if (id === "2") throw new Error("failed");
    },
  });

  await assert.rejects(failing, /failed/);
  assert.deepEqual([["1", []], ["2", ["1"]]], seen);
  assert.deepEqual(["1"], saved);
  assert.equal("0", requests[0]["last-event-id"]);
});

test("run() waits for a handler before it delivers the next event and stores the position.", async () => {
  script = [sends(START + message(1) + message(2))];
  const seen = [];
  const stream = open({ store: { load() {}, save: (id) => seen.push(`save ${id}`) } });
  await stream.run({
    async message({ id }) {
      seen.push(`start ${id}`);
      await new Promise(setImmediate);
      seen.push(`end ${id}`);
      if (id === "2") stream.close();
    },
  });

  assert.deepEqual(["save 0", "start 1", "end 1", "save 1", "start 2", "end 2"], seen.slice(0, 6));
});

test("A position that could not be stored can be committed again.", async () => {
  const saved = [];
  const errors = [new Error("the disk is full")];
  const save = async (id) => (errors.length ? Promise.reject(errors.pop()) : saved.push(id));
  const stream = open({ store: { load() {}, save } });

  await assert.rejects(stream.commit({ id: "1" }), /disk is full/);
  await stream.commit({ id: "1" });

  assert.deepEqual([["1"], "1"], [saved, stream.position]);
});

test("A stream can be read only once.", async () => {
  script = [sends(START + message(1))];
  const stream = open();
  await read(stream, 1);

  await assert.rejects(read(stream, 1), /Create another Stream/);
});

test("A file keeps the position for the next process.", async () => {
  const file = join(mkdtempSync(join(tmpdir(), "kafkasse-")), "position");
  script = [sends(START + message(1)), sends(START + message(2))];

  await read(open({ store: fileStore(file) }), 1);
  await read(open({ store: fileStore(file) }), 1);

  assert.deepEqual([undefined, "1"], requests.map((headers) => headers["last-event-id"]));
  assert.equal("2\n", readFileSync(file, "utf8"));
});

test("A position is on the disk before it replaces the previous one.", () => {
  const file = join(mkdtempSync(join(tmpdir(), "kafkasse-")), "position");
  const store = fileStore(file);
  store.save("1");
  const flushed = [];
  mock.method(fs, "fsyncSync", () => flushed.push([store.load(), readFileSync(`${file}.new`, "utf8")]));
  syncBuiltinESMExports();

  store.save("2");

  mock.restoreAll();
  syncBuiltinESMExports();
  assert.deepEqual([["1", "2\n"]], flushed);
});

test("An empty position file is an error: otherwise, the stream would skip records.", async () => {
  const file = join(mkdtempSync(join(tmpdir(), "kafkasse-")), "position");
  writeFileSync(file, "\n");

  await assert.rejects(read(open({ store: fileStore(file) }), 1), /position is empty. To start at the route's default, delete/);

  assert.deepEqual([], requests);
});

test("Browser storage keeps the position of each URL.", async () => {
  const stored = new Map();
  const storage = { getItem: (key) => stored.get(key) ?? null, setItem: (key, value) => stored.set(key, value) };
  script = [sends(START + message(1))];

  await read(open({ store: storage }), 1);

  assert.deepEqual([[`kafkasse ${url}`, "1"]], [...stored]);
});

test("A slow reader stops the server from sending more, and loses nothing.", async () => {
  const count = 5000;
  script = [sends(START + Array.from({ length: count }, (_, at) => message(at + 1)).join(""))];
  let seen = 0;
  for await (const event of open()) {
    if (event.type !== "message") continue;
    assert.equal(String(++seen), event.id);
    if (seen === 1) await new Promise((resolve) => setTimeout(resolve, 50));
    if (seen === count) break;
  }

  assert.equal(count, seen);
});

test("A slow reader stops the server from sending more large events.", async () => {
  const count = 100;
  let sent = 0;
  const body = new ReadableStream({
    pull(controller) {
      controller.enqueue(new TextEncoder().encode(message(++sent, "x".repeat(2 ** 20))));
      if (sent === count) controller.close();
    },
  });
  const fetch = async () => new Response(body, { headers: STREAM });
  const ids = [];
  for await (const event of open({ fetch })) {
    ids.push(event.id);
    if (ids.length === 1) for (let turn = 0; turn < 1000; turn++) await new Promise(setImmediate);
    if (ids.length === 1) assert.ok(sent < 20, `${sent} megabytes are in memory`);
    if (ids.length === count) break;
  }

  assert.deepEqual(Array.from({ length: count }, (_, at) => String(at + 1)), ids);
});

test("close() ends the loop, also while the stream waits.", async () => {
  script = [answers(503, { "Retry-After": "100" })];
  const stream = open({ onState: ({ state }) => state === "retrying" && stream.close() });

  await stream.run({});
});

test("A stream that is closed while it loads its position does not connect.", async () => {
  const urls = [];
  const fetch = (url) => urls.push(url) && Promise.reject(new Error());
  const running = open({ fetch }).run({});
  streams[0].close();

  await running;
  await new Promise(setImmediate);

  assert.deepEqual([], urls);
});

test("A stream that is closed while it connects sends no request.", async () => {
  const aborted = [];
  const fetch = (url, { signal }) => aborted.push(signal.aborted) && Promise.reject(new Error());
  const stream = open({ fetch, onState: ({ state }) => state === "connecting" && stream.close() });

  await stream.run({});
  await new Promise(setImmediate);

  assert.deepEqual([true], aborted);
});

for (const failing of ["connecting", "open", "retrying"]) {
  test(`The loop throws an exception of onState at ${failing}.`, async () => {
    script = [failing === "retrying" ? answers(503) : sends(START)];
    const onState = ({ state }) => {
      if (state === failing) throw new Error(`a mistake at ${state}`);
    };

    await assert.rejects(open({ onState }).run({}), { message: `a mistake at ${failing}` });
  });
}

/** The locks of a browser. Node 20 has none. `query` replaces the method of this name. */
function useLocks(t, query = async () => ({ pending: [] })) {
  const original = Object.getOwnPropertyDescriptor(globalThis, "navigator");
  const request = async (name, { signal }, granted) => granted();
  Object.defineProperty(globalThis, "navigator", { value: { locks: { request, query } }, configurable: true });
  t.after(() => {
    if (original) Object.defineProperty(globalThis, "navigator", original);
    else delete globalThis.navigator;
  });
}

test("retry() after close() has no effect.", async (t) => {
  const stream = open({ shared: true });
  useLocks(t, async () => stream.close());
  await stream.run({});

  stream.retry();
});

test("A page that becomes hidden while it gets the lock reads the stream when it is shown again.", async (t) => {
  const listeners = {};
  globalThis.addEventListener = (type, listener) => (listeners[type] = listener);
  t.after(() => delete globalThis.addEventListener);
  let isHidden = false;
  useLocks(t, async () => {
    if (!isHidden) listeners.pagehide();
    isHidden = true;
    await new Promise(setImmediate); // The channel is closed.
    return { pending: [] };
  });
  script = [sends(START + message(1))];
  const reading = read(open({ shared: true }), 1);
  while (!isHidden) await new Promise(setImmediate);
  await new Promise(setImmediate);
  listeners.pageshow({ persisted: true });

  assert.deepEqual(["1"], await reading);
});

test("The loop throws an Error if onState throws another value.", async () => {
  for (const value of ["a mistake", null]) {
    const onState = ({ state }) => {
      if (state === "connecting") throw value;
    };

    await assert.rejects(open({ onState }).run({}), { name: "Error", message: `${value}` });
  }
});

test("The loop throws an exception of `key` after it has received the record.", async (t) => {
  useLocks(t);
  script = [sends(START + message(1, '{"a":"b"}') + message(2, "null") + message(3))];
  const ids = [];
  const stream = open({ shared: true, key: (event) => event.json().a });

  await assert.rejects(stream.run({ message: ({ id }) => ids.push(id) }), TypeError);

  assert.deepEqual(["1", "2"], ids);
  assert.equal("2", stream.position);
  assert.equal(1, requests.length);
});

test("A tab that has had the lock does not read without it.", async (t) => {
  useLocks(t, () => Promise.reject(new Error("no locks")));
  script = [sends(START)];

  await assert.rejects(open({ shared: true }).run({}), { message: "no locks" });
  assert.deepEqual([], requests);
});

test("The events of a stream are typed, and json() parses their data.", async () => {
  script = [sends(`${START}event: gap\ndata: {"from":1,"to":3}\nid: 3\n\nevent: delete\ndata: {"key":"a"}\nid: 4\n\n${message(5)}`)];
  const seen = [];
  for await (const event of open()) {
    seen.push([event.type, event.json()]);
    if (event.type === "message") break;
  }

  assert.deepEqual([["position", {}], ["gap", { from: 1, to: 3 }], ["delete", { key: "a" }], ["message", { n: 5 }]], seen);
});

const CASES = [
  ["data: a\n\n", [["message", "a", ""]]],
  [":c\nid: 1\nevent: e\ndata: a\ndata:b\ndata:  c\n\n", [["e", "a\nb\n c", "1"]]],
  ["data\r\n\r\ndata: b\r\rid\rdata: c\r\r:\n", [["message", "", ""], ["message", "b", ""], ["message", "c", ""]]],
  ["id: 7\n\n", [["position", "{}", "7"]]],
  ["id: 7\0\ndata: a\n\n", [["message", "a", ""]]],
  ["event: e\n\ndata: a\n\n", [["message", "a", ""]]],
  ["id: 1\ndata: a\n\ndata: b\n\n", [["message", "a", "1"], ["message", "b", "1"]]],
  ["data: a\nid: 1\n", []],
];

for (const [text, expected] of CASES) {
  test(`The parser accepts ${JSON.stringify(text)} in chunks of any size.`, () => {
    for (let size = 1; size <= text.length; size++) {
      const parser = new Parser();
      const chunks = text.match(new RegExp(`[^]{1,${size}}`, "g"));
      const events = chunks.flatMap((chunk) => [...parser.receive(chunk)]);

      assert.deepEqual(expected, events.map(({ type, data, id }) => [type, data, id]));
    }
  });
}

test("The parser counts the line breaks of an event.", () => {
  const half = `data: ${"x".repeat(2 ** 23)}\n`;

  assert.throws(() => [...new Parser().receive(half + half)], StreamError);
});

test("The parser rejects an event without an end.", () => {
  const parser = new Parser();
  const megabyte = "x".repeat(2 ** 20);

  assert.throws(() => {
    for (let count = 0; count < 20; count++) [...parser.receive(megabyte)];
  }, StreamError);
});
