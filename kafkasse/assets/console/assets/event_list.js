// A list of any length that has elements only for the visible rows. All rows have the same height.
//
// It is a listbox: the arrow keys select an event, and the element of the selected row is its active descendant.

const ROW_PX = 28; // the row of column names, which stays at the top, has the same height
const SPARE_ROWS = 3;
const MAX_KEY_CHARS = 100; // in a row; the details show more

const LABELS = { message: "message", delete: "delete", gap: "gap", error: "error", base64: "base64", position: "position" };

export class EventList {
  #root;
  #spacer;
  #rows;
  #store;
  #elements = [];
  #drawn = []; // the event that each element shows
  #removed = 0;
  #height = 0; // of the scroll container below the column names; 0 while the page shows another view
  #total = 0; // height of all rows
  #selected = null;
  #onSelect;
  #onFollow;
  follows = true;

  /**
   * @param root the scroll container; its last child is the spacer with the rows.
   * @param store a Store.
   * @param onSelect called with the event that the user selects; `opens` is true if the user wants to see its details.
   * @param onFollow called when `follows` changes.
   */
  constructor(root, store, { onSelect, onFollow }) {
    this.#root = root;
    this.#spacer = root.lastElementChild;
    this.#rows = this.#spacer.firstElementChild;
    this.#store = store;
    this.#onSelect = onSelect;
    this.#onFollow = onFollow;
    root.addEventListener("scroll", () => this.#onScroll(), { passive: true });
    root.addEventListener("keydown", (event) => this.#onKey(event));
    root.addEventListener("click", (event) => this.#onClick(event));
    new ResizeObserver(() => {
      this.#height = Math.max(0, root.clientHeight - ROW_PX);
      if (this.follows) this.#total = 0; // draw() scrolls to the end
      this.draw();
    }).observe(root);
  }

  get selected() {
    return this.#selected;
  }

  select(event) {
    this.#selected = event;
    this.draw();
  }

  follow(follows) {
    this.follows = follows;
    if (follows) this.#total = 0; // draw() scrolls to the end
    this.#onFollow(follows);
    this.draw();
  }

  draw() {
    const events = this.#store.visible;
    const height = this.#height;
    if (height === 0) return;
    const total = events.length * ROW_PX;
    const end = Math.max(0, total - height);
    const removed = this.#store.removed - this.#removed;
    this.#removed = this.#store.removed;
    if (this.#total !== total) {
      this.#total = total;
      this.#spacer.style.height = `${total}px`;
      if (this.follows) this.#root.scrollTop = end;
    }
    if (!this.follows && removed > 0) this.#root.scrollTop = Math.max(0, this.#root.scrollTop - removed * ROW_PX);
    const top = this.follows ? end : Math.min(this.#root.scrollTop, end);
    const first = Math.max(0, Math.floor(top / ROW_PX) - 1);
    const count = Math.min(events.length - first, Math.ceil(height / ROW_PX) + SPARE_ROWS);
    this.#rows.style.transform = `translateY(${first * ROW_PX}px)`;
    this.#resize(count);
    for (let index = 0; index < count; index += 1) this.#fill(index, events.at(first + index), first + index, events.length);
    this.#markSelected();
  }

  #resize(count) {
    while (this.#elements.length < count) {
      const row = document.createElement("div");
      row.setAttribute("role", "option");
      for (const name of ["n", "time", "kind", "place", "key", "preview"]) row.appendChild(document.createElement("span")).className = name;
      this.#elements.push(row);
      this.#rows.append(row);
    }
    while (this.#elements.length > count) {
      this.#elements.pop().remove();
      this.#drawn.length = this.#elements.length;
    }
  }

  #fill(index, event, position, length) {
    const row = this.#elements[index];
    row.ariaPosInSet = position + 1;
    row.ariaSetSize = length;
    if (this.#drawn[index] === event) return;
    this.#drawn[index] = event;
    const { topic, partition, offset, timestamp, from, to, key } = event.facts;
    row.id = `event-${event.n}`;
    row.className = `row ${LABELS[event.type] ?? "other"}`;
    const texts = [
      event.n,
      clock(timestamp),
      LABELS[event.type] ?? event.type,
      topic === undefined ? "" : `${topic} ${partition}:${event.type === "gap" ? `${from}\u2013${to}` : offset}`,
      String(key ?? "").slice(0, MAX_KEY_CHARS),
      event.preview,
    ];
    for (const [number, text] of texts.entries()) row.children[number].textContent = text;
  }

  #markSelected() {
    for (const [index, row] of this.#elements.entries()) {
      row.ariaSelected = this.#drawn[index] === this.#selected && this.#selected !== null ? "true" : "false";
    }
    const active = this.#elements.find((row) => row.ariaSelected === "true");
    if (active) this.#root.setAttribute("aria-activedescendant", active.id);
    else this.#root.removeAttribute("aria-activedescendant");
  }

  #onScroll() {
    const isAtEnd = this.#root.scrollTop + this.#height >= this.#total - ROW_PX;
    if (isAtEnd !== this.follows && this.#total > this.#height) this.follow(isAtEnd);
    else if (!this.follows) this.draw();
  }

  #onClick({ target }) {
    const index = this.#elements.indexOf(target.closest("[role=option]"));
    if (index < 0) return;
    this.#select(this.#drawn[index], true);
  }

  #onKey(event) {
    const events = this.#store.visible;
    if (events.length === 0) return;
    const page = Math.max(1, Math.floor(this.#height / ROW_PX) - 1);
    const steps = { ArrowDown: 1, ArrowUp: -1, PageDown: page, PageUp: -page, Home: -Infinity, End: Infinity };
    if (event.key === "Enter" && this.#selected !== null) this.#select(this.#selected, true);
    else if (event.key in steps) this.#move(steps[event.key]);
    else return;
    event.preventDefault();
  }

  #move(step) {
    const events = this.#store.visible;
    const current = this.#indexOf(this.#selected);
    const start = current < 0 ? Math.floor(this.#root.scrollTop / ROW_PX) - Math.sign(step) : current;
    const index = Math.max(0, Math.min(events.length - 1, start + step));
    this.#select(events.at(index), false);
    const top = index * ROW_PX;
    if (top < this.#root.scrollTop) this.#root.scrollTop = top;
    else if (top + ROW_PX > this.#root.scrollTop + this.#height) this.#root.scrollTop = top + ROW_PX - this.#height;
    this.draw();
  }

  /** Return the index of an event in the visible list, or -1. The numbers of the events ascend. */
  #indexOf(event) {
    const events = this.#store.visible;
    if (event === null) return -1;
    let [low, high] = [0, events.length];
    while (low < high) {
      const middle = (low + high) >> 1;
      if (events.at(middle).n < event.n) low = middle + 1;
      else high = middle;
    }
    return low < events.length && events.at(low) === event ? low : -1;
  }

  #select(event, opens) {
    this.#selected = event;
    if (this.follows) this.follow(false);
    else this.draw();
    this.#onSelect(event, opens);
  }
}

/** Return the local time of a timestamp, such as 09:05:02.120. Intl.DateTimeFormat would take ten times as long. */
function clock(timestamp) {
  if (!Number.isFinite(timestamp)) return "";
  const time = new Date(timestamp);
  const digits = (value, count = 2) => String(value).padStart(count, "0");
  return `${digits(time.getHours())}:${digits(time.getMinutes())}:${digits(time.getSeconds())}.${digits(time.getMilliseconds(), 3)}`;
}
