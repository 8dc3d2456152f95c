/** How fast a model answers here and now: one answer alone, then four beside each other. */

import { ask, events } from "../server.js";

const PROMPT = "Tell a long story about a lighthouse keeper who counts ships.";
const TOKENS = 128;
const BESIDE = 4;

/** Measure a model. `first` is in milliseconds; `alone` and `together` are tokens a second. */
export async function bench(model) {
  const one = await measured(model);
  const begun = performance.now();
  const others = await Promise.all(Array.from({ length: BESIDE }, () => measured(model)));
  const tokens = others.reduce((sum, each) => sum + each.tokens, 0);
  return { first: one.first, alone: one.rate, together: tokens / ((performance.now() - begun) / 1000), beside: BESIDE };
}

/** One answer, read as it comes: when its first token came, its tokens, and how many a second after the first. */
async function measured(model) {
  const begun = performance.now();
  const messages = [{ role: "user", content: PROMPT }];
  const json = { model, messages, max_tokens: TOKENS, temperature: 0, ignore_eos: true, stream: true, stream_options: { include_usage: true } };
  let first = null;
  let usage = null;
  for await (const chunk of events(await ask("/v1/chat/completions", { method: "POST", json }))) {
    const delta = chunk.choices?.[0]?.delta;
    if (delta?.content || delta?.reasoning_content) first ??= performance.now();
    usage = chunk.usage ?? usage;
  }
  const tokens = usage.completion_tokens;
  return { first: (first ?? performance.now()) - begun, tokens, rate: (tokens - 1) / ((performance.now() - (first ?? begun)) / 1000) };
}
