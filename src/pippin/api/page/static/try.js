/** The other kinds of models, each with the smallest form that shows what it does. */

import { does } from "./abilities.js";
import { button, element, labelled } from "./dom.js";
import { wordsOf } from "./chat/voice.js";
import { recordButton } from "./microphone.js";
import { ask, askJson } from "./server.js";

/** The forms: the kind of model that each wants, its fields, and how the answer is got and shown. */
const FORMS = [
  {
    title: "Embeddings",
    fits: ({ kind, capabilities }) => kind === "embeddings" || capabilities.embeddings,
    fields: [text("input", "Texts, one a line", "A dog barks.\nA hound is loud.\nThe train is late.")],
    run: async ({ model, input }) => {
      const texts = linesOf(input);
      const { data } = await askJson("/v1/embeddings", { method: "POST", json: { model, input: texts } });
      return similarities(texts, data.map(({ embedding }) => embedding));
    },
  },
  {
    title: "Rerank",
    fits: ({ kind, capabilities }) => kind === "reranking" || kind === "embeddings" || capabilities.embeddings,
    fields: [
      line("query", "Question", "Which animal is loud?"),
      text("documents", "Documents, one a line", "A dog barks.\nThe train is late.\nCats sleep."),
    ],
    run: async ({ model, query, documents }) => {
      const texts = linesOf(documents);
      const { results } = await askJson("/v1/rerank", { method: "POST", json: { model, query, documents: texts } });
      return table(["Document", "Score"], results.map(({ index, relevance_score: score }) => [texts[index], score.toFixed(3)]));
    },
  },
  {
    title: "Transcription",
    fits: (model) => does(model, "transcription"),
    fields: [recording("file", "Recording", "audio/*,video/*")],
    run: async ({ model, file }) => element("p", {}, await wordsOf(file, model)),
  },
  {
    title: "Speech",
    fits: (model) => does(model, "speech"),
    fields: [text("input", "Text", "Pippin can speak."), line("voice", "Voice", "", false)],
    run: async ({ model, input, voice }) => {
      const json = { model, input, response_format: "wav", ...(voice ? { voice } : {}) };
      const reply = await ask("/v1/audio/speech", { method: "POST", json });
      return element("audio", { controls: true, src: URL.createObjectURL(await reply.blob()), "aria-label": "Speech" });
    },
  },
  {
    title: "Images",
    fits: (model) => does(model, "images"),
    fields: [text("prompt", "What to draw", "An apple on a table"), line("size", "Size", "512x512")],
    run: async ({ model, prompt, size }) => {
      const json = { model, prompt, size, response_format: "b64_json" };
      const { data } = await askJson("/v1/images/generations", { method: "POST", json });
      const pictures = data.map(({ b64_json: picture }) => element("img", { src: `data:image/png;base64,${picture}`, alt: prompt }));
      return element("div", {}, ...pictures);
    },
  },
];

/** Begin. What it gives lists the models anew. One form is shown at a time, the first that has a model. */
export function startTry(place) {
  const forms = FORMS.map(drawForm);
  const choices = forms.map(({ title }, index) => button(title, () => choose(index), { "aria-pressed": "false" }));
  const said = element("p", { class: "error" });
  const menu = element("div", { class: "choices", role: "group", "aria-label": "Kinds of models" }, ...choices);
  place.append(element("div", { class: "sheet" }, menu, said, ...forms.map(({ node }) => node)));
  let chosen = false; // by the person
  show(0);

  function choose(index) {
    chosen = true;
    show(index);
  }

  function show(index) {
    for (const [at, each] of forms.entries()) {
      each.node.hidden = at !== index;
      choices[at].setAttribute("aria-pressed", String(at === index));
    }
  }

  return () => {
    askJson("/v1/models").then(
      ({ data }) => {
        said.textContent = "";
        const able = forms.map((form) => form.list(data));
        if (!chosen && able.includes(true)) show(able.indexOf(true));
      },
      (error) => (said.textContent = error.message),
    );
  };
}

function drawForm({ title, fits, fields, run }) {
  const model = element("select", { name: "model", required: true });
  const output = element("div", { class: "output", "aria-live": "polite" });
  const go = element("button", { type: "submit", class: "main" }, "Run");
  const none = element("p", { class: "quiet" }, "No model of this kind is here yet. ", element("a", { href: "#console" }, "Get one in the console"), ".");
  const filled = element("div", {}, labelled("Model", model), ...fields.flatMap(fieldView), go);

  async function submit(event) {
    event.preventDefault();
    go.disabled = true;
    output.replaceChildren(element("p", { class: "quiet" }, "Computing …"));
    try {
      output.replaceChildren(await run(Object.fromEntries(new FormData(node))));
    } catch (error) {
      output.replaceChildren(element("p", { class: "error" }, error.message));
    }
    go.disabled = false;
  }

  const node = element(
    "form",
    { class: "panel", "aria-label": title, on: { submit } },
    none,
    filled,
    output,
  );
  return {
    node,
    title,
    /** Whether one of the models is of this kind. */
    list(models) {
      const found = models.filter(fits);
      const chosen = model.value || found[0]?.id;
      model.replaceChildren(...found.map(({ id }) => element("option", { value: id, selected: id === chosen }, id)));
      none.hidden = found.length > 0;
      filled.hidden = !none.hidden;
      return none.hidden;
    },
  };
}

function fieldView({ label, make, beside }) {
  const control = make();
  return [labelled(label, control), beside?.(control)];
}

function text(name, label, value) {
  return { label, make: () => element("textarea", { name, rows: 3, required: true }, value) };
}

function line(name, label, value, required = true) {
  return { label, make: () => element("input", { name, value, required }) };
}

/** A file of sound, chosen or spoken. */
function recording(name, label, accept) {
  const make = () => element("input", { type: "file", name, accept, required: true });
  return { label, make, beside: (control) => element("div", { class: "field" }, recordButton((file) => put(control, file))) };
}

/** Put a file into a control as if a person had chosen it. */
function put(control, file) {
  const carrier = new DataTransfer();
  carrier.items.add(file);
  control.files = carrier.files;
}

function linesOf(given) {
  return given.split("\n").map((each) => each.trim()).filter(Boolean);
}

function similarities(texts, vectors) {
  const rows = vectors.map((one, index) => [texts[index], ...vectors.map((other) => cosine(one, other).toFixed(2))]);
  const note = element("p", { class: "quiet" }, `${vectors[0].length} dimensions. Likeness of each pair:`);
  return element("div", { class: "wide", tabindex: "0", role: "region", "aria-label": "Likeness" }, note, table(["", ...texts.map((_, at) => `${at + 1}`)], rows));
}

function cosine(one, other) {
  const product = (left, right) => left.reduce((sum, value, index) => sum + value * right[index], 0);
  return product(one, other) / Math.sqrt(product(one, one) * product(other, other));
}

function table(heads, rows) {
  const head = element("tr", {}, ...heads.map((name) => (name ? element("th", { scope: "col" }, name) : element("td"))));
  const body = rows.map((row) => element("tr", {}, ...row.map((cell) => element("td", {}, cell))));
  return element("table", {}, element("thead", {}, head), element("tbody", {}, ...body));
}
