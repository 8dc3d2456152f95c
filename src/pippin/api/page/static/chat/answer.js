/** One answer of a model: the request for it, and what its stream adds to the message. */

import { back } from "../connection.js";
import { Refusal, ask, events } from "../server.js";
import { withoutName } from "./attachments.js";
import { newId } from "./tree.js";

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
 * Let the model answer, and put what comes into `message`; `request` is null for an answer that the server goes on with.
 * The server goes on whether or not this page listens, so an answer survives a reload and a network that fails: its
 * events are counted in `message.kept`, and asked for from there on.
 *
 * `changed(progress)` is called after each event; `progress` is how far the prompt is computed (`processed` of `total`
 * tokens), or null once tokens come.
 */
export async function answer(message, request, { signal, changed }) {
  let ended = false;
  while (!ended) {
    try {
      for await (const chunk of events(await reply(message, request, signal))) {
        message.kept.taken += 1;
        take(message, chunk);
        changed(chunk.prompt_progress ?? null);
      }
      ended = true;
    } catch (error) {
      ended = !(error.name === "Away" && message.kept) || signal.aborted;
      if (ended) failed(message, error);
      else await Promise.race([back(), new Promise((resolve) => signal.addEventListener("abort", resolve))]);
    }
  }
  message.kept = null;
  changed(null);
}

function begin(message, request, signal) {
  const body = { ...request, stream: true, return_progress: true, stream_options: { include_usage: true } };
  message.kept = { id: newId(), taken: 0 };
  const headers = { "x-keep-answer": "true", "x-request-id": message.kept.id };
  return ask("/v1/chat/completions", { method: "POST", json: body, signal, headers }).catch((error) => {
    if (error instanceof Refusal) message.kept = null; // there is no answer to go on with
    throw error;
  });
}

/** The stream of the answer: from where it was left, or from its beginning if the server never heard of it. */
async function reply(message, request, signal) {
  if (message.kept) {
    try {
      return await again(message.kept, signal);
    } catch (error) {
      if (error.status !== 404 || message.kept.taken > 0 || request === null) throw error;
    }
  }
  return begin(message, request, signal);
}

function again({ id, taken }, signal) {
  return ask(`/v1/requests/${id}/events?after=${taken - 1}`, { signal });
}

/** How the answer ended before its end: by the person, here or in another tab, or by the server. */
function failed(message, error) {
  if (error.name === "AbortError") {
    message.finish = "stopped";
    if (message.kept) ask(`/v1/requests/${message.kept.id}`, { method: "DELETE" }).catch(() => {});
  } else if (error.status === "request_cancelled") {
    message.finish = "stopped";
  } else if (!(error.status === 404 && message.kept)) {
    // What a server that was started anew no longer knows stays unfinished, and can be continued.
    message.finish = "error";
    message.error = error.message;
  }
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
