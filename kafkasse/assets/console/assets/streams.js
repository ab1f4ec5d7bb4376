// The view of the catalog.

import { create, element, number, setText } from "./dom.js";
import { pretty } from "./events.js";

const MANY_STREAMS = 8; // A visitor finds a stream among fewer streams without a search.
const MAX_CARDS = 200;
const MAX_WORDS = 50; // shown of a list, such as the topics of a stream

export function showStreams(streams) {
  const search = element("find-text");
  element("find").hidden = streams.length <= MANY_STREAMS;
  search.oninput = () => showFound(streams, search.value.trim().toLowerCase());
  search.oninput();
}

function showFound(streams, text) {
  const found = streams.filter((stream) => searched(stream).includes(text));
  element("stream-list").replaceChildren(...found.slice(0, MAX_CARDS).map(card));
  const count = `${number.format(found.length)} of ${number.format(streams.length)} streams`;
  const isCut = found.length > MAX_CARDS ? `. The page shows the first ${MAX_CARDS}.` : "";
  setText(element("find-count"), text || isCut ? count + isCut : "");
  if (streams.length === 0) element("stream-list").append(create("p", { className: "empty" }, "You do not have access to any stream."));
}

function searched({ name, path, description, topics }) {
  return [name, path, description, ...topics].join("\n").toLowerCase();
}

function card(stream) {
  const link = create("a", { href: `#/explore?${new URLSearchParams({ stream: stream.name })}`, className: "button" });
  link.append("Explore", create("span", { className: "visually-hidden", textContent: ` ${stream.name}` }));
  const title = create("h2", {}, stream.path);
  return create(
    "article",
    { className: "card", id: `stream-${stream.name}` },
    create("header", {}, title, link),
    stream.description ? create("p", {}, stream.description) : null,
    create("dl", {}, ...facts(stream).flatMap(([name, value]) => [create("dt", {}, name), create("dd", {}, ...value)])),
    ...Object.entries(stream.schemas).map(([topic, schema]) =>
      details(`Schema of ${topic}`, create("pre", { tabIndex: 0, textContent: pretty(JSON.stringify(schema)) })),
    ),
    details(
      "How to read it",
      ...Object.values(stream.examples).map((example) => create("pre", { tabIndex: 0, textContent: example })),
    ),
  );
}

function facts(stream) {
  const found = [
    ["Name", [stream.name]],
    ["Topics", codes(stream.topics)],
    ["Groups", codes(Object.keys(stream.groups))],
    ["Parameters", codes(stream.parameters)],
    ["Access", [stream.access.includes("public") ? badge("public", "public") : badge("guarded", `guarded: ${stream.access.join(", ")}`)]],
    ["Start", [stream.start]],
    ["Format", [stream.format]],
    ["Fields", codes(stream.fields)],
    ["Filters", codes(Object.keys(stream.filters))],
    ["Events", codes(stream.events)],
  ];
  return found.filter(([, value]) => value.length > 0);
}

function codes(words) {
  const shown = words.slice(0, MAX_WORDS).flatMap((word, index) => (index ? [" ", create("code", {}, word)] : [create("code", {}, word)]));
  if (words.length > MAX_WORDS) shown.push(` and ${number.format(words.length - MAX_WORDS)} more`);
  return shown;
}

function badge(kind, text) {
  return create("span", { className: `badge ${kind}` }, text);
}

function details(title, ...content) {
  return create("details", {}, create("summary", {}, title), ...content);
}
