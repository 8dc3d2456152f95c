/** One answer of a model: the request for it, and what its stream adds to the message. */

import { ask, events } from "../server.js";
import { withoutName } from "./attachments.js";

/** The messages of a branch as the API has them. */
export function messagesOf(system, branch) {
  const head = system.trim() ? [{ role: "system", content: system }] : [];
  return [...head, ...branch.map(spoken)];
}

function spoken({ role, text, media, calls, callId }) {
  if (role === "tool") return { role, tool_call_id: callId, content: text };
  if (role === "assistant") {
    const made = calls.map((call) => ({
      id: call.id,
      type: "function",
      function: { name: call.name, arguments: call.arguments },
    }));
    return made.length > 0 ? { role, content: text || null, tool_calls: made } : { role, content: text };
  }
  if (media.length === 0) return { role, content: text };
  return { role, content: [...media.map(withoutName), ...(text ? [{ type: "text", text }] : [])] };
}

/**
 * Let the model answer, and put what comes into `message`. `changed(progress)` is called after each event; `progress` is
 * how far the prompt is computed (`processed` of `total` tokens), or null once tokens come.
 */
export async function answer(message, request, { signal, changed }) {
  const body = { ...request, stream: true, return_progress: true, stream_options: { include_usage: true } };
  try {
    const reply = await ask("/v1/chat/completions", { method: "POST", json: body, signal });
    for await (const chunk of events(reply)) {
      take(message, chunk);
      changed(chunk.prompt_progress ?? null);
    }
  } catch (error) {
    message.finish = error.name === "AbortError" ? "stopped" : "error";
    message.error = error.name === "AbortError" ? null : error.message;
  }
  changed(null);
}

function take(message, chunk) {
  message.model = chunk.model ?? message.model;
  message.usage = chunk.usage ?? message.usage;
  message.timings = chunk.timings ?? message.timings;
  const [choice] = chunk.choices ?? [];
  if (choice === undefined) return;
  const delta = choice.delta ?? {};
  message.text += delta.content ?? delta.refusal ?? "";
  message.reasoning += delta.reasoning_content ?? "";
  (delta.tool_calls ?? []).forEach((call) => takeCall(message.calls, call));
  for (const { token, logprob, top_logprobs: top } of choice.logprobs?.content ?? []) {
    message.tokens.push({ token, logprob, top: top.map((other) => ({ token: other.token, logprob: other.logprob })) });
  }
  message.finish = choice.finish_reason ?? message.finish;
}

function takeCall(calls, { index = calls.length, id, function: called = {} }) {
  calls[index] ??= { id: "", name: "", arguments: "" };
  const call = calls[index];
  call.id = id ?? call.id;
  call.name = called.name ?? call.name;
  call.arguments += called.arguments ?? "";
}
