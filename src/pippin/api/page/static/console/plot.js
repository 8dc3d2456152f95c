/** A figure with a curve of its last minutes, as plain SVG. */

import { element } from "../dom.js";

const SVG = "http://www.w3.org/2000/svg";
const POINTS = 120;
const HEIGHT = 40;

function drawn(name, attributes) {
  const made = document.createElementNS(SVG, name);
  for (const [key, value] of Object.entries(attributes)) made.setAttribute(key, value);
  return made;
}

/** A figure with its name, its value now, and how it was. `shown` writes a value. */
export class Plot {
  constructor(title, shown) {
    this.shown = shown;
    this.values = [];
    this.figure = element("p", { class: "figure" });
    this.curve = drawn("path", {});
    const svg = drawn("svg", { class: "plot", viewBox: `0 0 ${POINTS - 1} ${HEIGHT}`, preserveAspectRatio: "none", "aria-hidden": "true" });
    svg.append(drawn("path", { class: "ground", d: `M0 ${HEIGHT}H${POINTS}` }), this.curve);
    this.beside = element("small", {});
    this.node = element("article", { "aria-label": title }, element("h2", {}, title), this.figure, this.beside, svg);
  }

  /** `beside` is what stands below the value: the most there was, where nothing is given. */
  add(value, beside) {
    this.values.push(value);
    if (this.values.length > POINTS) this.values.shift();
    const most = Math.max(...this.values);
    const start = POINTS - this.values.length;
    const y = (each) => (most > 0 ? HEIGHT - (each / most) * (HEIGHT - 2) : HEIGHT);
    const points = this.values.map((each, index) => `${start + index} ${y(each).toFixed(2)}`);
    this.curve.setAttribute("d", `M${points.join("L")}`);
    this.figure.textContent = this.shown(value);
    this.beside.textContent = beside || `at most ${this.shown(most)}`;
  }
}
