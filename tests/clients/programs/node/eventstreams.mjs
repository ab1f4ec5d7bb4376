// Print the changes of a stream, as the JavaScript example in the documentation of EventStreams does. Argument: the URL.

import { EventSource } from "eventsource";

const source = new EventSource(process.argv[2]);
source.onmessage = (event) => {
  const change = JSON.parse(event.data);
  if (change.meta.domain !== "canary") console.log(JSON.stringify(change));
};
