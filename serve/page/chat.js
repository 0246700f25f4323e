// The conversation.

import { ApiError, chat, load, save } from "./api.js";
import { byId, count, digits, el, setText } from "./dom.js";
import { copyText, render } from "./markdown.js";

const SETTINGS = "outboard.settings";
const MESSAGES = "outboard.messages";
const DEFAULTS = { temperature: 0.7, top_p: 0.95, max_tokens: null, seed: null, system: "" };
const NUMBERS = ["temperature", "top_p", "max_tokens", "seed"];

const settings = { ...DEFAULTS, ...load("localStorage", SETTINGS) };
/** What was said: `{role, content, reasoning?, note?, error?, node}`. */
const messages = [];
/** Of the answer that is being written. */
let writing = null;
let askForKey = () => {};

/** Begins; `ask` is called where the server wants a key. */
export function start(ask) {
  askForKey = ask;
  for (const { role, content, note } of load("sessionStorage", MESSAGES) ?? []) push({ role, content, note });
  const question = byId("question");
  byId("composer").addEventListener("submit", (event) => {
    event.preventDefault();
    say();
  });
  question.addEventListener("keydown", (event) => {
    if (event.key !== "Enter" || event.shiftKey || event.isComposing) return;
    event.preventDefault();
    say();
  });
  question.addEventListener("input", fit);
  byId("stop").addEventListener("click", stop);
  byId("new").addEventListener("click", begin);
  document.addEventListener("keydown", (event) => {
    if (event.key === "Escape" && !document.querySelector("dialog[open]")) stop();
  });
  // Somebody may leave in the middle of an answer.
  addEventListener("pagehide", remember);
  watchSettings();
  fit();
  let follows = true;
  const scroll = byId("scroll");
  scroll.addEventListener("scroll", () => (follows = isAtEnd()));
  new ResizeObserver(() => follows && toEnd()).observe(scroll);
}

/** What the model is called. */
export function setModel(name) {
  document.querySelectorAll(".message.assistant > h3").forEach((node) => setText(node, name));
  modelName = name;
}
let modelName = "Answer";

/** The field is as high as its text. */
function fit() {
  const question = byId("question");
  question.style.height = "auto";
  question.style.height = `${question.scrollHeight}px`;
}

function stop() {
  writing?.abort.abort();
}

/** Another conversation. */
function begin() {
  stop();
  messages.splice(0).forEach((message) => message.node.remove());
  remember();
  byId("empty").hidden = false;
  byId("question").focus();
}

function say() {
  const question = byId("question");
  const content = question.value.trim();
  if (!content || writing) return;
  question.value = "";
  fit();
  push({ role: "user", content });
  remember();
  answer();
}

/** Shows a message behind the others. */
function push(message) {
  message.node = el("article", { class: `message ${message.role}` });
  messages.push(message);
  byId("empty").hidden = true;
  byId("log").append(message.node);
  show(message);
}

/** Shows a message as it is now. */
function show(message) {
  const isUser = message.role === "user";
  const parts = [el("h3", {}, isUser ? "You" : modelName)];
  if (message.reasoning) {
    message.thought = el("div", { class: "text" }, message.reasoning);
    parts.push(el("details", {}, el("summary", {}, "Reasoning"), message.thought));
  }
  message.text = el("div", { class: "text" });
  if (isUser) message.text.textContent = message.content;
  else render(message.text, message.content);
  parts.push(message.text);
  if (message.error) parts.push(el("p", { class: "problem", role: "alert" }, message.error));
  if (!isUser && writing?.message !== message) parts.push(foot(message));
  message.node.replaceChildren(...parts);
}

/** What an answer took, and what can be done with it. */
function foot(message) {
  const buttons = [];
  if (message.content) {
    const copy = el("button", { type: "button", class: "quiet" }, "Copy");
    copy.addEventListener("click", () => copyText(message.content, copy));
    buttons.push(copy);
  }
  if (message === messages.at(-1)) {
    const label = message.error ? "Try again" : "Regenerate";
    buttons.push(el("button", { type: "button", class: "quiet again", onclick: again }, label));
  }
  return el("div", { class: "foot" }, ...buttons, message.note ? el("span", {}, message.note) : null);
}

/** Another answer in place of the last one. */
function again() {
  if (writing || messages.at(-1)?.role !== "assistant") return;
  messages.pop().node.remove();
  answer();
  byId("stop").focus();
}

/** What is asked for. */
function request() {
  const said = messages.filter((message) => message.content).map(({ role, content }) => ({ role, content }));
  if (settings.system.trim()) said.unshift({ role: "system", content: settings.system });
  const body = { messages: said };
  for (const name of NUMBERS) if (settings[name] != null) body[name] = settings[name];
  return body;
}

/** Has the next answer written. */
async function answer() {
  const before = messages.at(-2);
  const body = request();
  const message = { role: "assistant", content: "" };
  const now = { abort: new AbortController(), message, begun: performance.now(), first: null, last: null, usage: null, end: null };
  writing = now;
  push(message);
  if (before?.role === "assistant") show(before);
  message.node.classList.add("writes");
  controls();
  toEnd();
  try {
    for await (const chunk of chat(body, now.abort.signal)) take(now, chunk);
  } catch (error) {
    if (!now.abort.signal.aborted) message.error = told(error);
    else now.end = "stopped";
  }
  writing = null;
  message.note = note(now);
  message.node.classList.remove("writes");
  const follows = isAtEnd();
  show(message);
  if (follows) toEnd();
  const hadFocus = document.activeElement === byId("stop");
  controls();
  if (hadFocus) (message.node.querySelector(".again") ?? byId("question")).focus();
  setText(byId("said"), message.error ? "" : `Answer complete: ${message.note}`);
  remember();
}

function take(now, chunk) {
  if (chunk.usage) now.usage = chunk.usage;
  const choice = chunk.choices?.[0];
  if (choice?.finish_reason) now.end = choice.finish_reason;
  const { content, reasoning_content: thought } = choice?.delta ?? {};
  if (!content && !thought) return;
  now.last = performance.now();
  now.first ??= now.last;
  const { message } = now;
  message.content += content ?? "";
  if (thought) message.reasoning = (message.reasoning ?? "") + thought;
  // Once a frame, however many tokens come.
  now.frame ??= requestAnimationFrame(() => {
    now.frame = null;
    if (writing !== now) return;
    const follows = isAtEnd();
    if (message.reasoning && !message.thought) show(message);
    if (message.thought) setText(message.thought, message.reasoning);
    render(message.text, message.content);
    if (follows) toEnd();
  });
}

/** Why there is no answer, for people. */
function told(error) {
  if (!(error instanceof ApiError)) return `The answer could not be read: ${error.message}`;
  if (error.status === 401) askForKey(error.message);
  const later = error.retryAfter ? ` It asks for a pause of ${count(error.retryAfter, "second")}.` : "";
  switch (error.status) {
    case 0:
      return error.message;
    case 401:
      return `The server did not take the key: ${error.message}.`;
    case 429:
      return `The server is busy: ${error.message}.${later}`;
    default:
      return `The server refused: ${error.message}.${later}`;
  }
}

/** What an answer took. */
function note({ usage, begun, first, last, end }) {
  const said = [];
  const tokens = usage?.completion_tokens;
  if (tokens != null) said.push(count(tokens, "token"));
  if (tokens > 1 && last > first) said.push(`${digits(((tokens - 1) * 1000) / (last - first))} per second`);
  if (first != null) said.push(`first after ${digits((first - begun) / 1000)} s`);
  if (end === "length") said.push("ended by its length");
  if (end === "stopped") said.push("stopped");
  return said.join(" · ");
}

function controls() {
  const stop = byId("stop");
  const hadFocus = document.activeElement === byId("send");
  byId("send").hidden = Boolean(writing);
  stop.hidden = !writing;
  byId("log").setAttribute("aria-busy", String(Boolean(writing)));
  if (hadFocus && writing) stop.focus();
}

const isAtEnd = () => {
  const { scrollTop, scrollHeight, clientHeight } = byId("scroll");
  return scrollHeight - scrollTop - clientHeight < 60;
};

function toEnd() {
  byId("scroll").scrollTop = byId("scroll").scrollHeight;
}

/** Keeps the conversation for this tab. */
function remember() {
  const said = messages.filter((message) => message.content);
  save("sessionStorage", MESSAGES, said.map(({ role, content, note }) => ({ role, content, note })));
}

function watchSettings() {
  const fields = [...NUMBERS, "system"].map(byId);
  const fill = () => fields.forEach((field) => (field.value = settings[field.id] ?? ""));
  const dialog = byId("settings");
  byId("open-settings").addEventListener("click", () => {
    fill();
    byId("settings-wrong").textContent = "";
    dialog.showModal();
  });
  byId("defaults").addEventListener("click", () => {
    Object.assign(settings, DEFAULTS);
    save("localStorage", SETTINGS, settings);
    fill();
  });
  byId("settings-form").addEventListener("submit", (event) => {
    event.preventDefault();
    for (const field of fields) settings[field.id] = valueOf(field);
    save("localStorage", SETTINGS, settings);
    dialog.close();
  });
}

/** What a field says: a number, or null where it is empty; the system prompt as it is. */
function valueOf(field) {
  if (field.type !== "number") return field.value;
  return field.value === "" ? null : Number(field.value);
}
