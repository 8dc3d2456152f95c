/** Conversations kept in this browser (IndexedDB), and nowhere else. */

const NAME = "pippin";
const TABLE = "conversations";

function opened() {
  return new Promise((resolve, reject) => {
    const request = indexedDB.open(NAME, 1);
    request.onupgradeneeded = () => request.result.createObjectStore(TABLE, { keyPath: "id" });
    request.onsuccess = () => resolve(request.result);
    request.onerror = () => reject(new Error("This browser keeps no conversations: private windows may forbid it."));
  });
}

async function run(mode, act) {
  const database = await opened();
  try {
    return await new Promise((resolve, reject) => {
      const transaction = database.transaction(TABLE, mode);
      const request = act(transaction.objectStore(TABLE));
      transaction.oncomplete = () => resolve(request.result);
      transaction.onabort = () => reject(new Error("The browser could not keep the conversation: its room is full."));
    });
  } finally {
    database.close();
  }
}

/** All conversations, the one that changed last first. */
export async function allConversations() {
  const found = await run("readonly", (table) => table.getAll());
  return found.sort((one, other) => other.changed - one.changed);
}

export function keep(conversation) {
  return run("readwrite", (table) => table.put(conversation));
}

export function forget(conversation) {
  return run("readwrite", (table) => table.delete(conversation.id));
}
