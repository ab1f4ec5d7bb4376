// A position store for Node.

import { readFileSync, renameSync, writeFileSync } from "node:fs";

/** Keep the position in a file, which is replaced as a whole: after a crash, it contains the old or the new position. */
export function fileStore(path) {
  return {
    load() {
      try {
        return readFileSync(path, "utf8").trim();
      } catch (error) {
        if (error.code === "ENOENT") return "";
        throw error;
      }
    },
    save(position) {
      writeFileSync(`${path}.new`, `${position}\n`);
      renameSync(`${path}.new`, path);
    },
  };
}
