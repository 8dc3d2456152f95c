/** The pauses between tokens, from the histogram that the server keeps for Prometheus (`/metrics`). */

import { ask, Refusal } from "./server.js";

const LINE = /^pippin_inter_token_seconds_(sum|count)\{[^}]*\} (\S+)/;

/** Reads the histogram and gives the mean pause since it was read before, in seconds. */
export class Gaps {
  constructor() {
    this.before = null;
    this.refused = false;
  }

  /** Null where no token came since, or where the key of this tab may not read `/metrics`. */
  async mean() {
    if (this.refused) return null;
    const now = await this.read();
    const { before } = this;
    this.before = now;
    if (now === null || before === null || now.count <= before.count) return null;
    return (now.sum - before.sum) / (now.count - before.count);
  }

  async read() {
    try {
      return totals(await (await ask("/metrics")).text());
    } catch (error) {
      this.refused = error instanceof Refusal;
      return null;
    }
  }
}

function totals(text) {
  const found = { sum: 0, count: 0 };
  for (const line of text.split("\n")) {
    const match = LINE.exec(line);
    if (match !== null) found[match[1]] += Number(match[2]);
  }
  return found;
}
