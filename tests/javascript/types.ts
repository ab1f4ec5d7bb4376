// Programs that the types accept, and mistakes that they reject. This file is compiled and never run.

import { Stream, StreamError } from "kafkasse";
import { fileStore } from "kafkasse/node";

interface Country {
  name: string;
}

const stream = new Stream<Country, { key: string }>("/topn/updates", {
  token: async ({ refresh }) => (refresh ? "new" : "old"),
  headers: { "X-Tenant": "a" },
  store: fileStore("position"),
  shared: true,
  key: (event) => event.id,
  onState(state) {
    if (state.state === "retrying") console.log(state.reason, state.retryAt);
    // @ts-expect-error: only "retrying" has a reason
    else console.log(state.reason);
  },
});

for await (const event of stream) {
  if (event.type === "message") event.json().name.toUpperCase();
  if (event.type === "delete") event.json().key.toUpperCase();
  if (event.type === "gap") console.log(event.json().from, event.json().reason);
  // @ts-expect-error: a country has no population
  if (event.type === "message") event.json().population;
  // @ts-expect-error: errors are thrown
  if (event.type === "error") throw event;
  await stream.commit(event);
}

await stream.run({ message: (event) => console.log(event.json().name, event.id), async gap() {} }).catch((error: unknown) => {
  if (error instanceof StreamError) console.log(error.status, error.problem.request_id);
});

new Stream("/t", { store: { load: () => null, save: async (id: string) => console.log(id) } });
// @ts-expect-error: the option is called `token`
new Stream("/t", { tokens: "t" });
// @ts-expect-error: there is no such event
stream.run({ messages() {} });
