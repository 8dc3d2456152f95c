/** The tokens of an answer: how likely each was, and what else could have stood there. */

import { element } from "../dom.js";
import { percent } from "../format.js";

/** Tokens as a text in which each can be chosen, by pointer or by arrow keys, with the alternatives below. */
export function tokensView(tokens) {
  const alternatives = element("div", { class: "alternatives", "aria-live": "polite" }, "Choose a token.");
  const buttons = tokens.map((token, index) =>
    element(
      "button",
      {
        type: "button",
        class: `token p${Math.min(4, Math.floor(Math.exp(token.logprob) * 5))}`,
        tabindex: index === 0 ? "0" : "-1",
        on: { click: () => choose(index) },
      },
      visible(token.token),
    ),
  );

  function choose(index) {
    const chosen = Math.max(0, Math.min(buttons.length - 1, index));
    for (const [at, each] of buttons.entries()) {
      each.tabIndex = at === chosen ? 0 : -1;
      each.setAttribute("aria-pressed", String(at === chosen));
    }
    buttons[chosen].focus();
    alternatives.replaceChildren(table(tokens[chosen]));
  }

  function move(event) {
    const step = { ArrowRight: 1, ArrowDown: 1, ArrowLeft: -1, ArrowUp: -1 }[event.key];
    if (step === undefined) return;
    event.preventDefault();
    choose(buttons.indexOf(document.activeElement) + step);
  }

  const text = element("div", { class: "tokens", role: "group", "aria-label": "Tokens", on: { keydown: move } }, ...buttons);
  return element("div", {}, text, alternatives);
}

function table({ token, logprob, top }) {
  const others = top.some((other) => other.token === token) ? top : [{ token, logprob }, ...top];
  const rows = others.map((other) =>
    element(
      "tr",
      { class: other.token === token ? "chosen" : null },
      element("td", {}, element("code", {}, visible(other.token))),
      element("td", {}, element("meter", { min: 0, max: 1, value: Math.exp(other.logprob), "aria-label": "Probability" })),
      element("td", {}, percent(Math.exp(other.logprob))),
    ),
  );
  const head = element("tr", {}, ...["Token", "", "Probability"].map((name) => (name ? element("th", {}, name) : element("td"))));
  return element("table", {}, element("thead", {}, head), element("tbody", {}, ...rows));
}

function visible(token) {
  return token.replaceAll("\n", "⏎").replaceAll("\t", "⇥") || "∅";
}
