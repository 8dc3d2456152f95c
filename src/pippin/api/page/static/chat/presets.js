/** Prompts with their parameters, under names, kept in this browser. */

import { button, element } from "../dom.js";
import { written } from "../dialogs.js";

const KEPT = "pippin-presets";

export class Presets {
  /** `now()` gives the system prompt and the parameters of the chat, and `use(preset)` puts others in their place. */
  constructor(place, { now, use }) {
    this.all = JSON.parse(localStorage.getItem(KEPT) ?? "{}");
    this.now = now;
    this.choice = element("select", { "aria-label": "Preset", class: "grow", on: { change: () => this.choose(use) } });
    this.drop = button("Delete", () => this.delete(), { class: "small" });
    const save = button("Save", () => this.save(), {
      class: "small",
      title: "Keep the system prompt and the parameters under a name",
    });
    place.append(element("div", { class: "row" }, this.choice, save, this.drop));
    this.draw("");
  }

  draw(chosen) {
    const names = Object.keys(this.all).sort();
    const none = names.length > 0 ? "No preset" : "No presets yet";
    this.choice.replaceChildren(...["", ...names].map((name) => element("option", { value: name, selected: name === chosen }, name || none)));
    this.drop.hidden = chosen === "";
  }

  choose(use) {
    const name = this.choice.value;
    use(this.all[name] ?? { system: "", values: {} });
    this.draw(name);
  }

  async save() {
    const name = await written("Save a preset", "Name of the preset", this.choice.value);
    if (name) this.change({ ...this.all, [name]: structuredClone(this.now()) }, name);
  }

  delete() {
    const { [this.choice.value]: gone, ...others } = this.all;
    this.change(others, "");
  }

  change(all, chosen) {
    this.all = all;
    localStorage.setItem(KEPT, JSON.stringify(all));
    this.draw(chosen);
  }
}
