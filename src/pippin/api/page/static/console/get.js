/** Getting a model: what fits this machine, what the hub has, and the download with its progress and a way to stop. */

import { asked } from "../dialogs.js";
import { announce, button, element, labelled, trying } from "../dom.js";
import { bytes, seconds, whole } from "../format.js";
import { ask, askJson, lines } from "../server.js";
import { suggestions } from "../suggestions.js";

/** `open(name)` asks which model to get, with a name already written where one is given; `node` tells of downloads. */
export function getPanel() {
  const download = new Download();
  return { open: (name = "") => trying(() => choose(download, name)) };
}

async function choose(download, name) {
  const input = element("input", { name: "model", required: true, value: name, placeholder: "organisation/repository", class: "grow" });
  const content = element("div", {}, labelled("Repository", input, "As in mlx-community/Qwen3-4B-4bit."), searchForm(input), fitting());
  content.addEventListener("click", (event) => {
    const wanted = event.target.closest("a[href^='#console/']");
    if (!wanted) return;
    event.preventDefault();
    input.value = decodeURIComponent(wanted.getAttribute("href").split("/").slice(1).join("/"));
  });
  if (await asked("Get a model", content, { agree: "Get it" })) await download.pull(input.value.trim());
}

/** What fits this machine: the server measures for a second, and nobody waits for that. */
function fitting() {
  const place = element("div", { class: "field" }, element("p", { class: "quiet" }, "Looking at what fits …"));
  suggestions().then((found) => place.replaceChildren(found), (error) => place.replaceChildren(element("p", { class: "error" }, error.message)));
  return place;
}

/** Finding a model on the hub; a click on one writes its name into `input`. */
function searchForm(input) {
  const words = element("input", { name: "words", type: "search", placeholder: "qwen3 4bit", maxlength: 200, class: "grow", "aria-label": "Words of a model's name" });
  const found = element("div", { role: "status" });

  async function search() {
    if (words.value.trim() === "") return;
    found.replaceChildren(element("p", { class: "quiet" }, "Asking the hub …"));
    try {
      const { data } = await askJson("/v1/models/search", { method: "POST", json: { search: words.value.trim() } });
      found.replaceChildren(data.length > 0 ? hits(data) : element("p", { class: "quiet" }, "The hub has no MLX model with these words."));
    } catch (error) {
      found.replaceChildren(element("p", { class: "error" }, error.message));
    }
  }

  function hits(data) {
    const rows = data.map(({ id, downloads, here }) => {
      const take = here ? "is here" : button("Take it", () => (input.value = id), { class: "small", "aria-label": `Take ${id}` });
      return element("tr", {}, ...[id, whole(downloads), take].map((cell) => element("td", {}, cell)));
    });
    const head = element("tr", {}, ...["Model", "Downloads"].map((each) => element("th", { scope: "col" }, each)), element("td"));
    return element(
      "div",
      { class: "wide", tabindex: "0", role: "region", "aria-label": "Found on the hub" },
      element("table", {}, element("thead", {}, head), element("tbody", {}, ...rows)),
    );
  }

  words.addEventListener("keydown", (event) => {
    if (event.key !== "Enter") return;
    event.preventDefault();
    search();
  });
  return element("div", {}, element("div", { class: "row" }, words, button("Find on the hub", search)), found);
}

/** One download at a time, told at the top of the console. */
class Download {
  constructor() {
    this.progress = element("progress", { max: 1, "aria-label": "Download" });
    this.told = element("p", { role: "status", class: "grow" });
    this.running = null;
    const stop = button("Stop", () => this.running?.abort());
    this.stop = stop;
    this.node = element("section", { class: "panel", hidden: true, "aria-label": "Download" }, element("div", { class: "row" }, this.told, stop), this.progress);
    document.querySelector("#console").prepend(this.node);
  }

  async pull(name) {
    if (this.running) {
      announce("Another model is on its way. Wait for it, or stop it.", "error");
      return;
    }
    this.running = new AbortController();
    this.begun = null; // when the first bytes of this download were told, and how many
    this.node.hidden = this.stop.hidden = this.progress.hidden = false;
    this.progress.removeAttribute("value");
    this.told.textContent = `Asking for ${name} …`;
    try {
      const reply = await ask("/api/pull", { method: "POST", json: { model: name }, signal: this.running.signal });
      for await (const line of lines(reply)) this.showLine(name, JSON.parse(line));
    } catch (error) {
      this.told.textContent = error.name === "AbortError" ? "Stopped. Getting it again goes on from here." : error.message;
    } finally {
      this.running = null;
      this.stop.hidden = this.progress.hidden = true;
    }
  }

  showLine(name, { status, total, completed, error }) {
    if (error) throw new Error(error);
    if (total) {
      this.progress.value = completed / total;
      this.begun ??= { at: performance.now(), completed };
      this.told.textContent = `${name}: ${bytes(completed)} of ${bytes(total)}${this.timeLeft(total, completed)}`;
    } else {
      this.told.textContent = status === "success" ? `${name} is here.` : `${name}: ${status}`;
    }
  }

  /** From the mean rate of this download, which may have begun in the middle. */
  timeLeft(total, completed) {
    const rate = (completed - this.begun.completed) / ((performance.now() - this.begun.at) / 1000);
    return rate > 0 ? `, ${bytes(rate)}/s, ${seconds((total - completed) / rate)} left` : "";
  }
}
