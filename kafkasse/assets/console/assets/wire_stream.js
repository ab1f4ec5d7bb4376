// A stream whose events keep the frame that the server sent. kafkasse.js reads it, reconnects and resumes.
//
// kafkasse.js passes on the data of an event, but not its frame. A filter therefore rewrites the body of the response, so that
// the whole frame becomes the data of the event. JSON lines become events in the same way, with the offsets in the lines as IDs.
//
// Tabs share a connection as soon as they have reached the same position. A tab that needs earlier events, or that is behind the
// others, first reads alone.

import { LinePositions, splitFrames, StreamEvent } from "./events.js";
import { Stream, StreamError } from "./kafkasse.js";
import { root } from "./session.js";

const ALONE_MS = 3000; // until a tab that reads alone tries to share a connection again; doubled each time
const READ_ON = "another tab has read on"; // the reason of the gap that kafkasse.js reports in a tab that is behind
const WAIT_REASON =
  "Four other tabs or windows already read streams from this server. The browser's other two connections are for pages. " +
  "To start this stream, stop the stream of another tab, or close that tab. With HTTP/2, there is no such limit.";
const WIRE_ERROR = "wire-error"; // an `error` event for the list; kafkasse.js handles the original

export class WireStream {
  #open;
  #isJsonLines;
  #shared;
  #handlers;
  #stream = null;
  #hasConnected = false; // whether this tab, and not another one, has connected since start()
  #slot;
  #timer = 0;
  #aloneMs = ALONE_MS;
  lastEventId;

  /**
   * @param open `open(lastEventId, signal)`: sends the request and returns the response.
   * @param isJsonLines whether the server sends JSON lines.
   * @param shared `{name, startsAtEnd}`: the name of the stream whose connection tabs share, and whether this tab wants only
   *   new events. It is null if each tab has its own connection.
   * @param slot the Slot of this page. The caller frees it when the stream is closed.
   * @param handlers `event(event)`, called with each StreamEvent; `state({name, reason, retryAt, status})`, where `name` is
   *   "connecting", "waiting" (for a slot), "open", "retrying" or "stopped".
   * @param lastEventId the event ID to resume from; "" to start where the request says.
   */
  constructor(open, isJsonLines, shared, slot, handlers, lastEventId = "") {
    this.#open = open;
    this.#isJsonLines = isJsonLines;
    this.#shared = shared;
    this.#slot = slot;
    this.#handlers = handlers;
    this.lastEventId = lastEventId;
  }

  /** Connect now, at the last event ID. */
  start(shares = this.#shared !== null) {
    this.close();
    this.#hasConnected = false;
    const stream = new Stream(root, {
      lastEventId: this.lastEventId,
      shared: shares && this.#shared.name,
      fetch: async (_, { headers, signal }) => {
        this.#hasConnected = true;
        await this.#slot.take(() => this.#setState(stream, { state: "waiting", reason: WAIT_REASON }));
        this.#setState(stream, { state: "connecting" });
        // After a long wait, kafkasse.js has given up this request.
        if (signal.aborted) setTimeout(() => stream === this.#stream && stream.retry());
        const id = headers.get("Last-Event-ID") ?? "";
        return this.#filtered(await this.#open(id, signal), id);
      },
      onState: (state) => this.#setState(stream, state),
    });
    this.#stream = stream;
    this.#read(stream);
  }

  /** If a retry is scheduled, retry now. */
  retry() {
    if (this.#stream === null) this.start();
    else this.#stream.retry();
  }

  /** Disconnect. start() resumes exactly here. */
  close() {
    const stream = this.#stream;
    this.#stream = null;
    clearTimeout(this.#timer);
    stream?.close();
  }

  async #read(stream) {
    try {
      for await (const { type, data, id } of stream) {
        if (stream !== this.#stream) return;
        if (this.#isBehind(type, data)) return this.#startAlone();
        this.lastEventId = id || this.lastEventId;
        this.#handlers.event(new StreamEvent(data, this.#isJsonLines));
      }
    } catch (error) {
      if (!(error instanceof StreamError)) throw error;
      if (stream !== this.#stream) return;
      this.close();
      this.#handlers.state({ name: "stopped", reason: error.message, status: error.status });
    }
  }

  /** Whether the other tabs have already received events that this tab needs. */
  #isBehind(type, data) {
    if (this.#hasConnected || this.#shared === null) return false;
    return this.lastEventId === "" ? !this.#shared.startsAtEnd : type === "gap" && data.includes(READ_ON);
  }

  /** Read with a connection of this tab only. Later, try to share one: this tab may then have caught up with the others. */
  #startAlone() {
    this.start(false);
    this.#timer = setTimeout(() => this.start(), this.#aloneMs);
    this.#aloneMs *= 2;
  }

  #setState(stream, { state, reason, retryAt }) {
    if (stream !== this.#stream) return;
    if (state === "open" && !this.#hasConnected) this.#slot.free(); // Another tab has the connection.
    if (state !== "closed") this.#handlers.state({ name: state, reason, retryAt });
  }

  #filtered(response, lastEventId) {
    if (!response.ok || !/^(text\/event-stream|application\/(x-ndjson|json))\b/.test(response.headers.get("Content-Type"))) return response;
    const body = response.body.pipeThrough(new TextDecoderStream()).pipeThrough(this.#filter(lastEventId)).pipeThrough(new TextEncoderStream());
    return new Response(body, { headers: { "Content-Type": "text/event-stream" } });
  }

  #filter(lastEventId) {
    const positions = new LinePositions(lastEventId); // of this request: after a pause, kafkasse.js may have received more lines
    let rest = "";
    return new TransformStream({
      transform: (text, controller) => {
        const split = splitFrames(rest + text, this.#isJsonLines);
        rest = split.rest;
        const passed = split.frames.map((frame) => this.#wrap(frame, positions)).join("");
        if (passed) controller.enqueue(passed);
      },
    });
  }

  #wrap(frame, positions) {
    const event = new StreamEvent(frame, this.#isJsonLines);
    if (event.type === null) return this.#isJsonLines ? ":\n\n" : `${frame}\n\n`;
    if (this.#isJsonLines) positions.add(event);
    const id = this.#isJsonLines ? positions.id : event.id;
    const type = event.type === "error" ? WIRE_ERROR : event.type;
    const wrapped = `event: ${type}\ndata: ${frame.replaceAll("\n", "\ndata: ")}\n${id ? `id: ${id}\n` : ""}\n`;
    return event.type === "error" ? `${wrapped}event: error\ndata: ${event.data.replaceAll("\n", "\ndata: ")}\n\n` : wrapped;
  }
}
