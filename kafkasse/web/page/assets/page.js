// The page: what the stream says goes to the board, what becomes of the connection is said in words.

import { Board, updateFrom } from "./board.js";
import { Stream } from "./stream.js";

const SUMMARY_EVERY_MS = 20_000;

const WORDS = { connecting: "Connecting", live: "Live", reconnecting: "Reconnecting", stopped: "Stopped" };

const element = (id) => document.getElementById(id);
const board = new Board(element("board"), element("continent"), element("country"));
const clock = new Intl.DateTimeFormat(undefined, { timeStyle: "medium" });
const number = new Intl.NumberFormat();

let updates = 0;
let garbage = 0;
let last = null;
let frame = 0;
let summaryTimer = 0;
let news = "";

const stream = new Stream(element("stream").href, {
  message(data) {
    const update = updateFrom(data);
    const shown = update !== null && board.show(update);
    if (shown) tell(`${update.continent}: ${update.countries.map((country) => country.name).join(", ")}`);
    took(shown);
  },
  delete(data) {
    const continent = keyOf(data);
    board.remove(continent);
    took(typeof continent === "string");
  },
  state: showState,
});

element("again").addEventListener("click", () => {
  if (stream.stopped) board.clear();
  stream.restart();
  draw();
});
window.addEventListener("online", () => stream.hurry());
stream.restart();

/** The continent that a `delete` event is about; undefined where it names none. */
function keyOf(data) {
  try {
    return JSON.parse(data)?.key;
  } catch {
    return undefined;
  }
}

function took(understood) {
  if (understood) {
    updates += 1;
    last = new Date();
  } else {
    garbage += 1;
  }
  draw();
}

/** Draw with the next frame: a burst of events costs one drawing, and a hidden tab none. */
function draw() {
  frame ||= requestAnimationFrame(() => {
    frame = 0;
    board.draw();
    showFigures();
  });
}

function showFigures() {
  element("waiting").hidden = !board.empty;
  put("count", updates === 0 ? "No updates yet" : `${number.format(updates)} ${updates === 1 ? "update" : "updates"}`);
  put("garbage", garbage === 0 ? "" : `${number.format(garbage)} not understood`);
  element("last").hidden = last === null;
  if (last === null) return;
  put("time", clock.format(last));
  element("time").dateTime = last.toISOString();
}

function showState({ name, reason = "", seconds = null }) {
  element("connection").dataset.state = name;
  put("state", WORDS[name]);
  put("reason", reason);
  put("countdown", seconds === null ? "" : `Next try in ${seconds} s`);
  element("again").hidden = seconds === null && name !== "stopped";
  element("again").textContent = name === "stopped" ? "Start again" : "Try now";
}

/** Set a text only where it changes: a live region speaks whenever it is set. */
function put(id, text) {
  const target = element(id);
  if (target.textContent !== text) target.textContent = text;
  target.hidden = text === "" && id !== "reason";
}

function tell(text) {
  news = text;
  summaryTimer ||= setTimeout(() => {
    summaryTimer = 0;
    element("summary").textContent = `${number.format(updates)} updates. The last: ${news}.`;
  }, SUMMARY_EVERY_MS);
}
