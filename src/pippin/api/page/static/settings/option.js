/** One option of the server, as its table of options has it: what it does, its default, and its value to change. */

import { button, element, trying } from "../dom.js";
import { askJson } from "../server.js";

/** A row. What changes at once has a control; what needs a restart shows its value and how it is set. */
export function optionRow(option, value) {
  const { name, help, hot, flag } = option;
  const id = `setting-${name}`;
  const said = element("small", { role: "status" });
  const row = element(
    "div",
    { class: "setting", "data-name": name, "data-hot": hot, "data-words": `${name} ${help}`.toLowerCase() },
    element(
      "div",
      {},
      element(hot ? "label" : "div", { for: hot ? id : null }, help.replace(/\.$/, "")),
      element(
        "small",
        { class: "quiet" },
        element("code", {}, hot ? name : flag),
        ` · ${expected(option)} · ${written(option.default) || "not set"} by default`,
        hot ? "" : " · needs a restart",
      ),
      said,
    ),
  );
  const mark = (now) => row.classList.toggle("changed", JSON.stringify(now) !== JSON.stringify(option.default));
  mark(value);
  if (!hot) {
    row.append(element("div", { class: "value" }, written(value) || "not set"));
    return row;
  }
  const { control, read, write } = controlOf(option, id);
  write(value);
  control.addEventListener("change", () => trying(() => change(read())));
  const back = button("Back to the default", () => trying(() => change(option.default)), { class: "small" });
  row.append(control, said);

  async function change(wanted) {
    const reply = await askJson("/v1/settings", { method: "PATCH", json: { [name]: wanted } });
    const applied = reply.rejected[name] === undefined;
    said.classList.toggle("error", !applied);
    said.textContent = applied ? "Changed." : reply.rejected[name];
    if (!applied) return;
    write(reply.current[name]);
    mark(reply.current[name]);
    if (row.classList.contains("changed")) said.append(" ", back);
  }

  return row;
}

/** A control for the kind of the option, and how its value is read and written. */
function controlOf({ shape, choices, expects, default: usual }, id) {
  if (shape === "switch" && typeof usual === "boolean") {
    const control = element("input", { id, type: "checkbox" });
    return { control, read: () => control.checked, write: (value) => (control.checked = value) };
  }
  if (choices.length > 0 || shape === "switch") {
    const named = choices.length > 0 ? choices : ["true", "false"];
    const control = element("select", { id }, ...(usual === null ? [""] : []).concat(named).map((each) => element("option", { value: each }, each || "not set")));
    const read = () => (control.value === "" ? null : choices.length > 0 ? control.value : control.value === "true");
    return { control, read, write: (value) => (control.value = value ?? "") };
  }
  const number = /^a (whole )?number/.test(expects);
  const control = element("input", { id, placeholder: "not set", inputmode: number ? "decimal" : null, spellcheck: "false" });
  return { control, read: () => valueOf(control.value, { number, shape }), write: (value) => (control.value = written(value)) };
}

function valueOf(text, { number, shape }) {
  if (text.trim() === "") return shape === "list" ? [] : shape === "mapping" ? {} : null;
  if (shape === "list" && !text.trim().startsWith("[")) return text.split(",").map((each) => each.trim());
  if (!number && shape === "value") return text;
  try {
    return JSON.parse(text);
  } catch {
    return text; // the server says what it expects
  }
}

function written(value) {
  if (value === null || value === undefined) return "";
  if (Array.isArray(value) && value.every((each) => typeof each !== "object")) return value.join(", ");
  if (typeof value === "object") return Object.keys(value).length > 0 ? JSON.stringify(value) : "";
  return typeof value === "boolean" ? (value ? "on" : "off") : String(value);
}

function expected({ expects, shape }) {
  return shape === "switch" ? "on or off" : expects;
}
