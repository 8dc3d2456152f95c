/**
 * Markdown of a model as nodes of the document.
 *
 * A model's text is not to be trusted: HTML in it is shown as text, what marked makes of the rest goes through DOMPurify,
 * pictures from elsewhere become links, and mathematics is drawn by KaTeX from text, after that.
 */

import DOMPurify from "../vendor/dompurify/purify.js";
import hljs from "../vendor/highlight/highlight.js";
import { Marked } from "../vendor/marked/marked.js";
import { announce, button, element } from "./dom.js";

const ALLOWED = {
  ALLOWED_TAGS: [
    ..."a p br hr h3 ul ol li blockquote pre code em strong del table thead tbody tr th td span".split(" "),
  ],
  ALLOWED_ATTR: ["href", "class", "align", "start"],
  ALLOW_DATA_ATTR: false,
  ALLOW_ARIA_ATTR: false,
  RETURN_DOM_FRAGMENT: true,
};

/** Letters of the longest code that gets colours: more would keep the page from answering for too long. */
const MOST_COLOURED = 12_000;

/** Reading takes quadratic time: letters of the longest text without a new item, row or quoted line, and without an
 * empty line, that is read as Markdown, and marks of emphasis in a paragraph. */
const LONGEST = 10_000;
const LONGEST_BLOCK = 60_000;
const MOST_MARKS = 500;

const FENCED = /^ {0,3}(`{3,}|~{3,})[^\n]*\n[\s\S]*?(?:^ {0,3}\1|$(?![\s\S]))/gm;

/** Blocks at the end of a text that what follows may still change: an item may join a list, a line a table. */
const UNSETTLED = 3;

const PORTION = 100; // lines of code that are laid out together

const SAFE_LINK = /^(https?:|mailto:|#)/i;

const marked = new Marked({ gfm: true, breaks: true });
marked.use({
  extensions: [
    mathematics("displayMath", "block", [/^\$\$([\s\S]{1,4000}?)\$\$(?:\n|$)/, /^\\\[([\s\S]{1,4000}?)\\\](?:\n|$)/], /\$\$|\\\[/),
    // A dollar is money unless the text hugs it on both sides and no digit follows: the rule of Pandoc.
    mathematics("math", "inline", [
      /^\$\$([^$]{1,4000}?)\$\$/, /^\\\[([\s\S]{1,4000}?)\\\]/, /^\\\(([\s\S]{1,4000}?)\\\)/,
      /^\$(?![\s$])((?:\\.|[^$\\\n]){1,4000}?)(?<![\s\\])\$(?!\d)/,
    ], /\$|\\[([]/),
  ],
  tokenizer: { emStrong: (source, all) => (hasManyMarks(all) ? undefined : false) },
  renderer: {
    html: ({ text }) => escaped(text),
    // The page's own headings end at the third level, and no answer makes new chapters of it.
    heading({ tokens, depth }) {
      return `<h3 class="d${depth}">${this.parser.parseInline(tokens)}</h3>`;
    },
    image: ({ href, text }) => `<a href="${escaped(href)}">${escaped(text || href)}</a>`,
    checkbox: ({ checked }) => (checked ? "☑ " : "☐ "),
  },
});

/** A rule of marked for one way to write mathematics. The text becomes that of an element, and no HTML. */
function mathematics(name, level, forms, start) {
  return {
    name,
    level,
    start: (source) => source.match(start)?.index,
    tokenizer(source) {
      for (const form of forms) {
        const found = form.exec(source);
        if (found) {
          const display = level === "block" || /^(\$\$|\\\[)/.test(found[0]);
          return { type: name, raw: found[0], text: found[1].trim(), display };
        }
      }
      return undefined;
    },
    renderer: ({ text, display }) => `<span class="math${display ? " display" : ""}">${escaped(text)}</span>`,
  };
}

let counted = ["", false]; // the last paragraph, which is asked about at each of its marks

function hasManyMarks(text) {
  if (counted[0] !== text) counted = [text, (text.match(/[*_]+/g)?.length ?? 0) > MOST_MARKS];
  return counted[1];
}

/** The tokens of a text. One that would take too long, or is nested too deeply to be read, is plain. */
function lexed(text) {
  const unfenced = text.length > LONGEST ? text.replace(FENCED, "\n\n") : "";
  const fits = (longest, ends) => unfenced.split(ends).every(({ length }) => length <= longest);
  try {
    if (fits(LONGEST, /\n(?=\s*(?:$|[-*+|>#]|\d+[.)]))/m) && fits(LONGEST_BLOCK, /\n[ \t]*\n/)) return marked.lexer(text);
  } catch (error) {
    if (!(error instanceof RangeError)) throw error;
  }
  const plain = { type: "text", raw: text, text, escaped: false };
  return Object.assign([{ ...plain, type: "paragraph", tokens: [plain] }], { links: {} });
}

function escaped(text) {
  return text.replace(/[&<>"']/g, (character) => `&#${character.codePointAt(0)};`);
}

/** Text that grows, in an element: only the blocks that changed are read and drawn again, so that a selection survives. */
export class GrowingMarkdown {
  constructor(place) {
    this.place = place;
    this.text = "";
    this.blocks = [];
  }

  /** `grows`: more text will come. A code block at the end is then added to as it is, and gets its colours at its end. */
  show(given, grows = false) {
    const text = given.replace(/\r\n?/g, "\n"); // as marked counts letters
    const settled = grows && text.startsWith(this.text) ? Math.max(0, this.blocks.length - UNSETTLED) : 0;
    const read = this.blocks.slice(0, settled).reduce((sum, { raw }) => sum + raw.length, 0);
    if (this.blocks.length === 0) this.place.replaceChildren(); // what stood there before
    this.text = text;
    const tokens = lexed(text.slice(read));
    const open = grows && tokens.at(-1)?.type === "code" ? tokens.at(-1) : null;
    let same = settled;
    while (same < this.blocks.length && this.holds(same, tokens[same - settled], open)) same += 1;
    for (const block of this.blocks.splice(same)) block.nodes.forEach((node) => node.remove());
    for (const token of tokens.slice(same - settled)) {
      const nodes = [...drawn(token, tokens.links, token === open).childNodes];
      this.place.append(...nodes);
      this.blocks.push({ raw: token.raw, nodes, open: token === open ? token : null });
    }
  }

  /** Whether a block shows this token. One of code that has only grown is added to; a long one gets no colours. */
  holds(index, token, open) {
    const block = this.blocks[index];
    if (block.open === null) return token !== open && block.raw === token?.raw;
    const grown = token?.type === "code" && token.lang === block.open.lang && token.text.startsWith(block.open.text);
    if (!grown || (token !== open && token.text.length <= MOST_COLOURED)) return false;
    addLines(block.nodes[0].querySelector("code"), token.text.slice(block.open.text.length));
    Object.assign(block, { raw: token.raw, open: token === open ? token : null });
    return true;
  }
}

/** Add text to code, in portions of lines: where it is long, only what grows and what is seen is laid out. */
function addLines(code, text) {
  const lines = text.split(/(?<=\n)/);
  for (let at = 0; at < lines.length; ) {
    let last = code.lastElementChild;
    if (last === null || last.lines >= PORTION) {
      last = element("span", { class: "lines" });
      last.lines = 0;
      code.append(last);
    }
    const portion = lines.slice(at, at + Math.max(1, PORTION - last.lines));
    last.append(portion.join(""));
    last.lines += portion.filter((line) => line.endsWith("\n")).length;
    at += portion.length;
  }
}

function drawn(token, links, plain) {
  const html = marked.parser(Object.assign([token], { links }));
  const fragment = DOMPurify.sanitize(html, ALLOWED);
  fragment.querySelectorAll("a").forEach(makeSafe);
  fragment.querySelectorAll("pre").forEach((block) => dressCode(block, plain));
  fragment.querySelectorAll("table").forEach(letScroll);
  fragment.querySelectorAll("span.math").forEach(drawMathematics);
  return fragment;
}

/** A link opens elsewhere and tells nobody where it was followed from. */
function makeSafe(link) {
  if (!SAFE_LINK.test(link.getAttribute("href") ?? "")) link.removeAttribute("href");
  link.target = "_blank";
  link.rel = "noopener noreferrer";
}

/** A wide table scrolls by itself, by keyboard too. */
function letScroll(table) {
  const frame = element("div", { class: "wide", tabindex: "0", role: "region", "aria-label": "Table" });
  table.replaceWith(frame);
  frame.append(table);
}

/** Code gets its colours, its language and a button that copies it. */
function dressCode(block, plain) {
  const code = block.querySelector("code");
  if (code === null) return;
  const text = code.textContent;
  const language = /(?:^|\s)language-(\S+)/.exec(code.className)?.[1] ?? "";
  if (!plain && text.length <= MOST_COLOURED && hljs.getLanguage(language)) {
    const { value } = hljs.highlight(text, { language, ignoreIllegals: true });
    code.replaceChildren(DOMPurify.sanitize(value, { ...ALLOWED, ALLOWED_TAGS: ["span"] }));
  } else {
    code.replaceChildren();
    addLines(code, text);
  }
  const copy = button("Copy", () => copied(code.textContent), { class: "small" });
  const frame = element("div", { class: "code" }, element("div", { class: "bar" }, element("span", {}, language || "text"), copy));
  block.replaceWith(frame);
  block.tabIndex = 0;
  frame.append(block);
}

/** Put a text on the clipboard. */
export async function copied(text) {
  try {
    await navigator.clipboard.writeText(text);
  } catch {
    if (!copiedBySelection(text)) return announce("The browser does not let this page copy; select the text instead.", "error");
  }
  announce("Copied.");
}

/** The old way, which pages by plain HTTP from another machine have too. Whether it worked. */
function copiedBySelection(text) {
  const focused = document.activeElement;
  const area = element("textarea", { class: "unseen", readonly: true });
  area.value = text;
  document.body.append(area);
  area.select();
  const done = document.execCommand("copy");
  area.remove();
  focused?.focus();
  return done;
}

/** KaTeX is large, and is loaded when the first formula appears. What it can't read stays as it was written. */
async function drawMathematics(place) {
  const text = place.textContent;
  const displayMode = place.classList.contains("display");
  await import("../vendor/katex/katex.min.js");
  try {
    globalThis.katex.render(text, place, { displayMode, trust: false, maxExpand: 500, maxSize: 20, strict: "ignore" });
    place.tabIndex = displayMode ? 0 : -1; // a wide formula scrolls
  } catch {
    place.textContent = displayMode ? `$$${text}$$` : `$${text}$`;
  }
}
