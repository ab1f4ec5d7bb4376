// Finds the events in the body of a response, and parses them. No I/O.
//
// An event stores only its frame, which is the text that the server sent. The frame is parsed when the event is displayed, so
// a thousand events per second need little CPU time.

const MAX_PREVIEW_CHARS = 300;
const MAX_INDENTED_CHARS = 200_000; // of data

/** Return the complete frames at the start of a text, and the rest. kafkasse ends lines with LF only. */
export function splitFrames(text, isJsonLines) {
  const frames = text.split(isJsonLines ? "\n" : "\n\n");
  return { rest: frames.pop(), frames };
}

export class StreamEvent {
  #preview;
  #facts;

  /**
   * @param frame the text of the event without the line breaks at its end.
   * @param isJsonLines whether the frame is a line of JSON instead of a Server-Sent Event.
   */
  constructor(frame, isJsonLines) {
    this.frame = frame;
    this.isJsonLines = isJsonLines;
    this.n = 0; // its number in the list
    this.type = isJsonLines ? typeOfLine(frame) : (/^event: (.*)$/m.exec(frame.slice(0, 80))?.[1] ?? null);
  }

  /** The event ID, or "" if the event has none. */
  get id() {
    if (this.isJsonLines) return "";
    const start = this.frame.lastIndexOf("\nid: ");
    return start < 0 ? "" : this.frame.slice(start + 5).split("\n", 1)[0];
  }

  get data() {
    if (this.isJsonLines) return this.frame;
    const lines = this.frame.split("\n").filter((line) => line.startsWith("data:"));
    return lines.map((line) => line.slice(line[5] === " " ? 6 : 5)).join("\n");
  }

  /** `{topic, partition, offset, timestamp, key, headers}` of the record. Members that the format does not contain are undefined. */
  get facts() {
    this.#facts ??= factsOf(this);
    return this.#facts;
  }

  /** A single line for the list: the value of the record, or what a gap means. */
  get preview() {
    this.#preview ??= previewOf(this).slice(0, MAX_PREVIEW_CHARS).replaceAll(/\s+/g, " ");
    return this.#preview;
  }
}

function previewOf(event) {
  const { from, to, reason } = event.facts;
  if (event.type === "delete") return "";
  if (event.type !== "gap" || !(to > from)) return valueIn(event.data);
  return `${to - from} ${to - from === 1 ? "offset is" : "offsets are"} missing${reason ? `: ${reason}` : ""}`;
}

/** In the formats envelope and cloudevents, return the value and the members after it. In other formats, return all data. */
function valueIn(data) {
  const value = /^\{(?:"topic":.*?\],"value":|"specversion":.*?(?:"data":|(?="data_base64":)))(.*)\}$/s.exec(data);
  return value === null ? data : value[1];
}

function typeOfLine(line) {
  if (line.trim() === "") return null; // a heartbeat
  return /^\{"event":"(\w+)"/.exec(line)?.[1] ?? "message";
}

function factsOf(event) {
  try {
    return factsIn(JSON.parse(event.data), event);
  } catch {
    return {}; // not JSON, or the value of a record that only looks like an event, and has objects instead of texts
  }
}

function factsIn(record, event) {
  if (event.isJsonLines && record?.event === "message") record = record.data; // wrapped because it has a member `event`
  const found = record?._kafka ?? record ?? {};
  if (found.specversion) {
    const key = textOf(found.key, found.keyencoding) ?? textOf(found.partitionkey);
    return { ...placeOf(found), timestamp: Date.parse(found.time), key };
  }
  const key = textOf(found.key, found.key_encoding);
  const { topic, partition, offset, timestamp, headers, from, to, reason } = found;
  const isRecord = typeof topic === "string" && Number.isInteger(partition) && Number.isInteger(offset ?? from);
  if (!isRecord) return event.type === "delete" ? { key } : {};
  if (event.type === "gap") return { topic, partition, from, to, reason };
  const isTime = !isNaN(new Date(timestamp)); // A producer that uses nanoseconds sends a time that Date cannot represent.
  return { topic, partition, offset, timestamp: isTime ? timestamp : undefined, key, headers };
}

/** Return a key as text. A key that is not text is in base64, after the word `base64`. */
function textOf(key, encoding) {
  return encoding === "base64" ? `base64 ${key}` : key?.toString();
}

/** Return the topic, partition and offset in the ID of a CloudEvent, unless a header of the record has replaced the ID. */
function placeOf({ id, source }) {
  const [, topic, partition, offset] = /^(.+)\/(\d+)\/(\d+)$/.exec(id) ?? [];
  return source === `/kafka/${topic}/${partition}` ? { topic, partition: Number(partition), offset: Number(offset) } : {};
}

/** Indent JSON without parsing it, so that 9007199254740993 and 25.00 stay as they are. */
export function pretty(text) {
  if (text.length > MAX_INDENTED_CHARS) return text;
  if (!isJson(text)) return text;
  let depth = 0;
  let result = "";
  const line = () => `\n${"  ".repeat(depth)}`;
  for (const [token] of text.matchAll(/"(?:[^"\\]|\\.)*"|[{[]\s*[}\]]|[{}[\],:]|[^\s{}[\],:"]+/g)) {
    if (token === "{" || token === "[") {
      depth += 1;
      result += token + line();
    } else if (token === "}" || token === "]") {
      depth -= 1;
      result += line() + token;
    } else if (token === ",") result += token + line();
    else result += token === ":" ? ": " : token.replaceAll(/^([{[])\s+/g, "$1");
  }
  return result;
}

function isJson(text) {
  try {
    JSON.parse(text);
    return true;
  } catch {
    return false;
  }
}

/** Return an event as a line of JSON for a file. JSON data is not rewritten. Base64 is a string, even if it is valid JSON. */
export function exported(event) {
  if (event.isJsonLines) return event.frame;
  const line = event.data.replaceAll("\n", " ");
  const data = event.type !== "base64" && isJson(line) ? line : JSON.stringify(event.data);
  const id = event.id ? `"id":${JSON.stringify(event.id)},` : "";
  return `{"event":${JSON.stringify(event.type)},${id}"data":${data}}`;
}

/** Computes an event ID for JSON lines, which have none. A stream with this ID resumes after the lines received so far. */
export class LinePositions {
  #next = new Map(); // topic -> partition -> its entry in the ID

  /** @param lastEventId the position before the first line. */
  constructor(lastEventId = "") {
    for (const entry of entriesOf(lastEventId)) {
      if (entry?.topic) this.#set(entry);
      else this.#next.set(entry, new Map()); // the partitions of a topic that the ID does not list
    }
  }

  add(event) {
    const { topic, partition, offset, to } = event.facts;
    const next = event.type === "gap" ? to : offset + 1;
    if (topic !== undefined && Number.isSafeInteger(next)) this.#set({ topic, partition, offset: next });
  }

  #set(entry) {
    if (!this.#next.has(entry.topic)) this.#next.set(entry.topic, new Map());
    this.#next.get(entry.topic).set(entry.partition, entry);
  }

  get id() {
    const entries = [];
    for (const [topic, partitions] of this.#next) {
      entries.push(topic, ...partitions.values());
    }
    return entries.length ? JSON.stringify(entries) : "";
  }
}

/** Return the entries of an event ID. Only the server can read a compact ID. */
function entriesOf(id) {
  try {
    return [...JSON.parse(id)];
  } catch {
    return [];
  }
}
