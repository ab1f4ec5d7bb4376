// The continents and their largest countries. Knows no stream: it is told what to show, and shows it as text.
//
// Everything here comes from whoever can write to the topic. It reaches the document by textContent alone, and
// continents are kept in a Map, where "__proto__" is a name like any other.

const COUNTRIES_MAX = 3;
const CONTINENTS_MAX = 50; // more are refused: a topic of anything else must not fill the browser's memory
const TINT_MS = 2400;
const SHARE_MIN = 0.004; // so that the smallest bar is still a bar

const size = new Intl.NumberFormat();
const people = new Intl.NumberFormat(undefined, { notation: "compact", maximumSignificantDigits: 3 });
const alphabet = new Intl.Collator("en");
const calm = matchMedia("(prefers-reduced-motion: reduce)");

/** `{continent, countries}` of an event's data; null where it is not of the form that this page can show. */
export function updateFrom(data) {
  let update;
  try {
    update = JSON.parse(data);
  } catch {
    return null;
  }
  const fits =
    typeof update?.continent === "string" &&
    Array.isArray(update.nrs) &&
    update.nrs.length > 0 &&
    update.nrs.every((country) => typeof country?.name === "string");
  return fits ? { continent: update.continent, countries: update.nrs.slice(0, COUNTRIES_MAX) } : null;
}

export class Board {
  #root;
  #cardTemplate;
  #rowTemplate;
  #continents = new Map(); // name -> { countries, card, drawn }, `drawn` being the countries that the card shows

  constructor(root, cardTemplate, rowTemplate) {
    this.#root = root;
    this.#cardTemplate = cardTemplate.content.firstElementChild;
    this.#rowTemplate = rowTemplate.content.firstElementChild;
  }

  get empty() {
    return this.#continents.size === 0;
  }

  /** Take an update for the next draw(). Returns false when there are too many continents already. */
  show({ continent, countries }) {
    const known = this.#continents.get(continent);
    if (known) known.countries = countries;
    else if (this.#continents.size < CONTINENTS_MAX) this.#continents.set(continent, { countries, card: null, drawn: [] });
    else return false;
    return true;
  }

  /** Forget a continent, where it is there. */
  remove(continent) {
    this.#continents.get(continent)?.card?.remove();
    this.#continents.delete(continent);
  }

  clear() {
    for (const continent of [...this.#continents.keys()]) this.remove(continent);
  }

  draw() {
    for (const [continent, entry] of this.#continents) {
      if (entry.card === null) this.#place(continent, entry);
      if (entry.drawn !== entry.countries) this.#fill(entry);
    }
    this.#scale();
  }

  /** Cards stand in alphabetical order, whatever order they came in: a card keeps its neighbours. */
  #place(continent, entry) {
    entry.card = this.#cardTemplate.cloneNode(true);
    entry.card.querySelector("h2").textContent = continent;
    const cards = [...this.#root.querySelectorAll(".continent")];
    const next = cards.find((card) => alphabet.compare(card.querySelector("h2").textContent, continent) > 0);
    this.#root.insertBefore(entry.card, next ?? this.#root.querySelector(".notes"));
  }

  #fill(entry) {
    const body = entry.card.querySelector("tbody");
    while (body.rows.length > entry.countries.length) body.lastElementChild.remove();
    entry.countries.forEach((country, index) => {
      const row = body.rows[index] ?? body.appendChild(this.#rowTemplate.cloneNode(true));
      fillRow(row, country, index + 1);
      // A card that is new would tint as a whole, and for a late visitor the whole page.
      if (entry.drawn.length > 0 && !same(country, entry.drawn[index])) tint(row);
    });
    entry.drawn = entry.countries;
  }

  #scale() {
    const shown = [...this.#continents.values()];
    const largest = Math.max(...shown.flatMap(({ countries }) => countries.map(sizeOf)), 1);
    for (const { card, countries } of shown) {
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
  fillNumber(row.querySelector(".size"), country.size, size);
  fillNumber(row.querySelector(".people"), country.population, people);
}

function fillNumber(cell, value, format) {
  const known = Number.isFinite(value);
  cell.value = known ? value : "";
  cell.textContent = known ? format.format(value) : "\u2013";
}

function sizeOf(country) {
  return Number.isFinite(country.size) ? Math.max(country.size, 0) : 0;
}

function same(one, other) {
  return one.name === other?.name && one.size === other.size && one.population === other.population;
}

/** Show for a moment that a row has changed; without motion where that is wished, by one step in place of a fade. */
function tint(row) {
  row.animate([{ backgroundColor: "var(--tint)" }, { backgroundColor: "transparent" }], {
    duration: TINT_MS,
    easing: calm.matches ? "step-end" : "ease-in",
  });
}
