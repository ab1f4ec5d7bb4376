// The page: pass events to the board, and display the state of the connection.

import { Board, parseUpdate } from "./board.js";
import { WorldMap } from "./map.js";
import { SharedStream } from "./shared.js";

const SUMMARY_INTERVAL_MS = 20_000;

const STATE_LABELS = { connecting: "Connecting", live: "Live", reconnecting: "Reconnecting", stopped: "Stopped" };

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

const stream = new SharedStream(element("stream").href, {
  message(data) {
    const update = parseUpdate(data);
    const accepted = update !== null && board.update(update);
    if (accepted) announce(`${update.continent}: ${update.countries.map((country) => country.name).join(", ")}`);
    countEvent(accepted);
  },
  delete(data) {
    const continent = keyOf(data);
    board.remove(continent);
    countEvent(typeof continent === "string");
  },
  state: showState,
  reset() {
    board.clear();
    draw();
  },
  key: (type, data) => (type === "delete" ? keyOf(data) : parseUpdate(data)?.continent),
});

element("retry").addEventListener("click", () => stream.restart());
window.addEventListener("online", () => stream.retryNow());

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
  setText("invalid", invalidEvents === 0 ? "" : `${number.format(invalidEvents)} invalid`);
  element("last").hidden = lastUpdate === null;
  if (lastUpdate === null) return;
  setText("time", clock.format(lastUpdate));
  element("time").dateTime = lastUpdate.toISOString();
}

function showState({ name, reason = "", seconds = null }) {
  element("connection").dataset.state = name;
  setText("state", STATE_LABELS[name]);
  setText("reason", reason);
  setText("countdown", seconds === null ? "" : `Retrying in ${seconds} s`);
  element("retry").hidden = seconds === null && name !== "stopped";
  element("retry").textContent = name === "stopped" ? "Restart" : "Retry now";
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
