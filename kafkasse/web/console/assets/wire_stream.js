// A stream whose events keep the frame that the server sent. kafkasse.js reads it, reconnects and resumes.
//
// kafkasse.js passes on the data of an event, but not its frame. A filter therefore rewrites the body of the response, so that
// the whole frame becomes the data of the event. JSON lines become events in the same way, with the offsets in the lines as IDs.

import { LinePositions, splitFrames, StreamEvent } from "./events.js";
import { Stream, StreamError } from "./kafkasse.js";
import { root } from "./session.js";

const WIRE_ERROR = "wire-error"; // an `error` event for the list; kafkasse.js handles the original

export class WireStream {
  #open;
  #isJsonLines;
  #handlers;
  #stream = null;
  lastEventId;

  /**
   * @param open `open(lastEventId, signal)`: sends the request and returns the response.
   * @param isJsonLines whether the server sends JSON lines.
   * @param handlers `event(event)`, called with each StreamEvent; `state({name, reason, retryAt})`, where `name` is
   *   "connecting", "open", "retrying" or "stopped".
   * @param lastEventId the event ID to resume from; "" to start where the request says.
   */
  constructor(open, isJsonLines, handlers, lastEventId = "") {
    this.#open = open;
    this.#isJsonLines = isJsonLines;
    this.#handlers = handlers;
    this.lastEventId = lastEventId;
  }

  /** Connect now, at the last event ID. */
  start() {
    this.close();
    const stream = new Stream(root, {
      lastEventId: this.lastEventId,
      fetch: async (_, { headers, signal }) => this.#filtered(await this.#open(headers.get("Last-Event-ID") ?? "", signal)),
      onState: (state) => stream === this.#stream && this.#setState(state),
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
    stream?.close();
  }

  async #read(stream) {
    try {
      for await (const { data, id } of stream) {
        if (stream !== this.#stream) return;
        this.lastEventId = id || this.lastEventId;
        this.#handlers.event(new StreamEvent(data, this.#isJsonLines));
      }
    } catch (error) {
      if (!(error instanceof StreamError)) throw error;
      if (stream !== this.#stream) return;
      this.close();
      this.#handlers.state({ name: "stopped", reason: error.message });
    }
  }

  #setState({ state, reason, retryAt }) {
    if (state !== "closed") this.#handlers.state({ name: state, reason, retryAt });
  }

  #filtered(response) {
    if (!response.ok || !/^(text\/event-stream|application\/(x-ndjson|json))\b/.test(response.headers.get("Content-Type"))) return response;
    const body = response.body.pipeThrough(new TextDecoderStream()).pipeThrough(this.#filter()).pipeThrough(new TextEncoderStream());
    return new Response(body, { headers: { "Content-Type": "text/event-stream" } });
  }

  #filter() {
    const positions = new LinePositions();
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
