/** The key of this tab, and the settings of the server for whoever manages it. */

import { element } from "../dom.js";
import { askJson } from "../server.js";
import { keyForm } from "./key.js";
import { optionRow } from "./option.js";

/** Begin. What it gives reads the settings anew. */
export function startSettings(place) {
  const groups = element("div");
  const contents = element("nav", { class: "contents", "aria-label": "Groups of settings" });
  const search = element("input", { type: "search", "aria-label": "Search the settings", placeholder: "Search", on: { input: () => filter() }, class: "grow" });
  const hot = element("input", { type: "checkbox", id: "only-hot", on: { change: () => filter() } });
  const said = element("p", { class: "quiet" });
  const access = element("section", { class: "group", id: "group-access" }, element("h2", {}, "API key"), keyForm(show));
  const head = element("div", { class: "row" }, search, element("label", { class: "check" }, hot, "Only what changes at once"));
  const intro = element("p", { class: "quiet" }, "What can be changed here holds until the server ends. "
    + "Options that need a restart are set on the command line or in the file. Paths and secrets are not shown.");
  place.append(element("div", { class: "sheet" }, contents, element("div", {}, access, element("h2", {}, "The server's settings"), intro, head, said, groups)));

  async function show() {
    try {
      const { current, options } = await askJson("/v1/settings");
      draw(current, options);
      said.textContent = "";
    } catch (error) {
      said.textContent = error.message;
    }
  }

  function draw(current, options) {
    const sections = Map.groupBy(options, ({ section }) => section);
    groups.replaceChildren(...[...sections].map(([title, members], index) => group(title, `group-${index}`, members, current)));
    contents.replaceChildren(contentsLink("API key", "group-access"), ...[...sections.keys()].map((title, index) => contentsLink(title, `group-${index}`)));
    filter();
  }

  function filter() {
    const wanted = search.value.trim().toLowerCase();
    for (const each of groups.children) {
      for (const row of each.querySelectorAll(".setting")) row.hidden = !row.dataset.words.includes(wanted) || (hot.checked && !("hot" in row.dataset));
      each.hidden = each.querySelector(".setting:not([hidden])") === null;
    }
  }

  return () => void show();
}

function group(title, id, members, current) {
  return element("section", { class: "group", id, "aria-label": title }, element("h2", {}, title), ...members.map((option) => optionRow(option, current[option.name])));
}

/** A link within the part: the address names parts, so it is left as it is. */
function contentsLink(title, id) {
  const go = (event) => {
    event.preventDefault();
    document.getElementById(id).scrollIntoView();
  };
  return element("a", { href: "#settings", on: { click: go } }, title);
}
