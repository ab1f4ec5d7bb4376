// The view of the catalog.

import { create } from "./dom.js";
import { pretty } from "./events.js";

export function showStreams(list, streams) {
  list.replaceChildren(...streams.map(card));
  if (streams.length === 0) list.append(create("p", { className: "empty", textContent: "There is no stream that you may read." }));
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
      create("pre", { tabIndex: 0, textContent: stream.examples.curl }),
      create("pre", { tabIndex: 0, textContent: stream.examples.eventsource }),
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
  return words.flatMap((word, index) => (index ? [" ", create("code", {}, word)] : [create("code", {}, word)]));
}

function badge(kind, text) {
  return create("span", { className: `badge ${kind}` }, text);
}

function details(title, ...content) {
  return create("details", {}, create("summary", {}, title), ...content);
}
