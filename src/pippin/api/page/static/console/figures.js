/** The figures of the moment, each with its last two minutes: speed, load, memory. */

import { element } from "../dom.js";
import { bytes, percent, seconds, short, whole } from "../format.js";
import { Gaps } from "./gaps.js";
import { Plot } from "./plot.js";

const GIB = 2 ** 30;

export function figuresPanel() {
  const gaps = new Gaps();
  const figures = [
    { plot: new Plot("Tokens/s", short), read: (status) => status.generation_tps },
    { plot: new Plot("Prompt tokens/s", short), read: (status) => status.prompt_tps },
    { plot: new Plot("Running requests", whole), read: (status) => status.num_running, of: (status) => `${whole(status.num_waiting)} waiting` },
    { plot: new Plot("Longest gap", (value) => `${short(value * 1000)} ms`), read: ({ requests }) => gaps.longest(requests, performance.now()) },
    {
      plot: new Plot("Models in memory", bytes),
      read: ({ model_manager: { models } }) => models.reduce((sum, each) => sum + (each.footprint_bytes ?? 0), 0),
      of: (status) => `of ${bytes(status.model_manager.memory_limit_bytes)}`,
    },
    { plot: new Plot("Device memory", bytes), read: (status) => status.metal.active_memory_gb * GIB },
    { plot: new Plot("KV cache", bytes), read: (status) => status.kv.bytes },
    { plot: new Plot("Prefix cache", bytes), read: (status) => status.cache.resident_bytes, of: ({ cache }) => `${percent(cache.token_hit_rate)} found` },
  ];
  const totals = element("p", { class: "quiet" });
  const node = element("div", { class: "figures" }, ...figures.map(({ plot }) => plot.node));
  return {
    node: element("div", { class: "columns overview" }, totals, node),
    show(status) {
      for (const { plot, read, of } of figures) plot.add(read(status), of?.(status) ?? "");
      totals.textContent = [
        `Up for ${seconds(status.uptime_s)}`,
        `${whole(status.total_requests_processed)} request${status.total_requests_processed === 1 ? "" : "s"}`,
        `${whole(status.total_prompt_tokens)} tokens in, ${whole(status.total_completion_tokens)} out`,
        status.mtp.drafts && `${whole(status.mtp.drafts)} tokens proposed, ${percent(status.mtp.accepted / status.mtp.drafts)} accepted`,
      ].filter(Boolean).join(" · ");
    },
  };
}
