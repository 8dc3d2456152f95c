/**
 * Every parameter of a request, as the server's own description (`/openapi.json`) has it: six as sliders, and below `More`
 * a field for each other one, so that none is missing and none is made up. What is empty is not sent.
 */

import { button, element, labelled } from "../dom.js";
import { askJson } from "../server.js";
import { SLIDERS, Slider } from "./sliders.js";

const KEPT = "pippin-chat-options";

/** Fields that the page itself fills in, or that have a place of their own. */
const ELSEWHERE = new Set(
  `model messages stream stream_options return_progress n logprobs top_logprobs response_format tools modalities
  continue_final_message add_generation_prompt json_schema structured_outputs guided_json functions function_call`.split(/\s+/),
);

/** What the page makes of several fields, or offers in its own words. */
const OWN = [
  { name: "logprobs", kind: "boolean", label: "Token probabilities", help: "How likely each token was, and its alternatives." },
  { name: "schema", kind: "json", label: "Answer by schema", help: "JSON schema that the answer follows." },
  { name: "tools", kind: "json", label: "Tools", help: "Functions that the model may call, as the API has them: a list." },
];

/** A second name of a field, which other servers gave it. */
const SECOND_NAME = /^(llama\.cpp's|vLLM's) name|^The same, as/;

/** The form of the parameters in `place`; what it holds is kept in this browser. */
export class Parameters {
  constructor(place) {
    this.values = JSON.parse(localStorage.getItem(KEPT) ?? "{}");
    this.place = place;
    this.fields = new Map();
    this.sliders = new Map();
  }

  /** Draw the form. The tools of the server's MCP servers are offered where there are any. */
  async draw() {
    const [description, tools] = await Promise.all([askJson("/openapi.json"), serverTools()]);
    this.tools = tools;
    const { properties } = description.components.schemas.ChatRequest;
    const own = [...OWN, ...(tools.length > 0 ? [serverToolsField(tools)] : [])];
    const sliders = SLIDERS.filter(({ name }) => name in properties).map((each) => this.slider(each, shapeOf(properties[each.name])));
    const others = Object.entries(properties)
      .filter(([name, schema]) => !ELSEWHERE.has(name) && !this.sliders.has(name) && !SECOND_NAME.test(schema.description ?? ""))
      .map(([name, schema]) => ({ name, help: schema.description ?? "", ...shapeOf(schema) }));
    const more = element("details", {}, element("summary", {}, `More (${own.length + others.length})`));
    // A hundred controls are drawn when somebody looks at them.
    this.remember([...own, ...others]);
    const drawMore = () => more.childElementCount === 1 && more.append(...[...own, ...others].map((field) => this.field(field)));
    more.addEventListener("toggle", drawMore);
    const clear = button("Back to the model's own", () => this.use({}), { class: "flat" });
    this.place.replaceChildren(...sliders, more, clear);
  }

  remember(fields) {
    for (const field of fields) this.fields.set(field.name, field);
  }

  slider(each, shape) {
    const slider = new Slider(each, shape, (value) => this.keep(each.name, value));
    this.fields.set(each.name, { name: each.name, kind: "number" });
    this.sliders.set(each.name, slider);
    slider.show(this.values[each.name] ?? "");
    return slider.node;
  }

  /** Show what the model does by itself where nothing is set. */
  async showOwn(model) {
    const { parameters } = await askJson("/api/show", { method: "POST", json: { model } });
    const own = new Map(parameters.split("\n").map((line) => line.split(" ")));
    for (const slider of this.sliders.values()) slider.showOwn(own.get(slider.ollama));
  }

  /** One control. `kind` says which: number, boolean, choice, text or json. */
  field(field) {
    const value = this.values[field.name] ?? "";
    const attributes = { name: field.name, on: { change: (event) => this.changed(field, event.target) } };
    let control;
    if (field.kind === "number") {
      control = element("input", { ...attributes, type: "number", step: field.step, min: field.low, max: field.high, value });
    } else if (field.kind === "boolean" || field.kind === "choice") {
      const choices = field.kind === "boolean" ? ["true", "false"] : field.choices;
      const words = { true: "on", false: "off" };
      const options = choices.map((each) => element("option", { value: each, selected: String(value) === each }, words[each] ?? each));
      control = element("select", attributes, element("option", { value: "" }, "not set"), ...options);
    } else {
      control = element("textarea", { ...attributes, rows: field.kind === "json" ? 3 : 1, spellcheck: "false" }, value);
    }
    return labelled(field.label ?? worded(field.name), control, field.help);
  }

  changed(field, control) {
    control.setCustomValidity("");
    this.keep(field.name, control.validity.badInput ? "" : control.value);
    try {
      if (control.value !== "") valueOf(field, control.value);
    } catch (error) {
      control.setCustomValidity(error.message);
    }
    control.reportValidity();
  }

  keep(name, value) {
    if (value === "") delete this.values[name];
    else this.values[name] = value;
    localStorage.setItem(KEPT, JSON.stringify(this.values));
  }

  /** Put these values in the place of all. */
  use(values) {
    this.values = { ...values };
    localStorage.setItem(KEPT, JSON.stringify(this.values));
    for (const [name, slider] of this.sliders) slider.show(this.values[name] ?? "");
    for (const control of this.place.querySelectorAll("details [name]")) control.value = this.values[control.name] ?? "";
  }

  /** The fields of a request. Throws an `Error` that names a field which is no JSON. */
  request() {
    const body = {};
    for (const [name, text] of Object.entries(this.values)) {
      const field = this.fields.get(name);
      if (field !== undefined) body[name] = valueOf(field, text);
    }
    const { schema, server_tools: offered, ...rest } = body;
    if (rest.logprobs) rest.top_logprobs = 8;
    if (schema !== undefined) {
      rest.response_format = { type: "json_schema", json_schema: { name: "answer", schema, strict: true } };
    }
    if (offered) rest.tools = [...(rest.tools ?? []), ...this.tools.map(asFunction)];
    return rest;
  }

  /** Whether the server can run the tool of this name. */
  runs(name) {
    return this.tools?.some((tool) => tool.name === name) ?? false;
  }
}

function worded(name) {
  return name.replaceAll("_", " ").replace(/^./, (letter) => letter.toUpperCase());
}

function serverToolsField(tools) {
  return { name: "server_tools", kind: "boolean", label: `Offer ${tools.length} tools of the server`, help: "Those of its MCP servers. A call is shown, and runs when you say so." };
}

function asFunction({ name, description, parameters }) {
  return { type: "function", function: { name, description, parameters } };
}

/** Tools of MCP servers; none where there are no servers, or where the caller may not use them. */
async function serverTools() {
  try {
    return (await askJson("/v1/mcp/tools")).tools;
  } catch {
    return [];
  }
}

/** What kind of control a JSON schema needs, and its bounds. */
export function shapeOf(schema) {
  const forms = (schema.anyOf ?? [schema]).filter(({ type }) => type !== "null");
  const [form] = forms;
  if (forms.length === 1 && (form.type === "number" || form.type === "integer")) {
    // Bounds beyond what a double holds would be rounded to a number that is out of range.
    const exact = (bound) => (Number.isSafeInteger(bound) || form.type === "number" ? bound : undefined);
    return { kind: "number", step: form.type === "integer" ? 1 : "any", low: exact(form.minimum), high: exact(form.maximum) };
  }
  if (forms.length === 1 && form.type === "boolean") return { kind: "boolean" };
  if (forms.length === 1 && form.enum) return { kind: "choice", choices: form.enum };
  if (forms.length === 1 && form.type === "string") return { kind: "text" };
  return { kind: forms.some(({ type }) => type === "string") ? "loose" : "json" };
}

/** What a text in a field stands for. `loose` fields take JSON, and any other text as a text. */
function valueOf({ name, label, kind }, text) {
  if (kind === "number") return Number(text);
  if (kind === "boolean") return text === "true";
  if (kind === "text" || kind === "choice") return text;
  try {
    return JSON.parse(text);
  } catch {
    if (kind === "loose") return text;
    throw new Error(`${label ?? name} is not JSON.`);
  }
}
