// Markdown as models write it, into nodes: headings, lists, quotes, tables, code, emphasis, links. Text stays text: HTML in it is shown as it is, and
// pictures are not loaded. While a text grows, only its last blocks are made anew.

import { el, setText } from "./dom.js";

/** Deeper than this, marks are text. */
const DEPTH = 8;

// What a line may have much of, such as blanks, is in one part of an expression alone: else it would be tried in all ways.
const FENCE = /^ {0,3}(`{3,}|~{3,})([^`\n]*)$/;
const HEADING = /^ {0,3}(#{1,6})[ \t]+(.*)$/;
const RULE = /^ {0,3}([-*_])([ \t]*\1){2,}[ \t]*$/;
const QUOTE = /^ {0,3}> ?/;
const ITEM = /^( {0,3})([-*+]|\d{1,9}[.)])([ \t]+|$)(.*)$/;
const BLANK = /^[ \t]*$/;

/** Shows a text in a node. */
export function render(into, text) {
  const blocks = split(text.replace(/\r\n?/g, "\n").split("\n"));
  blocks.forEach((block, place) => {
    const old = into.children[place];
    if (old?.raw === block.raw && old.kind === block.kind) return;
    if (block.kind === "code" && old?.kind === "code" && old.language === block.language) {
      setText(old.querySelector("code"), block.text);
      old.raw = block.raw;
      return;
    }
    const node = make(block, 0);
    Object.assign(node, { raw: block.raw, kind: block.kind, language: block.language });
    if (old) old.replaceWith(node);
    else into.append(node);
  });
  while (into.children.length > blocks.length) into.lastElementChild.remove();
}

/** Blocks of some lines. */
function split(lines) {
  const blocks = [];
  let at = 0;
  while (at < lines.length) {
    if (BLANK.test(lines[at])) {
      at += 1;
      continue;
    }
    const [block, end] = next(lines, at);
    block.raw = lines.slice(at, end).join("\n");
    blocks.push(block);
    at = end;
  }
  return blocks;
}

/** The block that begins at a line, and the line behind it. */
function next(lines, at) {
  const line = lines[at];
  const fence = FENCE.exec(line);
  if (fence) return code(lines, at, fence);
  const heading = HEADING.exec(line);
  if (heading) return [{ kind: "heading", level: heading[1].length, text: headline(heading[2]) }, at + 1];
  if (RULE.test(line)) return [{ kind: "rule" }, at + 1];
  if (QUOTE.test(line)) {
    const end = lines.findIndex((l, i) => i > at && !QUOTE.test(l));
    const inner = lines.slice(at, end < 0 ? lines.length : end).map((l) => l.replace(QUOTE, ""));
    return [{ kind: "quote", inner }, at + inner.length];
  }
  if (ITEM.test(line)) return list(lines, at);
  if (line.includes("|") && at + 1 < lines.length && isRuled(lines[at + 1])) return table(lines, at);
  let end = at + 1;
  while (end < lines.length && !BLANK.test(lines[end]) && !interrupts(lines[end])) end += 1;
  return [{ kind: "paragraph", text: lines.slice(at, end).join("\n").trim() }, end];
}

/** Whether a line ends the paragraph before it. */
function interrupts(line) {
  const item = ITEM.exec(line);
  const begins = item && item[4] !== "" && (item[2].length === 1 || /^1[.)]$/.test(item[2]));
  return begins || FENCE.test(line) || HEADING.test(line) || QUOTE.test(line) || RULE.test(line);
}

function code(lines, at, [, fence, info]) {
  const closes = new RegExp(`^ {0,3}${fence[0]}{${fence.length},}[ \\t]*$`);
  let end = at + 1;
  while (end < lines.length && !closes.test(lines[end])) end += 1;
  const text = lines.slice(at + 1, end).join("\n");
  return [{ kind: "code", language: info.trim().split(/\s/)[0], text }, Math.min(end + 1, lines.length)];
}

/** The text of a heading, without the marks behind it. */
function headline(text) {
  let end = text.trimEnd().length;
  while (text[end - 1] === "#") end -= 1;
  return text.slice(0, end).trimEnd();
}

/** Whether a line is that between a table's head and its rows. */
function isRuled(line) {
  return /^ {0,3}[^ \t]/.test(line) && line.includes("-") && cells(line).every((cell) => /^:?-+:?$/.test(cell));
}

function list(lines, at) {
  const first = ITEM.exec(lines[at]);
  const ordered = first[2].length > 1;
  const mark = first[2].at(-1);
  const items = [];
  let end = at;
  while (end < lines.length) {
    const item = ITEM.exec(lines[end]);
    if (!item || item[2].at(-1) !== mark || RULE.test(lines[end])) break;
    const indent = item[1].length + item[2].length + 1;
    const inner = [item[4]];
    end += 1;
    for (; end < lines.length; end += 1) {
      const line = lines[end];
      const isIn = line.search(/\S/) >= Math.min(indent, 2);
      const afterBlank = BLANK.test(lines[end - 1]);
      // What is indented belongs to it, and so does the rest of a paragraph.
      if (!BLANK.test(line) && !isIn && (afterBlank || ITEM.test(line) || interrupts(line))) break;
      inner.push(line.replace(new RegExp(`^[ \\t]{0,${indent}}`), ""));
    }
    items.push(inner);
  }
  return [{ kind: "list", ordered, start: ordered ? parseInt(first[2], 10) : 1, items }, end];
}

function cells(line) {
  const bare = line.trim().replace(/^\|/, "").replace(/(^|[^\\])\|$/, "$1");
  return bare.split(/(?<!\\)\|/).map((cell) => cell.replaceAll("\\|", "|").trim());
}

function table(lines, at) {
  const aligns = cells(lines[at + 1]).map((c) => (c.endsWith(":") ? (c.startsWith(":") ? "center" : "right") : ""));
  let end = at + 2;
  while (end < lines.length && !BLANK.test(lines[end]) && lines[end].includes("|")) end += 1;
  return [{ kind: "table", aligns, rows: [lines[at], ...lines.slice(at + 2, end)].map(cells) }, end];
}

/** The node of a block. */
function make(block, depth) {
  switch (block.kind) {
    case "code":
      return codeNode(block);
    case "heading":
      // The page has the levels above; what models make of theirs is not worth an outline.
      return el("h4", { class: `level${Math.min(block.level, 3)}` }, ...inline(block.text, depth));
    case "rule":
      return el("hr");
    case "quote":
      return el("blockquote", {}, ...nested(block.inner, depth));
    case "list":
      return el(
        block.ordered ? "ol" : "ul",
        { start: block.start === 1 ? null : block.start },
        ...block.items.map((inner) => el("li", {}, ...nested(inner, depth, true))),
      );
    case "table":
      return tableNode(block, depth);
    default:
      return el("p", {}, ...inline(block.text, depth));
  }
}

/** Nodes of lines within a block. A single paragraph needs no node of its own where `tight`. */
function nested(lines, depth, tight = false) {
  if (depth >= DEPTH) return [lines.join("\n")];
  const blocks = split(lines);
  const isTight = tight && blocks.filter((block) => block.kind === "paragraph").length === 1;
  return blocks.flatMap((block) =>
    isTight && block.kind === "paragraph" ? inline(block.text, depth) : [make(block, depth + 1)],
  );
}

function codeNode({ language, text }) {
  const shown = el("code", {}, text);
  const copy = el("button", { type: "button" }, "Copy");
  copy.addEventListener("click", () => copyText(shown.textContent, copy));
  const title = language || "text";
  const pre = el("pre", { tabindex: "0", role: "region", "aria-label": `Code: ${title}` }, shown);
  return el("div", { class: "code" }, el("div", {}, el("span", {}, title), copy), pre);
}

/** Copies a text, and says so on the button. */
export async function copyText(text, button) {
  const label = button.textContent;
  try {
    await navigator.clipboard.writeText(text);
    button.textContent = "Copied";
  } catch {
    button.textContent = "Not allowed";
  }
  setTimeout(() => (button.textContent = label), 1500);
}

function tableNode({ aligns, rows }, depth) {
  const [head, ...body] = rows;
  const row = (tag, row) =>
    el("tr", {}, ...head.map((_, column) => {
      const cell = el(tag, tag === "th" ? { scope: "col" } : {}, ...inline(row[column] ?? "", depth));
      cell.style.textAlign = aligns[column] ?? "";
      return cell;
    }));
  const inner = [el("thead", {}, row("th", head)), el("tbody", {}, ...body.map((cells) => row("td", cells)))];
  return el("div", { class: "wide", tabindex: "0", role: "region", "aria-label": "Table" }, el("table", {}, ...inner));
}

const MARK = /\\[!-/:-@[-`{-~]|`+|\*+|_+|~~|!?\[|https?:\/\/[^\s<>"'`\])]+| {2,}\n|\\\n/g;

/** Nodes and texts of a line or paragraph. */
function inline(text, depth) {
  if (depth > DEPTH) return [text];
  const out = [];
  let plain = "";
  // Marks that nothing ends from here on.
  const open = new Set();
  const mark = new RegExp(MARK);
  const put = (node) => {
    if (plain) out.push(plain);
    plain = "";
    out.push(node);
  };
  let at = 0;
  for (let found; (found = mark.exec(text)); at = mark.lastIndex) {
    plain += text.slice(at, found.index);
    const taken = take(text, found, depth, open);
    if (!taken) plain += found[0];
    else if (typeof taken.node === "string") plain += taken.node;
    else put(taken.node);
    if (taken) mark.lastIndex = taken.end;
  }
  plain += text.slice(at);
  if (plain) out.push(plain);
  return out;
}

/** What a mark stands for, and where it ends; null where it is text. */
function take(text, { 0: mark, index }, depth, open) {
  const end = index + mark.length;
  const inner = (from, to) => inline(text.slice(from, to), depth + 1);
  switch (mark[0]) {
    case "\\":
      return mark[1] === "\n" ? { node: el("br"), end } : { node: mark[1], end };
    case " ":
      return { node: el("br"), end };
    case "`": {
      const close = open.has(mark) ? -1 : closing(text, mark, end);
      if (close < 0) {
        open.add(mark);
        return { node: mark, end };
      }
      const body = text.slice(end, close).replaceAll("\n", " ");
      return { node: el("code", {}, /^ .*[^ ].* $/.test(body) ? body.slice(1, -1) : body), end: close + mark.length };
    }
    case "*":
    case "_":
    case "~":
      return emphasis(text, mark, index, inner, open);
    case "h": {
      let length = mark.length;
      while (".,;:!?*_~".includes(mark[length - 1])) length -= 1;
      const url = mark.slice(0, length);
      return { node: link(url, [url]), end: index + url.length };
    }
    default:
      return reference(text, mark, index, inner);
  }
}

/** Where a run of the same character ends what one began; -1 if nowhere. */
function closing(text, mark, from) {
  for (let at = text.indexOf(mark, from); at >= 0; at = text.indexOf(mark, at)) {
    let end = at;
    while (text[end] === mark[0]) end += 1;
    if (end - at === mark.length) return at;
    at = end;
  }
  return -1;
}

function emphasis(text, mark, index, inner, open) {
  const end = index + mark.length;
  const isWord = (c) => c !== undefined && /[\p{L}\p{N}_]/u.test(c);
  if (mark.length > 3 || /\s|^$/.test(text[end] ?? "") || (mark[0] === "_" && isWord(text[index - 1])) || open.has(mark)) return null;
  let close = closing(text, mark, end);
  while (close >= 0 && (/\s/.test(text[close - 1]) || (mark[0] === "_" && isWord(text[close + mark.length])))) {
    close = closing(text, mark, close + mark.length);
  }
  if (close < 0) {
    open.add(mark);
    return null;
  }
  const nodes = inner(end, close);
  const tags = mark[0] === "~" ? ["del"] : { 1: ["em"], 2: ["strong"], 3: ["strong", "em"] }[mark.length];
  return { node: tags.reduceRight((nodes, tag) => [el(tag, {}, ...nodes)], nodes)[0], end: close + mark.length };
}

/** `[text](url)`; of a picture only the text. */
function reference(text, mark, index, inner) {
  const from = index + mark.length;
  let open = 1;
  let close = from;
  for (; close < text.length && close - from < 2000; close += 1) {
    if (text[close] === "\\") close += 1;
    else if (text[close] === "[") open += 1;
    else if (text[close] === "]" && --open === 0) break;
  }
  if (open) return null;
  const target = /^\(\s*<?((?:[^\s()<>]|\([^\s()]*\))*)>?(?:\s+(?:"[^"]*"|'[^']*'))?\s*\)/.exec(text.slice(close + 1, close + 2050));
  if (!target) return null;
  const label = text.slice(from, close);
  const end = close + 1 + target[0].length;
  const nodes = mark[0] === "!" ? [label || target[1]] : inner(from, close);
  return { node: link(target[1], nodes), end };
}

/** A link, if its target is one that a page may name. */
function link(url, nodes) {
  let parsed;
  try {
    parsed = new URL(url);
  } catch {
    return el("span", {}, ...nodes);
  }
  if (!["http:", "https:", "mailto:"].includes(parsed.protocol)) return el("span", {}, ...nodes);
  return el("a", { href: parsed.href, target: "_blank", rel: "noopener noreferrer" }, ...nodes);
}
