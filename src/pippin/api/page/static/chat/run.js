/** An answer that runs: it grows in its message, is kept every second, and is drawn wherever it is shown. */

import { ask } from "../server.js";
import { answer } from "./answer.js";

const KEEP = 1000; // milliseconds

export class Run {
  /** `request` is null for an answer that the server goes on with. `view()` gives where the message is shown, if it is;
   * `keep()` keeps the message. */
  constructor(message, request, view, keep) {
    this.message = message;
    this.view = view;
    this.progress = "Waiting …";
    this.begun = false;
    this.drawing = false;
    this.rest = 0; // milliseconds before the next drawing
    this.done = false;
    const stopping = new AbortController();
    this.stop = () => stopping.abort();
    this.whole = this.read(request, stopping.signal, keep);
  }

  /** Resolves when the answer has ended, in whatever way. */
  ended() {
    return this.whole;
  }

  async read(request, signal, keep) {
    const keeping = setInterval(keep, KEEP);
    const watching = setInterval(() => this.watchLoading(this.message.model, signal), KEEP);
    await answer(this.message, request, { signal, changed: (progress) => this.changed(progress) });
    clearInterval(keeping);
    clearInterval(watching);
    this.done = true;
  }

  /** Draw at most once a frame, and for a fifth of the time: else a long answer would keep the page from answering. */
  changed(progress) {
    this.begun = true;
    this.progress = progress;
    this.draw();
  }

  draw() {
    if (this.drawing) return;
    this.drawing = true;
    const drawn = () => {
      this.drawing = false;
      const begun = performance.now();
      if (!this.done) this.view()?.draw({ running: true, progress: this.progress });
      this.rest = 4 * (performance.now() - begun);
    };
    setTimeout(() => requestAnimationFrame(drawn), this.rest);
  }

  /** Until the first event comes, say how far the model is loaded. */
  async watchLoading(model, signal) {
    if (this.begun || signal.aborted) return;
    try {
      const reply = await ask(`/v1/models/${encodeURIComponent(model)}`, { signal });
      const { state, stage, progress } = await reply.json();
      const share = progress === null ? "" : `, ${Math.round(progress * 100)} %`;
      if (this.begun || state !== "loading") return;
      this.progress = `Loading ${model}: ${stage ?? "starting"}${share}`;
      this.draw();
    } catch {
      // The answer itself says what is wrong.
    }
  }
}
