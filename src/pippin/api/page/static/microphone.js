/** Sound from the microphone, as a WAV file: the one format that every model with ears reads. */

import { announce, button, element, trying } from "./dom.js";
import { icon } from "./icons.js";

const RATE = 16000; // samples a second, which is what models hear
const LONGEST_MINUTES = 10;

const REFUSALS = {
  NotAllowedError: "This page may not use the microphone. Allow it in the browser, beside the address, or attach a recording.",
  NotFoundError: "The browser finds no microphone. A recording can be attached.",
  NotReadableError: "The microphone can't be opened: another program may have it.",
};

/**
 * A button that records: pressed once it begins, pressed again it ends, and `take(file)` gets the recording. Escape, or
 * to leave this part of the page, throws it away. `ready()` is asked first, and may throw what speaks against it.
 */
export function recordButton(take, { ready = () => {}, attributes = {} } = {}) {
  let recording = null;
  const label = element("span", { class: "label" }, "Record");
  const control = button([icon("microphone"), label], () => trying(toggle), { title: "Record", ...attributes });

  async function toggle() {
    if (recording) return recording.stop();
    if (control.ariaDisabled === "true") return;
    ready();
    recording = await busy(() => Recording.begin());
    announce("Recording.", "silent");
    const ended = new AbortController();
    const { signal } = ended;
    const leave = () => recording.drop();
    document.addEventListener("keydown", (event) => event.key === "Escape" && leave(), { signal });
    addEventListener("hashchange", leave, { signal });
    const ticking = setInterval(tell, 250);
    tell();
    const blob = await recording.ended;
    clearInterval(ticking);
    ended.abort();
    recording = null;
    control.classList.remove("stop");
    if (blob === null) {
      label.textContent = "Record";
      return announce("The recording is thrown away.");
    }
    label.textContent = "Listening …";
    try {
      await busy(async () => take(await asWave(blob)));
    } finally {
      label.textContent = "Record";
    }
  }

  /** Nothing begins meanwhile; the button keeps the focus, which a disabled one would lose. */
  async function busy(act) {
    control.ariaDisabled = "true";
    try {
      return await act();
    } finally {
      control.ariaDisabled = null;
    }
  }

  function tell() {
    const past = Math.floor((performance.now() - recording.begun) / 1000);
    control.classList.add("stop");
    label.textContent = `Stop ${Math.floor(past / 60)}:${String(past % 60).padStart(2, "0")}`;
    if (past >= 60 * LONGEST_MINUTES) recording.stop();
  }

  return control;
}

/** What the browser records now. `ended` becomes what was recorded, or null where it was thrown away. */
class Recording {
  /** Asks the person for the microphone. Throws an `Error` that says why there is none. */
  static async begin() {
    if (!navigator.mediaDevices || !globalThis.MediaRecorder) {
      throw new Error("Browsers give the microphone to pages of localhost or https alone. A recording can be attached.");
    }
    try {
      return new Recording(await navigator.mediaDevices.getUserMedia({ audio: { channelCount: 1 } }));
    } catch (error) {
      throw new Error(REFUSALS[error.name] ?? `The microphone can't be used: ${error.message}`);
    }
  }

  constructor(stream) {
    const pieces = [];
    this.begun = performance.now();
    this.kept = true;
    this.recorder = new MediaRecorder(stream);
    this.recorder.addEventListener("dataavailable", ({ data }) => pieces.push(data));
    this.ended = new Promise((resolve) => {
      this.recorder.addEventListener("stop", () => {
        for (const track of stream.getTracks()) track.stop();
        resolve(this.kept ? new Blob(pieces, { type: this.recorder.mimeType }) : null);
      });
    });
    this.recorder.start();
  }

  /** Ends too when the microphone is pulled out, which the recorder notices by itself. */
  stop() {
    if (this.recorder.state !== "inactive") this.recorder.stop();
  }

  drop() {
    this.kept = false;
    this.stop();
  }
}

/** A recording of the browser, whose format is the browser's choice, as a WAV file of one channel. */
async function asWave(blob) {
  let sound;
  try {
    // A context decodes to its own rate, however few samples it would render.
    sound = await new OfflineAudioContext(1, 1, RATE).decodeAudioData(await blob.arrayBuffer());
  } catch {
    throw new Error("The recording is empty. Record for a second at least.");
  }
  const channels = Array.from({ length: sound.numberOfChannels }, (_, index) => sound.getChannelData(index));
  const samples = Int16Array.from({ length: sound.length }, (_, at) => {
    const mean = channels.reduce((sum, channel) => sum + channel[at], 0) / channels.length;
    return Math.round(Math.max(-1, Math.min(1, mean)) * 32767);
  });
  return new File([waveHeader(samples.byteLength), samples], "recording.wav", { type: "audio/wav" });
}

/** The head of a RIFF file with so many bytes of 16-bit samples of one channel, as Microsoft's "WAVE" format has it. */
function waveHeader(bytes) {
  const header = new DataView(new ArrayBuffer(44));
  const word = (at, letters) => [...letters].forEach((letter, index) => header.setUint8(at + index, letter.charCodeAt(0)));
  word(0, "RIFF");
  header.setUint32(4, 36 + bytes, true);
  word(8, "WAVEfmt ");
  header.setUint32(16, 16, true); // bytes of what describes the format
  header.setUint16(20, 1, true); // whole numbers, not compressed
  header.setUint16(22, 1, true); // channels
  header.setUint32(24, RATE, true);
  header.setUint32(28, RATE * 2, true); // bytes a second
  header.setUint16(32, 2, true); // bytes of all channels at one moment
  header.setUint16(34, 16, true); // bits
  word(36, "data");
  header.setUint32(40, bytes, true);
  return header;
}
