// A stream that is read with fetch(), which can send the Authorization header and gives the bytes as they were on the wire.
// It reconnects with the last event ID. This module does not depend on the content of the events or on the document.

import { LinePositions, StreamEvent, splitFrames } from "./events.js";
import { Problem } from "./session.js";

const BACKOFF_MS = 1000; // before the first retry, unless the server sent `retry:`; doubled with each failure
const MAX_BACKOFF_MS = 30_000;
const MAX_RETRY_AFTER_S = 300;
const SILENCE_MS = 60_000; // after which the connection is dead: the server sends a heartbeat every few seconds
const TEMPORARY_STATUSES = new Set([404, 408, 425, 429]);

export class FetchStream {
  #open;
  #isJsonLines;
  #handlers;
  #lines = new LinePositions();
  #abort = null;
  #timer = 0;
  #failures = 0;
  #retryMs = BACKOFF_MS;
  lastEventId;

  /**
   * @param open `open(lastEventId, signal)`: sends the request and returns the response. A Problem that it throws is handled
   *   like a response with this status.
   * @param isJsonLines whether the server sends JSON lines.
   * @param handlers `events(list)`, called with each group of events; `state({name, reason, seconds})`, as in stream.js.
   * @param lastEventId the event ID to resume from; "" to start where the request does.
   */
  constructor(open, isJsonLines, handlers, lastEventId = "") {
    this.#open = open;
    this.#isJsonLines = isJsonLines;
    this.#handlers = handlers;
    this.lastEventId = lastEventId;
  }

  /** Connect now, at the last event ID. */
  async start() {
    this.close();
    const abort = new AbortController();
    this.#abort = abort;
    this.#handlers.state({ name: "connecting" });
    try {
      const end = await this.#read(abort);
      if (abort.signal.aborted) return;
      if (end) this.#retryOrStop(end.status, end.detail || end.title, null);
      else this.#retry("The connection was lost.");
    } catch (error) {
      if (abort.signal.aborted && abort === this.#abort && abort.signal.reason === "silence") this.#retry("The server is silent.");
      else if (!abort.signal.aborted) this.#failed(error);
    }
  }

  /** Disconnect. start() resumes exactly here. */
  close() {
    clearTimeout(this.#timer);
    this.#abort?.abort();
    this.#abort = null;
  }

  /** Read until the response ends. Return the problem in the `error` event, or null if there was none. */
  async #read(abort) {
    const response = await this.#open(this.lastEventId, abort.signal);
    if (!/^(text\/event-stream|application\/(x-ndjson|json))\b/.test(response.headers.get("Content-Type") ?? "")) {
      throw new Problem(0, "The server's response is not an event stream.");
    }
    this.#handlers.state({ name: "live" });
    const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
    let rest = "";
    let watch = 0;
    try {
      for (;;) {
        clearTimeout(watch);
        watch = setTimeout(() => abort.abort("silence"), SILENCE_MS);
        const { value, done } = await reader.read();
        if (done || abort.signal.aborted) return null; // The rest is incomplete: the server sends it again.
        const split = splitFrames(rest + value, this.#isJsonLines);
        rest = split.rest;
        const problem = this.#receive(split.frames);
        if (problem) return problem;
      }
    } finally {
      clearTimeout(watch);
      reader.cancel().catch(() => {});
    }
  }

  #receive(frames) {
    const events = [];
    let problem = null;
    for (const frame of frames) {
      const event = new StreamEvent(frame, this.#isJsonLines);
      this.#retryMs = event.retryMs ?? this.#retryMs;
      if (event.type === null) {
        this.lastEventId = event.id || this.lastEventId; // an ID without data
        continue;
      }
      events.push(event);
      if (event.type === "error") problem = parse(event.data);
      else if (event.type !== "position") this.#failures = 0; // Every stream starts with a position, even before an error.
      if (this.#isJsonLines) {
        this.#lines.add(event);
        this.lastEventId = this.#lines.id || this.lastEventId;
      } else {
        this.lastEventId = event.id || this.lastEventId;
      }
    }
    if (events.length) this.#handlers.events(events);
    return problem;
  }

  #failed(error) {
    if (error instanceof Problem) this.#retryOrStop(error.status, error.message, error.retryAfter ?? null);
    else this.#retry("The connection was lost.");
  }

  #retryOrStop(status, reason = "The server ended the stream.", retryAfter = null) {
    const isClientError = status >= 400 && status < 500;
    const isPermanent = status === 500 ? retryAfter === null : isClientError && !TEMPORARY_STATUSES.has(status);
    if (isPermanent) this.#handlers.state({ name: "stopped", reason, status });
    else this.#retry(reason, Number(retryAfter) || 0);
  }

  #retry(reason, retryAfterS = 0) {
    const backoffMs = Math.min(MAX_BACKOFF_MS, this.#retryMs * 2 ** this.#failures);
    const waitMs = Math.max(Math.min(retryAfterS, MAX_RETRY_AFTER_S) * 1000, backoffMs);
    this.#failures += 1;
    this.#countDown(Date.now() + waitMs * (1 + Math.random() / 2), reason);
  }

  #countDown(retryAt, reason) {
    const leftMs = retryAt - Date.now();
    if (leftMs <= 0) {
      this.start();
      return;
    }
    this.#handlers.state({ name: "reconnecting", reason, seconds: Math.ceil(leftMs / 1000) });
    this.#timer = setTimeout(() => this.#countDown(retryAt, reason), leftMs % 1000 || 1000);
  }
}

function parse(text) {
  try {
    return JSON.parse(text) ?? {};
  } catch {
    return {};
  }
}
