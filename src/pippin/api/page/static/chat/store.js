/**
 * Conversations kept in this browser (IndexedDB), and nowhere else: a record for each conversation, and one for each of
 * its messages. Only the tab that a message came to writes it, so tabs that have the same conversation open take nothing
 * from each other; each is told what another wrote.
 */

const NAME = "pippin";
const VERSION = 2;
const HEADS = "heads";
const MESSAGES = "messages";
const BEFORE = "conversations"; // version 1: whole conversations

const channel = new BroadcastChannel(NAME);

function opened() {
  return new Promise((resolve, reject) => {
    const request = indexedDB.open(NAME, VERSION);
    request.onupgradeneeded = () => upgrade(request.result, request.transaction);
    request.onsuccess = () => {
      const database = request.result;
      database.onversionchange = () => database.close();
      resolve(database);
    };
    request.onerror = () => reject(new Error("This browser keeps no conversations: private windows may forbid it."));
  });
}

function upgrade(database, transaction) {
  database.createObjectStore(HEADS, { keyPath: "id" });
  const messages = database.createObjectStore(MESSAGES, { keyPath: ["conversation", "id"] });
  messages.createIndex("conversation", "conversation");
  if (!database.objectStoreNames.contains(BEFORE)) return;
  transaction.objectStore(BEFORE).getAll().onsuccess = ({ target }) => {
    for (const each of target.result) {
      transaction.objectStore(HEADS).put(headOf(each));
      for (const message of Object.values(each.messages)) messages.put({ ...message, conversation: each.id });
    }
    database.deleteObjectStore(BEFORE);
  };
}

async function run(mode, act) {
  const database = await opened();
  try {
    return await new Promise((resolve, reject) => {
      const transaction = database.transaction([HEADS, MESSAGES], mode);
      const result = act(transaction.objectStore(HEADS), transaction.objectStore(MESSAGES));
      transaction.oncomplete = () => resolve(result);
      transaction.onabort = () => reject(new Error("The browser could not keep the conversation: its room is full."));
    });
  } finally {
    database.close();
  }
}

function headOf({ messages, ...head }) {
  return head;
}

function whole(head, messages) {
  const found = {};
  for (const { conversation, ...message } of messages) found[message.id] = message;
  return { ...head, messages: found };
}

/** All conversations, the one that changed last first. */
export async function allConversations() {
  const [heads, messages] = await run("readonly", (heads, messages) => [heads.getAll(), messages.getAll()]);
  const of = Map.groupBy(messages.result, ({ conversation }) => conversation);
  const found = heads.result.map((head) => whole(head, of.get(head.id) ?? []));
  return found.sort((one, other) => other.changed - one.changed);
}

/** One conversation as it is kept, or null. */
export async function conversationOf(id) {
  const [head, messages] = await run("readonly", (heads, messages) => [heads.get(id), messages.index("conversation").getAll(id)]);
  return head.result === undefined ? null : whole(head.result, messages.result);
}

/** Keep a conversation's title, system prompt and end, and the given messages of it. */
export async function keep(conversation, messages) {
  await run("readwrite", (heads, table) => {
    heads.put(headOf(conversation));
    for (const message of messages) table.put({ ...message, conversation: conversation.id });
  });
  channel.postMessage(conversation.id);
}

/** Delete messages of a conversation by their ids. */
export async function forgetMessages({ id: conversation }, ids) {
  await run("readwrite", (_, table) => ids.forEach((id) => table.delete([conversation, id])));
}

export async function forget({ id, messages }) {
  await run("readwrite", (heads, table) => {
    heads.delete(id);
    Object.keys(messages).forEach((message) => table.delete([id, message]));
  });
  channel.postMessage(id);
}

/** Call `listener(id)` whenever another tab changed a conversation. */
export function onChange(listener) {
  channel.onmessage = ({ data }) => listener(data);
}
