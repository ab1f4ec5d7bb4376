// Programs that read a stream. They contain no secrets: the placeholder $TOKEN stands for the user's token.

const shellQuoted = (text) => (/^[\w@%+=:,./-]+$/.test(text) ? text : `'${text.replaceAll("'", "'\\''")}'`);

/** Return a text as a literal of JavaScript and Python. Only JavaScript accepts lone surrogates in it. */
const literal = (text) => JSON.stringify(text).replaceAll("\u2028", "\\u2028").replaceAll("\u2029", "\\u2029").replaceAll("\u007f", "\\u007f");

/**
 * @param url the absolute URL of the stream with its query.
 * @param accept the Content-Type to ask for.
 * @param lastEventId the event ID to resume from, or "".
 * @param isGuarded whether the stream needs a token.
 */
export const snippets = {
  curl({ url, accept, lastEventId, isGuarded }) {
    const headers = [`-H ${shellQuoted(`Accept: ${accept}`)}`];
    if (isGuarded) headers.push('-H "Authorization: Bearer $TOKEN"');
    if (lastEventId) headers.push(`-H ${shellQuoted(`Last-Event-ID: ${lastEventId}`)}`);
    return `curl -N ${headers.join(" ")} ${shellQuoted(url)}\n`;
  },

  javascript({ url, accept, lastEventId, isGuarded }) {
    const headers = [`  Accept: ${literal(accept)},`];
    if (isGuarded) headers.push("  Authorization: `Bearer ${token}`,");
    if (lastEventId) headers.push(`  "Last-Event-ID": ${literal(lastEventId)},`);
    return `${isGuarded ? 'const token = process.env.TOKEN; // in a browser: from your login\n' : ""}const headers = {
${headers.join("\n")}
};
const response = await fetch(${literal(url)}, { headers });
if (!response.ok) throw new Error(await response.text());
for await (const text of response.body.pipeThrough(new TextDecoderStream())) console.log(text);
`;
  },

  python({ url, accept, lastEventId, isGuarded }) {
    const headers = [`    "Accept": ${literal(accept)},`];
    if (isGuarded) headers.push('    "Authorization": f"Bearer {os.environ[\'TOKEN\']}",');
    if (lastEventId) headers.push(`    "Last-Event-ID": ${literal(lastEventId)},`);
    return `${isGuarded ? "import os\n\n" : ""}import requests

headers = {
${headers.join("\n")}
}
with requests.get(${literal(url)}, headers=headers, stream=True, timeout=(5, 60)) as response:
    response.raise_for_status()
    for line in response.iter_lines():
        print(line.decode())
`;
  },
};
