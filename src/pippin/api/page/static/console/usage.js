/** What each key has used of each model over the server's life. */

import { element } from "../dom.js";
import { seconds, whole } from "../format.js";
import { Table } from "./table.js";

export function usagePanel() {
  const table = new Table("Used by key and model", ["Key", "Model", "Requests", "In", "Cached", "Out", "Busy"], {
    numbers: ["Requests", "In", "Cached", "Out", "Busy"],
    none: "Nothing was asked yet.",
  });
  return {
    node: element("section", { class: "panel", "aria-label": "Usage" }, element("header", {}, element("h2", {}, "Usage")), table.node),
    show: (rows) => table.show(rows.map((row) => ({ key: `${row.key} ${row.model}`, now: JSON.stringify(row), cells: () => cells(row) }))),
  };
}

function cells(row) {
  const counts = [row.requests, row.prompt_tokens, row.cached_tokens, row.completion_tokens].map(whole);
  return [row.key ?? "without a key", row.model, ...counts, seconds(row.seconds)];
}
