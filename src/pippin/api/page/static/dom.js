/** Builds the document without HTML: what is text stays text. */

/**
 * An element with attributes and children. `on` has its listeners by event; true and false set and leave out an
 * attribute; children are nodes or texts, and null is no child.
 */
export function element(name, attributes = {}, ...children) {
  const made = document.createElement(name);
  for (const [key, value] of Object.entries(attributes)) {
    if (key === "on") {
      for (const [event, listener] of Object.entries(value)) made.addEventListener(event, listener);
    } else if (value === true) {
      made.setAttribute(key, "");
    } else if (value !== false && value !== null && value !== undefined) {
      made.setAttribute(key, value);
    }
  }
  made.append(...children.flat().filter((child) => child !== null && child !== undefined));
  return made;
}

/** A button that says what it does; `attributes` may add to it. */
export function button(label, act, attributes = {}) {
  return element("button", { type: "button", ...attributes, on: { click: act } }, label);
}

/** A control below its label. */
export function labelled(label, control, help = null) {
  return element("label", { class: "field" }, element("span", {}, label), control, help && element("small", {}, help));
}

/** Say something that screen readers read out and everybody sees for a while. */
export function announce(sentence, kind = "note") {
  const place = document.getElementById("announcements");
  const note = element("p", { class: kind }, sentence);
  // What is said again stands there once.
  for (const before of [...place.children]) if (before.textContent === sentence) before.remove();
  place.append(note);
  setTimeout(() => note.remove(), kind === "error" ? 12000 : 4000);
}

/** Carry out what a person asked for, and say it when it fails. */
export async function trying(act) {
  try {
    return await act();
  } catch (error) {
    // A server that is away is told in one place, for as long as it is.
    if (!["AbortError", "Away"].includes(error.name)) announce(error.message, "error");
    return null;
  }
}

/** Hand a file to the person. */
export function download(name, text, type = "application/json") {
  const address = URL.createObjectURL(new Blob([text], { type }));
  element("a", { href: address, download: name }).click();
  setTimeout(() => URL.revokeObjectURL(address), 10000);
}
