/** The models: what is here, what is in memory, and getting more. */

import { announce, button, element, labelled, trying } from "./dom.js";
import { bytes, percent, seconds, whole } from "./format.js";
import { ask, askJson, lines } from "./server.js";

const PAUSE = 2000; // milliseconds between two looks

/** Begin. What it gives looks at the models from time to time until they are left. */
export function startModels(place) {
  const cards = element("div", { class: "cards" });
  const search = element("input", { type: "search", on: { input: () => drawn && draw(cards, drawn, search.value) } });
  let drawn = null;

  async function look() {
    const [{ data }, status] = await Promise.all([askJson("/v1/models"), askJson("/v1/status")]);
    const next = { models: data, states: status.model_manager.models, budget: status.model_manager.memory_budget_gb };
    if (JSON.stringify(next) === JSON.stringify(drawn)) return;
    drawn = next;
    draw(cards, drawn, search.value);
  }

  const pulling = pullForm(look);
  place.append(
    element("h2", {}, "Models"),
    searchForm(pulling.choose),
    pulling.node,
    element("h3", {}, "Here"),
    labelled("Search", search),
    cards,
  );
  return () => {
    trying(look);
    const timer = setInterval(() => document.hidden || trying(look), PAUSE);
    return () => clearInterval(timer);
  };
}

function draw(cards, { models, states }, search) {
  const wanted = search.trim().toLowerCase();
  const found = models.filter(({ id, kind }) => `${id} ${kind}`.toLowerCase().includes(wanted));
  const focused = document.activeElement?.dataset?.act;
  cards.replaceChildren(...found.map((model) => card(model, states.find(({ id }) => id === model.id))));
  // What was focused is drawn anew, and the focus stays where it was.
  if (focused) cards.querySelector(`[data-act="${CSS.escape(focused)}"]`)?.focus();
  if (found.length === 0) cards.append(element("p", { class: "quiet" }, "No model. Get one by the name of its repository."));
}

function card(model, state) {
  const { id, metadata, capabilities, progress, stage, error } = model;
  const able = Object.keys(capabilities).filter((name) => capabilities[name]);
  const facts = [
    ["Kind", `${model.kind}${metadata.architecture ? `, ${metadata.architecture}` : ""}`],
    ["On disk", bytes(metadata.size_bytes)],
    ["In memory", state?.footprint_bytes ? bytes(state.footprint_bytes) : null],
    ["Weights", metadata.quantization ?? metadata.dtype],
    ["Context", model.context_window ? `${whole(model.context_window)} tokens${fits(model)}` : null],
    ["Can", able.join(", ") || null],
    ["Verified", model.verification ? model.verification.verdict : null],
  ].filter(([, value]) => value !== null && value !== undefined);
  return element(
    "article",
    { class: "card", "aria-label": id },
    element("h3", {}, id),
    element("p", { class: "row" }, element("span", { class: `state ${model.state}` }, model.state), pinned(state)),
    model.state === "loading" ? loadingView(stage, progress) : null,
    error ? element("p", { class: "error" }, error) : null,
    element("table", {}, element("tbody", {}, ...facts.map(([name, value]) => element("tr", {}, element("th", { scope: "row" }, name), element("td", {}, value))))),
    element("div", { class: "row actions" }, ...actions(model, state)),
  );
}

/** The tokens for which there is memory, where they are fewer than the model could take. */
function fits({ context_length: length, context_window: window }) {
  return length !== null && length < window ? `, ${whole(length)} of them fit in memory` : "";
}

function pinned(state) {
  return state?.pinned ? element("span", { class: "state" }, "pinned") : null;
}

function loadingView(stage, progress) {
  return element(
    "p",
    {},
    element("progress", { max: 1, value: progress, "aria-label": "Loading" }),
    `${stage ?? ""}${progress === null ? "" : ` ${percent(progress)}`}`,
  );
}

function actions({ id, state }, known) {
  const path = `/v1/models/${encodeURIComponent(id)}`;
  const act = (label, path, said) =>
    button(label, () => trying(async () => {
      await ask(path, { method: "POST" });
      announce(said);
    }), { class: "small", "data-act": `${label} ${id}`, "aria-label": `${label} ${id}` });
  const inMemory = state === "loaded" || state === "loading";
  return [
    inMemory ? act("Unload", `${path}/unload`, `${id} is unloaded.`) : act("Load", `${path}/load`, `${id} is loaded.`),
    known?.pinned ? act("Unpin", `${path}/unpin`, `${id} may be unloaded for others.`) : act("Pin", `${path}/pin`, `${id} stays in memory.`),
    button("Delete", () => trying(() => remove(id)), { class: "small", "data-act": `Delete ${id}`, "aria-label": `Delete ${id}` }),
  ];
}

async function remove(id) {
  if (!confirm(`Delete the files of ${id} from the disk? They would have to be downloaded again.`)) return;
  await ask("/api/delete", { method: "DELETE", json: { model: id } });
  announce(`${id} is deleted.`);
}

/** Finding a model on the hub; `choose(id)` is what its button does. */
function searchForm(choose) {
  const words = element("input", { name: "words", type: "search", required: true, placeholder: "qwen3 4bit", maxlength: 200 });
  const found = element("div", { role: "status" });

  async function search(event) {
    event.preventDefault();
    found.replaceChildren(element("p", { class: "quiet" }, "Asking the hub …"));
    try {
      const { data } = await askJson("/v1/models/search", { method: "POST", json: { search: words.value.trim() } });
      found.replaceChildren(data.length > 0 ? hits(data) : element("p", { class: "quiet" }, "The hub has no MLX model with these words."));
    } catch (error) {
      found.replaceChildren(element("p", { class: "error" }, error.message));
    }
  }

  function hits(data) {
    const rows = data.map(({ id, downloads, task, here }) => {
      const get = here ? "is here" : button("Get it", () => choose(id), { class: "small", "aria-label": `Get ${id}` });
      return element("tr", {}, ...[id, whole(downloads), task ?? "", get].map((cell) => element("td", {}, cell)));
    });
    const head = element("tr", {}, ...["Model", "Downloads", "Task"].map((name) => element("th", { scope: "col" }, name)), element("td"));
    const table = element("table", {}, element("thead", {}, head), element("tbody", {}, ...rows));
    return element("div", { class: "wide", tabindex: "0", role: "region", "aria-label": "Found on the hub" }, table);
  }

  const field = labelled("Find a model on the hub", words, "Words of its name. The most downloaded come first.");
  field.classList.add("grow");
  const go = element("button", { type: "submit" }, "Find");
  return element("form", { class: "card", on: { submit: search } }, element("div", { class: "row" }, field, go), found);
}

/** Getting a model by its repository, with progress and a way to stop. `choose(id)` gets one that was found. */
function pullForm(look) {
  const name = element("input", { name: "model", required: true, placeholder: "organisation/repository" });
  const progress = element("progress", { hidden: true, max: 1, "aria-label": "Download" });
  const told = element("p", { class: "quiet", role: "status" });
  const go = element("button", { type: "submit", class: "main" }, "Get it");
  let running = null;
  let begun = null; // when the first bytes of this download were told, and how many

  async function pull() {
    running = new AbortController();
    begun = null;
    go.textContent = "Stop";
    progress.hidden = false;
    progress.removeAttribute("value");
    try {
      const reply = await ask("/api/pull", { method: "POST", json: { model: name.value.trim() }, signal: running.signal });
      for await (const line of lines(reply)) showLine(JSON.parse(line));
    } catch (error) {
      told.textContent = error.name === "AbortError" ? "Stopped. Getting it again goes on from here." : error.message;
    } finally {
      running = null;
      go.textContent = "Get it";
      progress.hidden = true;
      await trying(look);
    }
  }

  function showLine({ status, total, completed, error }) {
    if (error) throw new Error(error);
    if (total) progress.value = completed / total;
    if (total) begun ??= { at: performance.now(), completed };
    told.textContent = total ? `${status}: ${bytes(completed)} of ${bytes(total)}${timeLeft(total, completed)}` : status === "success" ? "It is here." : status;
  }

  /** From the mean rate of this download, which may have begun in the middle. */
  function timeLeft(total, completed) {
    const rate = (completed - begun.completed) / ((performance.now() - begun.at) / 1000);
    return rate > 0 ? `, ${bytes(rate)}/s, ${seconds((total - completed) / rate)} left` : "";
  }

  function submit(event) {
    event.preventDefault();
    if (running) running.abort();
    else pull();
  }

  const field = labelled("Get a model", name, "The name of its repository, as in mlx-community/Qwen3-4B-4bit.");
  field.classList.add("grow");
  const node = element("form", { class: "card", on: { submit } }, element("div", { class: "row" }, field, go), progress, told);
  return {
    node,
    choose(id) {
      if (running) return announce("Another model is on its way. Wait for it, or stop it.", "error");
      name.value = id;
      node.scrollIntoView({ block: "nearest" });
      pull();
    },
  };
}
