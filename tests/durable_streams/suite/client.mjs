// Prints each record of a stream, and each gap, as a line of JSON, with the official client: node client.mjs URL LIVE
// read() also runs in a browser. The client retries after temporary errors, and waits as long as Retry-After says. If a
// response breaks off, read() continues at the last offset, and after 410 at that of the response. Other errors are thrown:
// after 401, let the visitor log in.
import { stream } from "@durable-streams/client";

export async function read(url, live, print) {
  let offset = "-1";
  for (;;) {
    try {
      const response = await stream({ url, offset, live, json: true });
      await new Promise((resolve, reject) => {
        response.subscribeJson(async (batch) => {
          batch.items.forEach(print);
          offset = batch.offset;
        });
        response.closed.then(resolve, reject);
      });
    } catch (error) {
      if (error.status === 410) {
        const problem = JSON.parse(error.text ?? error.details);
        for (const gap of problem.gaps) print({ event: "gap", ...gap });
        offset = problem.next_offset;
      } else if (error.status >= 400) {
        throw error;
      } else {
        await new Promise((resolve) => setTimeout(resolve, 100));
      }
    }
  }
}

if (globalThis.process) read(process.argv[2], process.argv[3], (item) => console.log(JSON.stringify(item)));
