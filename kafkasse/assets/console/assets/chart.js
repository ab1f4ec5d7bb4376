// A small line chart of the last minute, one point per second.

const POINTS = 60;
const HEIGHT = 24;

export class Chart {
  #path;
  #values = [];

  constructor(svg) {
    this.#path = svg.querySelector("path");
  }

  /** Add the value of one second; null if it is unknown. */
  add(value) {
    this.#values.push(value);
    if (this.#values.length > POINTS) this.#values.shift();
    const largest = Math.max(1e-9, ...this.#values.map((each) => each ?? 0));
    const start = POINTS - this.#values.length;
    let path = "";
    for (const [index, each] of this.#values.entries()) {
      if (each === null) continue;
      const isFirst = index === 0 || this.#values[index - 1] === null;
      path += `${isFirst ? "M" : "L"}${start + index} ${(HEIGHT - 1 - (each / largest) * (HEIGHT - 2)).toFixed(1)}`;
    }
    this.#path.setAttribute("d", path);
  }

  clear() {
    this.#values = [];
    this.#path.setAttribute("d", "");
  }
}
