/** The models: which are here and in memory, whether they fit, how fast they are, and whether they were verified. */

import { confirmed, told } from "../dialogs.js";
import { announce, button, element, trying } from "../dom.js";
import { bytes, percent, short, whole } from "../format.js";
import { copied } from "../markdown.js";
import { ask, askJson } from "../server.js";
import { bench } from "./bench.js";
import { Table } from "./table.js";

export function modelsPanel(get) {
  const table = new Table("Models here", ["Model", "Memory", "Fits", "Speed", "Verified", ""], {
    numbers: ["Memory"],
    none: "No model is here yet.",
  });
  const search = element("input", { type: "search", "aria-label": "Search the models here", placeholder: "Search", on: { input: () => draw() } });
  const speeds = new Map(); // what was measured here, by model
  let models = [];
  let status = null;

  function draw() {
    if (status === null) return;
    const states = new Map(status.model_manager.models.map((state) => [state.id, state]));
    const wanted = search.value.trim().toLowerCase();
    const found = models.filter(({ id, kind }) => `${id} ${kind}`.toLowerCase().includes(wanted));
    const free = status.model_manager.memory_limit_bytes - [...states.values()].reduce((sum, { footprint_bytes: held }) => sum + (held ?? 0), 0);
    table.show(
      found.map((model) => {
        const known = { ...model, ...(states.get(model.id) ?? {}), limit: status.model_manager.memory_limit_bytes, free };
        const speed = speeds.get(model.id);
        return { key: model.id, now: JSON.stringify([known, speed, Math.round(free / 1e8)]), cells: () => cells(known, speed, measure) };
      }),
    );
  }

  async function measure(id) {
    speeds.set(id, "measuring …");
    draw();
    const found = await trying(() => bench(id));
    if (found === null) speeds.delete(id);
    else speeds.set(id, `${short(found.alone)} tokens/s alone, ${short(found.together)} with ${found.beside}; first after ${short(found.first)} ms`);
    draw();
  }

  const header = element("header", {}, element("h2", {}, "Models"), search, button("Get a model", () => get(), { class: "main" }));
  return {
    node: element("section", { class: "panel", "aria-label": "Models" }, header, table.node),
    showStates(now) {
      status = now;
      draw();
    },
    showModels(now) {
      models = now;
      draw();
    },
  };
}

function cells(model, speed, measure) {
  const { id, state, footprint_bytes: held, metadata } = model;
  const about = [model.kind, metadata.quantization ?? metadata.dtype, bytes(metadata.size_bytes)].filter(Boolean).join(" · ");
  const name = element(
    "div",
    {},
    element("div", { class: "model-name" }, id),
    element("small", {}, about),
    element("div", { class: "row" }, element("span", { class: `state ${state}` }, stateOf(model)), model.pinned ? element("span", { class: "state" }, "pinned") : null),
    model.error ? element("p", { class: "error" }, model.error) : null,
  );
  return [name, held ? bytes(held) : "", fits(model), speed ?? speedOf(model), verified(model), element("div", {}, ...actions(model, measure))];
}

function stateOf({ state, stage, progress }) {
  return state === "loading" ? `loading: ${stage ?? "starting"}${progress === null ? "" : ` ${percent(progress)}`}` : state;
}

/** Whether there is memory for the model, and for how many tokens. */
function fits({ state, context_length: length, context_window: window, metadata, limit, free }) {
  if (state === "loaded") {
    if (length === null) return "";
    return length < window ? `${whole(length)} of ${whole(window)} tokens` : `all ${whole(length)} tokens`;
  }
  const needed = metadata.size_bytes;
  if (!needed) return "";
  if (needed > limit) return "too large for this machine";
  return needed > free ? "others must leave" : "yes";
}

function speedOf({ state, active }) {
  return state === "loaded" && active ? `${whole(active)} running` : "";
}

function verified({ id, verification }) {
  if (verification) return button(verification.verdict, () => trying(() => showReport(id)), { class: "small", "aria-label": `Report on ${id}: ${verification.verdict}` });
  return button("not yet", () => trying(() => sayHow(id)), { class: "small", "aria-label": `${id} verified: not yet` });
}

/** The last report: what was found, what it means, what helps. */
async function showReport(id) {
  const { verification } = await askJson(`/v1/models/${encodeURIComponent(id)}`);
  const found = verification.findings.map(({ severity, text, meaning, advice, command }) =>
    element(
      "li",
      { class: severity === "fault" ? "error" : null },
      `${severity}: ${text} ${meaning ?? ""}`,
      advice ? element("i", {}, ` ${advice} `) : null,
      command ? element("code", {}, command) : null,
    ),
  );
  const when = new Date(verification.at * 1000).toLocaleString();
  const head = element("p", { class: "quiet" }, `Verified ${when}.`);
  await told(`${id}: ${verification.verdict}`, element("div", {}, head, element("ul", { class: "findings" }, ...found)));
}

async function sayHow(id) {
  const command = `pippin verify ${id}`;
  const copy = button("Copy", () => copied(command), { class: "small" });
  const what = "Checks the files, tokens, template, numbers, tool calls and answers of the model against its publisher's. It takes minutes, in a process of its own:";
  await told(`Verify ${id}`, element("div", {}, element("p", { class: "quiet" }, what), element("p", { class: "row" }, element("code", {}, command), copy)));
}

function actions(model, measure) {
  const { id, state, kind, capabilities, pinned } = model;
  const path = `/v1/models/${encodeURIComponent(id)}`;
  const act = (label, way, said) =>
    button(label, () => trying(async () => {
      await ask(`${path}/${way}`, { method: "POST" });
      announce(said);
    }), { class: "small", "aria-label": `${label} ${id}` });
  const inMemory = state === "loaded" || state === "loading";
  return [
    inMemory ? act("Unload", "unload", `${id} is unloaded.`) : act("Load", "load", `${id} is loaded.`),
    pinned ? act("Unpin", "unpin", `${id} may be unloaded for others.`) : act("Pin", "pin", `${id} stays in memory.`),
    capabilities.chat ? button("Bench", () => measure(id), { class: "small", "aria-label": `Bench ${id}`, title: "Measure how fast it answers now" }) : null,
    kind === "scripted" ? null : button("Delete", () => trying(() => remove(id)), { class: "small", "aria-label": `Delete ${id}` }),
  ];
}

async function remove(id) {
  if (!(await confirmed(`Delete the files of ${id} from the disk? They would have to be downloaded again.`, "Delete"))) return;
  await ask("/api/delete", { method: "DELETE", json: { model: id } });
  announce(`${id} is deleted.`);
}
