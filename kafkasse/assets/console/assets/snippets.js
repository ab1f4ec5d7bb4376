// Programs that read a stream. They store the position in a file, so they resume exactly after a break and after a restart.
// They contain no secrets: the environment variable TOKEN or COOKIE holds the user's token or cookie.

const shellQuoted = (text) => (/^[\w@%+=:,./-]+$/.test(text) ? text : `'${text.replaceAll("'", "'\\''")}'`);

/** Return a text as a literal of JavaScript and Python. Only JavaScript accepts lone surrogates in it. */
const literal = (text) => JSON.stringify(text).replaceAll("\u2028", "\\u2028").replaceAll("\u2029", "\\u2029").replaceAll("\u007f", "\\u007f");

const CURL = { token: ' -H "Authorization: Bearer $TOKEN"', cookie: ' -H "Cookie: $COOKIE"', "": "" };
const NODE = { token: ", token: process.env.TOKEN", cookie: ", headers: { Cookie: process.env.COOKIE }", "": "" };
const PYTHON = { token: 'token=os.environ["TOKEN"]', cookie: 'headers={"Cookie": os.environ["COOKIE"]}' };

/** The first line of each program, without the comment sign. */
const about = (file, what = "event") => `Prints each ${what}. ${file} contains the position; delete this file to start over.`;

/**
 * @param url the absolute URL of the stream with its query.
 * @param client the absolute URL of kafkasse.js.
 * @param file the name of the file that contains the position.
 * @param lastEventId the event ID to start from if there is no file, or "".
 * @param startsAtEnd whether the program starts at the end of the log.
 * @param credentials what the stream needs: "token", "cookie" or "".
 */
export const snippets = {
  curl({ url, file, lastEventId, credentials }) {
    const saved = `cat ${file} 2>/dev/null${lastEventId ? ` || printf %s ${shellQuoted(lastEventId)}` : ""}`;
    return `#!/bin/sh
# ${about(file)}
newline='
'
while true; do
  id=$(${saved}) event= data=
  curl -sSN --fail --speed-limit 1 --speed-time 60${CURL[credentials]} \${id:+-H "Last-Event-ID: $id"} \\
      ${shellQuoted(url)} |
    while IFS= read -r line; do
      case $line in
        'event: '*) event=\${line#event: } ;;
        'data: '*) data="$data$newline\${line#data: }" ;;
        'id: '*) id=\${line#id: } ;;
        '') # The event is complete.
          [ -z "$data" ] || printf '%s %s\\n' "$event" "\${data#?}"
          [ -z "$id" ] || { printf '%s\\n' "$id" > ${file}.new && mv ${file}.new ${file}; }
          event= data= ;;
      esac
    done
  sleep 1
done
`;
  },

  javascript({ url, client, file, lastEventId, credentials }) {
    return `// ${about(file)}
// Before you start it: curl -o kafkasse.mjs ${shellQuoted(client)}
import { existsSync, readFileSync, renameSync, writeFileSync } from "node:fs";
import { Stream } from "./kafkasse.mjs";

const file = ${literal(file)};
const store = {
  load: () => (existsSync(file) ? readFileSync(file, "utf8").trim() : ${literal(lastEventId)}),
  save(position) {
    writeFileSync(\`\${file}.new\`, position);
    renameSync(\`\${file}.new\`, file);
  },
};
const stream = new Stream(${literal(url)}, { store${NODE[credentials]} });
for await (const event of stream) console.log(event.type, event.data);
`;
  },

  python({ url, file, lastEventId, credentials }) {
    const options = ["store=store"];
    if (lastEventId) options.push(`last_event_id=store.load() or ${literal(lastEventId)}`);
    if (credentials) options.push(PYTHON[credentials]);
    return `# ${about(file)}
# Before you start it, install the client from the source of kafkasse: pip install "../kafkasse/kafkasse_client[requests]"
${credentials ? "import os\n\n" : ""}from kafkasse_client import FileStore, Stream

store = FileStore(${literal(file)})
for event in Stream(
    ${literal(url)},
    ${options.join(",\n    ")},
):
    print(event.type, event.data, flush=True)
`;
  },

  /** Finite reads: an event ID is not an offset, so the program cannot start at one. */
  chunks({ url, file: position, startsAtEnd, credentials }) {
    const file = position.replace(/position$/, "offset");
    const headers = position.replace(/position$/, "headers");
    const start = startsAtEnd ? "now" : "-1";
    const address = (query) => shellQuoted(url + (url.includes("?") ? "&" : "?") + query);
    return `#!/bin/sh
# ${about(file, "chunk, a JSON array")}
# One chunk: curl -i${CURL[credentials]} ${address(`offset=${start}`)}
header() { tr -d '\\r' < ${headers} | awk -v name="$1:" 'tolower($1) == name { print $2 }'; }
save() { header stream-next-offset > ${file}.new && [ -s ${file}.new ] && mv ${file}.new ${file}; }
cursor=
while true; do
  offset=$(cat ${file} 2>/dev/null || echo ${start})
  if chunk=$(curl -sS --fail --max-time 60 -D ${headers}${CURL[credentials]} \\
      ${address("live=long-poll&offset=")}"$offset&cursor=$cursor") && [ -n "$(header stream-next-offset)" ]; then
    [ -z "$chunk" ] || printf '%s\\n' "$chunk"
    save
    cursor=$(header stream-cursor)
  elif grep -q '^HTTP/[0-9.]* 410' ${headers} && save; then
    echo "Kafka no longer has the next records. Continuing after them." >&2
  else
    sleep 1
  fi
done
`;
  },
};
