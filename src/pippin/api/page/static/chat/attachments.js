/** Files that a person gives along: pictures, sound, video and PDF as they are, other files as the text in them. */

const LARGEST_MB = 40;

/** The content part of the API for a file, with its name. Throws an `Error` for a file that no model reads. */
export async function partOf(file) {
  if (file.size > LARGEST_MB * 1e6) throw new Error(`${file.name} is larger than ${LARGEST_MB} MB.`);
  const kind = file.type.split("/")[0];
  if (kind === "image") return { name: file.name, type: "image_url", image_url: { url: await dataUrl(file) } };
  if (kind === "video") return { name: file.name, type: "video_url", video_url: { url: await dataUrl(file) } };
  if (kind === "audio") {
    const url = await dataUrl(file);
    const format = file.name.split(".").pop().toLowerCase();
    return { name: file.name, type: "input_audio", input_audio: { data: url.slice(url.indexOf(",") + 1), format } };
  }
  if (file.type === "application/pdf") {
    return { name: file.name, type: "file", file: { filename: file.name, file_data: await dataUrl(file) } };
  }
  return { name: file.name, type: "text", text: `${file.name}:\n\n${await textOf(file)}` };
}

/** A part as it is sent: the API has no field for the name of a file. */
export function withoutName({ name, ...part }) {
  return part;
}

/** The address at which the browser can show a part, or null where there is nothing to show. */
export function previewOf(part) {
  const address = part.image_url?.url ?? part.video_url?.url ?? null;
  if (address !== null) return /^data:(image|video)\//.test(address) ? address : null;
  return part.type === "input_audio" ? `data:audio/${part.input_audio.format};base64,${part.input_audio.data}` : null;
}

function dataUrl(file) {
  return new Promise((resolve, reject) => {
    const reader = new FileReader();
    reader.onload = () => resolve(reader.result);
    reader.onerror = () => reject(new Error(`${file.name} can't be read.`));
    reader.readAsDataURL(file);
  });
}

async function textOf(file) {
  const bytes = await file.arrayBuffer();
  try {
    const text = new TextDecoder("utf-8", { fatal: true }).decode(bytes);
    if (!text.includes("\0")) return text;
  } catch {
    // Not UTF-8, so it is no text.
  }
  throw new Error(`${file.name} is neither text, PDF, picture, sound nor video.`);
}
