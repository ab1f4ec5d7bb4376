// The page: pass events to the board, and display the state of the connection.

import { Board, parseUpdate } from "./board.js";
import { WorldMap } from "./map.js";
import { Stream } from "./kafkasse.js";
import { followPipelines, statusStream } from "./pipelines.js";
import { fetchWithSlot } from "./slots.js";

const SUMMARY_INTERVAL_MS = 20_000;

const PIPELINE = "topn";
const STATE_LABELS = { connecting: "Connecting", open: "Live", retrying: "Reconnecting", stopped: "Stopped" };

const element = (id) => document.getElementById(id);
const board = new Board(element("board"), element("continent"), element("country"));
const map = new WorldMap(element("map"));
const clock = new Intl.DateTimeFormat(undefined, { timeStyle: "medium" });
const number = new Intl.NumberFormat();

let updates = 0;
let invalidEvents = 0;
let lastUpdate = null;
let animationFrame = 0;
let summaryTimer = 0;
let latestChange = "";

let stream = null;
let countdown = 0;

const restarts = new BroadcastChannel("kafkasse restart"); // A restart in one tab restarts the stream in all tabs.
restarts.onmessage = () => read();

element("retry").addEventListener("click", () => {
  if (stream) return stream.retry();
  restarts.postMessage("");
  read();
});
for (const example of document.querySelectorAll("[data-path]")) {
  example.textContent = new URL(example.dataset.path, document.baseURI).href;
}
read();
showPipeline();

/** Read the stream until it ends with a permanent error. */
async function read() {
  if (stream) return;
  board.clear();
  draw();
  stream = new Stream(element("stream").href, {
    shared: true,
    fetch: fetchWithSlot,
    retryOn: [404], // The pipeline may not have created the topic yet.
    key: (event) => (event.type === "delete" ? keyOf(event.data) : parseUpdate(event.data)?.continent),
    onState: showState,
  });
  const error = await stream.run({ message, delete: remove }).catch((reason) => reason);
  stream = null;
  showState({ state: "stopped", reason: error.message });
}

function message({ data }) {
  const update = parseUpdate(data);
  const accepted = update !== null && board.update(update);
  if (accepted) announce(`${update.continent}: ${update.countries.map((country) => country.name).join(", ")}`);
  countEvent(accepted);
}

function remove({ data }) {
  const continent = keyOf(data);
  board.remove(continent);
  countEvent(typeof continent === "string");
}

/** Show the status of the pipeline that writes the countries, if the server has a stream of it. */
async function showPipeline() {
  const response = await fetch("catalog", { headers: { Accept: "application/json" } }).catch(() => null);
  const route = response?.ok ? statusStream((await response.json()).streams) : undefined;
  if (route === undefined) return;
  followPipelines(new URL(`..${route.path}`, location), { shared: true }, (statuses) => {
    const status = statuses.get(PIPELINE);
    const speed = Number.isFinite(status?.records_per_s) ? `, ${number.format(Math.round(status.records_per_s))} records/s` : "";
    setText("pipeline", status ? `Pipeline: ${status.state}${speed}` : "");
    element("health").hidden = status === undefined;
    if (status) element("health").replaceChildren(...healthOf(status).flatMap(([name, text]) => [create("dt", name), create("dd", text)]));
  });
}

/** Return the name and text of each figure of a pipeline. The values are untrusted: anyone who may write to the topic sets them. */
function healthOf(status) {
  const figure = (value, format) => (Number.isFinite(value) ? format(value) : "\u2013");
  return [
    ["State", [status.state, status.reason].filter(Boolean).join(": ")],
    ["Records", figure(status.records_per_s, (rate) => `${number.format(Math.round(rate))}/s`)],
    ["Commit", figure(status.commit_s, (seconds) => `${number.format(Math.round(seconds * 1000))} ms`)],
    ["Restarts", figure(status.restarts, number.format)],
  ];
}

function create(name, text) {
  const created = document.createElement(name);
  created.textContent = text;
  return created;
}

/** Return the continent that a `delete` event names, or undefined. */
function keyOf(data) {
  try {
    return JSON.parse(data)?.key;
  } catch {
    return undefined;
  }
}

function countEvent(valid) {
  if (valid) {
    updates += 1;
    lastUpdate = new Date();
  } else {
    invalidEvents += 1;
  }
  draw();
}

/** Draw in the next animation frame: a burst of events is drawn once, and a hidden tab draws nothing. */
function draw() {
  animationFrame ||= requestAnimationFrame(() => {
    animationFrame = 0;
    board.draw();
    map.draw(board.ranked());
    showFigures();
  });
}

function showFigures() {
  element("waiting").hidden = !board.empty;
  setText("count", updates === 0 ? "No updates yet" : `${number.format(updates)} ${updates === 1 ? "update" : "updates"}`);
  setText("received", updates === 0 ? "" : element("count").textContent);
  setText("invalid", invalidEvents === 0 ? "" : `${number.format(invalidEvents)} invalid`);
  element("last").hidden = lastUpdate === null;
  if (lastUpdate === null) return;
  setText("time", clock.format(lastUpdate));
  element("time").dateTime = lastUpdate.toISOString();
}

function showState({ state, reason = "", retryAt }) {
  if (state === "closed") return; // read() knows the reason.
  element("connection").dataset.state = state;
  setText("state", STATE_LABELS[state]);
  setText("reason", reason);
  element("retry").hidden = state !== "retrying" && state !== "stopped";
  element("retry").textContent = state === "stopped" ? "Restart" : "Retry now";
  clearInterval(countdown);
  if (state === "retrying") countdown = setInterval(showCountdown, 1000, retryAt);
  showCountdown(state === "retrying" ? retryAt : 0);
}

function showCountdown(retryAt) {
  const seconds = Math.ceil((retryAt - Date.now()) / 1000);
  setText("countdown", seconds > 0 ? `Retrying in ${seconds} s` : "");
}

/** Set a text only if it changes: screen readers announce a live region each time that it is set. */
function setText(id, text) {
  const target = element(id);
  if (target.textContent !== text) target.textContent = text;
  target.hidden = text === "" && id !== "reason";
}

/** Include a change in the next summary for screen readers. */
function announce(change) {
  latestChange = change;
  summaryTimer ||= setTimeout(() => {
    summaryTimer = 0;
    element("summary").textContent = `${number.format(updates)} updates. Latest: ${latestChange}.`;
  }, SUMMARY_INTERVAL_MS);
}
