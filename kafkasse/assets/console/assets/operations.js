// The view for operators: the state of the server, from its endpoints for operators. It refreshes every few seconds.

import { bytes, create, duration, element, number, setText } from "./dom.js";
import { followPipelines, statusStream } from "./pipelines.js";
import { parseMetrics, quantile, sum } from "./metrics.js";
import { credentials, Problem, request, requestJson, root } from "./session.js";

const INTERVAL_MS = 2000;
const MAX_STREAMS = 200; // shown; a server may have 100,000
// As in kafkasse/commands/pipeline_status.py: a pipeline that runs writes its status every 5 s.
const SILENT_AFTER_S = 30;
const OTHERS_SILENT_AFTER_S = 60;

export class Operations {
  #catalog;
  #timer = 0;
  #isShown = false;
  #before = null; // the metrics of the previous refresh
  #stream = null;
  #statuses = new Map(); // of the pipelines
  #skewMs = 0; // from the browser's clock to the server's

  /** @param catalog returns the streams of the catalog. */
  constructor(catalog) {
    this.#catalog = catalog;
    document.addEventListener("visibilitychange", () => {
      if (!this.#isShown) return;
      if (document.visibilityState === "hidden") this.#pause();
      else this.show();
    });
  }

  show() {
    this.#isShown = true;
    this.#refresh();
    this.#followPipelines();
  }

  hide() {
    this.#isShown = false;
    this.#pause();
  }

  #pause() {
    clearTimeout(this.#timer);
    this.#stream?.close();
    this.#stream = null;
  }

  async #refresh() {
    clearTimeout(this.#timer);
    if (!this.#isShown || document.visibilityState === "hidden") return;
    try {
      const [text, status, streams] = await Promise.all([
        request("-/metrics").then((response) => {
          this.#skewMs = Date.parse(response.headers.get("Date")) - Date.now() || 0;
          return response.text();
        }),
        requestJson("-/status"),
        requestJson(`-/streams?limit=${MAX_STREAMS}`),
      ]);
      this.#showMetrics(parseMetrics(text), status);
      this.#showStreams(streams.streams);
      this.#showPipelines();
      const silent = streams.silent_workers.join(", ");
      setText(element("operations-problem"), silent && `The list lacks the streams of silent workers: ${silent}`);
    } catch (error) {
      const hint = [401, 403].includes(error.status) ? " Sign in as an operator." : "";
      setText(element("operations-problem"), error.message + hint);
    }
    if (this.#isShown) this.#timer = setTimeout(() => this.#refresh(), INTERVAL_MS);
  }

  #showMetrics(metrics, status) {
    const now = performance.now();
    const seconds = this.#before ? (now - this.#before.at) / 1000 : null;
    // A counter is lower than before if the server has restarted.
    const rate = (name, labels) => {
      if (seconds === null) return null;
      return Math.max(0, sum(metrics, name, labels) - sum(this.#before.metrics, name, labels)) / seconds;
    };
    const perSecond = (value, format = number.format) => (value === null ? "\u2013" : `${format(Math.round(value))}/s`);
    const state = (name, labels = {}) => sum(metrics, "kafkasse_stream_states", { state: name, ...labels });
    const stall = quantile(metrics, "kafkasse_event_loop_stall_seconds", 0.99);
    tiles([
      ["Workers", number.format(status.workers.length), status.workers.join(", ")],
      ["Open streams", number.format(sum(metrics, "kafkasse_streams_open")), `${number.format(state("parked") + state("live"))} up to date`],
      ["Events sent", perSecond(rate("kafkasse_events_sent_total")), perSecond(rate("kafkasse_bytes_sent_total"), bytes)],
      ["Catching up", number.format(state("catching_up") + state("joining")), `${number.format(state("behind"))} waiting for a slot`],
      ["Rings", bytes(sum(metrics, "kafkasse_ring_bytes")), "memory of recent events"],
      ["Event loop stalls", number.format(sum(metrics, "kafkasse_event_loop_stall_seconds_count")), `over 10 ms since the start${stall === null ? "" : `; 99 % under ${duration(stall)}`}`],
      ["Rejections", perSecond(rate("kafkasse_requests_rejected_total")), `${number.format(sum(metrics, "kafkasse_requests_rejected_total"))} in total`],
    ]);
    element("kafka").replaceChildren(...status.clusters.map(cluster));
    const routes = [...new Set((metrics.get("kafkasse_streams_open") ?? []).map(({ labels }) => labels.route))].sort();
    table(element("routes"), ["Route", "Streams", "Events", "Bytes", "Catching up", "Lag", "Delay", "Ring"], routes.map((route) => {
      const of = (name) => sum(metrics, name, { route });
      return [
        route,
        number.format(of("kafkasse_streams_open")),
        perSecond(rate("kafkasse_events_sent_total", { route })),
        perSecond(rate("kafkasse_bytes_sent_total", { route }), bytes),
        number.format(state("catching_up", { route }) + state("joining", { route }) + state("behind", { route })),
        number.format(of("kafkasse_catch_up_lag_records")),
        duration(of("kafkasse_feed_delay_seconds")),
        bytes(of("kafkasse_ring_bytes")),
      ];
    }));
    this.#before = { metrics, at: now };
  }

  #showStreams(streams) {
    const total = streams.length < MAX_STREAMS ? "" : `The first ${number.format(MAX_STREAMS)} streams. `;
    setText(element("streams-note"), `${total}A stream that you end sends its last event ID; its client reconnects unless a guard rejects it.`);
    const focused = document.activeElement?.dataset?.stream;
    table(element("open-streams"), ["Route", "Client", "Visitor", "State", "Age", "Events", "Bytes", "Lag", "End"], streams.map((stream) => [
      stream.route,
      stream.client,
      stream.visitor || "\u2013",
      stream.state.replace("_", " ") + (stream.kafka_silent_s ? `; Kafka silent for ${duration(stream.kafka_silent_s)}` : ""),
      duration(stream.age_s),
      number.format(stream.events),
      bytes(stream.bytes),
      stream.lag_records === null || stream.lag_records === undefined ? "\u2013" : number.format(stream.lag_records),
      this.#endButton(stream),
    ]));
    if (focused) document.querySelector(`[data-stream="${CSS.escape(focused)}"]`)?.focus();
  }

  #endButton(stream) {
    const button = create("button", { type: "button", textContent: "End", "aria-label": `End the stream ${stream.id} of ${stream.route}` });
    button.dataset.stream = stream.id;
    button.addEventListener("click", async () => {
      button.disabled = true;
      try {
        await request(`-/streams/${encodeURIComponent(stream.id)}`, { method: "DELETE" });
        setText(element("streams-note"), `The stream ${stream.id} has ended.`);
      } catch (error) {
        if (!(error instanceof Problem)) throw error;
        setText(element("streams-note"), error.message);
      }
      this.#refresh();
    });
    return button;
  }

  /** Show the status topic of the pipelines, if the visitor may read a stream of this topic. */
  #followPipelines() {
    const route = statusStream(this.#catalog());
    element("pipelines-part").hidden = route === undefined;
    if (route === undefined || this.#stream !== null) return;
    const onState = ({ state, reason = "" }) => {
      if (state !== "connecting") setText(element("pipelines-problem"), reason);
      if (state === "stopped" && this.#stream === stream) this.#stream = null; // the visitor may sign in again
    };
    const stream = followPipelines(new URL(`.${route.path}`, root), { headers: credentials, onState }, (statuses) => {
      this.#statuses = statuses;
      this.#showPipelines();
    });
    this.#stream = stream;
  }

  #showPipelines() {
    const columns = ["Pipeline", "State", "Updated", "Lag", "Records", "Batch", "Commit", "Restarts", "Late rows", "Dead letters", "Rows of state", "Memory"];
    const rows = [...this.#statuses.values()].sort((one, other) => (one.pipeline < other.pipeline ? -1 : 1));
    table(element("pipelines"), columns, rows.map((status) => {
      const ageS = (Date.now() + this.#skewMs - Date.parse(status.updated)) / 1000;
      return [
        status.pipeline,
        create("span", {}, stateBadge(status.state, ageS), status.reason ? ` ${status.reason}` : ""),
        figure(ageS, (age) => `${duration(age)} ago`),
        figure(status.lag_records, (records) => `${number.format(records)} records, ${duration(Number(status.lag_s) || 0)}`),
        figure(status.records_per_s, (rate) => `${number.format(Math.round(rate))}/s`),
        figure(status.batch_s, duration),
        figure(status.commit_s, duration),
        figure(status.restarts, number.format),
        figure(status.late_rows, number.format),
        figure(status.dead_letters, number.format),
        figure(status.state_rows, number.format),
        figure(status.state_bytes, bytes),
      ];
    }));
  }
}

/** A killed pipeline leaves its last state in the topic, so an old one is shown as silent. */
function stateBadge(state, ageS) {
  const hasEnded = state === "stopped" || state === "failed";
  const isSilent = !hasEnded && ageS > (state === "running" ? SILENT_AFTER_S : OTHERS_SILENT_AFTER_S);
  return create("span", { className: `badge ${isSilent ? "silent" : state}` }, isSilent ? `silent (was ${state})` : state ?? "\u2013");
}

/** Return a number as text, or a dash: everyone who can write to the topic controls the value. */
function figure(value, format) {
  return Number.isFinite(value) ? format(value) : "\u2013";
}

function tiles(all) {
  const list = element("tiles");
  if (list.children.length !== all.length) {
    list.replaceChildren(...all.map(() => create("dl", { className: "tile" }, create("dt"), create("dd", { className: "value" }), create("dd", { className: "note" }))));
  }
  for (const [index, texts] of all.entries()) {
    for (const [part, text] of texts.entries()) setText(list.children[index].children[part], text);
  }
}

function cluster({ name, state, detail }) {
  const label = { reachable: "Reachable", unavailable: "Unavailable" }[state] ?? state;
  return create("li", {}, create("span", { className: `badge ${state}` }, label), ` ${name || "kafka"}`, detail ? create("p", { className: "note" }, detail) : null);
}

/** Fill a table. Rows are replaced, but not their scroll container, so that its position stays. */
function table(target, columns, rows) {
  const head = create("thead", {}, create("tr", {}, ...columns.map((name) => create("th", { scope: "col" }, name))));
  const body = create("tbody", {}, ...rows.map(([first, ...rest]) => create("tr", {}, create("th", { scope: "row" }, first), ...rest.map((cell) => create("td", {}, cell)))));
  if (rows.length === 0) body.append(create("tr", {}, create("td", { colSpan: columns.length }, "None")));
  target.replaceChildren(head, body);
}
