// Read a stream with one of the libraries below, and print each event as one line of JSON. Arguments: the library, the URL.

import { createRequire } from "node:module";

const require = createRequire(import.meta.url);
const [library, url] = process.argv.slice(2);
const TYPES = ["position", "message", "delete", "base64", "gap", "error"];

function print(event, id, data) {
  process.stdout.write(JSON.stringify({ event, id, data }) + "\n");
}

/**
 * Use an EventSource class, and replace an instance that has stopped permanently. `ignoreIncomplete`: the library keeps the
 * lines of an incomplete event, and dispatches them at the start of the next connection.
 */
function follow(EventSource, { ignoreIncomplete = false } = {}, lastEventId = "") {
  const address = new URL(url);
  if (lastEventId) address.searchParams.set("lastEventId", lastEventId);
  const source = new EventSource(address.href);
  let isReplaced = false;
  /** Some libraries close the source only after the event. */
  function replaceIfClosed() {
    if (isReplaced || source.readyState !== EventSource.CLOSED) return;
    isReplaced = true;
    follow(EventSource, { ignoreIncomplete }, lastEventId);
  }
  for (const type of TYPES) {
    source.addEventListener(type, (event) => {
      if (event.data !== undefined) {
        if (ignoreIncomplete && event.lastEventId === lastEventId) return;
        lastEventId = event.lastEventId;
        print(type, event.lastEventId, event.data);
      } else {
        setTimeout(replaceIfClosed, 1000);
      }
    });
  }
}

/** Resume after the last event that arrived; the library would resume after the last ID, even without its event. */
function fetchEventSource() {
  globalThis.window = globalThis; // The library is written for browsers.
  globalThis.document = { hidden: false, addEventListener() {}, removeEventListener() {} };
  let lastEventId = "";
  require("@microsoft/fetch-event-source").fetchEventSource(url, {
    fetch(input, init) {
      const headers = new Headers(init.headers);
      if (lastEventId) headers.set("Last-Event-ID", lastEventId);
      else headers.delete("Last-Event-ID");
      return fetch(input, { ...init, headers });
    },
    onmessage({ event, id, data }) {
      if (!data) return; // Comments and `retry:` arrive as empty messages.
      print(event, id, data);
      lastEventId = id;
    },
    onclose() {
      throw new Error("The server ended the stream."); // Otherwise, the library does not reconnect.
    },
  });
}

/** kafkasse's own client. It keeps its token until the server rejects it, and its position in a file. */
async function read() {
  const { Stream } = await import(process.env.KAFKASSE_JS);
  const { fileStore } = await import(new URL("node.js", process.env.KAFKASSE_JS));
  let cached;
  const token = async ({ refresh }) => {
    if (!cached || refresh) {
      const response = await fetch(new URL("/-/token", url));
      if (!response.ok) throw new Error(response.status);
      cached = await response.text();
    }
    return cached;
  };
  for await (const { type, id, data } of new Stream(url, { token, store: fileStore("position") })) {
    print(type, id, data);
  }
}

const programs = {
  "kafkasse": read,
  "eventsource-2": () => follow(require("eventsource-2"), { ignoreIncomplete: true }),
  "eventsource": async () => follow((await import("eventsource")).EventSource),
  "launchdarkly-eventsource": () => follow(require("launchdarkly-eventsource").EventSource),
  "fetch-event-source": fetchEventSource,
};
await programs[library]();
