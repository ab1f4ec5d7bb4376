// A position store for Node.

import { closeSync, fsyncSync, openSync, readFileSync, renameSync, writeFileSync } from "node:fs";

/** Keep the position in a file, which is replaced as a whole: after a crash, it contains the old or the new position. */
export function fileStore(path) {
  return {
    load() {
      let position;
      try {
        position = readFileSync(path, "utf8").trim();
      } catch (error) {
        if (error.code === "ENOENT") return "";
        throw error;
      }
      if (!position) throw new Error(`The position file ${path} is empty. To start at the route's default, delete it.`);
      return position;
    },
    save(position) {
      const file = openSync(`${path}.new`, "w");
      try {
        writeFileSync(file, `${position}\n`);
        fsyncSync(file); // Otherwise, the file may be empty after a power failure.
      } finally {
        closeSync(file);
      }
      renameSync(`${path}.new`, path);
    },
  };
}
