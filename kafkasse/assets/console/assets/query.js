// The form of the explorer: the stream, its start and the filters.

import { create, element, setText } from "./dom.js";
import { statusStream } from "./pipelines.js";
import { session } from "./session.js";

const FAR_FUTURE_MS = "253402300799000"; // no record has a later time, so the stream starts at the end
const WIDE = "(width > 40rem)"; // as in console.css
const SSE = "text/event-stream";
const JSON_LINES = "application/x-ndjson";

export class Query {
  #catalog = [];
  #stream = null;
  #offersTickets = false;
  #onChange;

  /** @param onChange called after each change by the user. */
  constructor(onChange) {
    this.#onChange = onChange;
    element("stream").addEventListener("change", () => this.#choose(element("stream").value));
    element("start").addEventListener("change", () => this.#showStart());
    element("query").addEventListener("input", () => {
      this.#countFilters();
      onChange();
    });
    const wide = matchMedia(WIDE);
    const show = () => (element("filters").open = wide.matches); // On a narrow screen, the list would be far down.
    wide.addEventListener("change", show);
    show();
  }

  setCatalog(catalog, { tickets }) {
    this.#catalog = catalog;
    element("stream").replaceChildren(...catalog.map(({ name, path }) => create("option", { value: name }, `${name} (${path})`)));
    this.#offersTickets = tickets && session.signedIn;
    this.#choose(this.#stream?.name, true);
  }

  /** Fill the form with the parameters of a link, such as `stream=orders&start=earliest`. */
  fill(parameters) {
    if (parameters.has("stream")) this.#choose(parameters.get("stream"), true);
    for (const input of this.#inputs()) input.value = parameters.get(input.name) ?? input.value;
    for (const id of ["start", "format", "time"]) if (parameters.has(id)) element(id).value = parameters.get(id);
    if (parameters.has("id")) element("event-id").value = parameters.get("id");
    this.#showStart();
    this.#countFilters();
  }

  /** Return the parameters of a link to this query. */
  link() {
    const link = new URLSearchParams({ stream: this.#stream?.name ?? "" });
    for (const input of this.#inputs()) if (input.value) link.set(input.name, input.value);
    if (element("start").value) link.set("start", element("start").value);
    if (element("start").value === "time") link.set("time", element("time").value);
    if (element("start").value === "id") link.set("id", element("event-id").value);
    if (element("format").value !== "sse") link.set("format", element("format").value);
    return link;
  }

  get stream() {
    return this.#stream;
  }

  get startsAtEnd() {
    return (element("start").value || this.#stream?.start) === "latest";
  }

  get isGuarded() {
    return this.#stream !== null && !this.#stream.access.includes("public");
  }

  /** What a program sends: "token", "cookie" or "". A function of the app may accept the token that the user has entered. */
  get credentials() {
    return this.isGuarded && session.signedIn ? "token" : (this.#stream?.credentials ?? "");
  }

  /**
   * The stream whose connection tabs share, or null if each tab needs its own. Tabs do not share a guarded stream, because each
   * tab has its own sign-in.
   * JSON lines have no IDs, so tabs cannot compare their positions.
   */
  get shared() {
    if (this.isGuarded || this.isJsonLines) return null;
    const { search } = this;
    for (const name of ["timestamp", "since"]) search.delete(name);
    return { name: `${this.path}?${search}`, startsAtEnd: this.startsAtEnd };
  }

  get usesTicket() {
    return !element("ticket-field").hidden && element("ticket").checked;
  }

  get isJsonLines() {
    return element("format").value === "ndjson";
  }

  get accept() {
    return this.isJsonLines ? JSON_LINES : SSE;
  }

  get lastEventId() {
    return element("start").value === "id" ? element("event-id").value.trim() : "";
  }

  set lastEventId(id) {
    element("start").value = "id";
    element("event-id").value = id;
    this.#showStart();
  }

  /** The path of the stream below the root, with a slash at the start. */
  get path() {
    const values = Object.fromEntries([...element("parameters").querySelectorAll("input")].map((input) => [input.dataset.name, input.value]));
    const encode = (text) => encodeURIComponent(text.trim()).replaceAll("%2C", ",");
    return (this.#stream?.path ?? "/").replaceAll(/\{(\w+)\}/g, (_, name) => encode(values[name] ?? ""));
  }

  /** The first required field that is empty, or undefined. */
  get missing() {
    return [...element("query").querySelectorAll("input[required]")].find((input) => !input.hidden && input.value.trim() === "");
  }

  /** The query of the URL: the start and the filters. */
  get search() {
    const search = new URLSearchParams();
    for (const input of element("filter-fields").querySelectorAll("[data-filter]")) {
      const name = input.dataset.filter.replace("*", () => element("filter-fields").querySelector(`[name="${CSS.escape(input.name)}.name"]`).value.trim());
      if (input.value !== "" && !name.endsWith(".")) search.append(name, input.value);
    }
    const start = element("start").value;
    if (start === "latest") search.set("timestamp", FAR_FUTURE_MS);
    if (start === "earliest") search.set("timestamp", "0");
    if (start === "time" && element("time").value) search.set("since", new Date(element("time").value).toISOString());
    return search;
  }

  #inputs() {
    return element("query").querySelectorAll("#parameters input, #filter-fields input, #filter-fields textarea");
  }

  #choose(name, isQuiet = false) {
    this.#stream = this.#catalog.find((stream) => stream.name === name) ?? firstOf(this.#catalog) ?? null;
    element("stream").value = this.#stream?.name ?? "";
    setText(element("start").options[0], `the stream's default: ${this.#stream?.start ?? ""}`);
    element("parameters").replaceChildren(...(this.#stream ? parameterFields(this.#stream) : []));
    element("ticket-field").hidden = !(this.#offersTickets && this.isGuarded);
    const filters = Object.entries(this.#stream?.filters ?? {});
    element("filters").hidden = filters.length === 0;
    element("filter-fields").replaceChildren(...filters.map(([filter, description]) => filterField(filter, description)));
    this.#countFilters();
    if (!isQuiet) this.#onChange();
  }

  /** Show how many filters have a value: the fields may be hidden. */
  #countFilters() {
    const count = [...element("filter-fields").querySelectorAll("[data-filter]")].filter(({ value }) => value !== "").length;
    setText(element("filter-count"), count === 0 ? "" : `(${count} active)`);
  }

  #showStart() {
    const start = element("start").value;
    element("time-field").hidden = start !== "time";
    element("id-field").hidden = start !== "id";
    element("time").required = start === "time";
    element("event-id").required = start === "id";
  }
}

/** Return the stream that the form shows first: if possible, one of records with their topic and time, and not of the pipelines. */
function firstOf(catalog) {
  const status = statusStream(catalog);
  return catalog.find((stream) => stream.format !== "value" && stream !== status) ?? catalog[0];
}

function parameterFields(stream) {
  const isOpen = stream.path === "/{topics}";
  const names = isOpen ? ["topics"] : stream.parameters;
  const known = [...Object.keys(stream.groups), ...stream.topics.filter((topic) => !/[*?[]/.test(topic))];
  return names.map((name) => {
    const input = create("input", { name: `p.${name}`, required: true, spellcheck: false, autocomplete: "off" });
    input.dataset.name = name;
    if (!isOpen) return create("label", {}, `${name} `, input);
    input.value = known[0] ?? "";
    input.setAttribute("list", "topics");
    return create("label", {}, "Topics ", input, create("datalist", { id: "topics" }, ...known.map((value) => create("option", { value }))));
  });
}

function filterField(filter, description) {
  const isExpression = filter === "filter";
  const input = create(isExpression ? "textarea" : "input", { name: `f.${filter}`, spellcheck: false, autocomplete: "off", title: description });
  input.dataset.filter = filter;
  if (isExpression) {
    input.rows = 1;
    input.placeholder = 'value.amount > 10.0';
    return create("label", { className: "wide" }, "Expression (CEL) ", input);
  }
  const [source, ...path] = filter.split(".");
  const label = { key: "Key", header: "Header", field: "Field" }[source];
  if (!filter.endsWith("*")) return create("label", {}, `${[label, path.join(".")].join(" ").trim()} `, input);
  const name = create("input", { name: `f.${filter}.name`, spellcheck: false, autocomplete: "off", "aria-label": `Name of the ${source}` });
  input.setAttribute("aria-label", `Value of the ${source}`);
  return create("span", { className: "pair", role: "group", "aria-label": label }, create("span", { "aria-hidden": "true" }, label), name, "=", input);
}
