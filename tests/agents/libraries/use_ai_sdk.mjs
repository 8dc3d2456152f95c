// Vercel's AI SDK: text, a stream with a tool call, an object.
import assert from "node:assert/strict";
import { createOpenAICompatible } from "@ai-sdk/openai-compatible";
import { generateText, Output, stepCountIs, streamText, tool } from "ai";
import { z } from "zod";

const pippin = createOpenAICompatible({
  name: "pippin",
  baseURL: `${process.argv[2]}/v1`,
  apiKey: "none",
  includeUsage: true,
  supportsStructuredOutputs: true,
});
const asked = { model: pippin("scripted"), temperature: 0, maxOutputTokens: 200 };

const text = await generateText({ ...asked, prompt: "Hello" });
assert.equal(text.text, "Hello there.");

const weather = tool({
  description: "Tells the weather of a city.",
  inputSchema: z.object({ city: z.string() }),
  execute: async ({ city }) => `rain in ${city}`,
});
const stream = streamText({ ...asked, prompt: "What is the weather?", tools: { weather }, stopWhen: stepCountIs(3) });
let said = "";
for await (const piece of stream.textStream) said += piece;
assert.equal(said, "It rains in Oslo.");
assert.ok((await stream.usage).inputTokens > 0);

const color = await generateText({
  ...asked,
  prompt: "A color, please",
  output: Output.object({ schema: z.object({ name: z.string() }) }),
});
assert.deepEqual(color.output, { name: "red" });
