// The world map: the countries of the board, in a color for each rank. The table contains the same facts as text.

import { SHAPES, VIEW_BOX } from "./world.js";

const SVG = "http://www.w3.org/2000/svg";

export class WorldMap {
  #paths = new Map(); // code -> element
  #drawn = new Map(); // code -> text of its title

  constructor(svg) {
    svg.setAttribute("viewBox", VIEW_BOX);
    for (const [code, shape] of Object.entries(SHAPES)) {
      const path = svg.appendChild(document.createElementNS(SVG, "path"));
      path.setAttribute("d", shape);
      this.#paths.set(code, path);
    }
  }

  /** Show countries, `{country, rank, continent}`. Countries without a shape are ignored. */
  draw(ranked) {
    const shown = new Map();
    for (const { country, rank, continent } of ranked) {
      if (!this.#paths.has(country.code)) continue;
      shown.set(country.code, `${country.name}: number ${rank} in ${continent}`);
      this.#paths.get(country.code).setAttribute("class", `rank-${rank}`);
    }
    for (const code of this.#drawn.keys()) if (!shown.has(code)) this.#paths.get(code).removeAttribute("class");
    for (const [code, text] of shown) if (this.#drawn.get(code) !== text) setTitle(this.#paths.get(code), text);
    this.#drawn = shown;
  }
}

function setTitle(path, text) {
  const title = path.firstElementChild ?? path.appendChild(document.createElementNS(SVG, "title"));
  title.textContent = text;
}
