// The status of the pipelines: the newest record of each pipeline in the topic _pipelines, if the visitor may read it.

import { Stream, StreamError } from "./kafkasse.js";
import { fetchWithSlot } from "./slots.js";

const TOPIC = "_pipelines";

/** Return the stream of the catalog that contains only the status topic, or undefined. */
export function statusStream(streams) {
  return streams.find(({ topics, parameters }) => topics.length === 1 && topics[0] === TOPIC && parameters.length === 0);
}

/**
 * Follow the status of all pipelines until `close()` of the result is called.
 *
 * @param url the URL of the stream.
 * @param options further options of the Stream, such as its headers.
 * @param onChange called with a map from the name of each pipeline to its status.
 */
export function followPipelines(url, options, onChange) {
  const statuses = new Map();
  const start = new URL(url);
  start.searchParams.set("timestamp", "0"); // The topic is compacted. With an event ID, the server ignores the time.
  const stream = new Stream(start, { ...options, retryOn: [404], fetch: fetchWithSlot, key: (event) => nameIn(parse(event.data)) });
  const message = (event) => {
    const record = parse(event.data);
    const status = record?.value ?? record;
    if (typeof status?.pipeline !== "string" || ![status.state, status.reason, status.updated].every(isText)) return;
    statuses.set(status.pipeline, status);
    onChange(statuses);
  };
  const remove = (event) => {
    const record = parse(event.data);
    statuses.delete(nameIn(record));
    onChange(statuses);
  };
  stream.run({ message, delete: remove }).catch((error) => {
    if (!(error instanceof StreamError)) throw error;
    statuses.clear();
    onChange(statuses);
    options.onState?.({ state: "stopped", reason: error.message });
  });
  return stream;
}

/** Return the name of the pipeline, which is the key of the record. */
function nameIn(record) {
  return record?.value?.pipeline ?? record?.pipeline ?? record?.key ?? record?._kafka?.key;
}

function isText(value) {
  return value === undefined || typeof value === "string";
}

function parse(data) {
  try {
    return JSON.parse(data);
  } catch {
    return null;
  }
}
