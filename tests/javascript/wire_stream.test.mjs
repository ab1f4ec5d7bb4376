// The console's stream in Node. The server puts kafkasse.js next to the console's own modules.

import assert from "node:assert/strict";
import { cpSync, mkdtempSync, writeFileSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { test } from "node:test";
import { fileURLToPath } from "node:url";

const folder = mkdtempSync(join(tmpdir(), "kafkasse-"));
for (const name of ["console/assets/events.js", "console/assets/wire_stream.js", "javascript/kafkasse.js"]) {
  cpSync(fileURLToPath(new URL(`../../kafkasse/assets/${name}`, import.meta.url)), join(folder, name.split("/").at(-1)));
}
writeFileSync(join(folder, "session.js"), 'export const root = "http://127.0.0.1/";');
writeFileSync(join(folder, "package.json"), '{"type":"module"}');
const { WireStream } = await import(join(folder, "wire_stream.js"));

const COUNT = 100; // records of each partition
const SLOT = { take: async () => {}, free() {} };

/** Respond with JSON lines from the position: first the records of partition 0, then those of partition 1. */
async function open(id, signal) {
  const start = new Map(JSON.parse(id || "[]").map(({ partition, offset }) => [partition, offset]));
  const lines = [0, 1].flatMap((partition) => {
    const offsets = Array.from({ length: COUNT }, (_, offset) => offset).slice(start.get(partition) ?? 0);
    return offsets.map((offset) => JSON.stringify({ _kafka: { topic: "t", partition, offset } }));
  });
  const body = new ReadableStream({
    start(controller) {
      controller.enqueue(new TextEncoder().encode(lines.map((line) => `${line}\n`).join("")));
      signal.addEventListener("abort", () => controller.error(signal.reason));
    },
  });
  return new Response(body, { headers: { "Content-Type": "application/x-ndjson" } });
}

test("After each pause, JSON lines resume at the last line of the list, not at the last line that was received.", async () => {
  const places = [];
  let pause;
  const event = ({ facts: { partition, offset } }) => {
    places.push(`${partition}:${offset}`);
    if (![10, 20, 2 * COUNT].includes(places.length)) return;
    stream.close();
    pause();
  };
  const stream = new WireStream(open, true, null, SLOT, { event, state() {} });

  for (let round = 0; round < 3; round++) {
    const paused = new Promise((resolve) => {
      pause = resolve;
    });
    stream.start();
    await paused;
  }

  assert.deepEqual([0, 1].flatMap((partition) => Array.from({ length: COUNT }, (_, at) => `${partition}:${at}`)), places);
});
