// Anthropic's tool runner for JavaScript, whole and streamed. Run in a folder of its own.
import assert from "node:assert/strict";
import Anthropic from "@anthropic-ai/sdk";

const client = new Anthropic({ baseURL: process.argv[2], apiKey: "none" });
const weather = {
  name: "weather",
  description: "Tells the weather of a city.",
  input_schema: { type: "object", properties: { city: { type: "string" } }, required: ["city"] },
  run: async ({ city }) => `rain in ${city}`,
  parse: (input) => input,
};
const asked = {
  model: "scripted",
  max_tokens: 64,
  messages: [{ role: "user", content: "What is the weather?" }],
  tools: [weather],
};

const whole = await client.beta.messages.toolRunner(asked).runUntilDone();
assert.equal(whole.content[0].text, "It rains in Oslo.");

const messages = [];
for await (const stream of client.beta.messages.toolRunner({ ...asked, stream: true })) {
  messages.push(await stream.finalMessage());
}
assert.deepEqual(messages.map((message) => message.stop_reason), ["tool_use", "end_turn"]);
assert.equal(messages[1].content[0].text, "It rains in Oslo.");
