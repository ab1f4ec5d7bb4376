// The board of continents and their largest countries. This module does not depend on the stream.
//
// Anyone who can write to the topic controls the data, so treat the data as hostile: it enters the document only through
// textContent, and the continents are in a Map, where "__proto__" is an ordinary key.

const COUNTRIES_MAX = 3;
const CONTINENTS_MAX = 50; // Reject more, so that a topic with other data cannot fill the browser's memory.
const HIGHLIGHT_MS = 2400;
const SHARE_MIN = 0.004; // keeps the smallest bar visible

const sizeFormat = new Intl.NumberFormat();
const peopleFormat = new Intl.NumberFormat(undefined, { notation: "compact", maximumSignificantDigits: 3 });
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
    const cards = [...this.#root.querySelectorAll(".continent")];
    const next = cards.find((card) => collator.compare(card.querySelector("h2").textContent, continent) > 0);
    this.#root.insertBefore(entry.card, next ?? this.#root.querySelector(".notes"));
  }

  #fillCard(entry) {
    const body = entry.card.querySelector("tbody");
    while (body.rows.length > entry.countries.length) body.lastElementChild.remove();
    entry.countries.forEach((country, index) => {
      const row = body.rows[index] ?? body.appendChild(this.#rowTemplate.cloneNode(true));
      fillRow(row, country, index + 1);
      // Do not highlight a new card: a new visitor would see the whole page highlighted.
      if (entry.drawn.length > 0 && !isSame(country, entry.drawn[index])) highlight(row);
    });
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
  cell.textContent = valid ? format.format(value) : "\u2013";
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
