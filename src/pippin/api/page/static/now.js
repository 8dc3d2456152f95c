/** What goes on: requests as they run, speeds, the queue, the cache and memory, as live plots. */

import { announce, button, element, trying } from "./dom.js";
import { bytes, percent, seconds, short, whole } from "./format.js";
import { ask, askJson } from "./server.js";
import { Gaps } from "./gaps.js";
import { Plot } from "./plot.js";

const PAUSE = 1000; // milliseconds between two looks
const GIB = 2 ** 30;

const PHASES = { queued: "waits", prefill: "reads the prompt", generation: "answers" };

/** Begin. What it gives looks each second until the part is left. */
export function startNow(place) {
  const gaps = new Gaps();
  const plots = [
    { plot: new Plot("Tokens a second", short), read: (status) => status.generation_tps },
    { plot: new Plot("Prompt tokens a second", short), read: (status) => status.prompt_tps },
    { plot: new Plot("Running requests", whole), read: (status) => status.num_running },
    { plot: new Plot("Waiting requests", whole), read: (status) => status.num_waiting },
    { plot: new Plot("Memory in use by the device", bytes), read: (status) => status.metal.active_memory_gb * GIB },
    { plot: new Plot("KV cache", bytes), read: (status) => status.kv.bytes },
    { plot: new Plot("Prefix cache", bytes), read: (status) => status.cache.resident_bytes },
    { plot: new Plot("Longest gap between tokens", milliseconds), read: ({ requests }) => gaps.longest(requests, performance.now()) },
  ];
  const byModel = new MemoryPlots();
  const requests = element("tbody");
  const memory = element("tbody");
  const used = element("tbody");
  const totals = element("p", { class: "quiet" });
  place.append(
    element("h2", {}, "Now"),
    totals,
    element("h3", {}, "Requests"),
    wide("Requests", ["Request", "Model", "Phase", "Done", "Tokens", "Tokens a second", "For", ""], requests),
    element("div", { class: "cards" }, ...plots.map(({ plot }) => plot.node)),
    element("h3", {}, "Memory by model"),
    wide("Memory by model", ["Model", "State", "In memory", "Requests"], memory),
    byModel.node,
    element("h3", {}, "Used over the server's life"),
    wide("Used by key and model", ["Key", "Model", "Requests", "Prompt tokens", "Cached", "Answer tokens", "Busy for"], used),
  );

  async function look() {
    const status = await askJson("/v1/status");
    for (const { plot, read } of plots) plot.add(read(status));
    byModel.add(status.model_manager.models);
    totals.textContent = totalsOf(status);
    redraw(requests, status.requests.map(requestRow), "No request is running.", 8);
    redraw(used, (await askJson("/v1/usage")).data.map(usedRow), "Nothing was asked yet.", 7);
    redraw(memory, status.model_manager.models.map(memoryRow), "No model is in memory.", 4);
  }

  return () => {
    trying(look);
    const timer = setInterval(() => document.hidden || trying(look), PAUSE);
    return () => clearInterval(timer);
  };
}

/** A plot for each model that was in memory since the page was opened. */
class MemoryPlots {
  constructor() {
    this.plots = new Map();
    this.node = element("div", { class: "cards" });
  }

  add(models) {
    for (const { id } of models.filter(({ footprint_bytes: footprint }) => footprint)) {
      if (this.plots.has(id)) continue;
      this.plots.set(id, new Plot(`Memory of ${id}`, bytes));
      this.node.append(this.plots.get(id).node);
    }
    for (const [id, plot] of this.plots) plot.add(models.find((each) => each.id === id)?.footprint_bytes ?? 0);
  }
}

function milliseconds(value) {
  return `${short(value * 1000)} ms`;
}

function wide(label, heads, body) {
  const head = element("tr", {}, ...heads.map((name) => (name ? element("th", { scope: "col" }, name) : element("td"))));
  const table = element("table", {}, element("thead", {}, head), body);
  return element("div", { class: "wide", tabindex: "0", role: "region", "aria-label": label }, table);
}

/** Draw rows anew, but keep the focus on the button that had it. */
function redraw(body, rows, none, columns) {
  const focused = document.activeElement?.dataset?.cancels;
  body.replaceChildren(...rows);
  if (rows.length === 0) body.append(element("tr", {}, element("td", { colspan: columns, class: "quiet" }, none)));
  if (focused) body.querySelector(`[data-cancels="${CSS.escape(focused)}"]`)?.focus();
}

function requestRow(request) {
  const { request_id: id, prompt_tokens: prompt, cached_tokens: cached, generated_tokens: made } = request;
  const cancel = button("Cancel", () => trying(async () => {
    await ask(`/v1/requests/${encodeURIComponent(id)}`, { method: "DELETE" });
    announce("The request is cancelled.");
  }), { class: "small", "data-cancels": id, "aria-label": `Cancel ${id}` });
  const cells = [
    element("code", {}, id.slice(-8)),
    request.model,
    PHASES[request.phase] ?? request.phase,
    request.progress === null ? "" : element("progress", { max: 1, value: request.progress, "aria-label": `Progress of ${id}` }),
    `${whole(prompt)}${cached ? ` (${whole(cached)} cached)` : ""} + ${whole(made)}`,
    request.tokens_per_second ? short(request.tokens_per_second) : "",
    seconds(request.elapsed_s),
    cancel,
  ];
  return element("tr", {}, ...cells.map((cell) => element("td", {}, cell)));
}

function memoryRow({ id, state, footprint_bytes: footprint, active }) {
  const cells = [id, state, footprint ? bytes(footprint) : "", whole(active)];
  return element("tr", {}, ...cells.map((cell) => element("td", {}, cell)));
}

function usedRow(row) {
  const counts = [row.requests, row.prompt_tokens, row.cached_tokens, row.completion_tokens].map(whole);
  const cells = [row.key ?? "without a key", row.model, ...counts, seconds(row.seconds)];
  return element("tr", {}, ...cells.map((cell) => element("td", {}, cell)));
}

function totalsOf(status) {
  const { cache } = status;
  return [
    `Up for ${seconds(status.uptime_s)}`,
    `${whole(status.total_requests_processed)} requests`,
    `${whole(status.total_prompt_tokens)} tokens in, ${whole(status.total_completion_tokens)} out`,
    `prefix cache: ${percent(cache.token_hit_rate)} of prompt tokens found, ${bytes(cache.resident_bytes)} of ${bytes(cache.memory_max_bytes)}`,
  ].join(" · ");
}
