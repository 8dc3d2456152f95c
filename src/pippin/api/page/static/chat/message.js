/** One message on the page. */

import { button, element, trying } from "../dom.js";
import { seconds, short, whole } from "../format.js";
import { copied, GrowingMarkdown } from "../markdown.js";
import { previewOf } from "./attachments.js";
import { tokensView } from "./tokens.js";

const NAMES = { user: "You", assistant: "Answer", tool: "Result of a tool" };
const ENDS = {
  length: "The answer was cut off: the limit of tokens is reached.",
  content_filter: "The answer was withheld.",
  stopped: "Stopped.",
};
const UNFINISHED = "This answer is not complete: another tab still gets it, or the page was closed before its end.";

/** How an answer ends that can be continued. */
const CUT = new Set(["length", "stopped", "error", null]);

/**
 * The view of a message. `acts` are what can be done with it: retry, goOn, edit, remove, branch, giveResult, runTool,
 * canRun, readAloud, speaks.
 */
export class MessageView {
  constructor(message, acts) {
    this.message = message;
    this.acts = acts;
    this.near = false; // whether it was near to what is seen, and is drawn in full
    this.reasoningPlace = element("div", { class: "markdown" });
    this.reasoningTitle = element("summary", {}, "Reasoning");
    this.reasoning = element("details", { class: "reasoning" }, this.reasoningTitle, this.reasoningPlace);
    this.place = element("div", { class: message.role === "user" ? "plain" : "markdown" });
    this.calls = element("div", { class: "calls" });
    this.tokens = element("div");
    this.sound = element("div");
    this.foot = element("p", { class: "quiet foot" });
    this.progress = element("div", { class: "progress", hidden: true });
    this.actions = element("div", { class: "row actions" });
    this.model = element("span", { class: "quiet" });
    this.thought = new GrowingMarkdown(this.reasoningPlace);
    this.said = new GrowingMarkdown(this.place);
    this.node = element(
      "article",
      { class: `message ${message.role}`, "aria-label": NAMES[message.role] },
      element("h2", {}, NAMES[message.role], this.model),
      message.media.length > 0 ? element("div", { class: "media" }, ...message.media.map(mediaView)) : null,
      this.reasoning,
      this.progress,
      this.place,
      this.calls,
      this.tokens,
      this.sound,
      this.foot,
      this.actions,
    );
  }

  /** Show the text as it is, which is quickly done, until somebody comes `near`. */
  sketch() {
    if (this.drawn === undefined) this.place.textContent = this.message.text;
  }

  /** Draw what changed since the last time: the message, or the messages at its place, of which `branches` are all. */
  update(branches, state) {
    const { message } = this;
    const answered = message.calls.filter((call) => this.acts.answered(call)).length;
    const { text, reasoning, finish, model } = message;
    const now = [text.length, reasoning.length, finish, model, message.calls.length, answered, state.running, branches.length].join();
    const place = branches.indexOf(message);
    if (now === this.drawn && place === this.drawnAt) return;
    [this.drawn, this.drawnAt] = [now, place];
    this.actions.replaceChildren(...this.buttons(branches, state.running));
    this.drawCalls(state.running);
    this.draw(state);
  }

  buttons(branches, running) {
    const { message, acts } = this;
    const at = branches.indexOf(message);
    const turn = (step, label, sign) =>
      button(sign, () => acts.branch(branches[at + step]), {
        "aria-label": label,
        disabled: branches[at + step] === undefined,
        class: "small",
      });
    const found = [button("Copy", () => copied(message.text), { class: "small" })];
    if (message.role !== "tool") found.push(button("Edit", () => this.edit(), { class: "small" }));
    if (message.role === "assistant") {
      if (!running && CUT.has(message.finish) && message.text !== "") found.push(button("Continue", () => acts.goOn(message), { class: "small" }));
      found.push(button("Retry", () => acts.retry(message), { class: "small", title: "Answer again, with the model that is chosen above" }));
      if (acts.models().length > 1) found.push(this.retryWith());
      if (acts.speaks()) found.push(button("Read aloud", () => trying(() => this.readAloud()), { class: "small" }));
      found.push(button("Tokens", () => this.toggleTokens(), { class: "small tokens-button", hidden: true }));
    }
    found.push(button("Delete", () => acts.remove(message), { class: "small" }));
    if (branches.length > 1) {
      found.push(turn(-1, "Branch before", "‹"), element("span", {}, `${at + 1} of ${branches.length}`), turn(1, "Branch after", "›"));
    }
    return found;
  }

  /** The choice of another model for one more answer. */
  retryWith() {
    const models = this.acts.models().map((id) => element("option", { value: id }, id));
    const choose = (event) => this.acts.retry(this.message, event.target.value);
    return element("select", { "aria-label": "Retry with another model", on: { change: choose } }, element("option", { value: "", hidden: true }, "Retry with …"), ...models);
  }

  /** Show what the message holds now. */
  draw({ running, progress }) {
    const { message } = this;
    this.model.textContent = message.model ? ` by ${message.model}` : "";
    if (message.role === "user") this.place.textContent = message.text;
    else this.said.show(message.text, running);
    this.reasoning.hidden = message.reasoning === "";
    if (message.reasoning !== "") {
      this.reasoningTitle.textContent = running && message.text === "" ? "Reasoning …" : "Reasoning";
      this.thought.show(message.reasoning, running);
    }
    this.drawProgress(running, progress);
    if (message.calls.length !== this.calls.childElementCount || running) this.drawCalls(running);
    const tokens = this.node.querySelector(".tokens-button");
    if (tokens) tokens.hidden = message.tokens.length === 0 || running;
    this.foot.textContent = running ? "" : this.footText();
    this.foot.classList.toggle("error", message.finish === "error");
    this.node.setAttribute("aria-busy", String(running));
  }

  /** How far the prompt is computed, while there is nothing else to show. */
  drawProgress(running, progress) {
    const { text, reasoning, calls } = this.message;
    this.progress.hidden = !running || text !== "" || reasoning !== "" || calls.length > 0;
    if (this.progress.hidden) return;
    if (typeof progress === "string" || progress === null) {
      this.progress.replaceChildren(element("span", { class: "quiet" }, progress ?? "Waiting …"));
      return;
    }
    const { processed, total, cache } = progress;
    const known = cache > 0 ? `, ${whole(cache)} of them known from before` : "";
    this.progress.replaceChildren(
      element("progress", { max: total, value: processed, "aria-label": "Prompt" }),
      element("span", { class: "quiet" }, `Reading the prompt: ${whole(processed)} of ${whole(total)} tokens${known}`),
    );
  }

  drawCalls(running) {
    this.calls.replaceChildren(...this.message.calls.map((call) => this.callView(call, running)));
  }

  callView(call, running) {
    const { acts } = this;
    const shown = element(
      "details",
      { class: "call", open: true },
      element("summary", {}, `Calls ${call.name}`),
      element("pre", { tabindex: "0" }, indented(call.arguments)),
    );
    if (running || acts.answered(call)) return shown;
    const result = element("textarea", { rows: 2, "aria-label": `Result of ${call.name}` });
    const give = button("Give this result", () => acts.giveResult(this.message, call, result.value));
    const run = acts.canRun(call.name) ? button("Run it on the server", () => acts.runTool(this.message, call)) : null;
    shown.append(result, element("div", { class: "row" }, run, give));
    return shown;
  }

  toggleTokens() {
    if (this.tokens.childElementCount > 0) this.tokens.replaceChildren();
    else this.tokens.append(tokensView(this.message.tokens));
  }

  /** Let a model for speech read the text as it is drawn, without the signs of markdown. */
  async readAloud() {
    const text = this.place.innerText.trim();
    if (text === "") return;
    this.sound.replaceChildren(element("p", { class: "quiet" }, "Preparing to read …"));
    try {
      const address = URL.createObjectURL(await this.acts.readAloud(text));
      const player = element("audio", { controls: true, src: address, "aria-label": "The answer, read aloud" });
      this.sound.replaceChildren(player);
      await player.play();
    } catch (error) {
      if (this.sound.querySelector("audio") === null) this.sound.replaceChildren();
      throw error;
    }
  }

  /** What the answer took, or why there is none. */
  footText() {
    const { role, finish, error, usage, timings } = this.message;
    const told = [error ?? ENDS[finish] ?? (finish === null && role === "assistant" ? UNFINISHED : "")];
    if (usage) {
      const cached = usage.prompt_tokens_details?.cached_tokens ?? 0;
      told.push(`${whole(usage.prompt_tokens)} tokens in${cached ? ` (${whole(cached)} cached)` : ""}, ${whole(usage.completion_tokens)} out`);
    }
    if (timings?.predicted_per_second) told.push(`${short(timings.predicted_per_second)} tokens/s`);
    if (timings) told.push(`first token after ${seconds(((timings.queue_ms ?? 0) + (timings.prompt_ms ?? 0)) / 1000)}`);
    return told.filter(Boolean).join(" · ");
  }

  /** Change the text in place; what was there before stays as a branch. */
  edit() {
    const { message, acts } = this;
    const input = element("textarea", { rows: 5, "aria-label": "Text of the message" });
    input.value = message.text;
    const leave = () => form.replaceWith(this.place);
    const save = button(message.role === "user" ? "Send" : "Keep", () => acts.edit(message, input.value), { class: "main" });
    const form = element("div", { class: "edit" }, input, element("div", { class: "row" }, save, button("Cancel", leave)));
    this.place.replaceWith(form);
    input.focus();
  }
}

function indented(text) {
  try {
    return JSON.stringify(JSON.parse(text), null, 2);
  } catch {
    return text;
  }
}

/** A picture, a player, or the name of a file; used for what is about to be sent too. */
export function mediaView(part) {
  const address = previewOf(part);
  if (address === null) return element("span", { class: "file" }, part.name ?? "file");
  if (part.type === "image_url") return element("img", { src: address, alt: part.name ?? "picture" });
  return element(part.type === "input_audio" ? "audio" : "video", {
    src: address,
    controls: true,
    "aria-label": part.name ?? "recording",
  });
}
