/** A table whose rows are drawn anew while people look at it. */

import { element } from "../dom.js";

export class Table {
  /** `columns` are names, empty for buttons; on a phone each row stands as lines with these names. */
  constructor(label, columns, { numbers = [], none }) {
    this.columns = columns;
    this.numbers = new Set(numbers);
    this.none = none;
    this.body = element("tbody");
    this.drawn = new Map(); // rows by their keys, with the text that they were drawn for
    const heads = columns.map((name) => (name ? element("th", { scope: "col", class: this.numbers.has(name) ? "number" : null }, name) : element("td")));
    const table = element("table", { class: "stacks" }, element("thead", {}, element("tr", {}, ...heads)), this.body);
    this.node = element("div", { class: "wide", tabindex: "0", role: "region", "aria-label": label }, table);
  }

  /** Show rows, each `{key, cells}`; a row whose `now` is what it was stays, with the focus and the menus in it. */
  show(rows) {
    const before = this.drawn;
    this.drawn = new Map();
    const nodes = rows.map(({ key, now, cells }) => {
      const known = before.get(key);
      const same = known !== undefined && known.now === now;
      const node = same ? known.node : this.row(cells(), known?.node);
      this.drawn.set(key, { now, node });
      return node;
    });
    const none = element("tr", {}, element("td", { colspan: this.columns.length, class: "quiet" }, this.none));
    const wanted = nodes.length > 0 ? nodes : [none];
    if (wanted.some((node, index) => this.body.children[index] !== node) || this.body.childElementCount !== wanted.length) this.body.replaceChildren(...wanted);
  }

  /** A row; what had the focus in the one before has it again. */
  row(cells, before) {
    const node = element(
      "tr",
      {},
      ...cells.map((cell, index) => {
        const name = this.columns[index];
        const kind = name === "" ? "actions" : this.numbers.has(name) ? "number" : null;
        return element("td", { class: kind, "data-label": index > 0 && name ? name : null }, cell);
      }),
    );
    const focused = before?.contains(document.activeElement) ? document.activeElement.getAttribute("aria-label") : null;
    if (focused) requestAnimationFrame(() => node.querySelector(`[aria-label="${CSS.escape(focused)}"]`)?.focus());
    return node;
  }
}
