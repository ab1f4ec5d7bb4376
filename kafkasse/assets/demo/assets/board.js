// The board of continents and their largest countries. This module does not depend on the stream.
//
// Anyone who can write to the topic controls the data, so treat the data as hostile: it enters the document only through
// textContent, and the continents are in a Map, where "__proto__" is an ordinary key.

const COUNTRIES_MAX = 3;
const CONTINENTS_MAX = 50; // Reject more, so that a topic with other data cannot fill the browser's memory.
const HIGHLIGHT_MS = 2400;
const MOVE_MS = 700;
const MAX_FIGURE_CHARS = 11; // so that a figure fits on a line
const SHARE_MIN = 0.004; // keeps the smallest bar visible

const sizeFormat = new Intl.NumberFormat();
const peopleFormat = new Intl.NumberFormat(undefined, { notation: "compact", maximumSignificantDigits: 3 });
const hugeFormat = new Intl.NumberFormat(undefined, { notation: "scientific", maximumSignificantDigits: 2 });
const collator = new Intl.Collator("en");
const reducedMotion = matchMedia("(prefers-reduced-motion: reduce)");

/** Return `{continent, countries}` of an event's data, or null if the page cannot display the data. */
export function parseUpdate(data) {
  let update;
  try {
    update = JSON.parse(data);
  } catch {
    return null;
  }
  const valid =
    typeof update?.continent === "string" &&
    Array.isArray(update.nrs) &&
    update.nrs.length > 0 &&
    update.nrs.every((country) => typeof country?.name === "string");
  return valid ? { continent: update.continent, countries: update.nrs.slice(0, COUNTRIES_MAX) } : null;
}

export class Board {
  #root;
  #cardTemplate;
  #rowTemplate;
  #continents = new Map(); // name -> { countries, card, drawn }; `drawn` holds the countries that the card shows now

  constructor(root, cardTemplate, rowTemplate) {
    this.#root = root;
    this.#cardTemplate = cardTemplate.content.firstElementChild;
    this.#rowTemplate = rowTemplate.content.firstElementChild;
  }

  /** The countries on the board with their ranks, `{country, rank, continent}`. */
  *ranked() {
    for (const [continent, { countries }] of this.#continents) {
      for (const [index, country] of countries.entries()) yield { country, rank: index + 1, continent };
    }
  }

  get empty() {
    return this.#continents.size === 0;
  }

  /** Store an update for the next draw(). Return false if the board already has CONTINENTS_MAX continents. */
  update({ continent, countries }) {
    const entry = this.#continents.get(continent);
    if (entry) entry.countries = countries;
    else if (this.#continents.size < CONTINENTS_MAX) this.#continents.set(continent, { countries, card: null, drawn: [] });
    else return false;
    return true;
  }

  /** Remove a continent. Unknown names are ignored. */
  remove(continent) {
    this.#continents.get(continent)?.card?.remove();
    this.#continents.delete(continent);
  }

  clear() {
    for (const continent of [...this.#continents.keys()]) this.remove(continent);
  }

  draw() {
    for (const [continent, entry] of this.#continents) {
      if (entry.card === null) this.#insertCard(continent, entry);
      if (entry.drawn !== entry.countries) this.#fillCard(entry);
    }
    this.#scaleBars();
  }

  /** Insert a card in alphabetical order, so that the order does not depend on the order of the updates. */
  #insertCard(continent, entry) {
    entry.card = this.#cardTemplate.cloneNode(true);
    entry.card.querySelector("h2").textContent = continent;
    entry.card.querySelector("table").setAttribute("aria-label", continent);
    const cards = [...this.#root.querySelectorAll(".continent")];
    const next = cards.find((card) => collator.compare(card.querySelector("h2").textContent, continent) > 0);
    this.#root.insertBefore(entry.card, next ?? this.#root.querySelector(".notes"));
  }

  #fillCard(entry) {
    const body = entry.card.querySelector("tbody");
    const rows = [...body.rows];
    const before = rows.map((row) => row.offsetTop);
    const unused = new Set(rows.keys());
    entry.countries.forEach((country, index) => {
      const found = [...unused].find((each) => idOf(entry.drawn[each]) === idOf(country));
      unused.delete(found);
      const row = rows[found] ?? this.#rowTemplate.cloneNode(true);
      fillRow(row, country, index + 1);
      if (body.rows[index] !== row) body.insertBefore(row, body.rows[index] ?? null);
      // Do not highlight a new card: a new visitor would see the whole page highlighted.
      if (entry.drawn.length === 0) return;
      const hasMoved = found !== undefined && found !== index;
      if (found === undefined || !isSame(country, entry.drawn[found]) || (hasMoved && reducedMotion.matches)) highlight(row);
    });
    for (const index of unused) rows[index].remove();
    for (const [index, row] of rows.entries()) if (row.isConnected) move(row, before[index] - row.offsetTop);
    entry.drawn = entry.countries;
  }

  #scaleBars() {
    const entries = [...this.#continents.values()];
    const largest = Math.max(...entries.flatMap(({ countries }) => countries.map(sizeOf)), 1);
    for (const { card, countries } of entries) {
      countries.forEach((country, index) => {
        const row = card.querySelector("tbody").rows[index];
        row.style.setProperty("--share", Math.max(sizeOf(country) / largest, SHARE_MIN));
      });
    }
  }
}

/** Let a row slide from its previous place, which is `distance` pixels below the new one. */
function move(row, distance) {
  if (distance === 0 || reducedMotion.matches) return;
  row.animate([{ transform: `translateY(${distance}px)` }, { transform: "none" }], { duration: MOVE_MS, easing: "ease-in-out" });
}

/** Return the ID of a country: its code and name, or only its name if it has no code. */
function idOf(country) {
  return typeof country.code === "string" ? `${country.code} ${country.name}` : country.name;
}

function fillRow(row, country, rank) {
  row.querySelector(".rank").textContent = rank;
  row.querySelector(".name").textContent = country.name;
  row.querySelector(".code").textContent = typeof country.code === "string" ? country.code : "";
  fillNumber(row.querySelector(".size"), country.size, sizeFormat);
  fillNumber(row.querySelector(".people"), country.population, peopleFormat);
}

function fillNumber(cell, value, format) {
  const valid = Number.isFinite(value);
  cell.value = valid ? value : "";
  const text = valid ? format.format(value) : "\u2013";
  cell.textContent = text.length > MAX_FIGURE_CHARS ? hugeFormat.format(value) : text;
}

function sizeOf(country) {
  return Number.isFinite(country.size) ? Math.max(country.size, 0) : 0;
}

function isSame(country, other) {
  return country.name === other?.name && country.size === other.size && country.population === other.population;
}

/** Highlight a changed row briefly. If the user prefers reduced motion, the highlight does not fade. */
function highlight(row) {
  row.animate([{ backgroundColor: "var(--highlight)" }, { backgroundColor: "transparent" }], {
    duration: HIGHLIGHT_MS,
    easing: reducedMotion.matches ? "step-end" : "ease-in",
  });
}
