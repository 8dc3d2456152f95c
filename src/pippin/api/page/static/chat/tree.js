/**
 * A conversation is a tree of messages, for an edit or another try is a branch beside what was there before.
 *
 * `leaf` is the last message of the branch that is shown. A message has an `id`, its `parent` (null at the beginning), a
 * `role` (user, assistant, tool) and what belongs to that role; see `message`.
 */

/** 128 random bits. `crypto.randomUUID` is missing on pages by plain HTTP from another machine, as phones at home have. */
export function newId() {
  return [...crypto.getRandomValues(new Uint8Array(16))].map((byte) => byte.toString(16).padStart(2, "0")).join("");
}

/** A conversation without messages. */
export function newConversation() {
  const now = Date.now();
  return { id: newId(), title: "", created: now, changed: now, system: "", leaf: null, messages: {} };
}

/** Add a message after `parent`, and show the branch that ends with it. */
export function add(conversation, parent, role, fields = {}) {
  const added = message(role, { ...fields, parent });
  conversation.messages[added.id] = added;
  conversation.leaf = added.id;
  conversation.changed = Date.now();
  conversation.title ||= role === "user" ? titleOf(added) : "";
  return added;
}

/** A message with all of its fields. */
function message(role, fields) {
  return {
    id: newId(),
    parent: null,
    role,
    created: Date.now(),
    text: "",
    media: [], // content parts of the API: pictures, sound, video and texts of files, each with the `name` of its file
    reasoning: "",
    calls: [], // tool calls: id, name, arguments
    callId: null, // of the call that a tool's message answers
    tokens: [], // token, logprob, and its alternatives in `top`
    model: null,
    finish: null, // why the answer ended; "stopped" by the person, "error" with `error`
    error: null,
    usage: null,
    timings: null,
    kept: null, // while the server goes on with the answer: the `id` of the request, and how many events were `taken`
    ...fields,
  };
}

function titleOf({ text, media }) {
  const line = (text || media[0]?.name || "Conversation").trim().split("\n")[0];
  return line.length > 60 ? `${line.slice(0, 59)}…` : line;
}

/**
 * Take into `here` what another tab kept of the same conversation. Messages that `isRunning` here stay as they are. The
 * branch goes on with what was added to its end, and else stays the one that is shown.
 */
export function merge(here, kept, isRunning) {
  const { messages, leaf, ...head } = kept;
  Object.assign(here, head);
  for (const [id, message] of Object.entries(messages)) {
    if (here.messages[id] === undefined) here.messages[id] = message;
    else if (!isRunning(here.messages[id])) Object.assign(here.messages[id], message);
  }
  for (let at = leaf; at !== null && at !== undefined; at = here.messages[at]?.parent) if (at === here.leaf) here.leaf = leaf;
}

/** Take a message out, and all that follows it; what is left of its branch is shown. Gives the ids of what is gone. */
export function removed(conversation, { id, parent }) {
  const gone = [id];
  for (const each of gone) gone.push(...childrenOf(conversation, each).map((child) => child.id));
  gone.forEach((each) => delete conversation.messages[each]);
  const others = childrenOf(conversation, parent);
  if (others.length > 0) showBranch(conversation, others.at(-1));
  else conversation.leaf = parent;
  return gone;
}

/** The messages of the branch that is shown, from the first. */
export function shown(conversation) {
  const path = [];
  for (let at = conversation.leaf; at !== null; at = conversation.messages[at].parent) path.push(conversation.messages[at]);
  return path.reverse();
}

/** A function that gives the messages which stand at the same place as one, itself among them, from the oldest. */
export function places({ messages }) {
  const after = Map.groupBy(Object.values(messages), ({ parent }) => parent);
  for (const children of after.values()) children.sort((one, other) => one.created - other.created);
  return ({ parent }) => after.get(parent);
}

function childrenOf(conversation, parent) {
  const children = Object.values(conversation.messages).filter((each) => each.parent === parent);
  return children.sort((one, other) => one.created - other.created);
}

/** Show the branch that goes through a message, on to its newest end. */
export function showBranch(conversation, through) {
  let at = through;
  for (;;) {
    const children = childrenOf(conversation, at.id);
    if (children.length === 0) break;
    at = children.at(-1);
  }
  conversation.leaf = at.id;
}

/**
 * Conversations as they were exported, checked. Throws an `Error` that says what is wrong, for the file may come from
 * anywhere.
 */
export function imported(text) {
  let read;
  try {
    read = JSON.parse(text);
  } catch {
    throw new Error("This file is not JSON.");
  }
  if (read?.format !== FORMAT || !Array.isArray(read.conversations)) {
    throw new Error("This file has no conversations of Pippin in it.");
  }
  return read.conversations.map(checked);
}

const FORMAT = "pippin-conversations";

/** The text of a file with these conversations. */
export function exported(conversations) {
  return JSON.stringify({ format: FORMAT, version: 1, conversations }, null, 1);
}

/** Only known fields of the right types are taken over, and a new id is given: an import replaces nothing. */
function checked(given) {
  const conversation = { ...newConversation(), title: asText(given.title), system: asText(given.system) };
  const messages = Object.values(Object(given.messages));
  const ids = new Set(messages.map(({ id }) => id));
  for (const each of messages) {
    const known = ["user", "assistant", "tool"].includes(each.role) && typeof each.id === "string";
    if (!known || !(each.parent === null || ids.has(each.parent))) throw new Error("A message in this file is damaged.");
    const kept = message(each.role, { id: each.id, parent: each.parent });
    for (const name of ["text", "reasoning"]) kept[name] = asText(each[name]);
    for (const name of ["model", "callId", "finish", "error"]) kept[name] = each[name] == null ? null : asText(each[name]);
    for (const name of ["media", "calls", "tokens"]) kept[name] = Array.isArray(each[name]) ? each[name] : [];
    kept.created = Number(each.created) || Date.now();
    conversation.messages[kept.id] = kept;
  }
  if (messages.length > 0 && !ids.has(given.leaf)) throw new Error("A conversation in this file has no end.");
  conversation.leaf = messages.length > 0 ? given.leaf : null;
  refuseCircles(conversation);
  return conversation;
}

function refuseCircles(conversation) {
  for (const start of Object.values(conversation.messages)) {
    const seen = new Set();
    for (let at = start.id; at !== null; at = conversation.messages[at].parent) {
      if (seen.has(at)) throw new Error("Messages in this file follow each other in a circle.");
      seen.add(at);
    }
  }
}

function asText(value) {
  return typeof value === "string" ? value : "";
}
