// One event stream for as long as the page is open. Knows nothing of what the events mean.
//
// The browser's EventSource goes on by itself after a broken connection, with the id that it saw last. It gives up for
// good on any answer but a stream: a proxy's 502 or a server's 503 while it starts would end it. From there this goes
// on: it asks for the reason, waits, and opens the stream again, with the last id in the address because a page cannot
// set the header.

const WAIT_MS = 1000; // before the first try; doubled with each failure
const WAIT_MS_MAX = 30_000;
const RETRY_AFTER_S_MAX = 300;
const ASK_MS_MAX = 10_000;
const REASON_CHARS_MAX = 300;

// The client's fault by number, but they may pass: a topic that is not there yet, too many streams.
const PASSING = new Set([404, 408, 425, 429]);

export class Stream {
  #url;
  #on;
  #source = null;
  #timer = 0;
  #failures = 0;
  #lastEventId = "";
  #state = "";

  /**
   * @param url of the stream, absolute.
   * @param on `message(data)` and `delete(data)` for events; `state({name, reason, seconds})` whenever it changes:
   *   "connecting", "live", "reconnecting" (in `seconds`, where that is known) or "stopped" (`reason` says why).
   */
  constructor(url, on) {
    this.#url = url;
    this.#on = on;
  }

  get stopped() {
    return this.#state === "stopped";
  }

  /** Open the stream now: where it was, or from its beginning when it had been stopped. */
  restart() {
    if (this.stopped) this.#lastEventId = ""; // the id may be what it was stopped for
    this.#failures = 0;
    this.#say({ name: "connecting" });
    this.#open();
  }

  /** Try now, if a next try is being waited for. */
  hurry() {
    if (this.#timer) this.#open();
  }

  #open() {
    clearTimeout(this.#timer);
    this.#timer = 0;
    this.#source?.close();
    const source = new EventSource(this.#address());
    this.#source = source;
    source.onopen = () => this.#say({ name: "live" });
    source.onerror = (event) => this.#onError(source, event);
    for (const type of ["message", "delete"]) source.addEventListener(type, (event) => this.#take(event));
  }

  #address() {
    const url = new URL(this.#url);
    if (this.#lastEventId) url.searchParams.set("lastEventId", this.#lastEventId);
    return url.href;
  }

  #take(event) {
    this.#failures = 0;
    this.#lastEventId = event.lastEventId;
    this.#on[event.type](event.data);
  }

  /** A broken connection and an `error` event of the server arrive under the same name; only the latter is a message. */
  #onError(source, event) {
    if (event instanceof MessageEvent) {
      source.close();
      this.#lastEventId = event.lastEventId;
      this.#judge(problemFrom(event.data));
    } else if (source.readyState === EventSource.CLOSED) {
      this.#ask(source);
    } else {
      this.#say({ name: "reconnecting", reason: "The connection was lost." });
    }
  }

  /** EventSource does not tell which answer made it give up, so ask again. */
  async #ask(source) {
    let judge = () => this.#again("The server cannot be reached.");
    try {
      const response = await fetch(this.#address(), {
        headers: { Accept: "text/event-stream" },
        cache: "no-store",
        signal: AbortSignal.timeout(ASK_MS_MAX),
      });
      judge = await this.#judgement(response);
    } catch {
      // Nobody there: the reason above.
    }
    if (source === this.#source) judge(); // unless it was opened again meanwhile
  }

  async #judgement(response) {
    if (response.ok) {
      response.body?.cancel();
      return () => this.#again("The server answered with something that is no stream.");
    }
    const problem = { ...problemFrom(await response.text()), status: response.status };
    const retryAfterS = Number(response.headers.get("Retry-After")) || 0;
    return () => this.#judge(problem, retryAfterS);
  }

  #judge({ status, reason }, retryAfterS = 0) {
    const said = reason || (status ? `The server answered ${status}.` : "The server ended the stream.");
    if (status >= 400 && status < 500 && !PASSING.has(status)) this.#say({ name: "stopped", reason: said });
    else this.#again(said, retryAfterS);
  }

  #again(reason, retryAfterS = 0) {
    const asked = Math.min(retryAfterS, RETRY_AFTER_S_MAX) * 1000;
    const wait = Math.max(asked, Math.min(WAIT_MS_MAX, WAIT_MS * 2 ** this.#failures));
    this.#failures += 1;
    // Spread out, or all pages would be back in the same moment and bring the server down once more.
    this.#count(Date.now() + wait * (1 + Math.random() / 2), reason);
  }

  #count(until, reason) {
    const left = until - Date.now();
    if (left <= 0) {
      this.#say({ name: "reconnecting", reason });
      this.#open();
      return;
    }
    this.#say({ name: "reconnecting", reason, seconds: Math.ceil(left / 1000) });
    this.#timer = setTimeout(() => this.#count(until, reason), left % 1000 || 1000);
  }

  #say(state) {
    this.#state = state.name;
    this.#on.state(state);
  }
}

/** `{status, reason}` of a problem object (RFC 9457); empty where the text is none. */
function problemFrom(text) {
  try {
    const { status, detail, title } = JSON.parse(text);
    const reason = [detail, title].find((candidate) => typeof candidate === "string" && candidate !== "");
    return { status: Number(status) || 0, reason: reason?.slice(0, REASON_CHARS_MAX) };
  } catch {
    return {};
  }
}
