/** The pauses between tokens, as looks at the running requests show them. */

/** Remembers how many tokens each answer had, and when that was first seen. */
export class Gaps {
  constructor() {
    this.seen = new Map();
  }

  /**
   * The longest mean pause between the tokens of an answer since the last look, in seconds; for an answer that stands
   * still, the time since it was first seen so. 0 where nothing is answered. `now` is in milliseconds.
   */
  longest(requests, now) {
    const answering = requests.filter(({ phase }) => phase === "generation");
    const gaps = answering.map(({ request_id: id, generated_tokens: tokens }) => {
      const before = this.seen.get(id);
      if (before?.tokens === tokens) return (now - before.at) / 1000;
      this.seen.set(id, { tokens, at: now });
      return before === undefined ? 0 : (now - before.at) / 1000 / (tokens - before.tokens);
    });
    const running = new Set(answering.map(({ request_id: id }) => id));
    for (const id of this.seen.keys()) if (!running.has(id)) this.seen.delete(id);
    return Math.max(0, ...gaps);
  }
}
