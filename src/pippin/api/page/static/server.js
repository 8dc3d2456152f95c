/** Requests to the server: with the API key where one is asked for, and failures as sentences. */

import { answered, away } from "./connection.js";
import { askForKey, currentKey } from "./keys.js";

const PORTION = 30; // milliseconds

/** What the server refused, in its own words. */
export class Refusal extends Error {
  constructor(status, message) {
    super(message);
    this.status = status;
  }
}

/**
 * Ask the server. `json` is sent as JSON and `form` as a form. Asks the person for a key where the server wants one, and
 * throws a `Refusal` for every other status that is no success.
 */
export async function ask(path, { method = "GET", json, form, signal, headers: more = {} } = {}) {
  for (;;) {
    const shown = currentKey();
    const headers = shown ? { ...more, authorization: `Bearer ${shown}` } : { ...more };
    if (json !== undefined) headers["content-type"] = "application/json";
    const body = json !== undefined ? JSON.stringify(json) : form;
    // Behind a proxy the page may lie in a folder, and so do all addresses of the server then.
    const reply = await reached(fetch(new URL(`.${path}`, document.baseURI), { method, headers, body, signal }));
    if (reply.ok) return reply;
    const message = await sentenceOf(reply);
    if (reply.status !== 401) throw new Refusal(reply.status, message);
    // Another request may have asked for the key while this one was under way.
    if (currentKey() === shown && !(await askForKey())) throw new Refusal(401, message);
  }
}

/** The JSON that the server answers. */
export async function askJson(path, options) {
  return (await ask(path, options)).json();
}

/** What the network gives, or an error of the name `Away` where it gives nothing. */
async function reached(promise) {
  try {
    const given = await promise;
    answered();
    return given;
  } catch (error) {
    throw error.name === "AbortError" ? error : away(() => fetch(new URL("./health", document.baseURI)));
  }
}

async function sentenceOf(reply) {
  const text = await reply.text();
  try {
    const body = JSON.parse(text);
    return (typeof body.error === "string" ? body.error : body.error?.message) ?? body.message ?? text;
  } catch {
    return text || `The server answered with status ${reply.status}.`;
  }
}

/**
 * What a stream of server-sent events carries, decoded. Comments keep the connection alive and are skipped. Much that
 * comes at once is given in portions, between which the page answers.
 */
export async function* events(reply) {
  let begun = performance.now();
  for await (const line of lines(reply)) {
    if (!line.startsWith("data:")) continue;
    if (performance.now() - begun > PORTION) {
      await new Promise((resolve) => setTimeout(resolve));
      begun = performance.now();
    }
    const data = line.slice(5).trim();
    if (data === "[DONE]") return;
    const event = JSON.parse(data);
    if (event.error) throw new Refusal(event.error.code ?? 500, event.error.message ?? String(event.error));
    yield event;
  }
}

/** The lines of an answer as they come. */
export async function* lines(reply) {
  const decoder = new TextDecoder();
  const reader = reply.body.getReader();
  let rest = "";
  for (;;) {
    const { done, value } = await reached(reader.read());
    rest += done ? decoder.decode() : decoder.decode(value, { stream: true });
    const whole = rest.split("\n");
    rest = whole.pop();
    for (const line of whole) if (line.trim()) yield line;
    if (done) break;
  }
  if (rest.trim()) yield rest;
}
