/** The key of this tab, and the settings of the server for whoever may see and change them. */

import { announce, button, element, labelled, trying } from "./dom.js";
import { askJson, currentKey, setKey } from "./server.js";

/** Begin. What it gives reads the settings anew. */
export function startSettings(place) {
  const rows = element("div");
  const search = element("input", { type: "search", on: { input: () => filter(rows, search.value) } });
  const told = element("p", { class: "quiet" });
  place.append(
    element("h2", {}, "Settings"),
    keyForm(show),
    element("h3", {}, "The server's settings"),
    element("p", { class: "quiet" }, "A change holds until the server ends. Paths and secrets are not shown."),
    labelled("Search", search),
    told,
    rows,
  );
  return show;

  function show() {
    told.textContent = "";
    askJson("/v1/settings").then(
      ({ current }) => {
        rows.replaceChildren(...Object.entries(current).map(([name, value]) => row(name, value)));
        filter(rows, search.value);
      },
      (error) => (told.textContent = error.message),
    );
  }
}

/** The key that this tab shows; `changed` is called when it shows another. */
function keyForm(changed) {
  const input = element("input", { type: "password", autocomplete: "off", name: "key" });
  const told = element("p", { class: "quiet" });
  const tell = () => (told.textContent = currentKey() ? "This tab shows a key." : "This tab shows no key.");
  const submit = (event) => {
    event.preventDefault();
    setKey(input.value.trim());
    input.value = "";
    tell();
    announce("The key is kept in this tab until it is closed.");
    changed();
  };
  const drop = button("Forget it", () => {
    setKey(null);
    tell();
  });
  tell();
  const use = element("button", { type: "submit", class: "main" }, "Use this key");
  return element("form", { class: "card", on: { submit } }, element("h3", {}, "API key"), told, labelled("Key", input), element("div", { class: "row" }, use, drop));
}

function filter(rows, search) {
  const wanted = search.trim().toLowerCase();
  for (const each of rows.children) each.hidden = !each.dataset.name.includes(wanted);
}

/** One setting. Values are JSON, but a text may be written as it is. */
function row(name, value) {
  const shown = typeof value === "string" ? value : JSON.stringify(value);
  const id = `setting-${name}`;
  const control =
    typeof value === "boolean"
      ? element("select", { id }, ...["true", "false"].map((each) => element("option", { selected: each === shown }, each)))
      : element("input", { id, value: shown });
  const told = element("small", { class: "quiet", role: "status" });
  control.addEventListener("change", () => trying(() => change(name, read(control.value), told)));
  return element("div", { "data-name": name, class: "field" }, element("label", { for: id }, name), control, told);
}

function read(text) {
  try {
    return JSON.parse(text);
  } catch {
    return text;
  }
}

async function change(name, value, told) {
  const reply = await askJson("/v1/settings", { method: "PATCH", json: { [name]: value } });
  told.classList.toggle("error", name in reply.rejected);
  if (reply.applied.includes(name)) told.textContent = "Changed.";
  else if (reply.needs_restart.includes(name)) told.textContent = "This needs a restart: set it on the command line or in the file.";
  else told.textContent = reply.rejected[name] ?? "Nothing changed.";
}
