/** Where the page begins: its parts, of which the address names the one that is shown. */

import { startChat } from "./chat/chat.js";
import { startConsole } from "./console/console.js";
import { drawIcons } from "./icons.js";
import { startSettings } from "./settings/settings.js";
import { closeOverlays, startShell } from "./shell.js";
import { startTry } from "./try.js";

/**
 * Each gives a function that is called whenever its part is shown, with what follows its name in the address; that one may
 * give what to call when it is left.
 */
const STARTS = { chat: startChat, console: startConsole, try: startTry, settings: startSettings };

const started = new Map();
let leave = null;

/** Show the part that the address names after `#`, as in `#console` and `#chat/ID`, or else the chat. */
function show() {
  const [named, id] = location.hash.slice(1).split("/");
  const name = named in STARTS ? named : "chat";
  leave?.();
  for (const each of Object.keys(STARTS)) {
    const link = document.getElementById(`tab-${each}`);
    document.getElementById(each).hidden = each !== name;
    if (each === name) link.setAttribute("aria-current", "page");
    else link.removeAttribute("aria-current");
  }
  const title = document.getElementById(`tab-${name}`).textContent;
  document.getElementById("part").textContent = title;
  document.title = `${title} · Pippin`;
  document.body.dataset.part = name;
  if (!started.has(name)) started.set(name, STARTS[name](document.getElementById(name)));
  leave = started.get(name)(id) ?? null;
  closeOverlays();
}

drawIcons(document);
startShell();
addEventListener("hashchange", show);
addEventListener("popstate", show);
show();
