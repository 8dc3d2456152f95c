/**
 * The messages of the branch that is shown. Only what changed is drawn, in portions between which the page answers; a
 * message far from what is seen stands there as plain text until somebody comes near.
 */

import { MessageView } from "./message.js";

const FOLLOWS = 80; // pixels from the end within which the view follows an answer that grows
const NEAR = "800px 0px"; // around what is seen
const LAST = 4; // messages at the end that are drawn at once
const PORTION = 12; // milliseconds of drawing at a time

export class Thread {
  /** `scroll` holds `place`, where the messages stand; `acts` are what can be done with one. */
  constructor(scroll, place, acts) {
    this.scroll = scroll;
    this.place = place;
    this.acts = acts;
    this.views = new Map(); // by the ids of their messages
    this.follows = true; // whether the end stays in view, which it does unless the person scrolled away
    scroll.addEventListener("scroll", () => {
      this.follows = scroll.scrollHeight - scroll.scrollTop - scroll.clientHeight < FOLLOWS;
    });
    new ResizeObserver(() => this.follows && this.toTheEnd()).observe(place);
    this.nearness = new IntersectionObserver((seen) => this.come(seen), { root: scroll, rootMargin: NEAR });
  }

  viewOf({ id }) {
    return this.views.get(id);
  }

  toTheEnd() {
    this.scroll.scrollTop = this.scroll.scrollHeight;
    this.follows = true;
  }

  /**
   * Show a branch. `places` gives all messages that stand where one does, and `run(message)` the answer that runs in it
   * or null. What is new is drawn from the end, for that is where people look.
   */
  draw(branch, places, run) {
    this.update = (view) => {
      const running = run(view.message);
      view.update(places(view.message), { running: running !== null, progress: running?.progress ?? null });
    };
    this.known = this.views;
    this.views = new Map();
    this.missing = [...branch];
    clearTimeout(this.timer);
    const nodes = this.portion(branch.slice(-LAST).map(({ id }) => id));
    const wanted = new Set(nodes);
    for (const child of [...this.place.children]) if (!wanted.has(child)) child.remove();
    for (const [index, node] of nodes.entries()) {
      // The same nodes stay where they are: a selection in them survives, and nothing is laid out anew.
      if (this.place.children[index] !== node) this.place.insertBefore(node, this.place.children[index] ?? null);
    }
    if (this.follows) this.toTheEnd();
    this.drawMore();
  }

  /** Draw what stands above in portions, and keep in place what is seen. */
  drawMore() {
    if (this.missing.length === 0) return;
    this.timer = setTimeout(() => {
      const height = this.follows ? 0 : this.scroll.scrollHeight;
      this.place.prepend(...this.portion([]));
      if (this.follows) this.toTheEnd();
      else this.scroll.scrollTop += this.scroll.scrollHeight - height;
      this.drawMore();
    });
  }

  /** The nodes of the last messages that are missing, as many as a portion of time allows. */
  portion(last) {
    const begun = performance.now();
    const nodes = [];
    while (this.missing.length > 0) {
      const message = this.missing.at(-1);
      const known = this.known.get(message.id);
      const same = known?.message === message;
      if (!same && performance.now() - begun > PORTION) break;
      const view = same ? known : new MessageView(message, this.acts);
      if (!same) this.nearness.observe(view.node);
      view.near ||= last.includes(message.id);
      if (view.near) this.update(view);
      else view.sketch();
      this.views.set(message.id, view);
      nodes.unshift(view.node);
      this.missing.pop();
    }
    return nodes;
  }

  /** Draw what came near. */
  come(seen) {
    const nodes = new Set(seen.filter(({ isIntersecting }) => isIntersecting).map(({ target }) => target));
    for (const view of this.views.values()) {
      if (!nodes.has(view.node) || view.near) continue;
      view.near = true;
      this.update(view);
    }
  }
}
