/** Requests to the server: with the API key where one is asked for, and failures as sentences. */

import { element, labelled } from "./dom.js";

const KEY = "pippin-api-key";

/** What the server refused, in its own words. */
export class Refusal extends Error {
  constructor(status, message) {
    super(message);
    this.status = status;
  }
}

/** The key that this tab shows; it is forgotten when the tab is closed. */
export function currentKey() {
  return sessionStorage.getItem(KEY);
}

export function setKey(key) {
  if (key) sessionStorage.setItem(KEY, key);
  else sessionStorage.removeItem(KEY);
}

/**
 * Ask the server. `json` is sent as JSON and `form` as a form. Asks the person for a key where the server wants one, and
 * throws a `Refusal` for every other status that is no success.
 */
export async function ask(path, { method = "GET", json, form, signal } = {}) {
  for (;;) {
    const shown = currentKey();
    const headers = shown ? { authorization: `Bearer ${shown}` } : {};
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

/** The server's reply, or an error of the name `Away`; the page says at its top for how long no reply comes. */
async function reached(promise) {
  const banner = document.getElementById("away");
  try {
    const reply = await promise;
    banner.hidden = true;
    return reply;
  } catch (error) {
    if (error.name === "AbortError") throw error;
    banner.hidden = false;
    throw Object.assign(new Error("The server can't be reached. Is it still running?"), { name: "Away" });
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

/** What a stream of server-sent events carries, decoded. Comments keep the connection alive and are skipped. */
export async function* events(reply) {
  for await (const line of lines(reply)) {
    if (!line.startsWith("data:")) continue;
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
    const { done, value } = await reader.read();
    rest += done ? decoder.decode() : decoder.decode(value, { stream: true });
    const whole = rest.split("\n");
    rest = whole.pop();
    for (const line of whole) if (line.trim()) yield line;
    if (done) break;
  }
  if (rest.trim()) yield rest;
}

// One dialog at a time, however many requests wait for the key.
let asking = null;

function askForKey() {
  asking ??= shownDialog().finally(() => {
    asking = null;
  });
  return asking;
}

function shownDialog() {
  const input = element("input", { type: "password", autocomplete: "off", required: true, name: "key" });
  const dialog = element(
    "dialog",
    { "aria-labelledby": "key-title" },
    element(
      "form",
      { method: "dialog" },
      element("h2", { id: "key-title" }, "API key"),
      element("p", {}, currentKey() ? "The server does not know this key." : "This server asks for an API key. Whoever runs it gives you one."),
      labelled("Key", input),
      element("p", { class: "quiet" }, "It is kept in this tab alone, until the tab is closed. To give it later, reload the page."),
      element(
        "div",
        { class: "row" },
        element("button", { value: "use", class: "main" }, "Use this key"),
        element("button", { value: "leave", formnovalidate: true }, "Go on without"),
      ),
    ),
  );
  document.body.append(dialog);
  dialog.showModal();
  return new Promise((resolve) => {
    dialog.addEventListener("close", () => {
      const given = dialog.returnValue === "use" && input.value.trim();
      if (given) setKey(given);
      dialog.remove();
      resolve(Boolean(given));
    });
  });
}
