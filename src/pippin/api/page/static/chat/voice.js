/** Speech in the chat: what is said into the microphone goes into the question, and answers are read aloud. */

import { modelFor } from "../abilities.js";
import { ask, askJson } from "../server.js";

/**
 * Who listens: null where the model of the chat hears by itself, else the model that writes down what is said. Throws an
 * `Error` that says what to do where there is neither.
 */
export function writerFor(chosen, models) {
  if (models.find(({ id }) => id === chosen)?.capabilities.audio) return null;
  const writer = modelFor("transcription", models);
  if (writer !== undefined) return writer.id;
  throw new Error(
    `${chosen || "The model"} hears no sound, and no model for transcription is here to write it down. ` +
      "Get one under Models, as mlx-community/whisper-large-v3-turbo.",
  );
}

/** The words in a recording. */
export async function wordsOf(file, model) {
  const form = new FormData();
  form.append("model", model);
  form.append("file", file);
  const { text } = await askJson("/v1/audio/transcriptions", { method: "POST", form });
  if (text.trim() === "") throw new Error("Nothing was heard in the recording.");
  return text.trim();
}

/** A text read aloud, as a sound file. */
export async function readAloud(text, model) {
  const reply = await ask("/v1/audio/speech", { method: "POST", json: { model, input: text, response_format: "wav" } });
  return reply.blob();
}
