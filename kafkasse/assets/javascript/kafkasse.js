// A client for kafkasse's streams, for browsers and Node 18 or newer.
//
//   fetch ─▶ Parser ─▶ leader ─▶ inbox of this tab ─▶ your code ─▶ position store
//                        └─────▶ inboxes of the other tabs, over a BroadcastChannel
//
// Without `shared`, each tab is a leader. kafkasse.d.ts describes the interface.

const BACKOFF_MS = 1000; // before the first retry, until the server sends `retry:`
const MIN_BACKOFF_MS = 100; // if the server sends `retry: 0`; not for the first wait
const MAX_BACKOFF_MS = 30_000;
const MAX_WAIT_MS = 300_000; // caps `retry:` and Retry-After
const TIMEOUT_MS = 60_000; // heartbeats are more frequent
const SUSPECT_MS = 10_000; // after a change of the network
const WATCH_MS = 2000;
const FIRST_EVENT_MS = 15_000; // after that, a proxy holds back the stream
const PROBE_MS = 300_000; // until a client that polls requests a stream; doubles after each failure
const MAX_PROBE_MS = 3_600_000;
const MIN_POLL_MS = 200; // between the starts of two long polls
const MIN_EMPTY_POLL_MS = 1000; // a poll that ends earlier without events is a failure
const MIN_GATEWAY_TIMEOUT_MS = 5000; // a proxy that sends 504 earlier has not reached the server
const SETTLE_MS = 3000; // how long other tabs wait for a new leader to catch up
const MAX_EVENT_CHARS = 16 * 2 ** 20;
const MAX_UNREAD = 1000; // events that the leader reads ahead
const MAX_BEHIND = 10_000; // events that wait for a slow tab
const EVENT_CHARS = 2 ** 14; // maximum average while events wait
const MAX_RECENT = 1000; // events that the leader can repeat for a tab that was reloaded
const MAX_RECENT_CHARS = 2 ** 20;
const MAX_KEYS = 10_000; // rows that the leader keeps for tabs that open later
const OPTIONS = ["token", "headers", "lastEventId", "store", "shared", "key", "onState", "retryOn", "timeoutMs", "request", "fetch"];
const TYPES = ["message", "delete", "base64", "gap", "position"];

export class StreamError extends Error {
  name = "StreamError";

  constructor(problem) {
    super(problem.detail || problem.title || `The server responded with status ${problem.status}.`);
    this.problem = problem;
    this.status = problem.status;
  }
}

/** A failure that may be temporary. */
class Failure extends Error {
  constructor(reason, status, retryAfterMs = 0) {
    super(reason);
    this.status = status;
    this.retryAfterMs = retryAfterMs;
  }
}

/** Decides if the next request is a long poll. */
export class Fallback {
  polls = false;
  #polledMs = 0;
  #probeMs;
  #nextProbeMs = PROBE_MS;

  ended(isSilent, hasReceived, ms) {
    if (this.polls) {
      this.#polledMs += ms;
      this.polls = !isSilent && this.#polledMs < this.#probeMs;
    } else if (isSilent && !hasReceived) {
      this.polls = true;
      this.#polledMs = 0;
      this.#probeMs = this.#nextProbeMs;
      this.#nextProbeMs = Math.min(2 * this.#probeMs, MAX_PROBE_MS);
    } else if (!isSilent && hasReceived) this.#nextProbeMs = PROBE_MS;
  }
}

export class StreamEvent {
  constructor({ type, data, id }) {
    this.type = type;
    this.data = data;
    this.id = id;
  }

  json() {
    return JSON.parse(this.data);
  }
}

export class Stream {
  #url;
  #options;
  #store;
  #position = ""; // the ID of the last event that the caller has processed
  #taken = ""; // the ID of the last event that the caller has received
  #received = ""; // the ID of the last event in the inbox
  #inbox = [];
  #inboxChars = 0;
  #waiting = []; // the callers of #until()
  #closing = new AbortController();
  #session = null; // aborted when the page enters the back/forward cache
  #started = false;

  // The connection, in the leader.
  #leads = false;
  #connection = null;
  #heardAt = 0;
  #failures = 0;
  #refreshed = false;
  #opened = false;
  #retryMs = BACKOFF_MS;
  #skipsWait = false;
  #fallback = new Fallback();
  #hasSent = false; // the request
  #hasEvents = false; // more than the first position
  #hasReceived = false; // a part of the body
  #isSilent = false;

  // Tabs.
  #channel = null;
  #tab = Math.random().toString(36).slice(2);
  #joined = false; // this tab has received the leader's earlier events
  #settlesAt = 0; // a leader is new until then
  #isFollowed = false;
  #synced = null;
  #state = null;
  #recent = [];
  #recentChars = 0;
  #rows = new Map(); // the newest event of each key

  constructor(url, options = {}) {
    checkNames(options, OPTIONS);
    this.#url = new URL(url, globalThis.location?.href).href;
    this.#options = options;
    const { store } = options;
    const key = `kafkasse ${this.#url}`;
    this.#store = store?.getItem
      ? { load: () => store.getItem(key), save: (id) => store.setItem(key, id) }
      : store;
  }

  get position() {
    return this.#position;
  }

  get #over() {
    return this.#closing.signal.aborted;
  }

  async run(handlers) {
    checkNames(handlers, TYPES);
    for await (const event of this) await handlers[event.type]?.(event);
  }

  async *[Symbol.asyncIterator]() {
    if (this.#started) throw new Error("A Stream can be read only once. Create another Stream.");
    this.#started = true;
    try {
      const start = this.#options.lastEventId || (await this.#store?.load()) || "";
      this.#position = this.#taken = this.#received = start;
      if (this.#over) return; // while the position was loaded
      this.#listen();
      this.#start();
      for (;;) {
        await this.#until(() => this.#over || this.#inbox.length > 0);
        if (this.#over) return;
        const event = this.#inbox.shift();
        this.#notify();
        if (event instanceof Error) throw event;
        this.#inboxChars -= event.data.length;
        this.#taken = event.id || this.#taken;
        yield event;
        await this.commit(event); // The caller asks for the next event, so it has processed this one.
      }
    } finally {
      this.close();
    }
  }

  async commit({ id }) {
    if (!id || id === this.#position) return;
    await this.#store?.save(id);
    this.#position = id;
  }

  close() {
    if (this.#over) return;
    this.#closing.abort();
    this.#session?.abort();
    this.#notify();
    this.#options.onState?.({ state: "closed" });
  }

  retry() {
    if (this.#over) return;
    if (!this.#leads) return this.#channel?.postMessage({ retry: true });
    this.#skipsWait = true;
    this.#notify();
    if (Date.now() - this.#heardAt > SUSPECT_MS) this.#connection?.abort();
  }

  async #until(isTrue) {
    while (!isTrue()) await new Promise((wake) => this.#waiting.push(wake));
  }

  #notify() {
    for (const wake of this.#waiting.splice(0)) wake();
  }

  // The page. Node has none of these events.

  #listen() {
    const on = (type, listener) => globalThis.addEventListener?.(type, listener, { signal: this.#closing.signal });
    on("online", () => this.retry());
    on("pagehide", () => this.#session.abort()); // A page with a connection or a lock cannot enter the back/forward cache.
    on("pageshow", ({ persisted }) => persisted && this.#start());
  }

  #start() {
    const { signal } = (this.#session = new AbortController());
    const { shared } = this.#options;
    const lead = (name) => this.#lead(signal, name).catch((error) => this.#deliver(error));
    if (!shared || !globalThis.navigator?.locks) return lead();
    const name = `kafkasse ${shared === true ? "" : shared} ${this.#url}`;
    const channel = (this.#channel = new BroadcastChannel(name));
    channel.onmessage = ({ data }) => this.#receive(data);
    const ended = aborted(signal);
    ended.then(() => channel.close());
    const leading = navigator.locks.request(name, { signal }, () => Promise.race([lead(name), ended]));
    leading.catch(() => lead()); // A sandboxed frame has no locks.
    this.#join();
  }

  // The leader.

  async #lead(signal, name) {
    if (name) {
      await this.#sync(name);
      const { pending } = await navigator.locks.query();
      this.#isFollowed ||= pending.length > 0; // Followers wait for the lock.
    }
    if (signal.aborted) return;
    this.#leads = this.#joined = true;
    this.#settlesAt = Infinity;
    signal.addEventListener("abort", () => {
      this.#leads = false;
      this.#connection?.abort();
      this.#notify();
    });
    this.#channel?.postMessage({ leader: true, id: this.#received });
    while (!signal.aborted) {
      const { polls } = this.#fallback;
      const startedAt = Date.now();
      let failure = await this.#connect(signal).catch((error) => error);
      if (signal.aborted) return;
      const ms = Math.max(Date.now() - startedAt, MIN_POLL_MS);
      const isSilent = this.#isSilent || (failure.status === 504 && ms >= MIN_GATEWAY_TIMEOUT_MS);
      this.#fallback.ended(isSilent, this.#hasReceived, ms);
      if (polls && failure.status === 200 && (this.#hasEvents || (this.#hasReceived && ms >= MIN_EMPTY_POLL_MS))) {
        this.#failures = 0;
        if (this.#fallback.polls) await this.#sleep(startedAt + MIN_POLL_MS - Date.now(), signal);
        continue;
      }
      if (this.#isSilent && !failure.status) failure = new Failure("Nothing arrived.");
      if (this.#fallback.polls && !polls) failure.message += " The next requests are long polls.";
      if (failure instanceof StreamError) return this.#fail(failure.problem);
      if (!(failure instanceof Failure)) return this.#deliver(failure); // a mistake in an option
      const refreshes = failure.status === 401 && this.#canRefresh;
      if (refreshes) this.#refreshed = true;
      if (!refreshes || this.#hasReceived) await this.#wait(failure, signal);
    }
  }

  /** Wait for all messages of the previous leader: the browser delivers messages in order. */
  async #sync(name) {
    const second = new BroadcastChannel(name);
    await new Promise((resolve) => {
      this.#synced = resolve;
      second.postMessage({ sync: this.#tab });
    });
    second.close();
  }

  /** Read one response. Returns or throws why it ended. */
  async #connect(signal) {
    const { polls } = this.#fallback;
    this.#hasSent = this.#hasEvents = this.#hasReceived = this.#isSilent = false;
    const controller = (this.#connection = new AbortController());
    if (!polls || this.#state?.state !== "open") this.#setState({ state: "connecting" });
    this.#heardAt = Date.now();
    const silence = this.#options.timeoutMs ?? TIMEOUT_MS;
    const first = polls ? silence : Math.min(silence, FIRST_EVENT_MS);
    const watch = setInterval(
      () => {
        if (Date.now() - this.#heardAt <= (this.#hasSent && !this.#hasReceived ? first : silence)) return;
        this.#isSilent = this.#hasSent;
        controller.abort();
      },
      Math.min(WATCH_MS, silence),
    );
    try {
      const response = await this.#request(controller.signal);
      const openedAt = Date.now();
      this.#settlesAt = Math.min(this.#settlesAt, openedAt + SETTLE_MS);
      this.#opened = true;
      this.#refreshed = false;
      if (this.#state.state !== "open") this.#setState({ state: "open" });
      try {
        await this.#read(response.body, signal);
      } finally {
        if (Date.now() - openedAt > MAX_BACKOFF_MS) this.#failures = 0;
      }
    } finally {
      clearInterval(watch);
      controller.abort();
    }
    return new Failure("The server ended the stream.", 200);
  }

  async #request(signal) {
    const { token, headers, fetch = globalThis.fetch, request } = this.#options;
    const more = await this.#ask(headers, signal);
    const bearer = await this.#ask(token, signal);
    this.#hasSent = true;
    this.#heardAt = Date.now();
    const url = new URL(this.#url);
    if (this.#fallback.polls) url.search += `${url.search ? "&" : "?"}live=events`;
    const options = { cache: "no-store", ...request, signal };
    try {
      const all = (options.headers = new Headers(more));
      if (bearer) all.set("Authorization", `Bearer ${bearer}`);
      all.set("Accept", "text/event-stream");
      if (this.#received) all.set("Last-Event-ID", this.#received);
      new Request(url, options);
    } catch {
      // The error contains the token.
      throw new StreamError({ detail: "The URL, the token or the headers are not valid." });
    }
    const response = await fetch(url.href, options).catch((error) => {
      throw new Failure(`The server cannot be reached: ${error.cause?.message ?? error.message}`);
    });
    const { status, headers: fields } = response;
    if (status === 200 && /^text\/event-stream/i.test(fields.get("Content-Type"))) return response;
    if (!response.ok) {
      const problem = parseProblem(await response.text().catch(() => ""));
      throw this.#failure({ ...problem, status }, fields.get("Retry-After"));
    }
    const detail = `The response of ${this.#url} is not an event stream.`;
    throw this.#opened ? new Failure(detail) : new StreamError({ status, detail });
  }

  /** Return the value of an option, which may be a function. */
  async #ask(option, signal) {
    if (typeof option !== "function") return option;
    try {
      signal.throwIfAborted();
      const value = await Promise.race([aborted(signal), option({ refresh: this.#refreshed })]);
      if (signal.aborted) throw new Error("timeout");
      return value;
    } catch (error) {
      // A missing name stays missing, but a TypeError may be fetch's.
      if (error instanceof StreamError || error instanceof ReferenceError) throw error;
      throw new Failure(`The token or the headers are not available: ${error.message}`);
    }
  }

  async #read(body, signal) {
    const reader = body.getReader();
    const decoder = new TextDecoder();
    const parser = new Parser(this.#received);
    let hasStarted = false;
    for (;;) {
      const { value, done } = await reader.read().catch(() => {
        throw new Failure("The connection was lost.");
      });
      if (done) return; // The server sends an incomplete event again.
      this.#heardAt = Date.now();
      this.#hasReceived = true;
      for (const event of parser.receive(decoder.decode(value, { stream: true }))) {
        if (signal.aborted) return;
        const isError = event.type === "error";
        this.#publish(isError ? { type: "position", data: "{}", id: event.id } : event);
        if (isError) throw this.#failure(parseProblem(event.data));
        if (hasStarted || event.type !== "position") {
          this.#hasEvents = true;
          this.#failures = 0;
        }
        hasStarted = true;
      }
      this.#retryMs = parser.retryMs ?? this.#retryMs;
      if (this.#isBehind(MAX_UNREAD)) {
        this.#heardAt = Infinity; // Nothing is read, so silence is normal.
        await this.#until(() => !this.#isBehind(MAX_UNREAD) || signal.aborted);
        this.#heardAt = Date.now();
      }
    }
  }

  #failure(problem, retryAfter) {
    const status = (problem.status = Number(problem.status) || 503);
    const retryAfterMs = parseRetryAfter(retryAfter);
    // A 500 without a valid Retry-After is permanent.
    const isTemporary = status > 500 || (status === 500 && !isNaN(retryAfterMs)) || [408, 425, 429].includes(status);
    const error = new StreamError(problem);
    const retries = isTemporary || this.#options.retryOn?.includes(status) || (status === 401 && this.#canRefresh);
    return retries ? new Failure(error.message, status, retryAfterMs || 0) : error;
  }

  get #canRefresh() {
    const { token, headers } = this.#options;
    return !this.#refreshed && [token, headers].some((option) => typeof option === "function");
  }

  async #wait({ message, retryAfterMs = 0 }, signal) {
    const baseMs = Math.max(this.#retryMs, this.#failures && MIN_BACKOFF_MS);
    const backoffMs = Math.min(MAX_BACKOFF_MS, baseMs * 2 ** this.#failures++);
    const requestedMs = Math.min(MAX_WAIT_MS, Math.max(this.#retryMs, retryAfterMs));
    const waitMs = Math.max(backoffMs, requestedMs) * (1 + Math.random() / 2); // jitter
    const retryAt = Date.now() + waitMs;
    this.#setState({ state: "retrying", reason: message, retryAt });
    await this.#sleep(waitMs, signal);
  }

  async #sleep(ms, signal) {
    this.#skipsWait = false;
    const timer = setTimeout(() => this.retry(), ms);
    await this.#until(() => this.#skipsWait || signal.aborted);
    clearTimeout(timer);
  }

  // All tabs.

  #publish(event) {
    if (this.#isFollowed) this.#channel.postMessage({ event });
    this.#accept(event);
  }

  #accept(event) {
    this.#received = event.id;
    this.#deliver(event);
    if (this.#channel) this.#try(() => this.#remember(event));
  }

  /** The caller's loop throws the exception. */
  #try(call) {
    try {
      call();
    } catch (error) {
      this.#deliver(error instanceof Error ? error : new Error(error));
    }
  }

  #deliver(event) {
    this.#inbox.push(event instanceof Error ? event : new StreamEvent(event));
    this.#inboxChars += event.data?.length || 0;
    this.#notify();
  }

  #isBehind(maxEvents) {
    return this.#inbox.length > maxEvents || this.#inboxChars > maxEvents * EVENT_CHARS;
  }

  #setState(state) {
    if (this.#leads) this.#channel?.postMessage({ state });
    this.#state = state;
    this.#try(() => this.#options.onState?.(state));
  }

  #fail(problem) {
    if (this.#leads) this.#channel?.postMessage({ problem });
    this.#deliver(new StreamError(problem));
  }

  /** Ask the leader for the events after the last one in the inbox. */
  #join() {
    this.#joined = false;
    this.#received = this.#inbox.at(-1)?.id || this.#taken;
    this.#channel.postMessage({ join: this.#tab });
  }

  #receive(message) {
    const { join, leader, id, to, state, event, problem, retry, sync } = message;
    if (sync === this.#tab) this.#synced?.();
    if (join) this.#isFollowed = true;
    if (this.#leads) {
      if (join) this.#welcome(join);
      if (retry) this.retry();
    } else if (to === this.#tab) {
      this.#adopt(message);
    } else if (leader && !(this.#joined && id === this.#received)) {
      this.#join(); // The previous leader did not respond, or had another position.
    } else if (problem) {
      this.#fail(problem);
    } else if (state && !to) {
      this.#setState(state);
    } else if (this.#joined && event) {
      this.#accept(event);
      if (this.#isBehind(MAX_BEHIND)) {
        this.#inbox = [];
        this.#inboxChars = 0;
        this.#join();
      }
    } else if (event?.id === this.#received) {
      this.#join(); // The leader has caught up with this tab.
    }
  }

  #welcome(to) {
    const isNew = Date.now() < this.#settlesAt;
    this.#channel.postMessage({ to, isNew, rows: this.#rows, recent: this.#recent, id: this.#received, state: this.#state });
  }

  /** Deliver the events after this tab's position, or else the newest event of each key. */
  #adopt({ isNew, rows, recent, id, state }) {
    const after = this.#received;
    const next = after && (recent.findIndex((event) => event.id === after) + 1 || (after === id && Infinity));
    if (state) this.#setState(state);
    if (isNew && after && !next) {
      // After all tabs were reloaded, this tab may be ahead of the leader.
      setTimeout(() => this.#joined || this.#over || this.#join(), SETTLE_MS);
      return;
    }
    if (next) {
      recent.slice(next).forEach((event) => this.#deliver(event));
    } else {
      if (after) this.#deliver({ type: "gap", data: '{"reason":"another tab has read on"}', id: "" });
      // The rows have no IDs: an old ID would move the position back.
      for (const row of rows.values()) this.#deliver({ ...row, id: "" });
    }
    if (id) this.#deliver({ type: "position", data: "{}", id });
    this.#received = id;
    this.#rows = rows;
    this.#recent = recent;
    this.#recentChars = recent.reduce((sum, { data }) => sum + data.length, 0);
    this.#joined = true;
  }

  #remember(event) {
    this.#recent.push(event);
    this.#recentChars += event.data.length;
    while (this.#recent.length > MAX_RECENT || this.#recentChars > MAX_RECENT_CHARS) {
      this.#recentChars -= this.#recent.shift().data.length;
    }
    const isRow = event.type === "message" || event.type === "delete";
    const key = isRow ? this.#options.key?.(new StreamEvent(event)) : undefined;
    if (key === undefined) return;
    this.#rows.delete(key); // Move the newest key to the end.
    if (event.type === "message") this.#rows.set(key, event);
    if (this.#rows.size > MAX_KEYS) this.#rows.delete(this.#rows.keys().next().value);
  }
}

export class Parser {
  retryMs;
  #id;
  #nextId;
  #type = "";
  #data = [];
  #dataChars = 0;
  #rest = "";

  constructor(lastEventId = "") {
    this.#id = this.#nextId = lastEventId;
  }

  /** Yield the events that `text` completes. */
  *receive(text) {
    this.#rest += text;
    if (/[\r\n]/.test(text)) {
      const lines = this.#rest.split(/\r\n|\n|\r(?!$)/); // The LF of a final CR may be in the next chunk.
      this.#rest = lines.pop();
      for (const line of lines) {
        if (line) this.#addField(line);
        else yield* this.#dispatch();
      }
    }
    this.#checkSize(this.#rest.length);
  }

  #addField(line) {
    const [, name, value = ""] = /^([^:]*)(?:: ?(.*))?$/s.exec(line); // A comment has an empty name.
    if (name === "data") {
      this.#checkSize((this.#dataChars += value.length + 1));
      this.#data.push(value);
    } else if (name === "event") this.#type = value;
    else if (name === "id" && !value.includes("\0")) this.#nextId = value;
    else if (name === "retry" && /^\d+$/.test(value)) this.retryMs = Number(value);
  }

  *#dispatch() {
    const hasMoved = this.#id !== this.#nextId;
    const id = (this.#id = this.#nextId);
    if (this.#data.length) yield { type: this.#type || "message", data: this.#data.join("\n"), id };
    else if (hasMoved) yield { type: "position", data: "{}", id };
    this.#type = "";
    this.#data = [];
    this.#dataChars = 0;
  }

  #checkSize(chars) {
    if (chars > MAX_EVENT_CHARS) throw new StreamError({ detail: `An event has more than ${MAX_EVENT_CHARS} characters.` });
  }
}

const aborted = (signal) => new Promise((resolve) => signal.addEventListener("abort", resolve));

function checkNames(object, names) {
  for (const name in object) if (!names.includes(name)) throw new TypeError(`"${name}" is not one of ${names.join(", ")}.`);
}

function parseProblem(text) {
  try {
    return { ...JSON.parse(text) };
  } catch {
    return {};
  }
}

/** Return milliseconds, or NaN if the value is missing or invalid. */
function parseRetryAfter(value) {
  return /^\d+$/.test(value) ? value * 1000 : Date.parse(/GMT$/.test(value) && value) - Date.now();
}
