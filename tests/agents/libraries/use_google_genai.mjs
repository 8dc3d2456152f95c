// The `@google/genai` package of npm: listed, asked (whole, streamed, with a tool and a schema), counted, and embedded.

import assert from "node:assert";
import { GoogleGenAI, Type } from "@google/genai";

const ai = new GoogleGenAI({ apiKey: "none", httpOptions: { baseUrl: process.argv[2] } });
const model = "scripted";
const ask = (contents, config = {}) => ai.models.generateContent({ model, contents, config });

const listed = [];
for await (const each of await ai.models.list()) listed.push(each.name);
assert.ok(listed.includes("models/scripted"));
assert.equal((await ai.models.get({ model })).name, "models/scripted");

const whole = await ask("Say hello.", { temperature: 0, maxOutputTokens: 64 });
assert.equal(whole.text, "Hello there.");
assert.ok(whole.usageMetadata.promptTokenCount > 0);
assert.equal(whole.candidates[0].finishReason, "STOP");

const chat = ai.chats.create({ model });
const pieces = [];
for await (const piece of await chat.sendMessageStream({ message: "Say hello." })) pieces.push(piece.text);
assert.equal(pieces.join(""), "Hello there.");
assert.ok(pieces.length > 1);
assert.equal((await chat.sendMessage({ message: "Say hello." })).text, "Hello there.");
assert.equal(chat.getHistory(true).filter((turn) => turn.role === "user").length, 2);

const parameters = { type: Type.OBJECT, properties: { city: { type: Type.STRING } }, required: ["city"] };
const tools = [{ functionDeclarations: [{ name: "weather", description: "Tells the weather.", parameters }] }];
const asked = { role: "user", parts: [{ text: "What is the weather?" }] };
const called = await ask([asked], { tools });
assert.deepEqual(called.functionCalls[0].args, { city: "Oslo" });
const { id, name } = called.functionCalls[0];
const result = { role: "user", parts: [{ functionResponse: { id, name, response: { output: "rain" } } }] };
const answered = await ask([asked, called.candidates[0].content, result], { tools });
assert.equal(answered.text, "It rains in Oslo.");

const color = await ask("A color, please.", {
  responseMimeType: "application/json",
  responseSchema: { type: Type.OBJECT, properties: { name: { type: Type.STRING } }, required: ["name"] },
});
assert.deepEqual(JSON.parse(color.text), { name: "red" });

assert.ok((await ai.models.countTokens({ model, contents: "Say hello." })).totalTokens > 0);
const embedded = await ai.models.embedContent({ model, contents: ["a", "b"] });
assert.equal(embedded.embeddings.length, 2);
assert.ok(embedded.embeddings[0].values.length > 0);

await assert.rejects(ai.models.generateContent({ model: "none", contents: "Hi" }), (error) => error.status === 404);
