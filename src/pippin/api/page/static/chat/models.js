/** The model that answers, and what the chat says where there is no message yet. */

import { button, element } from "../dom.js";
import { bytes } from "../format.js";
import { askAgain, currentKey } from "../keys.js";
import { Refusal, askJson } from "../server.js";
import { suggestions } from "../suggestions.js";

const CHOSEN = "pippin-chat-model";

const at = (id) => document.getElementById(id);

export class Models {
  constructor(changed) {
    this.all = []; // that the server has
    at("chat-model").addEventListener("change", (event) => {
      localStorage.setItem(CHOSEN, event.target.value);
      changed();
    });
  }

  get chosen() {
    return at("chat-model").value;
  }

  /** Those that can chat. */
  get able() {
    return this.all.filter(({ capabilities }) => capabilities.chat);
  }

  /** Read what the server has. Throws as `askJson` does, after it has said why there is none. */
  async list() {
    try {
      this.all = (await askJson("/v1/models")).data;
    } catch (error) {
      if (error instanceof Refusal && error.status === 401) this.empty(...withoutKey(() => this.list()));
      throw error;
    }
    const { able } = this;
    const wanted = localStorage.getItem(CHOSEN);
    const chosen = able.find(({ id }) => id === wanted) ?? able.find(({ loaded }) => loaded) ?? able[0];
    at("chat-model").replaceChildren(
      ...able.map((each) => element("option", { value: each.id, selected: each.id === chosen.id }, each.loaded ? each.id : `${each.id} (not loaded${sizeOf(each)})`)),
    );
    at("chat-model").hidden = able.length === 0;
    if (chosen) this.empty(element("h2", {}, "What is on your mind?"), element("p", { class: "quiet" }, about(chosen)));
    else this.empty(element("h2", {}, "No model to chat with yet"), await suggestions());
  }

  empty(...nodes) {
    at("chat-empty").replaceChildren(...nodes);
  }
}

function sizeOf({ metadata }) {
  return metadata?.size_bytes ? `, ${bytes(metadata.size_bytes)}` : "";
}

/** A model in a sentence: what it takes, and how long a conversation may be. */
function about({ id, capabilities, context_length: context }) {
  const takes = [capabilities.images && "pictures", capabilities.audio && "sound", capabilities.video && "video", "PDF and texts"].filter(Boolean);
  const length = context ? `, in conversations of up to ${context.toLocaleString("en")} tokens` : "";
  return `${id} answers here${length}. ${takes.join(", ").replace(/^./, (letter) => letter.toUpperCase())} can be dropped, pasted or attached.`;
}

function withoutKey(again) {
  const give = async () => {
    if (await askAgain()) location.reload();
    else again();
  };
  const why = currentKey() ? "The server does not know the key of this tab." : "This server answers only to those who show its key.";
  return [element("h2", {}, "A key is needed"), element("p", { class: "quiet" }, why), element("div", { class: "row" }, button("Give the key", give))];
}
