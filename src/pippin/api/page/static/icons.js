/** The page's signs, as strokes on a field of 24 by 24. */

const SVG = "http://www.w3.org/2000/svg";

const STROKES = {
  chat: "M4 5h16v11H9l-5 4z",
  clip: "M20 11l-8.5 8.5a4.9 4.9 0 0 1-7-7L13 4a3.3 3.3 0 0 1 4.7 4.7l-8.4 8.4a1.6 1.6 0 0 1-2.4-2.3L14.5 7",
  close: "M6 6l12 12M18 6L6 18",
  flask: "M9 3h6M10 3v6l-5 9a2 2 0 0 0 2 3h10a2 2 0 0 0 2-3l-5-9V3M8 15h8",
  gear: "M12 15a3 3 0 1 0 0-6 3 3 0 0 0 0 6zM12 3v3M12 18v3M3 12h3M18 12h3M5.6 5.6l2.1 2.1M16.3 16.3l2.1 2.1M5.6 18.4l2.1-2.1M16.3 7.7l2.1-2.1",
  menu: "M4 7h16M4 12h16M4 17h16",
  microphone: "M12 15a3 3 0 0 0 3-3V6a3 3 0 0 0-6 0v6a3 3 0 0 0 3 3zM6 11a6 6 0 0 0 12 0M12 17v4",
  pencil: "M4 20l1-4L16 5l3 3L8 19z",
  plus: "M12 5v14M5 12h14",
  pulse: "M3 12h4l3-8 4 16 3-8h4",
  send: "M12 19V5M6 11l6-6 6 6",
  sliders: "M4 8h9M17 8h3M4 16h3M11 16h9M15 6v4M9 14v4",
  stop: "M8 8h8v8H8z",
  trash: "M5 7h14M10 7V4h4v3M7 7l1 13h8l1-13",
};

/** A sign; a label beside it, or of its button, says what it means. */
export function icon(name) {
  const svg = document.createElementNS(SVG, "svg");
  svg.setAttribute("viewBox", "0 0 24 24");
  svg.setAttribute("class", "sign");
  svg.setAttribute("aria-hidden", "true");
  const path = document.createElementNS(SVG, "path");
  path.setAttribute("d", STROKES[name]);
  svg.append(path);
  return svg;
}

/** Give each element that asks for a sign its own. */
export function drawIcons(place) {
  for (const each of place.querySelectorAll("[data-icon]")) each.prepend(icon(each.dataset.icon));
}
