// Limits the streams of all tabs and windows, so that pages still load.
//
// Over HTTP/1.1, a browser opens at most six connections to a server. Streams may use four of them, the slots. A slot is a lock
// of the browser (Web Locks), so it is free again when its window closes or crashes. Over plain HTTP to a host other than
// localhost, browsers offer no locks, and this module limits nothing.

const SLOTS = ["kafkasse slot 1", "kafkasse slot 2", "kafkasse slot 3", "kafkasse slot 4"];

/** Over HTTP/2 and HTTP/3, all streams share one connection. */
function isLimited() {
  const entries = [...performance.getEntriesByType("navigation"), ...performance.getEntriesByType("resource")];
  return navigator.locks !== undefined && !entries.some(({ nextHopProtocol }) => /^h[23]/.test(nextHopProtocol));
}

/** The slot of a page. A stream that replaces another one uses the same slot. */
export class Slot {
  #attempt = null; // to take a slot

  /** Wait for a slot. `onWait` is called if none is free. */
  take(onWait) {
    if (this.#attempt?.isWaiting) onWait();
    this.#attempt ??= this.#start(onWait);
    return this.#attempt.taken;
  }

  free() {
    this.#attempt?.holder.abort();
    this.#attempt = null;
  }

  #start(onWait) {
    const attempt = { holder: new AbortController(), isWaiting: false };
    const wait = () => {
      attempt.isWaiting = true;
      onWait();
    };
    attempt.taken = takeSlot(attempt.holder.signal, wait).then(() => (attempt.isWaiting = false));
    return attempt;
  }
}

/** Take a slot, and keep it until the signal is aborted. Returns without a slot if this page needs none or may not use locks. */
async function takeSlot(signal, onWait) {
  if (signal.aborted || !isLimited()) return;
  const aborted = new Promise((resolve) => signal.addEventListener("abort", resolve));
  let isTaken = false;
  const request = (name, options) =>
    new Promise((resolve) => {
      const granted = (lock) => {
        resolve(lock !== null);
        if (lock === null || isTaken || signal.aborted) return undefined; // frees the lock
        isTaken = true;
        return aborted; // keeps the lock
      };
      navigator.locks.request(name, options, granted).catch(() => resolve(true));
    });
  for (const name of SLOTS) if (await request(name, { ifAvailable: true })) return;
  onWait();
  const waiting = new AbortController();
  signal.addEventListener("abort", () => waiting.abort());
  await Promise.race(SLOTS.map((name) => request(name, { signal: waiting.signal })));
  waiting.abort(); // does not free a lock that was granted
}

/** fetch() for a stream that needs a slot. Aborting the signal also frees the slot. */
export async function fetchWithSlot(url, options) {
  await takeSlot(options.signal, () => {});
  return fetch(url, options);
}
