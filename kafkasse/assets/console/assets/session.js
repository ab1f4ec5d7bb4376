// The credentials of the user, and requests to this server. The token is only in the memory of this page: never in a URL, in
// the browser's storage, or in a request to another server.

export const root = new URL("../../", import.meta.url);

let token = "";

export const session = {
  get signedIn() {
    return token !== "";
  },
  signIn(text) {
    token = text;
  },
  signOut() {
    this.signIn("");
  },
};

/** Return the headers of a request with the credentials of the user. */
export function credentials() {
  return token ? { Authorization: `Bearer ${token}` } : {};
}

/** Request a path below the root. Throws a Problem if the server does not respond, or responds with an error. */
export async function request(path, { headers = {}, ...options } = {}) {
  let response;
  try {
    response = await fetch(new URL(path, root), { ...options, cache: "no-store", headers: { ...headers, ...credentials() } });
  } catch (error) {
    if (error.name === "AbortError") throw error;
    throw new Problem(0, "The server cannot be reached.");
  }
  if (!response.ok) throw await problemOf(response);
  return response;
}

export async function requestJson(path, options = {}) {
  const response = await request(path, { ...options, headers: { Accept: "application/json" } });
  return response.json().catch(() => {
    throw new Problem(response.status, "The server's response is not complete, or is a page of a proxy.");
  });
}

export class Problem extends Error {
  constructor(status, message) {
    super(message);
    this.status = status;
  }
}

async function problemOf(response) {
  const { detail, title } = await response.json().catch(() => ({}));
  const reason = [detail, title].find((text) => typeof text === "string" && text !== "");
  return new Problem(response.status, reason ?? `The server responded with status ${response.status}.`);
}
