/** The server's log as it grows, for whoever manages the server. */

import { element } from "../dom.js";
import { Refusal, askJson } from "../server.js";

const MOST = 500; // lines on the page
const NEAR = 40; // pixels from the end within which the view follows
const LEVELS = ["debug", "info", "warning", "error"];

export function logPanel() {
  const lines = element("ol", { class: "log", tabindex: "0", "aria-label": "Lines of the log" });
  const level = element("select", { "aria-label": "Least severe line" }, ...LEVELS.map((each) => element("option", { value: each, selected: each === "info" }, `from ${each}`)));
  const words = element("input", { type: "search", "aria-label": "Search the log", placeholder: "Search" });
  const filter = () => [...lines.children].forEach((line) => (line.hidden = !wanted(line)));
  const wanted = ({ dataset: { level: each }, textContent }) =>
    LEVELS.indexOf(each) >= LEVELS.indexOf(level.value) && textContent.toLowerCase().includes(words.value.trim().toLowerCase());
  level.addEventListener("change", filter);
  words.addEventListener("input", filter);
  let last = -1;
  let refused = false;

  async function look() {
    if (refused) return;
    try {
      add((await askJson(`/v1/logs?after=${last}`)).data);
    } catch (error) {
      if (!(error instanceof Refusal)) throw error;
      refused = true;
      lines.replaceChildren(element("li", {}, error.message));
    }
  }

  function add(data) {
    if (data.length === 0) return;
    const follows = lines.scrollHeight - lines.scrollTop - lines.clientHeight < NEAR;
    last = data.at(-1).number;
    lines.append(...data.map(row));
    while (lines.childElementCount > MOST) lines.firstElementChild.remove();
    if (follows) lines.scrollTop = lines.scrollHeight;
  }

  function row({ time, level: each, text }) {
    const when = new Date(time * 1000);
    const line = element(
      "li",
      { class: each, "data-level": each === "critical" ? "error" : each },
      element("time", { datetime: when.toISOString() }, when.toLocaleTimeString("en", { hour12: false })),
      element("span", {}, text),
    );
    line.hidden = !wanted(line);
    return line;
  }

  return { node: element("section", { class: "panel", "aria-label": "Log" }, element("header", {}, element("h2", {}, "Log"), level, words), lines), look };
}
