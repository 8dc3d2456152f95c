// The `ollama` package of npm: listed, chatted with (whole, streamed, with a tool and a format), and embedded.

import assert from "node:assert";
import { Ollama } from "ollama";

const ollama = new Ollama({ host: process.argv[2] });
const options = { temperature: 0, num_predict: 64 };
const asked = (content) => [{ role: "user", content }];

const { models } = await ollama.list();
assert.ok(models.some((model) => model.name.startsWith("scripted")));

const whole = await ollama.chat({ model: "scripted", messages: asked("Say hello."), options });
assert.equal(whole.message.content, "Hello there.");

const pieces = [];
for await (const part of await ollama.chat({ model: "scripted", messages: asked("Say hello."), options, stream: true }))
  pieces.push(part.message.content);
assert.equal(pieces.join(""), "Hello there.");
assert.ok(pieces.length > 1);

const parameters = { type: "object", properties: { city: { type: "string" } }, required: ["city"] };
const tools = [{ type: "function", function: { name: "weather", description: "Tells the weather.", parameters } }];
const called = await ollama.chat({ model: "scripted", messages: asked("What is the weather?"), tools, options });
assert.deepEqual(called.message.tool_calls[0].function.arguments, { city: "Oslo" });
const messages = [
  ...asked("What is the weather?"),
  called.message,
  { role: "tool", tool_name: "weather", content: "rain" },
];
const answered = await ollama.chat({ model: "scripted", messages, tools, options });
assert.equal(answered.message.content, "It rains in Oslo.");

const color = await ollama.chat({
  model: "scripted",
  messages: asked("A color, please."),
  format: { type: "object", properties: { name: { type: "string" } }, required: ["name"] },
  options,
});
assert.deepEqual(JSON.parse(color.message.content), { name: "red" });

const generated = await ollama.generate({ model: "scripted", prompt: "Say hello.", options });
assert.equal(generated.response, "Hello there.");

const { embeddings } = await ollama.embed({ model: "scripted", input: ["a", "b"] });
assert.equal(embeddings.length, 2);

const stopped = await ollama.chat({ model: "scripted", messages: asked("Say hello."), options, stream: true });
stopped.abort();
await assert.rejects(async () => {
  for await (const _ of stopped);
}, { name: "AbortError" });

await assert.rejects(ollama.chat({ model: "none", messages: asked("Hi") }), /does not exist/);
