/** The chat: the conversation that is shown, the answers that run, and the field to write in. */

import { modelFor } from "../abilities.js";
import { announce, button, element, trying } from "../dom.js";
import { recordButton } from "../microphone.js";
import { askJson } from "../server.js";
import { messagesOf } from "./answer.js";
import { partOf } from "./attachments.js";
import { Conversations } from "./list.js";
import { mediaView, MessageView } from "./message.js";
import { Options } from "./options.js";
import { Run } from "./run.js";
import { forgetMessages } from "./store.js";
import { add, newConversation, removed, showBranch, shown, siblings } from "./tree.js";
import { readAloud, wordsOf, writerFor } from "./voice.js";

const MODEL = "pippin-chat-model";
const NEAR = 80; // pixels from the end within which the view follows an answer that grows
const LONG_PASTE = 4000; // letters from which on a pasted text becomes a file

const at = (id) => document.getElementById(id);

/** Begin. Gives what to do whenever the tab is shown, with the id of the conversation in the address, if there is one. */
export function startChat() {
  const chat = new Chat();
  const ready = trying(() => chat.start());
  return (id) => {
    if (id === undefined) chat.leave();
    ready.then(() => trying(() => chat.shownAt(id)));
  };
}

class Chat {
  constructor() {
    this.conversation = newConversation();
    this.list = new Conversations(this);
    this.media = [];
    this.models = []; // all that the server has
    this.views = new Map(); // of the messages that are shown, by their ids
    this.follows = true;
    this.runs = new Map(); // the answers that run, by the ids of their conversations
    this.queues = new Map(); // what is sent when they are complete
    this.options = new Options(at("chat-options"));
    this.acts = {
      retry: (message) => this.respond(this.conversation, message.parent),
      goOn: (message) => this.goOn(message),
      edit: (message, text) => this.edit(message, text),
      remove: (message) => trying(() => this.remove(message)),
      branch: (message) => this.turnTo(message),
      canRun: (name) => this.options.runs(name),
      answered: ({ id }) => shown(this.conversation).some(({ callId }) => callId === id),
      giveResult: (message, call, text) => this.giveResult(message, call, text),
      speaks: () => modelFor("speech", this.models) !== undefined,
      readAloud: (text) => readAloud(text, modelFor("speech", this.models).id),
      runTool: (message, call) => this.runTool(message, call),
    };
  }

  async start() {
    this.listen();
    await this.listModels();
    await this.options.draw();
    await this.list.start();
    this.draw({ toTheEnd: true });
    this.writePlace().focus();
  }

  writePlace() {
    return at("chat-input");
  }

  get running() {
    return this.runs.get(this.conversation.id) ?? null;
  }

  listen() {
    const input = this.writePlace();
    at("chat-form").addEventListener("submit", (event) => {
      event.preventDefault();
      if (this.running) this.running.stop();
      else this.send();
    });
    input.addEventListener("keydown", (event) => {
      if (event.key === "Enter" && !event.shiftKey && !event.isComposing) {
        event.preventDefault();
        this.send();
      } else if (event.key === "ArrowUp" && input.value === "") {
        const mine = shown(this.conversation).findLast(({ role }) => role === "user");
        if (mine) this.views.get(mine.id).edit();
      }
    });
    input.addEventListener("paste", (event) => this.paste(event));
    this.listenToShortcuts();
    this.followTheEnd();
    const part = at("chat");
    part.addEventListener("dragover", (event) => event.preventDefault());
    part.addEventListener("drop", (event) => {
      event.preventDefault();
      this.attach(event.dataTransfer.files);
    });
    at("chat-files").addEventListener("change", (event) => {
      this.attach(event.target.files).then(() => (event.target.value = ""));
    });
    const writer = () => writerFor(at("chat-model").value, this.models);
    at("chat-record").append(recordButton((file) => this.hear(file, writer()), { ready: writer }));
    at("chat-new").addEventListener("click", () => this.opened(newConversation()));
    at("chat-system").addEventListener("change", (event) => {
      this.conversation.system = event.target.value;
      this.list.keep(this.conversation);
    });
    at("chat-model").addEventListener("change", (event) => localStorage.setItem(MODEL, event.target.value));
  }

  listenToShortcuts() {
    document.addEventListener("keydown", (event) => {
      if (event.key === "Escape") this.running?.stop();
      const key = (event.ctrlKey || event.metaKey) && event.key.toLowerCase();
      if (key === "o" && event.shiftKey) this.opened(newConversation());
      else if (key === "k") at("chat-search").focus();
      else return;
      event.preventDefault();
    });
  }

  /** Keep the end in view as an answer grows, and formulas and pictures in it, unless the person scrolled away. */
  followTheEnd() {
    const scroll = at("chat-scroll");
    scroll.addEventListener("scroll", () => {
      this.follows = scroll.scrollHeight - scroll.scrollTop - scroll.clientHeight < NEAR;
    });
    new ResizeObserver(() => this.follows && this.toTheEnd()).observe(at("chat-thread"));
  }

  toTheEnd() {
    const scroll = at("chat-scroll");
    scroll.scrollTop = scroll.scrollHeight;
    this.follows = true;
  }

  // Models

  async listModels() {
    const { data } = await askJson("/v1/models");
    this.models = data;
    const able = data.filter(({ capabilities }) => capabilities.chat);
    const select = at("chat-model");
    const wanted = localStorage.getItem(MODEL);
    const chosen = able.find(({ id }) => id === wanted) ?? able.find(({ loaded }) => loaded) ?? able[0];
    select.replaceChildren(
      ...able.map(({ id, loaded }) => element("option", { value: id, selected: id === chosen.id }, loaded ? `${id} (loaded)` : id)),
    );
    at("chat-empty").textContent = chosen
      ? "Ask something. Pictures, sound, PDF and other files can be dropped or pasted here."
      : "There is no model to chat with yet. The page Models gets one.";
  }

  // Conversations

  /** The address names no conversation: a new one begins. */
  leave() {
    if (this.conversation.leaf !== null) this.open(newConversation());
  }

  /** The address names a conversation. */
  async shownAt(id) {
    await this.listModels();
    if (id === undefined || id === this.conversation.id) return;
    const found = this.list.all.get(id);
    if (found) this.open(found);
    else announce("This browser does not keep that conversation.", "error");
  }

  /** The person chose a conversation: its address is shown, and by that the conversation. */
  opened(conversation) {
    this.open(conversation, "pushState");
  }

  open(conversation, way = "replaceState") {
    this.conversation = conversation;
    at("chat-system").value = conversation.system;
    at("chat-conversations").removeAttribute("data-open");
    this.draw({ toTheEnd: true });
    this.list.draw();
    this.tellAddress(way);
    this.writePlace().focus();
  }

  /** The address and the title are those of the conversation, once it has a message. */
  tellAddress(way) {
    const { id, leaf, title } = this.conversation;
    const address = leaf === null ? "chat" : `chat/${id}`;
    at("tab-chat").dataset.address = address;
    document.title = title ? `${title} · Pippin` : "Pippin";
    if (!at("chat").hidden && location.hash !== `#${address}`) history[way](null, "", `#${address}`);
  }

  /** What this tab or another one changed is shown, if it is shown at all; `conversation` is null where it is gone. */
  changed(conversation, id) {
    if (id !== this.conversation.id) return;
    if (conversation === null) {
      this.running?.stop();
      this.opened(newConversation());
    } else {
      this.conversation = conversation;
      this.tellAddress("replaceState");
      this.draw();
    }
  }

  isRunning({ id }, message = null) {
    const run = this.runs.get(id);
    return run !== undefined && (message === null || run.message === message);
  }

  // Messages

  async attach(files) {
    for (const file of files) await trying(async () => this.media.push(await partOf(file)));
    this.drawMedia();
  }

  /** Files are attached, and so is a text that would fill the field. */
  paste(event) {
    const { files } = event.clipboardData;
    const text = event.clipboardData.getData("text/plain");
    if (files.length > 0) this.attach(files);
    else if (text.length >= LONG_PASTE) {
      event.preventDefault();
      this.attach([new File([text], "pasted.txt", { type: "text/plain" })]);
    }
  }

  /** Put a recording into the question: as it is, or as the words that the model `writer` hears in it. */
  async hear(file, writer) {
    const input = this.writePlace();
    if (writer === null) await this.attach([file]);
    else input.value = [input.value.trimEnd(), await wordsOf(file, writer)].filter(Boolean).join(" ");
    input.focus();
  }

  drawMedia() {
    const views = this.media.map((part, index) => {
      const drop = () => {
        this.media.splice(index, 1);
        this.drawMedia();
      };
      return element("li", {}, mediaView(part), button("×", drop, { "aria-label": `Leave out ${part.name}`, class: "small" }));
    });
    at("chat-media").replaceChildren(...views);
  }

  /** Send what is written; while an answer runs, once it is complete. */
  send() {
    const input = this.writePlace();
    const question = { text: input.value.trim(), media: this.media };
    if (question.text === "" && question.media.length === 0) return;
    input.value = "";
    this.media = [];
    this.drawMedia();
    const { conversation } = this;
    conversation.system = at("chat-system").value;
    if (this.running) this.queueOf(conversation).push(question);
    else trying(() => this.put(conversation, question));
    this.drawQueue();
  }

  async put(conversation, question) {
    const message = add(conversation, conversation.leaf, "user", question);
    await this.respond(conversation, conversation.leaf, [message]);
  }

  queueOf({ id }) {
    if (!this.queues.has(id)) this.queues.set(id, []);
    return this.queues.get(id);
  }

  drawQueue() {
    const queue = this.queueOf(this.conversation);
    const rows = queue.map((question, index) => {
      const drop = () => {
        queue.splice(index, 1);
        this.drawQueue();
      };
      const label = question.text || question.media[0].name;
      return element("li", {}, element("span", {}, `Next: ${label}`), button("×", drop, { "aria-label": `Do not send ${label}`, class: "small" }));
    });
    at("chat-queue").replaceChildren(...rows);
  }

  async edit(message, text) {
    const { parent, role, media, model } = message;
    const added = add(this.conversation, parent, role, { text, media, model, finish: message.finish });
    if (role === "user") await this.respond(this.conversation, added.id, [added]);
    else await this.keepAndDraw([added]);
  }

  async remove(message) {
    if (!confirm("Delete this message, and what follows it?")) return;
    if (this.running) this.running.stop();
    await forgetMessages(this.conversation, removed(this.conversation, message));
    await this.keepAndDraw([]);
  }

  turnTo(message) {
    showBranch(this.conversation, message);
    this.keepAndDraw([]);
  }

  async keepAndDraw(messages) {
    this.draw();
    await this.list.keep(this.conversation, messages);
  }

  async giveResult(message, call, text) {
    const { conversation } = this;
    const result = add(conversation, conversation.leaf, "tool", { text, callId: call.id });
    const open = message.calls.filter(({ id }) => !shown(conversation).some(({ callId }) => callId === id));
    if (open.length === 0) await this.respond(conversation, conversation.leaf, [result]);
    else await this.keepAndDraw([result]);
  }

  async runTool(message, call) {
    await trying(async () => {
      const json = { tool_name: call.name, arguments: JSON.parse(call.arguments || "{}") };
      const reply = await askJson("/v1/mcp/execute", { method: "POST", json });
      await this.giveResult(message, call, reply.is_error ? `Error: ${reply.error_message}` : (reply.content ?? ""));
    });
  }

  /** Let the model answer the message `parent`; `fresh` are messages that are not kept yet. */
  async respond(conversation, parent, fresh = []) {
    const options = await trying(() => this.options.request());
    if (options === null) {
      await this.keepAndDraw(fresh);
      return;
    }
    const model = at("chat-model").value || "default";
    const message = add(conversation, parent, "assistant", { model });
    const branch = shown(conversation).slice(0, -1);
    await this.run(conversation, message, { model, messages: messagesOf(conversation.system, branch), ...options }, fresh);
  }

  /** Let the model go on where its answer was cut off. */
  async goOn(message) {
    const options = await trying(() => this.options.request());
    if (options === null) return;
    const { conversation } = this;
    const messages = messagesOf(conversation.system, shown(conversation));
    Object.assign(message, { finish: null, error: null });
    const going = { continue_final_message: true, add_generation_prompt: false };
    const model = message.model ?? at("chat-model").value;
    await this.run(conversation, message, { model, messages, ...options, ...going });
  }

  /** Run one answer to its end, whatever is shown meanwhile, and then what was asked in the meantime. */
  async run(conversation, message, request, fresh = []) {
    this.runs.get(conversation.id)?.stop();
    const view = () => (this.conversation === conversation ? this.views.get(message.id) : undefined);
    const run = new Run(message, request, view, () => this.list.store(conversation, [message]));
    this.runs.set(conversation.id, run);
    if (this.conversation === conversation) {
      this.tellAddress("replaceState");
      this.draw({ toTheEnd: true });
    }
    // The end of a conversation is kept with its message, or a reload would look for it in vain.
    await this.list.keep(conversation, [...fresh, message]);
    await run.ended();
    if (this.runs.get(conversation.id) === run) this.runs.delete(conversation.id);
    if (this.conversation === conversation) this.draw();
    announce(message.finish === "error" ? message.error : "The answer is complete.", "silent");
    await this.list.keep(conversation, [message]);
    await trying(() => this.listModels());
    const queue = this.queueOf(conversation);
    if (queue.length > 0 && !["error", "stopped"].includes(message.finish) && !this.isRunning(conversation)) {
      const next = queue.shift();
      this.drawQueue();
      await this.put(conversation, next);
    }
  }

  // Drawing

  /** Draw the messages that changed; the others stay as they are, for a long conversation takes seconds. */
  draw({ toTheEnd = false } = {}) {
    const thread = at("chat-thread");
    const branch = shown(this.conversation);
    const views = new Map();
    for (const message of branch) {
      const others = siblings(this.conversation, message);
      const before = this.views.get(message.id);
      const view = before?.message === message ? before : new MessageView(message, this.acts);
      const run = this.running?.message === message ? this.running : null;
      view.update(others, { running: run !== null, progress: run?.progress ?? null });
      views.set(message.id, view);
    }
    this.views = views;
    const nodes = [...views.values()].map(({ node }) => node);
    for (const child of [...thread.children]) if (!nodes.includes(child)) child.remove();
    for (const [index, node] of nodes.entries()) if (thread.children[index] !== node) thread.insertBefore(node, thread.children[index] ?? null);
    at("chat-empty").hidden = branch.length > 0;
    if (toTheEnd || this.follows) this.toTheEnd();
    const send = at("chat-send");
    send.textContent = this.running ? "Stop" : "Send";
    send.classList.toggle("stop", this.running !== null);
    this.drawQueue();
  }
}
