/** The console: what the server does now, on one screen that an operator leaves open. */

import { element, trying } from "../dom.js";
import { askJson } from "../server.js";
import { figuresPanel } from "./figures.js";
import { getPanel } from "./get.js";
import { logPanel } from "./log.js";
import { modelsPanel } from "./models.js";
import { requestsPanel } from "./requests.js";
import { usagePanel } from "./usage.js";

const PAUSE = 1000; // milliseconds between two looks
const SELDOM = 5; // looks between two at what changes seldom

/** Begin. What it gives looks each second until the part is left; `wanted` is a model to get. */
export function startConsole(place) {
  const get = getPanel();
  const figures = figuresPanel();
  const models = modelsPanel(get.open);
  const requests = requestsPanel();
  const usage = usagePanel();
  const log = logPanel();
  const left = element("div", { class: "columns" }, models.node, requests.node);
  const right = element("div", { class: "columns" }, log.node, usage.node);
  place.append(element("div", { class: "sheet" }, figures.node, left, right));
  let looks = 0;
  let looking = false;

  /** One look at a time: a busy server may take longer than the pause. */
  async function look() {
    if (looking) return;
    looking = true;
    await read().finally(() => (looking = false));
  }

  async function read() {
    const seldom = looks % SELDOM === 0;
    looks += 1;
    const status = await askJson("/v1/status");
    figures.show(status);
    requests.show(status.requests);
    models.showStates(status);
    await log.look();
    if (!seldom) return;
    models.showModels((await askJson("/v1/models")).data);
    usage.show((await askJson("/v1/usage")).data);
  }

  return (wanted) => {
    looks = 0;
    trying(look);
    const timer = setInterval(() => document.hidden || trying(look), PAUSE);
    if (wanted) get.open(decodeURIComponent(wanted));
    return () => clearInterval(timer);
  };
}
