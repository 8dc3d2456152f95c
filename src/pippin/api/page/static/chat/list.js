/** The list of conversations, by date: all that this browser keeps, as this tab has them in memory. */

import { confirmed, written } from "../dialogs.js";
import { announce, button, download, element, trying } from "../dom.js";
import { icon } from "../icons.js";
import { allConversations, conversationOf, forget, keep, onChange } from "./store.js";
import { exported, imported, merge } from "./tree.js";

const DAY = 86_400_000; // milliseconds

const at = (id) => document.getElementById(id);

export class Conversations {
  /** `chat` shows one of them: `conversation`, `isRunning(conversation)`, `opened(conversation)`,
   * `changed(conversation)` and `resume(conversation)`. */
  constructor(chat) {
    this.chat = chat;
    this.all = new Map();
  }

  async start() {
    at("chat-search").addEventListener("input", () => this.draw());
    at("chat-export").addEventListener("click", () => this.export([this.chat.conversation]));
    at("chat-export-all").addEventListener("click", () => this.export(this.sorted()));
    at("chat-import").addEventListener("change", (event) => trying(() => this.import(event.target)));
    onChange((id) => trying(() => this.read(id)));
    for (const each of await allConversations()) if (!this.all.has(each.id)) this.all.set(each.id, each);
    for (const each of this.all.values()) this.chat.resume(each);
    this.draw();
  }

  sorted() {
    return [...this.all.values()].sort((one, other) => other.changed - one.changed);
  }

  /** What another tab changed comes into the same object, which an answer of this tab may be growing in. */
  async read(id) {
    const kept = await conversationOf(id);
    const here = this.all.get(id);
    if (kept === null) this.all.delete(id);
    else if (here === undefined) this.all.set(id, kept);
    else merge(here, kept, (message) => this.chat.isRunning(here, message));
    this.chat.changed(kept === null ? null : this.all.get(id), id);
    this.draw();
  }

  /** Keep a conversation, and the given messages of it. One without any message is not kept. */
  async keep(conversation, messages = []) {
    await this.store(conversation, messages);
    this.draw();
  }

  /** The same without drawing the list, which has not changed while a message grows. */
  async store(conversation, messages) {
    if (conversation.leaf === null) return;
    this.all.set(conversation.id, conversation);
    await trying(() => keep(conversation, messages));
  }

  draw() {
    const wanted = at("chat-search").value.trim().toLowerCase();
    const rows = [];
    let before = null;
    for (const each of this.sorted().filter((each) => matches(each, wanted))) {
      const date = dateOf(each.changed);
      if (date !== before) rows.push(element("li", { class: "date" }, element("h3", {}, date)));
      before = date;
      rows.push(this.row(each));
    }
    at("chat-list").replaceChildren(...rows);
  }

  row(conversation) {
    const current = conversation.id === this.chat.conversation.id;
    const title = conversation.title || "Conversation";
    const choose = button(title, () => this.chat.opened(conversation), { class: "title", title, "aria-current": current ? "true" : null });
    if (this.chat.isRunning(conversation)) choose.append(element("span", { class: "quiet" }, " …"));
    const remove = button(icon("trash"), () => trying(() => this.remove(conversation)), { "aria-label": `Delete ${title}`, class: "icon" });
    const rename = button(icon("pencil"), () => trying(() => this.rename(conversation)), { "aria-label": `Rename ${title}`, class: "icon" });
    return element("li", {}, choose, rename, remove);
  }

  async rename(conversation) {
    const title = await written("Rename", "Name of the conversation", conversation.title);
    if (!title) return;
    conversation.title = title;
    await this.keep(conversation);
    this.chat.changed(conversation, conversation.id);
  }

  async remove(conversation) {
    if (!(await confirmed(`Delete "${conversation.title || "Conversation"}"? It is kept nowhere else.`, "Delete"))) return;
    await forget(conversation);
    this.all.delete(conversation.id);
    this.chat.changed(null, conversation.id);
    this.draw();
  }

  export(conversations) {
    const name = conversations.length === 1 ? "conversation" : "conversations";
    download(`${name}.json`, exported(conversations));
  }

  async import(input) {
    const [file] = input.files;
    input.value = "";
    const conversations = imported(await file.text());
    for (const each of conversations) await this.keep(each, Object.values(each.messages));
    if (conversations.length > 0) this.chat.opened(conversations[0]);
    announce(`Imported ${conversations.length === 1 ? "a conversation" : `${conversations.length} conversations`}.`);
  }
}

function matches(conversation, wanted) {
  if (wanted === "") return true;
  const texts = Object.values(conversation.messages).map(({ text }) => text);
  return [conversation.title, ...texts].some((text) => text.toLowerCase().includes(wanted));
}

/** The heading under which a conversation of this time stands. */
function dateOf(time) {
  const today = new Date().setHours(0, 0, 0, 0);
  if (time >= today) return "Today";
  if (time >= today - DAY) return "Yesterday";
  if (time >= today - 6 * DAY) return "This week";
  return new Date(time).toLocaleDateString(undefined, { month: "long", year: "numeric" });
}
