/** The chat: the conversation that is shown, the answers that run, and what can be done with a message. */

import { modelFor } from "../abilities.js";
import { announce, button, element, trying } from "../dom.js";
import { confirmed } from "../dialogs.js";
import { askJson } from "../server.js";
import { messagesOf } from "./answer.js";
import { Composer } from "./composer.js";
import { Conversations } from "./list.js";
import { Models } from "./models.js";
import { Parameters } from "./parameters.js";
import { Presets } from "./presets.js";
import { Run } from "./run.js";
import { forgetMessages } from "./store.js";
import { Thread } from "./thread.js";
import { add, newConversation, places, removed, showBranch, shown } from "./tree.js";
import { readAloud, writerFor } from "./voice.js";

const at = (id) => document.getElementById(id);

/** Begin. Gives what to do whenever the part is shown, with the id of the conversation in the address, if there is one. */
export function startChat() {
  const chat = new Chat();
  const ready = trying(() => chat.start());
  return (id) => {
    chat.tellTitle();
    if (id === undefined) chat.leave();
    ready.then(() => trying(() => chat.shownAt(id)));
  };
}

class Chat {
  constructor() {
    this.conversation = newConversation();
    this.list = new Conversations(this);
    this.runs = new Map(); // the answers that run, by the ids of their conversations
    this.queues = new Map(); // what is sent when they are complete
    this.parameters = new Parameters(at("chat-options"));
    this.models = new Models(() => this.modelChanged());
    this.presets = new Presets(at("chat-presets"), {
      now: () => ({ system: at("chat-system").value, values: this.parameters.values }),
      use: ({ system, values }) => {
        this.parameters.use(values);
        this.changeSystem(system);
      },
    });
    this.composer = new Composer({
      send: (question) => this.send(question),
      stop: () => this.running?.stop(),
      writer: () => writerFor(this.models.chosen, this.models.all),
      editLast: () => this.editLast(),
    });
    this.thread = new Thread(at("chat-scroll"), at("chat-thread"), {
      retry: (message, model) => this.respond(this.conversation, message.parent, [], model),
      models: () => this.models.able.map(({ id }) => id),
      goOn: (message) => this.goOn(message),
      edit: (message, text) => this.edit(message, text),
      remove: (message) => trying(() => this.remove(message)),
      branch: (message) => this.turnTo(message),
      canRun: (name) => this.parameters.runs(name),
      answered: ({ id }) => shown(this.conversation).some(({ callId }) => callId === id),
      giveResult: (message, call, text) => this.giveResult(message, call, text),
      speaks: () => modelFor("speech", this.models.all) !== undefined,
      readAloud: (text) => readAloud(text, modelFor("speech", this.models.all).id),
      runTool: (message, call) => this.runTool(message, call),
    });
  }

  async start() {
    this.listen();
    await this.models.list();
    await Promise.all([this.parameters.draw(), this.list.start()]);
    await this.modelChanged();
    this.draw({ toTheEnd: true });
    this.composer.focus();
  }

  get running() {
    return this.runs.get(this.conversation.id) ?? null;
  }

  listen() {
    at("chat-new").addEventListener("click", () => this.opened(newConversation()));
    at("chat-system").addEventListener("change", (event) => this.changeSystem(event.target.value));
    document.addEventListener("keydown", (event) => {
      if (event.key === "Escape" && !event.defaultPrevented && !document.querySelector("dialog")) this.running?.stop();
      const key = (event.ctrlKey || event.metaKey) && event.key.toLowerCase();
      if (key === "o" && event.shiftKey) this.opened(newConversation());
      else if (key === "k") this.search();
      else return;
      event.preventDefault();
    });
  }

  search() {
    at("menu").setAttribute("data-open", "");
    at("chat-search").focus();
  }

  changeSystem(text) {
    at("chat-system").value = text;
    this.conversation.system = text;
    this.list.keep(this.conversation);
  }

  async modelChanged() {
    if (this.models.chosen) await trying(() => this.parameters.showOwn(this.models.chosen));
  }

  // Conversations

  /** The address names no conversation: a new one begins. */
  leave() {
    if (this.conversation.leaf !== null) this.open(newConversation());
  }

  /** The address names a conversation. */
  async shownAt(id) {
    await this.models.list();
    if (id === undefined || id === this.conversation.id) return;
    const found = this.list.all.get(id);
    if (found) this.open(found);
    else announce("This browser does not keep that conversation.", "error");
  }

  /** The person chose a conversation: its address is shown, and by that the conversation. */
  opened(conversation) {
    const elsewhere = at("chat").hidden;
    this.open(conversation, "pushState");
    if (elsewhere) location.hash = at("tab-chat").getAttribute("href");
  }

  open(conversation, way = "replaceState") {
    this.conversation = conversation;
    at("chat-system").value = conversation.system;
    this.resume(conversation);
    this.draw({ toTheEnd: true });
    this.list.draw();
    this.tellAddress(way);
    this.composer.focus();
  }

  /** The address and the title are those of the conversation, once it has a message. */
  tellAddress(way) {
    const { id, leaf } = this.conversation;
    const address = leaf === null ? "#chat" : `#chat/${id}`;
    at("tab-chat").setAttribute("href", address);
    if (at("chat").hidden) return;
    this.tellTitle();
    if (location.hash !== address) history[way](null, "", address);
  }

  tellTitle() {
    const { title } = this.conversation;
    document.title = title ? `${title} · Pippin` : "Pippin";
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

  /** Send a question; while an answer runs, once it is complete. */
  send(question) {
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

  editLast() {
    const mine = shown(this.conversation).findLast(({ role }) => role === "user");
    if (mine) this.thread.viewOf(mine)?.edit();
  }

  async edit(message, text) {
    const { parent, role, media, model } = message;
    const added = add(this.conversation, parent, role, { text, media, model, finish: message.finish });
    if (role === "user") await this.respond(this.conversation, added.id, [added]);
    else await this.keepAndDraw([added]);
  }

  async remove(message) {
    if (!(await confirmed("Delete this message, and what follows it?", "Delete"))) return;
    this.running?.stop();
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

  // Answers

  /** Let a model answer the message `parent`; `fresh` are messages that are not kept yet. */
  async respond(conversation, parent, fresh = [], model = this.models.chosen || "default") {
    const options = await trying(() => this.parameters.request());
    if (options === null) {
      await this.keepAndDraw(fresh);
      return;
    }
    const message = add(conversation, parent, "assistant", { model });
    const branch = shown(conversation).slice(0, -1);
    await this.run(conversation, message, { model, messages: messagesOf(conversation.system, branch), ...options }, fresh);
  }

  /** Let the model go on where its answer was cut off. */
  async goOn(message) {
    const options = await trying(() => this.parameters.request());
    if (options === null) return;
    const { conversation } = this;
    const messages = messagesOf(conversation.system, shown(conversation));
    Object.assign(message, { finish: null, error: null });
    const going = { continue_final_message: true, add_generation_prompt: false };
    const model = message.model ?? this.models.chosen;
    await this.run(conversation, message, { model, messages, ...options, ...going });
  }

  /** Take up the answers of a conversation that the server goes on with, after a reload or without the tab that asked. */
  resume(conversation) {
    for (const message of Object.values(conversation.messages)) {
      if (message.kept && message.finish === null && !this.isRunning(conversation)) trying(() => this.run(conversation, message, null));
    }
  }

  /** Run one answer to its end, whatever is shown meanwhile, and then what was asked in the meantime. */
  async run(conversation, message, request, fresh = []) {
    this.runs.get(conversation.id)?.stop();
    const view = () => (this.conversation === conversation ? this.thread.viewOf(message) : undefined);
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
    await trying(() => this.models.list());
    await this.sendNext(conversation, message);
  }

  async sendNext(conversation, { finish }) {
    const queue = this.queueOf(conversation);
    if (queue.length === 0 || ["error", "stopped"].includes(finish) || this.isRunning(conversation)) return;
    const next = queue.shift();
    this.drawQueue();
    await this.put(conversation, next);
  }

  // Drawing

  draw({ toTheEnd = false } = {}) {
    const branch = shown(this.conversation);
    const { running } = this;
    if (toTheEnd) this.thread.follows = true;
    this.thread.draw(branch, places(this.conversation), (message) => (running?.message === message ? running : null));
    at("chat-empty").hidden = branch.length > 0;
    this.composer.tell(running !== null);
    this.drawQueue();
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
}
