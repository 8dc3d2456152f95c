/** Keys: the one that this tab shows, and those that the server knows. */

import { announce, button, element } from "../dom.js";
import { currentKey, setKey } from "../keys.js";
import { askJson } from "../server.js";

const NO_KEYS = "The server asks for no key: whoever reaches it may use it. Keys are set with --api-key or --api-key-file.";

/** Who may ask the server, and how much of each limit is left; never the text of a key. */
export function serverKeys() {
  const node = element("div", { "aria-live": "polite" });
  const say = (...nodes) => node.replaceChildren(...nodes);
  const sentence = (text) => element("p", { class: "quiet" }, text);

  async function show() {
    try {
      const { data, note } = await askJson("/v1/keys");
      if (data.length > 0) say(keyTable(data), sentence(note));
      else say(sentence(NO_KEYS));
    } catch (error) {
      say(sentence(error.message));
    }
  }
  return { node, show };
}

function keyTable(keys) {
  const headings = ["Name", "Role", "Opens", "Requests left", "Tokens left"];
  const row = (key) =>
    element(
      "tr",
      {},
      element("th", { scope: "row" }, key.name),
      ...[key.role === "admin" ? "administrator" : "user", opens(key), left(key.requests), left(key.tokens)].map((text) => element("td", {}, text)),
    );
  return element(
    "div",
    { class: "wide", tabindex: 0, role: "region", "aria-label": "Keys" },
    element("table", { id: "keys" }, element("thead", {}, element("tr", {}, headings.map((each) => element("th", { scope: "col" }, each)))), element("tbody", {}, keys.map(row))),
  );
}

function opens(key) {
  const bounds = [
    key.models && `models ${key.models.join(", ")}`,
    key.kinds && `kinds ${key.kinds.join(", ")}`,
    key.endpoints && `addresses ${key.endpoints.join(", ")}`,
  ].filter(Boolean);
  return `${bounds.join("; ") || "everything"}${key.mcp_tools ? ", and MCP tools" : ""}`;
}

function left(of) {
  return of ? `${of.remaining.toLocaleString("en")} of ${of.limit.toLocaleString("en")} a minute` : "no limit";
}

/** The key that this tab shows; `changed` is called when it shows another. */
export function keyForm(changed) {
  const input = element("input", { type: "password", autocomplete: "off", name: "key", "aria-label": "API key", placeholder: "API key", class: "grow" });
  const told = element("p", { class: "quiet" });
  const tell = () => (told.textContent = currentKey() ? "This tab shows the server a key." : "This tab shows the server no key.");
  const use = (key, said) => {
    setKey(key);
    input.value = "";
    tell();
    announce(said);
    changed();
  };
  const submit = (event) => {
    event.preventDefault();
    use(input.value.trim(), "The key is kept in this tab until it is closed.");
  };
  tell();
  const buttons = [element("button", { type: "submit" }, "Use this key"), button("Forget it", () => use(null, "The key is forgotten."))];
  return element("form", { on: { submit } }, told, element("div", { class: "row" }, input, ...buttons));
}
