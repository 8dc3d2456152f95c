/** The key that this tab shows. */

import { announce, button, element } from "../dom.js";
import { currentKey, setKey } from "../keys.js";

/** The key that this tab shows; `changed` is called when it shows another. */
export function keyForm(changed) {
  const input = element("input", { type: "password", autocomplete: "off", name: "key", "aria-label": "API key", placeholder: "API key", class: "grow" });
  const told = element("p", { class: "quiet" });
  const forget = button("Forget it", () => use(null, "The key is forgotten."));
  const tell = () => {
    told.textContent = currentKey() ? "This tab has a key." : "This tab has no key.";
    forget.hidden = !currentKey();
  };
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
  return element("form", { on: { submit } }, told, element("div", { class: "row" }, input, element("button", { type: "submit" }, "Use this key"), forget));
}
