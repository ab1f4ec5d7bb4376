// Reads the text format of Prometheus. No I/O.

/** Return a map from the name of a metric to its series, `{labels, value}`. */
export function parseMetrics(text) {
  const metrics = new Map();
  for (const line of text.split("\n")) {
    const found = /^([a-zA-Z_:][\w:]*)(?:\{(.*)\})? (\S+)/.exec(line);
    if (found === null) continue;
    const [, name, labels = "", value] = found;
    const pairs = [...labels.matchAll(/(\w+)="((?:[^"\\]|\\.)*)"/g)].map(([, label, quoted]) => [label, unescaped(quoted)]);
    if (!metrics.has(name)) metrics.set(name, []);
    metrics.get(name).push({ labels: Object.fromEntries(pairs), value: Number(value.replace("+Inf", "Infinity")) });
  }
  return metrics;
}

function unescaped(text) {
  return text.replaceAll(/\\(.)/g, (_, character) => (character === "n" ? "\n" : character));
}

/** Return the sum of the series of a metric that have these labels. */
export function sum(metrics, name, labels = {}) {
  const matches = (series) => Object.entries(labels).every(([label, value]) => series.labels[label] === value);
  return (metrics.get(name) ?? []).filter(matches).reduce((total, { value }) => total + value, 0);
}

/** Return the upper bound of the bucket that contains a quantile of a histogram; null if it is empty. */
export function quantile(metrics, name, share) {
  const counts = new Map();
  for (const { labels, value } of metrics.get(`${name}_bucket`) ?? []) {
    const bound = Number(labels.le.replace("+Inf", "Infinity"));
    counts.set(bound, (counts.get(bound) ?? 0) + value);
  }
  const total = counts.get(Infinity) ?? 0;
  if (total === 0) return null;
  const finite = [...counts].filter(([bound]) => bound !== Infinity).sort(([a], [b]) => a - b);
  return (finite.find(([, count]) => count >= total * share) ?? finite.at(-1))[0];
}
