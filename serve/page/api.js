// The server's API, as any program uses it. Paths are relative, so that the page works below a path of somebody else's.

const KEY = "outboard.key";
const MODEL = "outboard.model";
const PATIENCE = 8000;

/** A request that was not answered, or answered with an error; `status` is 0 where nothing came. */
export class ApiError extends Error {
  constructor(status, message, retryAfter = null) {
    super(message);
    this.status = status;
    this.retryAfter = retryAfter;
  }
}

/** Storage may be forbidden. */
function stored(storage, action) {
  try {
    return action(window[storage]);
  } catch {
    return null;
  }
}

export const load = (storage, name) => stored(storage, (s) => JSON.parse(s.getItem(name)));
export const save = (storage, name, value) => stored(storage, (s) => s.setItem(name, JSON.stringify(value)));

export function key() {
  return load("sessionStorage", KEY) ?? load("localStorage", KEY) ?? "";
}

/** Remembers a key: for this tab, or for this browser. */
export function setKey(text, keeps) {
  stored("localStorage", (s) => s.removeItem(KEY));
  stored("sessionStorage", (s) => s.removeItem(KEY));
  if (text) save(keeps ? "localStorage" : "sessionStorage", KEY, text);
}

/** Which of several models is meant; null for the first. */
export const model = () => chosen;
export function setModel(name) {
  chosen = name;
  save("sessionStorage", MODEL, name);
}
let chosen = load("sessionStorage", MODEL);

async function send(path, options = {}) {
  const headers = { ...options.headers };
  if (key()) headers.authorization = `Bearer ${key()}`;
  let response;
  try {
    response = await fetch(path, { ...options, headers, cache: "no-store" });
  } catch (error) {
    if (options.signal?.aborted && options.signal.reason?.name !== "TimeoutError") throw error;
    throw new ApiError(0, "The server does not answer.");
  }
  if (response.ok) return response;
  const body = await response.json().catch(() => null);
  const message = body?.error?.message ?? `The server answered with status ${response.status}.`;
  throw new ApiError(response.status, message, Number(response.headers.get("retry-after")) || null);
}

/** What the server has at a path. */
export async function get(path) {
  return (await send(path, { signal: AbortSignal.timeout(PATIENCE) })).json();
}

/** The chunks of a chat's answer, as they come. */
export async function* chat(body, signal) {
  const request = { ...body, model: model(), stream: true, stream_options: { include_usage: true } };
  const headers = { "content-type": "application/json" };
  const response = await send("v1/chat/completions", { method: "POST", headers, body: JSON.stringify(request), signal });
  for await (const data of events(response.body, signal)) {
    if (data === "[DONE]") return;
    const chunk = JSON.parse(data);
    if (chunk.error) throw new ApiError(503, chunk.error.message);
    yield chunk;
  }
  throw new ApiError(0, "The connection to the server was lost before the answer was complete.");
}

/** The data of server-sent events. */
async function* events(stream, signal) {
  const reader = stream.pipeThrough(new TextDecoderStream()).getReader();
  let text = "";
  for (;;) {
    let part;
    try {
      part = await reader.read();
    } catch (error) {
      if (signal.aborted) throw error;
      return;
    }
    if (part.done) return;
    text += part.value;
    const whole = text.split(/\r?\n\r?\n/);
    text = whole.pop();
    for (const event of whole) {
      const lines = event.split(/\r?\n/).filter((line) => line.startsWith("data:"));
      if (lines.length) yield lines.map((line) => line.slice(5).trimStart()).join("\n");
    }
  }
}
