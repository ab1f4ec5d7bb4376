// One stream for all tabs of a browser: over HTTP/1.1, a browser opens at most six connections to a server.
//
// One tab, the leader, reads the stream and passes each event to the other tabs over a BroadcastChannel. A Web Lock decides
// which tab leads. When the leader closes, its lock goes to the tab that has waited longest. That tab resumes at the last
// event that it received; other tabs may then receive an event twice, and never miss one.
//
// A tab that opens later receives the newest event of each key from the leader, as a new client of a route with
// `start: snapshot` would. Browsers have Web Locks only for HTTPS and localhost. Elsewhere, each tab has its own stream.

import { Stream } from "./stream.js";

const MAX_KEYS = 10_000; // that a leader keeps for tabs that open later

export class SharedStream {
  #url;
  #handlers;
  #channel = null;
  #stream = null; // in the leader
  #rows = new Map(); // the newest event of each key
  #lastEventId = "";
  #state = null;
  #isReady = false; // the tab has received what the leader received before

  /**
   * @param url the absolute URL of the stream.
   * @param handlers those of Stream, and: `key(type, data)`, which returns the key of an event, or undefined for an event that
   *   later tabs do not need; and `reset()`, called when the stream starts again without an event ID.
   */
  constructor(url, handlers) {
    this.#url = url;
    this.#handlers = handlers;
    if (!navigator.locks) {
      this.#lead();
      return;
    }
    const name = `kafkasse ${url}`;
    this.#channel = new BroadcastChannel(name);
    this.#channel.onmessage = ({ data }) => this.#receive(data);
    handlers.state({ name: "connecting" });
    const lock = navigator.locks.request(name, () => {
      this.#lead();
      return new Promise(() => {}); // Keep the lock as long as the page is open.
    });
    lock.catch(() => this.#lead()); // The browser does not permit locks, for example in a sandboxed frame.
    this.#channel.postMessage({ hello: true });
  }

  get stopped() {
    return this.#state?.name === "stopped";
  }

  /** Open the stream now: at the last event ID, or at the route's start if the stream was stopped. */
  restart() {
    if (this.#stream === null) {
      this.#channel.postMessage({ command: "restart" });
      return;
    }
    if (this.stopped) this.#publish({ reset: true });
    this.#stream.restart();
  }

  /** If a retry is scheduled, retry now. */
  retryNow() {
    if (this.#stream === null) this.#channel.postMessage({ command: "retryNow" });
    else this.#stream.retryNow();
  }

  #lead() {
    const publish = (type) => (data) => this.#publish({ type, data, id: this.#stream.lastEventId });
    const types = ["position", "message", "delete", "base64", "gap"];
    const handlers = Object.fromEntries(types.map((type) => [type, publish(type)]));
    handlers.state = (state) => this.#publish({ state });
    this.#isReady = true;
    this.#stream = new Stream(this.#url, handlers, this.#lastEventId);
    this.#answer(); // The previous leader may have closed before it could answer a new tab.
    this.#stream.restart();
  }

  #publish(message) {
    this.#channel?.postMessage(message);
    this.#apply(message);
  }

  #receive(message) {
    if (this.#stream !== null) {
      if (message.hello) this.#answer();
      if (message.command === "restart") this.restart();
      if (message.command === "retryNow") this.retryNow();
    } else if (message.rows && !this.#isReady) {
      this.#isReady = true;
      message.rows.forEach((row) => this.#apply(row));
      this.#lastEventId = message.id;
      if (message.state) this.#apply({ state: message.state });
    } else if (this.#isReady) {
      this.#apply(message);
    }
  }

  #answer() {
    this.#channel?.postMessage({ rows: [...this.#rows.values()], id: this.#lastEventId, state: this.#state });
  }

  #apply({ type, data, id, state, reset }) {
    if (state) {
      this.#state = state;
      this.#handlers.state(state);
    } else if (reset) {
      this.#rows.clear();
      this.#lastEventId = "";
      this.#handlers.reset?.();
    } else if (type) {
      this.#keep(type, data, id);
      this.#lastEventId = id;
      this.#handlers[type]?.(data);
    }
  }

  #keep(type, data, id) {
    const key = type === "message" || type === "delete" ? this.#handlers.key?.(type, data) : undefined;
    if (key === undefined) return;
    this.#rows.delete(key); // The newest key is the last one.
    if (type === "message") this.#rows.set(key, { type, data, id });
    if (this.#rows.size > MAX_KEYS) this.#rows.delete(this.#rows.keys().next().value);
  }
}
