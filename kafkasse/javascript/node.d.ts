import type { PositionStore } from "./kafkasse.js";

/** Keep the position in a file. Each process needs its own file. */
export function fileStore(path: string): PositionStore;
