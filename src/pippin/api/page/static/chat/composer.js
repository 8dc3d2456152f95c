/** The box to write in: the text, the files that go along, and the microphone. */

import { button, element, trying } from "../dom.js";
import { icon } from "../icons.js";
import { recordButton } from "../microphone.js";
import { partOf } from "./attachments.js";
import { mediaView } from "./message.js";
import { wordsOf } from "./voice.js";

const LONG_PASTE = 4000; // letters from which on a pasted text becomes a file

const at = (id) => document.getElementById(id);

export class Composer {
  /**
   * `send(question)` gets what is sent, a `text` and `media`; `stop()` ends the answer that runs; `writer()` gives the
   * model that writes down what is said, null where the chat's own hears; `editLast()` is for an arrow up.
   */
  constructor({ send, stop, writer, editLast }) {
    this.acts = { send, stop, editLast };
    this.media = [];
    this.running = false;
    this.input = at("chat-input");
    at("chat-form").addEventListener("submit", (event) => {
      event.preventDefault();
      if (this.running) stop();
      else this.send();
    });
    this.input.addEventListener("keydown", (event) => this.key(event));
    this.input.addEventListener("paste", (event) => this.paste(event));
    at("chat").addEventListener("dragover", (event) => event.preventDefault());
    at("chat").addEventListener("drop", (event) => {
      event.preventDefault();
      this.attach(event.dataTransfer.files);
    });
    at("chat-files").addEventListener("change", (event) => {
      this.attach(event.target.files).then(() => (event.target.value = ""));
    });
    at("chat-record").append(recordButton((file) => this.hear(file, writer()), { ready: writer }));
    this.tell(false);
  }

  focus() {
    this.input.focus();
  }

  /** Show whether an answer runs, which the button then stops. */
  tell(running) {
    this.running = running;
    const send = at("chat-send");
    send.replaceChildren(icon(running ? "stop" : "send"));
    send.setAttribute("aria-label", running ? "Stop" : "Send");
    send.title = running ? "Stop (Escape)" : "Send (Enter)";
  }

  key(event) {
    if (event.key === "Enter" && !event.shiftKey && !event.isComposing) {
      event.preventDefault();
      this.send();
    } else if (event.key === "ArrowUp" && this.input.value === "") {
      this.acts.editLast();
    }
  }

  send() {
    const question = { text: this.input.value.trim(), media: this.media };
    if (question.text === "" && question.media.length === 0) return;
    this.input.value = "";
    this.media = [];
    this.draw();
    this.acts.send(question);
  }

  async attach(files) {
    for (const file of files) await trying(async () => this.media.push(await partOf(file)));
    this.draw();
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
    if (writer === null) await this.attach([file]);
    else this.input.value = [this.input.value.trimEnd(), await wordsOf(file, writer)].filter(Boolean).join(" ");
    this.focus();
  }

  draw() {
    const views = this.media.map((part, index) => {
      const drop = () => {
        this.media.splice(index, 1);
        this.draw();
      };
      return element("li", {}, mediaView(part), button("×", drop, { "aria-label": `Leave out ${part.name}`, class: "small" }));
    });
    at("chat-media").replaceChildren(...views);
  }
}
