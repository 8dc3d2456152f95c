/** Where the page begins: its parts, of which one is shown, and what opens and closes at the side on a phone. */

import { startChat } from "./chat/chat.js";
import { startModels } from "./models.js";
import { startNow } from "./now.js";
import { startSettings } from "./settings.js";
import { startTry } from "./try.js";

/**
 * Each gives a function that is called whenever its part is shown, with what follows its name in the address; that one may
 * give what to call when it is left.
 */
const STARTS = { chat: startChat, models: startModels, now: startNow, try: startTry, settings: startSettings };

const THEME = "pippin-theme";

const started = new Map();
let leave = null;

/** Show the part that the address names after `#`, as in `#models` and `#chat/ID`, or else the chat. */
function show() {
  const [named, id] = location.hash.slice(1).split("/");
  const name = named in STARTS ? named : "chat";
  leave?.();
  for (const each of Object.keys(STARTS)) {
    const tab = document.getElementById(`tab-${each}`);
    document.getElementById(each).hidden = each !== name;
    tab.setAttribute("aria-selected", String(each === name));
    tab.tabIndex = each === name ? 0 : -1;
  }
  if (!started.has(name)) started.set(name, STARTS[name](document.getElementById(name)));
  leave = started.get(name)(id) ?? null;
  closeSides();
}

function listenToTabs() {
  const tabs = [...document.querySelectorAll("[role=tab]")];
  for (const [index, tab] of tabs.entries()) {
    tab.addEventListener("click", () => (location.hash = tab.dataset.address ?? tab.getAttribute("aria-controls")));
    tab.addEventListener("keydown", (event) => {
      const step = { ArrowRight: 1, ArrowLeft: -1 }[event.key];
      if (step === undefined) return;
      const next = tabs[(index + step + tabs.length) % tabs.length];
      next.click();
      next.focus();
    });
  }
}

/** What opens a side of the chat, and closes it again. */
function listenToOpeners() {
  for (const opener of document.querySelectorAll("[data-opens]")) {
    const side = document.getElementById(opener.dataset.opens);
    const tell = () => opener.setAttribute("aria-expanded", String(side.hasAttribute("data-open")));
    opener.addEventListener("click", () => side.toggleAttribute("data-open"));
    new MutationObserver(tell).observe(side, { attributeFilter: ["data-open"] });
  }
  for (const closer of document.querySelectorAll(".closes")) closer.addEventListener("click", closeSides);
  document.addEventListener("keydown", (event) => {
    if (event.key === "Escape") closeSides();
  });
}

function closeSides() {
  for (const side of document.querySelectorAll(".side")) side.removeAttribute("data-open");
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

listenToTabs();
listenToOpeners();
listenToTheme();
addEventListener("hashchange", show);
addEventListener("popstate", show);
show();
