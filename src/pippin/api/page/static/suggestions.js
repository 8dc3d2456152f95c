/** Models that fit this machine, for who has none yet. */

import { element } from "./dom.js";
import { bytes } from "./format.js";
import { askJson } from "./server.js";

/** What the server recommends for a purpose, each with the way to get it. */
export async function suggestions(purpose = "chat") {
  const { data, memory_bytes: memory } = await askJson(`/v1/models/recommended?for=${purpose}`);
  if (data.length === 0) return element("p", { class: "quiet" }, `No model of the list fits into ${bytes(memory)}.`);
  const rows = data.map(({ id, why, stored_bytes: stored, needed_bytes: needed }) =>
    element(
      "tr",
      {},
      element("th", { scope: "row" }, element("a", { href: `#console/${encodeURIComponent(id)}` }, id), element("br"), element("small", {}, why)),
      element("td", { class: "number" }, bytes(stored)),
      element("td", { class: "number" }, bytes(needed)),
    ),
  );
  const head = element(
    "tr",
    {},
    element("th", { scope: "col" }, "Model"),
    element("th", { scope: "col", class: "number" }, "Download"),
    element("th", { scope: "col", class: "number" }, "Memory"),
  );
  return element(
    "div",
    {},
    element("p", { class: "quiet" }, `These fit into the ${bytes(memory)} that models may use here:`),
    element("div", { class: "wide", tabindex: "0", role: "region", "aria-label": "Models that fit" }, element("table", {}, element("thead", {}, head), element("tbody", {}, ...rows))),
  );
}
