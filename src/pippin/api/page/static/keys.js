/** The API key that this tab shows the server. */

import { asked } from "./dialogs.js";
import { element, labelled } from "./dom.js";

const KEY = "pippin-api-key";

/** The key: of this tab, until it is closed, or of this browser where the person wanted it kept. */
export function currentKey() {
  return sessionStorage.getItem(KEY) ?? localStorage.getItem(KEY);
}

export function setKey(key, { kept = false } = {}) {
  sessionStorage.removeItem(KEY);
  localStorage.removeItem(KEY);
  if (key) (kept ? localStorage : sessionStorage).setItem(KEY, key);
}

// One dialog at a time, however many requests wait for the key, and none once the person went on without.
let asking = null;
let declined = false;

/** Ask the person for a key, unless one was denied before. Resolves to whether one was given. */
export async function askForKey() {
  if (declined) return false;
  asking ??= shownDialog();
  const given = await asking;
  asking = null;
  declined = !given;
  return given;
}

/** Ask the person who wants to give a key now. */
export function askAgain() {
  declined = false;
  return askForKey();
}

async function shownDialog() {
  const input = element("input", { type: "password", autocomplete: "off", required: true, name: "key" });
  const keep = element("input", { type: "checkbox", name: "keep" });
  const content = element(
    "div",
    {},
    element("p", {}, currentKey() ? "The server does not know this key." : "This server asks for an API key. Whoever runs it gives you one."),
    labelled("Key", input),
    element("label", { class: "check" }, keep, "Keep it in this browser"),
    element("p", { class: "quiet" }, "Otherwise the key is forgotten when this tab is closed. Settings changes it later."),
  );
  if (!(await asked("API key", content, { agree: "Use this key", leave: "Go on without" }))) return false;
  setKey(input.value.trim(), { kept: keep.checked });
  return true;
}
