/** The data of a `gap` event: the client does not receive the offsets `[from, to)`. A gap between tabs has only `reason`. */
export interface Gap {
  topic?: string;
  partition?: number;
  from?: number;
  to?: number;
  reason: string;
}

/** The server's error object (RFC 9457). */
export interface Problem {
  status?: number;
  type?: string;
  title?: string;
  detail?: string;
  name?: string;
  request_id?: string;
  [member: string]: unknown;
}

/** An event. `json()` parses `data`; `id` is the position after this event, or "" if the stream has not set one. */
export class StreamEvent<Type extends string = string, Value = unknown> {
  readonly type: Type;
  readonly data: string;
  readonly id: string;
  json(): Value;
}

/** The events of a stream. `Value` is the type of a record, `Tombstone` that of a `delete` event. */
export interface Events<Value = unknown, Tombstone = unknown> {
  message: StreamEvent<"message", Value>;
  delete: StreamEvent<"delete", Tombstone>;
  base64: StreamEvent<"base64", never>;
  gap: StreamEvent<"gap", Gap>;
  position: StreamEvent<"position", { snapshot?: "complete" }>;
}

export type AnyEvent<Value = unknown, Tombstone = unknown> = Events<Value, Tombstone>[keyof Events];

/** Called for each event of one type. The stream waits for the returned promise, if any, before it delivers the next event. */
export type Handlers<Value = unknown, Tombstone = unknown> = {
  [Type in keyof Events]?: (event: Events<Value, Tombstone>[Type]) => unknown;
};

export type State =
  | { state: "connecting" | "open" | "closed" }
  /** `retryAt` is in milliseconds since the epoch. */
  | { state: "retrying"; reason: string; retryAt: number };

/** Stores the position, for example in a database. The stream waits for the promises that the methods return. */
export interface PositionStore {
  load(): string | null | undefined | Promise<string | null | undefined>;
  save(position: string): unknown;
}

/**
 * A value, or a function that is called for each connection. After a 401, it is called again with `refresh: true`. It may take
 * up to `timeoutMs`.
 */
export type Credential<T> = T | ((context: { refresh: boolean }) => T | Promise<T>);

export interface StreamOptions {
  /** Sent as `Authorization: Bearer …`. */
  token?: Credential<string | null | undefined>;
  headers?: Credential<ConstructorParameters<typeof Headers>[0]>; // Node has no HeadersInit
  /** Where to resume. Takes precedence over the position in `store`. */
  lastEventId?: string;
  /** Keeps the position: `sessionStorage`, `localStorage` or your own store. Without a store, a page reload does not resume. */
  store?: PositionStore | { getItem(key: string): string | null; setItem(key: string, value: string): void };
  /** Share one connection among the tabs of a browser. Only tabs with the same string share it, such as the tabs of one user. */
  shared?: boolean | string;
  /**
   * Returns the key of a `message` or `delete` event. A tab that opens later first receives the newest event of each key.
   * The loop throws the exceptions of this function and of `onState`.
   */
  key?: (event: StreamEvent) => string | number | undefined;
  onState?: (state: State) => void;
  /**
   * Statuses to retry in addition to 408, 425, 429 and 5xx (500 only with Retry-After), such as 404 for a topic that is
   * created later.
   */
  retryOn?: number[];
  /** The stream replaces a connection that is silent for this long. The default is 60,000. */
  timeoutMs?: number;
  /** Additional options of `fetch`, such as `{ credentials: "include" }`. */
  request?: Omit<RequestInit, "headers" | "signal">;
  fetch?: typeof fetch;
}

/** The stream has ended and a retry would not help. */
export class StreamError extends Error {
  constructor(problem: Problem);
  readonly problem: Problem;
  readonly status: number | undefined;
}

/**
 * A stream that reconnects after each break and resumes after the last event. It can be read once, with `for await` or `run()`.
 *
 * The position is stored when you ask for the next event. If your loop throws an error, the event is therefore sent again
 * when the stream resumes. `for await` and `run()` throw StreamError if the server ends the stream permanently.
 */
export class Stream<Value = unknown, Tombstone = unknown> implements AsyncIterable<AnyEvent<Value, Tombstone>> {
  /** Throws a TypeError if an option is unknown. */
  constructor(url: string | URL, options?: StreamOptions);
  /** The ID of the last event that you have processed. */
  readonly position: string;
  [Symbol.asyncIterator](): AsyncGenerator<AnyEvent<Value, Tombstone>, void, void>;
  /** Call a handler for each event. Returns after close(). Throws a TypeError if a handler has the name of no event type. */
  run(handlers: Handlers<Value, Tombstone>): Promise<void>;
  /** Store the position of an event now, for example before you leave the loop. */
  commit(event: Pick<StreamEvent, "id">): Promise<void>;
  /** Retry now if a retry is scheduled, and replace a connection that is silent. */
  retry(): void;
  close(): void;
}

/** The parser of Stream, for other transports. An ID without data becomes a `position` event. */
export class Parser {
  constructor(lastEventId?: string);
  retryMs: number | undefined;
  receive(text: string): IterableIterator<{ type: string; data: string; id: string }>;
}
