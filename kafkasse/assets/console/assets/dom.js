// Helpers for the document. Text from the server or from Kafka enters the document only as text, never as HTML.

export const element = (id) => document.getElementById(id);

/** Create an element with properties and children. A child that is a string becomes text. */
export function create(name, properties = {}, ...children) {
  const created = document.createElement(name);
  for (const [property, value] of Object.entries(properties)) {
    if (property.startsWith("aria-") || property === "role" || property === "for") created.setAttribute(property, value);
    else created[property] = value;
  }
  created.append(...children.filter((child) => child !== null));
  return created;
}

/** Set a text only if it changes: screen readers announce a live region each time that it is set. */
export function setText(target, text) {
  if (target.textContent !== String(text)) target.textContent = text;
}

/** Let the arrow keys move among the tabs of a tab list, and call `select` with the chosen tab. */
export function tabs(list, select) {
  const all = [...list.querySelectorAll("[role=tab]")];
  const choose = (chosen) => {
    for (const tab of all) {
      tab.setAttribute("aria-selected", String(tab === chosen));
      tab.tabIndex = tab === chosen ? 0 : -1;
    }
    element(chosen.getAttribute("aria-controls")).setAttribute("aria-labelledby", chosen.id);
    select(chosen);
  };
  list.addEventListener("click", ({ target }) => all.includes(target) && choose(target));
  list.addEventListener("keydown", ({ key, target }) => {
    const step = { ArrowRight: 1, ArrowLeft: -1 }[key];
    if (!step || !all.includes(target)) return;
    const next = all[(all.indexOf(target) + step + all.length) % all.length];
    next.focus();
    choose(next);
  });
  return () => choose(all.find((tab) => tab.getAttribute("aria-selected") === "true"));
}

export const number = new Intl.NumberFormat();
const significant = new Intl.NumberFormat(undefined, { maximumSignificantDigits: 3 });

/** Return a number of bytes as a short text, such as "2.43 kB". */
export function bytes(count) {
  const [size, unit] = [[1e9, "GB"], [1e6, "MB"], [1e3, "kB"], [1, "B"]].find(([each]) => count >= each || each === 1);
  return `${significant.format(count / size)}\u00a0${unit}`;
}

/** Return a time span in seconds as a short text, such as "1.5 s" or "2 h". */
export function duration(seconds) {
  if (seconds < 1) return `${Math.round(Math.max(0, seconds) * 1000)} ms`;
  if (seconds < 60) return `${seconds.toFixed(1)} s`;
  if (seconds < 3600) return `${Math.round(seconds / 60)} min`;
  return seconds < 86_400 ? `${Math.round(seconds / 3600)} h` : `${Math.round(seconds / 86_400)} d`;
}
