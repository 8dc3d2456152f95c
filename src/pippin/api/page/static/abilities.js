/** What a model can be asked for. */

/** Whether a model does a task that takes a kind of its own: transcription, speech, images. Scripted models do all. */
export function does({ kind }, task) {
  return kind === task || kind === "scripted";
}

/** The model for a task, one in memory before others; undefined where there is none. */
export function modelFor(task, models) {
  const able = models.filter((model) => does(model, task));
  return able.find(({ loaded }) => loaded) ?? able[0];
}
