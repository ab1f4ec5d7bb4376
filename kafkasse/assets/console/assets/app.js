// The page: the views, the sign-in, and the catalog that the views share.

import { create, element, setText } from "./dom.js";
import { Explorer } from "./explorer.js";
import { Operations } from "./operations.js";
import { Problem, requestJson, root, session } from "./session.js";
import { showStreams } from "./streams.js";

const TITLES = { streams: "Streams", explore: "Explorer", operations: "Operations" };

let catalog = [];
let features = {};
const explorer = new Explorer();
const operations = new Operations(() => catalog);

/** Return the view and the parameters in the fragment of the URL, such as #/explore?stream=orders. */
function place() {
  const [, name = "", query = ""] = /^#\/(\w*)\??(.*)$/.exec(location.hash) ?? [];
  return { name: Object.hasOwn(TITLES, name) ? name : "streams", parameters: new URLSearchParams(query) };
}

function show() {
  const { name, parameters } = place();
  for (const view of Object.keys(TITLES)) {
    element(view).hidden = view !== name;
    document.querySelector(`[data-view=${view}]`).toggleAttribute("aria-current", view === name);
  }
  for (const link of document.querySelectorAll("[data-view][aria-current]")) link.setAttribute("aria-current", "page");
  document.title = `${TITLES[name]} \u00b7 kafkasse`;
  if (name === "explore") explorer.show(parameters); // In other views, its stream continues.
  if (name === "operations") operations.show();
  else operations.hide();
}

/** Return the streams that the visitor may see, and the features of the server. Throws a Problem. */
async function request() {
  const [list, offered] = await Promise.all([requestJson("-/catalog"), requestJson("-/console/features")]);
  return [list.streams, offered];
}

/** Load the streams that the visitor may see, and the features of the server. Throws a Problem. */
async function load() {
  [catalog, features] = await request();
  element("operations-link").hidden = features.operations === null;
  element("demo-link").hidden = !features.demo;
  showStreams(catalog);
  explorer.setCatalog(catalog, features);
}

/** Show whether the visitor is signed in. A token counts only after the server has accepted it. */
function showSession() {
  element("sign-in").hidden = session.signedIn || !features.guards;
  element("sign-out").hidden = !session.signedIn;
  element("sign-in-hint").hidden = element("sign-in").hidden;
  setText(element("session-state"), session.signedIn ? "Signed in" : "");
}

async function reload() {
  const problem = element("streams-problem");
  try {
    await load();
    setText(problem, "");
  } catch (error) {
    if (!(error instanceof Problem)) throw error;
    problem.replaceChildren(error.message, " ", create("button", { type: "button", textContent: "Retry", onclick: reload }));
  }
  showSession();
}

function connectSignIn() {
  const dialog = element("sign-in-dialog");
  const token = element("token");
  const problem = element("sign-in-problem");
  element("sign-in").addEventListener("click", () => {
    setText(problem, "");
    dialog.showModal();
  });
  element("sign-in-cancel").addEventListener("click", () => dialog.close());
  dialog.addEventListener("close", () => {
    token.value = ""; // The page keeps the token in one place.
  });
  element("sign-in-form").addEventListener("submit", async (event) => {
    event.preventDefault();
    const text = token.value.trim();
    if (!/^[\w.~+/-]+=*$/.test(text)) {
      setText(problem, "Enter a token or an API key. It has no spaces.");
      return;
    }
    session.signOut();
    try {
      const [before, { operations: couldOperate }] = await request();
      session.signIn(text);
      await load();
      if (catalog.length > before.length || features.operations !== couldOperate) {
        dialog.close();
        explorer.signedIn();
      } else {
        session.signOut();
        await load();
        setText(problem, "The server does not accept this token, or it opens no further stream.");
      }
    } catch (error) {
      session.signOut();
      if (!(error instanceof Problem)) throw error;
      setText(problem, error.message);
    }
    showSession();
    show();
  });
  element("sign-out").addEventListener("click", async () => {
    session.signOut();
    explorer.stop();
    explorer.clear();
    await reload();
    show();
  });
}

connectSignIn();
document.querySelector(".skip").addEventListener("click", (event) => {
  event.preventDefault(); // the fragment of the URL names the view
  element("main").focus();
});
window.addEventListener("hashchange", () => {
  show();
  element("main").focus({ preventScroll: true });
  window.scrollTo(0, 0);
});
await reload();
show();
document.documentElement.dataset.ready = root.pathname;
