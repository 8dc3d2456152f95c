/** The requests that run, each with a way to end it. */

import { announce, button, element, trying } from "../dom.js";
import { seconds, short, whole } from "../format.js";
import { ask } from "../server.js";
import { Table } from "./table.js";

const PHASES = { queued: "waits", prefill: "reads the prompt", generation: "answers" };

export function requestsPanel() {
  const table = new Table("Running requests", ["Request", "Model", "Phase", "Tokens", "Tokens a second", "For", ""], {
    numbers: ["Tokens", "Tokens a second", "For"],
    none: "No request is running.",
  });
  return {
    node: element("section", { class: "panel", "aria-label": "Requests" }, element("header", {}, element("h2", {}, "Requests")), table.node),
    show: (requests) => table.show(requests.map((each) => ({ key: each.request_id, now: JSON.stringify(each), cells: () => cells(each) }))),
  };
}

function cells(request) {
  const { request_id: id, prompt_tokens: prompt, cached_tokens: cached, generated_tokens: made, progress } = request;
  const phase = PHASES[request.phase] ?? request.phase;
  return [
    element("code", { title: id }, id.slice(-8)),
    request.model,
    progress === null ? phase : element("span", {}, phase, element("progress", { max: 1, value: progress, "aria-label": `Progress of ${id}` })),
    `${whole(prompt)} in${cached ? ` (${whole(cached)} cached)` : ""}, ${whole(made)} out`,
    request.tokens_per_second ? short(request.tokens_per_second) : "",
    seconds(request.elapsed_s),
    button("Cancel", () => trying(() => cancel(id)), { class: "small", "aria-label": `Cancel ${id}` }),
  ];
}

async function cancel(id) {
  await ask(`/v1/requests/${encodeURIComponent(id)}`, { method: "DELETE" });
  announce("The request is cancelled.");
}
