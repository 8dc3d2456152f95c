/** The parameters that people turn most, each as a slider with a field for the exact number. */

import { button, element } from "../dom.js";
import { icon } from "../icons.js";

/** What each is called, what it does, and the range of its slider; the field takes what the server takes. `ollama` is
 * its name in `/api/show`, where that is another. */
export const SLIDERS = [
  { name: "temperature", label: "Temperature", help: "Higher is more varied, 0 always takes the likeliest.", low: 0, high: 2, step: 0.05, neutral: 1 },
  { name: "top_p", label: "Top p", help: "Only the likeliest tokens that have this probability together.", low: 0.05, high: 1, step: 0.05, neutral: 1 },
  { name: "top_k", label: "Top k", help: "Only so many of the likeliest tokens.", low: 0, high: 200, step: 1, neutral: 0 },
  { name: "min_p", label: "Min p", help: "No token below this share of the likeliest one's probability.", low: 0, high: 0.5, step: 0.01, neutral: 0 },
  { name: "repetition_penalty", label: "Repetition penalty", help: "Above 1, what was said already becomes less likely.", low: 1, high: 2, step: 0.05, neutral: 1, ollama: "repeat_penalty" },
  { name: "max_tokens", label: "Longest answer", help: "Tokens, reasoning among them.", low: 64, high: 8192, step: 64, neutral: 8192, ollama: "num_predict" },
];

export class Slider {
  /** `shape` has the bounds of the field. `changed(value)` gets the text of the field, empty where nothing is set. */
  constructor({ name, label, help, low, high, step, neutral, ollama = name }, shape, changed) {
    this.neutral = neutral;
    this.ollama = ollama;
    this.field = element("input", { type: "number", name, id: `parameter-${name}`, step: shape.step, min: shape.low, max: shape.high, placeholder: "auto" });
    this.range = element("input", { type: "range", min: low, max: high, step, "aria-label": `${label}, slider` });
    this.reset = button(icon("close"), () => this.set(""), { class: "icon", "aria-label": `${label}: back to the model's own`, title: "Back to the model's own" });
    this.field.addEventListener("change", () => this.set(this.field.value));
    this.range.addEventListener("input", () => this.set(this.range.value));
    this.changed = changed;
    this.node = element("div", { class: "slider" }, element("label", { for: this.field.id }, label), this.field, this.reset, this.range, element("small", {}, help));
  }

  set(value) {
    if (this.field.validity.badInput) this.field.value = "";
    this.show(value);
    this.field.reportValidity();
    this.changed(value);
  }

  show(value) {
    this.field.value = value;
    this.range.value = value === "" ? this.own ?? this.neutral : value;
    this.reset.hidden = value === "";
    this.node.classList.toggle("unset", value === "");
  }

  /** What the model does by itself, which holds where nothing is set; undefined where it says nothing. */
  showOwn(value) {
    this.own = value;
    this.field.placeholder = value ?? "auto";
    if (this.field.value === "") this.show("");
  }
}
