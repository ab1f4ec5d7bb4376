// The explorer: reads a stream and shows its events as they arrive.

import { Chart } from "./chart.js";
import { bytes, create, duration, element, number, setText, tabs } from "./dom.js";
import { EventList } from "./event_list.js";
import { exported, pretty } from "./events.js";
import { Query } from "./query.js";
import { credentials, Problem, requestJson, root } from "./session.js";
import { Slot } from "./slots.js";
import { snippets } from "./snippets.js";
import { EventBuffer, Store } from "./store.js";
import { WireStream } from "./wire_stream.js";

const CHECK_DELAY_MS = 300; // after the last change, before the server checks the query
const SEARCH_DELAY_MS = 200;
const DRAW_MS = 60; // between two updates of the list: nobody can read faster updates
const HIDDEN_MS = 2000; // a hidden tab disconnects, because a browser has six connections to a server for all tabs
const MAX_SHOWN_CHARS = 200_000; // of one event in the details
const MAX_FACT_CHARS = 10_000; // of a key, for example
const MIN_SKEW_MS = 2000; // The header `Date` has no fractions of a second.
const STATE_LABELS = { idle: "Not connected", connecting: "Connecting", waiting: "Waiting", open: "Live", retrying: "Reconnecting", stopped: "Stopped" };
const COUNTED = { message: "messages", base64: "messages", delete: "deletes", gap: "gaps", error: "errors" };

export class Explorer {
  #query = new Query(() => this.#onQuery());
  #store = new Store();
  #list;
  #stream = null;
  #slot = new Slot();
  #filled = ""; // the link with which the form was filled
  #state = { name: "idle" };
  #pending = new EventBuffer(); // received while paused
  #isPaused = false;
  #isFull = false; // the pending events reached their bound, so the stream was closed
  #isSuspended = false; // the tab is hidden, so the stream was closed
  #counts = { messages: 0, deletes: 0, gaps: 0, errors: 0 };
  #received = 0; // in the current second
  #newest = null;
  #skewMs = 0; // from the browser's clock to the server's
  #charts = { rate: new Chart(element("rate-chart")), lag: new Chart(element("lag-chart")) };
  #drawing = 0;
  #drawnAt = 0;
  #mode = "pretty";
  #shown = null;
  #timers = { check: 0, search: 0, hidden: 0 };
  #checks = 0;

  constructor() {
    this.#list = new EventList(element("list"), this.#store, {
      onSelect: (event, opens) => this.#select(event, opens),
      onFollow: (follows) => element("follow").setAttribute("aria-pressed", String(follows)),
    });
    const on = (id, type, handle) => element(id).addEventListener(type, handle);
    on("query", "submit", (event) => {
      event.preventDefault();
      this.#read();
    });
    on("stop", "click", () => this.stop());
    on("retry", "click", () => this.#stream?.retry());
    on("pause", "click", () => this.#pause(!this.#isPaused));
    on("follow", "click", () => this.#list.follow(!this.#list.follows));
    on("clear", "click", () => this.clear());
    on("export", "click", () => this.#export());
    on("close", "click", () => this.#closeDetails());
    on("resume", "click", () => this.#resume(this.#shown.id));
    on("details", "keydown", (event) => event.key === "Escape" && this.#closeDetails());
    on("search", "input", () => {
      clearTimeout(this.#timers.search);
      this.#timers.search = setTimeout(() => this.#search(), SEARCH_DELAY_MS);
    });
    this.#tabs();
    this.#connectCode();
    setInterval(() => this.#tick(), 1000);
    document.addEventListener("visibilitychange", () => this.#onVisibility());
    // A page with an open connection cannot enter the back/forward cache.
    window.addEventListener("pagehide", () => this.#suspend());
    window.addEventListener("pageshow", () => this.#continue());
  }

  setCatalog(catalog, features) {
    const link = this.#query.link();
    this.#query.setCatalog(catalog, features);
    this.#query.fill(link);
  }

  show(parameters) {
    const link = parameters.toString();
    if (link !== "" && link !== this.#filled && link !== this.#query.link().toString()) {
      this.#filled = link;
      this.stop();
      this.#query.fill(parameters);
    }
    this.#draw();
    this.#check();
  }

  stop() {
    this.#stream?.close();
    this.#stream = null;
    this.#setState({ name: "idle" });
  }

  /** Resume at the same position if the server no longer accepted the previous token. */
  signedIn() {
    if (this.#state.status === 401) this.#stream?.retry();
  }

  clear() {
    this.#store.clear();
    this.#pending.clear();
    this.#counts = { messages: 0, deletes: 0, gaps: 0, errors: 0 };
    this.#newest = null;
    this.#charts.rate.clear();
    this.#charts.lag.clear();
    this.#list.select(null);
    this.#closeDetails();
    this.#list.follow(true);
    this.#draw();
  }

  // Reading.

  #read() {
    const { missing } = this.#query;
    if (missing) {
      missing.focus();
      setText(element("problem"), "Fill in this field.");
      return;
    }
    this.#pause(false);
    this.clear();
    element("list").dataset.format = this.#query.stream?.format ?? "";
    const link = this.#query.link().toString();
    this.#filled = link;
    history.replaceState(null, "", `#/explore?${link}`);
    this.#connect(this.#query.lastEventId);
  }

  #connect(lastEventId) {
    this.#stream?.close();
    const { path, search, usesTicket, accept, isJsonLines, shared } = this.#query;
    const open = async (id, signal) => {
      const own = new URLSearchParams(search);
      const options = { signal, cache: "no-store", headers: { Accept: accept, ...(id ? { "Last-Event-ID": id } : {}) } };
      if (!usesTicket) Object.assign(options.headers, credentials());
      else {
        // Exchange the token for a ticket, which opens the stream once, instead of sending the token with the request.
        const ticketUrl = new URL(`-/ticket?${new URLSearchParams({ path })}`, root);
        const issued = await fetch(ticketUrl, { method: "POST", signal, headers: credentials() });
        if (!issued.ok) return issued;
        own.set("ticket", (await issued.json()).ticket);
      }
      const response = await fetch(new URL(address(path, own), root), options);
      const skewMs = Date.parse(response.headers.get("Date")) - Date.now();
      this.#skewMs = Math.abs(skewMs) > MIN_SKEW_MS ? skewMs : 0;
      return response;
    };
    const handlers = { event: (event) => this.#receive(event), state: (state) => this.#setState(state) };
    this.#stream = new WireStream(open, isJsonLines, shared, this.#slot, handlers, lastEventId);
    this.#stream.start();
  }

  #receive(event) {
    if (event.type === "position" || event.type === null) return;
    this.#received += 1;
    this.#newest = event;
    const counted = COUNTED[event.type];
    if (counted) this.#counts[counted] += 1;
    if (this.#isPaused) this.#pending.push(event);
    else this.#store.add(event);
    if (this.#isPaused && this.#pending.isFull && !this.#isFull) {
      this.#isFull = true;
      this.#stream.close();
      this.#setState({ name: "idle", reason: "Paused at this position." });
    }
    this.#draw();
  }

  #pause(pauses) {
    if (pauses === this.#isPaused) return;
    this.#isPaused = pauses;
    element("pause").setAttribute("aria-pressed", String(pauses));
    if (pauses) {
      this.#draw();
      return;
    }
    for (const event of this.#pending) this.#store.add(event);
    this.#pending.clear();
    if (this.#isFull) this.#stream?.start(); // at the event after the last pending one
    this.#isFull = false;
    this.#draw();
  }

  #onVisibility() {
    clearTimeout(this.#timers.hidden);
    if (document.visibilityState === "hidden") this.#timers.hidden = setTimeout(() => this.#suspend(), HIDDEN_MS);
    else this.#continue();
  }

  #suspend() {
    if (this.#stream === null || this.#isFull || !["connecting", "waiting", "open", "retrying"].includes(this.#state.name)) return;
    this.#isSuspended = true;
    this.#stream.close();
    this.#setState({ name: "idle", reason: "This tab is hidden. It resumes at this position." });
  }

  #continue() {
    if (!this.#isSuspended) return;
    this.#isSuspended = false;
    this.#stream?.start();
  }

  #setState(state) {
    this.#state = state;
    if (state.name === "idle" || state.name === "stopped") this.#slot.free();
    if (state.status === 401) element("sign-in").hidden = false; // The token has expired.
    element("connection").dataset.state = state.name;
    setText(element("state"), STATE_LABELS[state.name]);
    setText(element("reason"), state.reason ?? "");
    this.#showCountdown();
    element("retry").hidden = !state.retryAt && state.name !== "stopped";
    element("stop").hidden = this.#stream === null || state.name === "stopped";
    setText(element("read"), this.#stream === null ? "Read" : "Read again");
    this.#draw();
  }

  #showCountdown() {
    const seconds = this.#state.retryAt ? Math.max(1, Math.ceil((this.#state.retryAt - Date.now()) / 1000)) : 0;
    setText(element("countdown"), seconds ? `Retrying in ${seconds} s` : "");
  }

  // The query.

  #onQuery() {
    clearTimeout(this.#timers.check);
    this.#timers.check = setTimeout(() => this.#check(), CHECK_DELAY_MS);
  }

  /** Let the server check the query, without opening a stream. */
  async #check() {
    const problem = element("problem");
    if (this.#query.stream === null || this.#query.missing) {
      problem.replaceChildren();
      return;
    }
    const search = new URLSearchParams([["path", this.#query.path], ...this.#query.search]);
    if (this.#query.lastEventId) search.set("last_event_id", this.#query.lastEventId);
    const check = (this.#checks += 1);
    let found = null;
    try {
      found = (await requestJson(`-/console/check?${search}`)).problem;
    } catch (error) {
      if (!(error instanceof Problem)) throw error;
      found = { detail: error.message };
    }
    if (check !== this.#checks) return; // The user has changed the query meanwhile.
    const texts = found ? [create("p", {}, found.detail ?? found.title)] : [];
    if (found?.picture) texts.push(create("pre", {}, found.picture));
    problem.replaceChildren(...texts);
  }

  #resume(id) {
    this.#pause(false);
    this.#query.lastEventId = id;
    this.#read();
  }

  // The list.

  #search() {
    const text = element("search").value;
    this.#store.search(text);
    this.#list.follow(true);
    this.#draw();
  }

  #draw() {
    const draw = () => {
      this.#drawing = 0;
      this.#drawnAt = performance.now();
      this.#list.draw();
      this.#showFigures();
    };
    this.#drawing ||= setTimeout(() => requestAnimationFrame(draw), this.#drawnAt + DRAW_MS - performance.now());
  }

  #showFigures() {
    for (const [id, count] of Object.entries(this.#counts)) setText(element(id), number.format(count));
    const kept = this.#store.all.length;
    setText(element("kept"), number.format(kept));
    setText(element("found"), element("search").value === "" ? "" : `${number.format(this.#store.visible.length)} found`);
    element("empty").hidden = this.#store.visible.length > 0;
    setText(element("empty"), kept > 0 ? "No event in the list contains this text." : this.#emptyText());
    setText(element("paused"), this.#pausedText());
  }

  #emptyText() {
    if (this.#state.name === "stopped") return "The stream stopped before the first event.";
    if (this.#stream === null) return "Press Read to see the events of this stream.";
    const start = this.#query.startsAtEnd ? " To see earlier events, start at the earliest event." : "";
    return `No events yet.${start}`;
  }

  #pausedText() {
    if (!this.#isPaused) return "";
    if (!this.#isFull) return "Paused. New events are kept, and the list shows them when you continue.";
    return `Paused with ${number.format(this.#pending.length)} new events, the most that the page keeps. The connection is closed. When you continue, the stream resumes after the last of them, so no event is lost.`;
  }

  #tick() {
    this.#showCountdown();
    if (this.#stream === null && this.#received === 0) return;
    const timestamp = this.#newest?.facts.timestamp;
    const lagS = Number.isFinite(timestamp) ? Math.max(0, Date.now() + this.#skewMs - timestamp) / 1000 : null;
    const isLive = this.#received > 0;
    this.#charts.rate.add(this.#received);
    this.#charts.lag.add(isLive ? lagS : null);
    setText(element("rate"), number.format(this.#received));
    if (isLive) setText(element("lag"), lagS === null ? "unknown" : `${duration(lagS)} ago`);
    this.#received = 0;
  }

  #export() {
    const lines = [...this.#store.visible].map((event) => `${exported(event)}\n`);
    const url = URL.createObjectURL(new Blob(lines, { type: "application/x-ndjson" }));
    const link = create("a", { href: url, download: `${this.#query.stream?.name ?? "events"}.ndjson` });
    link.click();
    setTimeout(() => URL.revokeObjectURL(url), 10_000);
  }

  // The details.

  #tabs() {
    tabs(document.querySelector("#details [role=tablist]"), (tab) => {
      this.#mode = tab.dataset.mode;
      this.#showContent();
    });
  }

  #select(event, opens) {
    if (!opens && element("details").hidden) return;
    this.#shown = event;
    element("details").hidden = false;
    setText(element("details-title"), `Event ${event.n}: ${event.type}`);
    element("facts").replaceChildren(...factsOf(event).flatMap(([name, text]) => [create("dt", {}, name), fact(shortened(String(text), MAX_FACT_CHARS))]));
    this.#showContent();
    element("resume").hidden = event.id === "";
    setText(element("resume-note"), event.id ? "" : "This event has no ID, so no stream can resume from it.");
    this.#list.draw();
  }

  #showContent() {
    const event = this.#shown;
    if (event === null) return;
    const text = { pretty: () => pretty(event.data), raw: () => event.data, wire: () => event.frame + (event.isJsonLines ? "\n" : "\n\n") }[this.#mode]();
    const shown = shortened(text, MAX_SHOWN_CHARS);
    element("content").textContent = shown;
    const length = `${number.format(MAX_SHOWN_CHARS)} of ${number.format(text.length)}`;
    setText(element("content-note"), shown === text ? "" : `The first ${length} characters. Export the events to get the full text.`);
  }

  #closeDetails() {
    if (element("details").hidden) return;
    const hadFocus = element("details").contains(document.activeElement);
    element("details").hidden = true;
    this.#shown = null;
    if (hadFocus) element("list").focus();
  }

  // Code.

  #connectCode() {
    const dialog = element("code-dialog");
    let language = "curl";
    const show = () => {
      const { credentials, lastEventId, path, search, startsAtEnd, stream } = this.#query;
      if (lastEventId) for (const name of ["timestamp", "since"]) search.delete(name);
      const url = new URL(address(path, search), root).href;
      const client = new URL("./kafkasse.js", import.meta.url).href;
      const file = `${stream?.name.replaceAll(/[^\w.-]/g, "-") ?? "stream"}.position`;
      element("code").textContent = snippets[language]({ url, client, file, lastEventId, startsAtEnd, credentials });
      const hints = [];
      if (credentials) hints.push(`It reads your ${credentials} from the environment variable ${credentials.toUpperCase()}.`);
      if (lastEventId && language === "chunks") hints.push("It starts at the first record: chunks have no event IDs.");
      setText(element("code-note"), hints.join(" "));
    };
    tabs(dialog.querySelector("[role=tablist]"), (tab) => {
      language = tab.dataset.language;
      show();
    });
    element("code-open").addEventListener("click", () => {
      show();
      dialog.showModal();
    });
    element("code-close").addEventListener("click", () => dialog.close());
    element("code-copy").addEventListener("click", async () => {
      const text = element("code").textContent;
      try {
        await navigator.clipboard.writeText(text); // only with HTTPS and on localhost
        setText(element("code-note"), "Copied.");
      } catch {
        getSelection().selectAllChildren(element("code"));
        setText(element("code-note"), "The text is selected. Copy it with the keyboard.");
      }
    });
  }
}

/** Return the address of a stream relative to the root. */
function address(path, search) {
  const query = search.toString();
  return `.${path}${query ? `?${query}` : ""}`;
}

function shortened(text, maxChars) {
  return text.length > maxChars ? `${text.slice(0, maxChars)}\u2026` : text;
}

/** A long text scrolls, and the keyboard can scroll only an element that can have the focus. */
function fact(text) {
  return create("dd", text.length > 40 ? { tabIndex: 0 } : {}, text);
}

function factsOf(event) {
  const { topic, partition, offset, timestamp, key, headers, from, to, reason } = event.facts;
  const found = [
    ["Topic", topic],
    ["Partition", partition],
    ["Offset", offset],
    ["Missing offsets", from === undefined ? undefined : `${from} to ${to - 1}`],
    ["Reason", reason],
    ["Time", Number.isFinite(timestamp) ? new Date(timestamp).toISOString() : undefined],
    ["Key", key],
    ["Headers", headers && Object.keys(headers).length > 0 ? JSON.stringify(headers) : undefined],
    ["Event ID", event.id || undefined],
    ["Size", bytes(new TextEncoder().encode(event.frame).length)],
  ];
  return found.filter(([, value]) => value !== undefined && value !== null);
}
