/** What surrounds the parts: the menu and other sides that open and close, colours, and shortcuts. */

import { told } from "./dialogs.js";
import { element } from "./dom.js";

const THEME = "pippin-theme";
const WIDE = matchMedia("(min-width: 60rem)");

const SHORTCUTS = [
  ["Enter", "send; while an answer runs, after it"],
  ["Shift+Enter", "a new line"],
  ["Escape", "stop the answer; close what is open"],
  ["↑ in an empty field", "edit the last question"],
  ["Ctrl+Shift+O", "a new conversation"],
  ["Ctrl+K", "search conversations"],
  ["Ctrl+B", "show or hide the menu"],
  ["Ctrl+.", "show or hide the parameters"],
  ["Ctrl+/", "this list"],
];

const menu = () => document.getElementById("menu");

export function startShell() {
  for (const opener of document.querySelectorAll("[data-opens]")) listenTo(opener);
  for (const closer of document.querySelectorAll(".closes")) closer.addEventListener("click", () => close(closer.closest(".side")));
  menu().toggleAttribute("data-open", WIDE.matches);
  WIDE.addEventListener("change", () => menu().toggleAttribute("data-open", WIDE.matches));
  document.getElementById("shortcuts").addEventListener("click", showShortcuts);
  document.addEventListener("keydown", shortcut);
  document.addEventListener("click", closeByClick, { capture: true });
  listenToTheme();
}

/** Close what lies over the page; on a wide window sides stand beside it. */
export function closeOverlays() {
  if (!WIDE.matches) closeSides();
}

/** Close what is open, but for the menu of a wide window. Gives whether there was any. */
function closeSides() {
  const open = [...document.querySelectorAll(".side[data-open]")].filter((side) => side !== menu() || !WIDE.matches);
  open.forEach(close);
  return open.length > 0;
}

/** A click beside what lies over the page closes it, and does nothing else. */
function closeByClick(event) {
  if (WIDE.matches || event.target.closest(".side, dialog") || !document.querySelector(".side[data-open]")) return;
  event.preventDefault();
  event.stopPropagation();
  closeSides();
}

function close(side) {
  const held = side.contains(document.activeElement);
  side.removeAttribute("data-open");
  if (held) document.querySelector(`[data-opens=${side.id}]`).focus();
}

function listenTo(opener) {
  const side = document.getElementById(opener.dataset.opens);
  const tell = () => opener.setAttribute("aria-expanded", String(side.hasAttribute("data-open")));
  opener.addEventListener("click", () => side.toggleAttribute("data-open"));
  new MutationObserver(tell).observe(side, { attributeFilter: ["data-open"] });
}

function shortcut(event) {
  if (event.key === "Escape" && !document.querySelector("dialog") && closeSides()) event.preventDefault();
  const act = (event.ctrlKey || event.metaKey) && {
    b: () => menu().toggleAttribute("data-open"),
    ".": () => document.getElementById("chat-side").toggleAttribute("data-open"),
    "/": showShortcuts,
  }[event.key.toLowerCase()];
  if (!act) return;
  event.preventDefault();
  act();
}

function showShortcuts() {
  told("Shortcuts", element("dl", { class: "keys" }, ...SHORTCUTS.flatMap(([key, does]) => [element("dt", {}, element("kbd", {}, key)), element("dd", {}, does)])));
}

/** Light, dark, or as the system has it; kept in this browser. */
function listenToTheme() {
  const choice = document.getElementById("theme");
  const apply = () => (document.documentElement.dataset.theme = choice.value);
  choice.value = localStorage.getItem(THEME) ?? "system";
  choice.addEventListener("change", () => {
    localStorage.setItem(THEME, choice.value);
    apply();
  });
  apply();
}
