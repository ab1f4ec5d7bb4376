import type { PositionStore } from "./kafkasse.js";

/** Keep the position in a file. Each process and each URL needs its own file. An empty file is an error. */
export function fileStore(path: string): PositionStore;
