// Prints each record of a stream as a line of JSON, with the official client: node client.mjs URL long-poll|sse
import { stream } from "@durable-streams/client";

const [url, live] = process.argv.slice(2);
const response = await stream({ url, offset: "-1", live, json: true });
response.subscribeJson(async ({ items }) => {
  for (const item of items) console.log(JSON.stringify(item));
});
