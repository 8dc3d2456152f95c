/** Questions to the person, each in a window over the page. */

import { button, element, labelled } from "./dom.js";

/** Show a dialog with a form; resolves to whether it was agreed to. */
export function asked(title, content, { agree, leave = "Cancel", attributes = {} }) {
  const form = element(
    "form",
    { method: "dialog" },
    element("h2", { id: "dialog-title" }, title),
    content,
    element(
      "div",
      { class: "row end" },
      leave && button(leave, () => dialog.close("leave")),
      element("button", { value: "agree", class: "main" }, agree),
    ),
  );
  const dialog = element("dialog", { "aria-labelledby": "dialog-title", ...attributes }, form);
  document.body.append(dialog);
  dialog.showModal();
  return new Promise((resolve) => {
    dialog.addEventListener("close", () => {
      dialog.remove();
      resolve(dialog.returnValue === "agree");
    });
  });
}

/** Whether the person wants what `sentence` asks. */
export function confirmed(sentence, agree) {
  return asked(agree, element("p", {}, sentence), { agree });
}

/** A text from the person, or null. */
export async function written(title, label, value = "") {
  const input = element("input", { value, required: true, autofocus: true, name: "text" });
  return (await asked(title, labelled(label, input), { agree: "Keep" })) ? input.value.trim() : null;
}

/** Show something that is only to be read. */
export function told(title, content) {
  return asked(title, content, { agree: "Close", leave: null });
}
