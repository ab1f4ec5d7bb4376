// An event stream that stays open as long as the page does. This module does not depend on the content of the events.
//
// The browser's EventSource reconnects after a broken connection and sends the last event ID. But if the response is not
// a stream, such as a 502 from a proxy or a 503 while the server starts, EventSource stops permanently. In that case this
// module repeats the request with fetch() to learn the reason. If the error is temporary, it backs off and opens the stream
// again. It sends the last event ID in the query, because a page cannot set the header.

const BACKOFF_MS = 1000; // before the first retry; doubled with each failure
const MAX_BACKOFF_MS = 30_000;
const MAX_RETRY_AFTER_S = 300;
const PROBE_TIMEOUT_MS = 10_000;
const MAX_REASON_CHARS = 300;

const EVENT_TYPES = ["position", "message", "delete", "base64", "gap"];

// 4xx statuses that can be temporary, such as a topic that does not exist yet, or too many streams.
const TEMPORARY_STATUSES = new Set([404, 408, 425, 429]);

export class Stream {
  #url;
  #handlers;
  #source = null;
  #timer = 0;
  #failures = 0;
  #lastEventId;
  #state = "";

  /**
   * @param url the absolute URL of the stream.
   * @param handlers `message(data)`, `delete(data)` and so on, called for each event of this type, and
   *   `state({name, reason, seconds})`, called when the state changes. `name` is "connecting", "live", "reconnecting" or
   *   "stopped"; `reason` explains the last two; `seconds` is the time until the next attempt, if known.
   * @param lastEventId the event ID to resume from; "" to start where the route does.
   */
  constructor(url, handlers, lastEventId = "") {
    this.#url = url;
    this.#handlers = handlers;
    this.#lastEventId = lastEventId;
  }

  /** The ID of the last event. Inside a handler, this is the event that the handler receives. */
  get lastEventId() {
    return this.#lastEventId;
  }

  get stopped() {
    return this.#state === "stopped";
  }

  /** Open the stream now: at the last event ID, or at the route's start if the stream was stopped. */
  restart() {
    if (this.stopped) this.#lastEventId = ""; // The ID may be the reason why the stream was stopped.
    this.#failures = 0;
    this.#setState({ name: "connecting" });
    this.#open();
  }

  /** If a retry is scheduled, retry now. */
  retryNow() {
    if (this.#timer) this.#open();
  }

  #open() {
    clearTimeout(this.#timer);
    this.#timer = 0;
    this.#source?.close();
    const source = new EventSource(this.#urlWithPosition());
    this.#source = source;
    source.onopen = () => this.#setState({ name: "live" });
    source.onerror = (event) => this.#onError(source, event);
    for (const type of EVENT_TYPES) source.addEventListener(type, (event) => this.#onEvent(event));
  }

  #urlWithPosition() {
    const url = new URL(this.#url);
    if (this.#lastEventId) url.searchParams.set("lastEventId", this.#lastEventId);
    return url.href;
  }

  #onEvent(event) {
    this.#saveId(event);
    if (event.type !== "position") this.#failures = 0; // Every stream starts with a position, even before an error.
    this.#handlers[event.type]?.(event.data);
  }

  /** Save the ID unless it is empty: a new EventSource does not know the ID in its URL. */
  #saveId(event) {
    this.#lastEventId = event.lastEventId || this.#lastEventId;
  }

  /** A broken connection and an `error` event from the server have the same name; only the latter is a MessageEvent. */
  #onError(source, event) {
    if (event instanceof MessageEvent) {
      source.close();
      this.#saveId(event);
      this.#retryOrStop(parseProblem(event.data));
    } else if (source.readyState === EventSource.CLOSED) {
      this.#probe(source);
    } else {
      this.#setState({ name: "reconnecting", reason: "The connection was lost." });
    }
  }

  /** Repeat the request with fetch(), because EventSource does not reveal the response that made it stop. */
  async #probe(source) {
    let react = () => this.#retry("The server cannot be reached.");
    try {
      const response = await fetch(this.#urlWithPosition(), {
        headers: { Accept: "text/event-stream" },
        cache: "no-store",
        signal: AbortSignal.timeout(PROBE_TIMEOUT_MS),
      });
      react = await this.#reactionTo(response);
    } catch {
      // No response: keep the reason above.
    }
    if (source === this.#source) react(); // unless the stream was opened again in the meantime
  }

  async #reactionTo(response) {
    if (response.ok) {
      response.body?.cancel();
      return () => this.#retry("The server's response is not an event stream.");
    }
    const problem = { ...parseProblem(await response.text()), status: response.status };
    const retryAfter = response.headers.get("Retry-After");
    return () => this.#retryOrStop(problem, retryAfter);
  }

  #retryOrStop({ status, detail }, retryAfter = null) {
    const reason = detail || (status ? `The server responded with status ${status}.` : "The server ended the stream.");
    const isClientError = status >= 400 && status < 500;
    // A 500 without Retry-After lasts until the operator fixes its cause.
    const isPermanent = status === 500 ? retryAfter === null : isClientError && !TEMPORARY_STATUSES.has(status);
    if (isPermanent) this.#setState({ name: "stopped", reason });
    else this.#retry(reason, Number(retryAfter) || 0);
  }

  #retry(reason, retryAfterS = 0) {
    const retryAfterMs = Math.min(retryAfterS, MAX_RETRY_AFTER_S) * 1000;
    const waitMs = Math.max(retryAfterMs, Math.min(MAX_BACKOFF_MS, BACKOFF_MS * 2 ** this.#failures));
    this.#failures += 1;
    // Add jitter: if all pages reconnected at the same moment, they could overload the server again.
    this.#countDown(Date.now() + waitMs * (1 + Math.random() / 2), reason);
  }

  #countDown(retryAt, reason) {
    const leftMs = retryAt - Date.now();
    if (leftMs <= 0) {
      this.#setState({ name: "reconnecting", reason });
      this.#open();
      return;
    }
    this.#setState({ name: "reconnecting", reason, seconds: Math.ceil(leftMs / 1000) });
    this.#timer = setTimeout(() => this.#countDown(retryAt, reason), leftMs % 1000 || 1000);
  }

  #setState(state) {
    this.#state = state.name;
    this.#handlers.state(state);
  }
}

/** Return `{status, detail}` of an error object (RFC 9457), or an empty object if the text is not one. */
function parseProblem(text) {
  try {
    const { status, detail, title } = JSON.parse(text);
    const explanation = [detail, title].find((candidate) => typeof candidate === "string" && candidate !== "");
    return { status: Number(status) || 0, detail: explanation?.slice(0, MAX_REASON_CHARS) };
  } catch {
    return {};
  }
}
