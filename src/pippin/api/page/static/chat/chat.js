/** The chat: the list of conversations, the one that is shown, and the field to write in. */

import { modelFor } from "../abilities.js";
import { announce, button, download, element, trying } from "../dom.js";
import { recordButton } from "../microphone.js";
import { ask, askJson } from "../server.js";
import { answer, messagesOf } from "./answer.js";
import { partOf } from "./attachments.js";
import { mediaView, MessageView } from "./message.js";
import { Options } from "./options.js";
import { allConversations, forget, keep } from "./store.js";
import { add, exported, imported, newConversation, showBranch, shown, siblings } from "./tree.js";
import { readAloud, wordsOf, writerFor } from "./voice.js";

const MODEL = "pippin-chat-model";
const NEAR = 80; // pixels from the end within which the view follows an answer that grows

const at = (id) => document.getElementById(id);

/** Begin. Gives what to do whenever the tab is shown. */
export function startChat() {
  const chat = new Chat();
  trying(() => chat.start());
  return () => {
    trying(() => chat.listModels());
  };
}

class Chat {
  constructor() {
    this.conversation = newConversation();
    this.conversations = [];
    this.media = [];
    this.models = []; // all that the server has
    this.follows = true;
    this.running = null; // what stops the answer that runs
    this.options = new Options(at("chat-options"));
    this.acts = {
      retry: (message) => this.respond(message.parent),
      edit: (message, text) => this.edit(message, text),
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
    await this.list();
    this.draw();
    this.writePlace().focus();
  }

  writePlace() {
    return at("chat-input");
  }

  listen() {
    const input = this.writePlace();
    at("chat-form").addEventListener("submit", (event) => {
      event.preventDefault();
      if (this.running) this.running.abort();
      else trying(() => this.send());
    });
    input.addEventListener("keydown", (event) => {
      if (event.key === "Enter" && !event.shiftKey && !event.isComposing) {
        event.preventDefault();
        if (!this.running) trying(() => this.send());
      }
    });
    document.addEventListener("keydown", (event) => {
      if (event.key === "Escape" && this.running) this.running.abort();
    });
    input.addEventListener("paste", (event) => this.attach(event.clipboardData.files));
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
    at("chat-new").addEventListener("click", () => this.open(newConversation()));
    at("chat-export").addEventListener("click", () => this.export([this.conversation]));
    at("chat-export-all").addEventListener("click", () => this.export(this.conversations));
    at("chat-import").addEventListener("change", (event) => trying(() => this.import(event.target)));
    at("chat-system").addEventListener("change", (event) => {
      this.conversation.system = event.target.value;
      this.kept();
    });
    at("chat-model").addEventListener("change", (event) => localStorage.setItem(MODEL, event.target.value));
    at("chat-search").addEventListener("input", () => this.drawList());
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
      ? "Ask something. Pictures, sound and files can be dropped or pasted here."
      : "There is no model to chat with yet. The page Models gets one.";
  }

  // Conversations

  async list() {
    this.conversations = await allConversations();
    this.drawList();
  }

  drawList() {
    const wanted = at("chat-search").value.trim().toLowerCase();
    const rows = this.conversations.filter((each) => matches(each, wanted)).map((each) => this.row(each));
    at("chat-list").replaceChildren(...rows);
  }

  row(conversation) {
    const current = conversation.id === this.conversation.id;
    const title = conversation.title || "Conversation";
    const choose = button(title, () => this.open(conversation), { class: "title", "aria-current": current ? "true" : null });
    const remove = button("×", () => trying(() => this.remove(conversation)), { "aria-label": `Delete ${title}`, class: "small" });
    const rename = button("✎", () => trying(() => this.rename(conversation)), { "aria-label": `Rename ${title}`, class: "small" });
    return element("li", {}, choose, rename, remove);
  }

  async rename({ id, title: before }) {
    const title = prompt("Name of the conversation", before)?.trim();
    if (!title) return;
    // The one that is shown may be ahead of the list.
    const conversation = id === this.conversation.id ? this.conversation : this.conversations.find((each) => each.id === id);
    conversation.title = title;
    await this.kept(conversation);
  }

  open(conversation) {
    this.running?.abort();
    this.conversation = conversation;
    at("chat-system").value = conversation.system;
    at("chat-conversations").removeAttribute("data-open");
    this.draw();
    this.drawList();
    this.writePlace().focus();
  }

  async remove(conversation) {
    if (!confirm(`Delete "${conversation.title || "Conversation"}"?`)) return;
    await forget(conversation);
    if (conversation.id === this.conversation.id) this.open(newConversation());
    await this.list();
  }

  async kept(conversation = this.conversation) {
    if (conversation.leaf === null) return;
    await trying(() => keep(conversation));
    await trying(() => this.list());
  }

  export(conversations) {
    const name = conversations.length === 1 ? "conversation" : "conversations";
    download(`${name}.json`, exported(conversations));
  }

  async import(input) {
    const [file] = input.files;
    input.value = "";
    const conversations = imported(await file.text());
    for (const each of conversations) await keep(each);
    await this.list();
    if (conversations.length > 0) this.open(conversations[0]);
    announce(`Imported ${conversations.length === 1 ? "a conversation" : `${conversations.length} conversations`}.`);
  }

  // Messages

  async attach(files) {
    for (const file of files) await trying(async () => this.media.push(await partOf(file)));
    this.drawMedia();
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

  async send() {
    const input = this.writePlace();
    const text = input.value.trim();
    if (text === "" && this.media.length === 0) return;
    const { conversation } = this;
    conversation.system = at("chat-system").value;
    add(conversation, conversation.leaf, "user", { text, media: this.media });
    input.value = "";
    this.media = [];
    this.drawMedia();
    await this.respond(conversation.leaf);
  }

  async edit(message, text) {
    const { parent, role, media, model } = message;
    add(this.conversation, parent, role, { text, media, model });
    if (role === "user") await this.respond(this.conversation.leaf);
    else {
      this.draw();
      await this.kept();
    }
  }

  turnTo(message) {
    showBranch(this.conversation, message);
    this.draw();
    this.kept();
  }

  async giveResult(message, call, text) {
    const { conversation } = this;
    add(conversation, conversation.leaf, "tool", { text, callId: call.id });
    const open = message.calls.filter(({ id }) => !shown(conversation).some(({ callId }) => callId === id));
    if (open.length === 0) await this.respond(conversation.leaf);
    else {
      this.draw();
      await this.kept();
    }
  }

  async runTool(message, call) {
    await trying(async () => {
      const json = { tool_name: call.name, arguments: JSON.parse(call.arguments || "{}") };
      const reply = await askJson("/v1/mcp/execute", { method: "POST", json });
      await this.giveResult(message, call, reply.is_error ? `Error: ${reply.error_message}` : (reply.content ?? ""));
    });
  }

  /** Let the model go on after the message `parent`. */
  async respond(parent) {
    this.running?.abort();
    const { conversation } = this;
    const model = at("chat-model").value || "default";
    const options = await trying(() => this.options.request());
    if (options === null) return;
    const message = add(conversation, parent, "assistant", { model });
    const branch = shown(conversation).slice(0, -1);
    const request = { model, messages: messagesOf(conversation.system, branch), ...options };
    const stop = new AbortController();
    this.running = stop;
    this.draw();
    this.drawRunning();
    const follow = new Follower(() => this.views.find((view) => view.message === message));
    const watching = this.watchLoading(model, follow, stop.signal);
    await this.kept(conversation);
    await answer(message, request, { signal: stop.signal, changed: (progress) => follow.changed(progress) });
    clearInterval(watching);
    if (this.running === stop) this.running = null;
    follow.end();
    this.drawRunning();
    if (this.conversation === conversation) this.draw();
    announce(message.finish === "error" ? message.error : "The answer is complete.", message.finish === "error" ? "error" : "silent");
    await this.kept(conversation);
    await trying(() => this.listModels());
  }

  /** Until the first event comes, say how far the model is loaded. */
  watchLoading(model, follow, signal) {
    const timer = setInterval(async () => {
      if (follow.begun || signal.aborted) {
        clearInterval(timer);
        return;
      }
      try {
        const reply = await ask(`/v1/models/${encodeURIComponent(model)}`, { signal });
        const { state, stage, progress } = await reply.json();
        const share = progress === null ? "" : `, ${Math.round(progress * 100)} %`;
        if (!follow.begun && state === "loading") follow.wait(`Loading ${model}: ${stage ?? "starting"}${share}`);
      } catch {
        // The answer itself says what is wrong.
      }
    }, 1000);
    return timer;
  }

  // Drawing

  draw() {
    const branch = shown(this.conversation);
    this.views = branch.map((message) => new MessageView(message, siblings(this.conversation, message), this.acts));
    at("chat-thread").replaceChildren(...this.views.map(({ node }) => node));
    at("chat-empty").hidden = branch.length > 0;
    this.toTheEnd();
  }

  drawRunning() {
    const send = at("chat-send");
    send.textContent = this.running ? "Stop" : "Send";
    send.classList.toggle("stop", this.running !== null);
  }
}

function matches(conversation, wanted) {
  if (wanted === "") return true;
  const texts = Object.values(conversation.messages).map(({ text }) => text);
  return [conversation.title, ...texts].some((text) => text.toLowerCase().includes(wanted));
}

/** Draws a growing answer at most once a frame. `view` gives where it is shown: the thread may be drawn anew meanwhile. */
class Follower {
  constructor(view) {
    this.view = view;
    this.begun = false;
    this.ended = false;
    this.drawing = false;
    this.wait("Waiting …");
  }

  wait(sentence) {
    this.view()?.draw({ running: true, progress: sentence });
  }

  changed(progress) {
    this.begun = true;
    this.progress = progress;
    if (this.drawing) return;
    this.drawing = true;
    requestAnimationFrame(() => {
      this.drawing = false;
      if (!this.ended) this.view()?.draw({ running: true, progress: this.progress });
    });
  }

  end() {
    this.ended = true;
  }
}
