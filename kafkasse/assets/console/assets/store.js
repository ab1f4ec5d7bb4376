// The events that the explorer keeps: the newest ones, up to a limit for their number and their size. No I/O.

export const MAX_EVENTS = 10_000;
const MAX_CHARS = 16_000_000;

/** A queue whose first entries can be removed without moving the others. */
class Queue {
  #entries = [];
  #start = 0;

  get length() {
    return this.#entries.length - this.#start;
  }

  at(index) {
    return this.#entries[this.#start + index];
  }

  push(entry) {
    this.#entries.push(entry);
  }

  shift() {
    const entry = this.#entries[this.#start];
    this.#entries[this.#start] = undefined;
    this.#start += 1;
    if (this.#start > 4096 && this.#start * 2 > this.#entries.length) {
      this.#entries = this.#entries.slice(this.#start);
      this.#start = 0;
    }
    return entry;
  }

  clear() {
    this.#entries = [];
    this.#start = 0;
  }

  *[Symbol.iterator]() {
    for (let index = 0; index < this.length; index += 1) yield this.at(index);
  }
}

/** A queue of events with limits for their number and their size. */
export class EventBuffer extends Queue {
  chars = 0;

  push(event) {
    super.push(event);
    this.chars += event.frame.length;
  }

  shift() {
    const event = super.shift();
    this.chars -= event.frame.length;
    return event;
  }

  clear() {
    super.clear();
    this.chars = 0;
  }

  get isFull() {
    return this.length >= MAX_EVENTS || this.chars >= MAX_CHARS;
  }
}

/** The events of the list, and those of them that contain the searched text. */
export class Store {
  #all = new EventBuffer();
  #found = new Queue();
  #pattern = null;
  #count = 0;
  removed = 0; // events that left the start of the visible list

  get visible() {
    return this.#pattern === null ? this.#all : this.#found;
  }

  get all() {
    return this.#all;
  }

  add(event) {
    event.n = this.#count += 1;
    this.#all.push(event);
    if (this.#pattern?.test(event.frame)) this.#found.push(event);
    while (this.#all.length > MAX_EVENTS || (this.#all.chars > MAX_CHARS && this.#all.length > 1)) this.#evict();
  }

  #evict() {
    const event = this.#all.shift();
    if (this.#pattern === null) this.removed += 1;
    else if (this.#found.length > 0 && this.#found.at(0) === event) {
      this.#found.shift();
      this.removed += 1;
    }
  }

  /** Show only the events whose frames contain a text; "" shows all. */
  search(text) {
    this.#pattern = text === "" ? null : new RegExp(text.replaceAll(/[\\^$.*+?()[\]{}|]/g, "\\$&"), "i");
    this.#found.clear();
    if (this.#pattern === null) return;
    for (const event of this.#all) if (this.#pattern.test(event.frame)) this.#found.push(event);
  }

  clear() {
    this.#all.clear();
    this.#found.clear();
    this.#count = 0;
  }
}
