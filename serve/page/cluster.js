// The devices: what lies where, and what they do.

import { byId, bytes, count, digits, el, keep, ms, setText } from "./dom.js";

const STATES = { here: "this host", answers: "answers", silent: "silent", lost: "lost", unknown: "" };

/** Shows what `/cluster` has said. */
export function show(cluster) {
  const { hosts, model, slots } = cluster;
  const running = slots.filter((slot) => slot.is_processing);
  setText(byId("rate"), cluster.tokens_per_second == null ? "–" : digits(cluster.tokens_per_second));
  setText(byId("token-time"), cluster.token_ms == null ? "–" : ms(cluster.token_ms));
  setText(byId("running"), `${running.length} of ${slots.length}`);
  byId("legend").hidden = cluster.token_ms == null;
  keep(byId("hosts"), hosts, (host) => host.endpoint ?? "", makeHost, (node, host) => showHost(node, host, cluster));
  showRequests(running, cluster.waiting);
  showNotices(cluster);
  const devices = hosts.reduce((sum, host) => sum + host.devices.length, 0);
  const facts = [
    model.name, `${model.architecture}, ${count(model.layers, "layer")}, ${bytes(model.size)}`,
    `${count(devices, "device")} of ${count(hosts.length, "host")}`,
    `contexts of ${model.n_ctx} tokens`, `${cluster.tokens} tokens generated`, cluster.build_info,
  ];
  setText(byId("facts"), facts.join(" · "));
}

function makeHost() {
  return el(
    "section", { class: "host" },
    el("header", {},
      el("div", { class: "who" }, el("h3"), el("span")),
      el("p", { class: "link" })),
    el("div", { class: "devices" }),
  );
}

function showHost(node, host, cluster) {
  node.className = `host ${host.state}`;
  const [name, state] = node.querySelector(".who").children;
  setText(name, host.endpoint ?? "This host");
  setText(state, host.endpoint ? STATES[host.state] : "");
  const link = node.querySelector(".link");
  setText(link, linkText(host));
  link.hidden = !link.textContent;
  keep(node.querySelector(".devices"), host.devices, (d) => d.id, makeDevice, (n, d) => showDevice(n, d, host, cluster));
}

/** Round trip and rates of a link, or why there are none. */
function linkText(host) {
  if (host.detail) return host.detail;
  if (host.round_trip_ms == null) return "";
  const said = [`round trip ${ms(host.round_trip_ms)}`];
  const rates = host.bytes_per_second;
  if (rates) said.push(`↑ ${bytes(rates.sent)}/s`, `↓ ${bytes(rates.received)}/s`);
  if (rates?.to_servers) said.push(`→ servers ${bytes(rates.to_servers)}/s`);
  return joined(said);
}

/** Parts that are not broken in their middle. */
const joined = (parts) => parts.map((part) => part.replaceAll(" ", "\u00a0")).join(" · ");

function line(what) {
  return el("div", { class: "line" }, el("span", {}, what), el("span", { class: "bar", "aria-hidden": "true" }), el("span"));
}

function makeDevice() {
  return el(
    "div", { class: "device" },
    el("p", { class: "what" }, el("b"), el("span")),
    line("layers"), line("memory"), line("token"),
    el("p", { class: "holds" }),
  );
}

function showDevice(node, device, host, cluster) {
  const [name, description] = node.querySelector(".what").children;
  setText(name, device.name);
  setText(description, device.description);
  const [layers, memory, token] = node.querySelectorAll(".line");
  const holds = device.holds;
  showLayers(layers, holds?.layers ?? [], cluster.model.layers);
  showMemory(memory, device.memory, holds);
  showToken(token, device.token, cluster.token_ms);
  setText(node.querySelector(".holds"), holdsText(holds));
}

function holdsText(holds) {
  if (!holds) return "holds nothing of the model";
  const { weight_bytes, cache_bytes, compute_bytes } = holds;
  if (!weight_bytes && !cache_bytes) return "not used";
  return joined([`weights ${bytes(weight_bytes)}`, `cache ${bytes(cache_bytes)}`, `results ${bytes(compute_bytes)}`]);
}

/** Sets the parts of a bar: a class and where it begins and ends, from 0 to 1. */
function parts(bar, list) {
  while (bar.children.length > list.length) bar.lastElementChild.remove();
  list.forEach(([name, width, left], i) => {
    const part = bar.children[i] ?? bar.appendChild(el("i"));
    part.className = name;
    part.style.width = `${(100 * width).toFixed(2)}%`;
    part.style.left = left == null ? "" : `${(100 * left).toFixed(2)}%`;
  });
}

function showLayers(node, ranges, all) {
  node.hidden = ranges.length === 0;
  parts(node.children[1], ranges.map(([first, last]) => ["layer", (last + 1 - first) / all, first / all]));
  setText(node.children[2], ranges.map(([a, b]) => (a === b ? a : `${a}–${b}`)).join(", "));
}

function showMemory(node, memory, holds) {
  node.hidden = !memory || !memory.total;
  if (node.hidden) return;
  const used = Math.max(0, memory.total - memory.free);
  const ours = Math.min(used, holds ? holds.weight_bytes + holds.cache_bytes + holds.compute_bytes : 0);
  parts(node.children[1], [["ours", ours / memory.total], ["used", (used - ours) / memory.total]]);
  setText(node.children[2], `${bytes(memory.free)} free`);
}

function showToken(node, token, whole) {
  node.hidden = !token || !whole;
  if (node.hidden) return;
  const { compute_ms, wire_ms, waiting_ms } = token;
  parts(node.children[1], [["compute", compute_ms / whole], ["wire", wire_ms / whole], ["waiting", waiting_ms / whole]]);
  setText(node.children[2], `${digits(compute_ms)} of ${ms(whole)}`);
  node.title = `computes ${ms(compute_ms)}, wire ${ms(wire_ms)}, waits ${ms(waiting_ms)}`;
}

function showRequests(running, waiting) {
  const node = byId("requests");
  const rest = waiting ? `${count(waiting, "more text")} ${waiting === 1 ? "waits" : "wait"} for a place.` : "";
  if (running.length === 0) return node.replaceChildren(el("p", {}, rest || "None."));
  let body = node.querySelector("tbody");
  if (!body) {
    const head = ["place", "prompt", "tokens", "seconds", "per second"].map((name) => el("th", { scope: "col" }, name));
    body = el("tbody");
    node.replaceChildren(el("table", { class: "requests" }, el("thead", {}, el("tr", {}, ...head)), body), el("p"));
  }
  const row = () => el("tr", {}, ...[0, 1, 2, 3, 4].map(() => el("td")));
  keep(body, running, (slot) => slot.id, row, (node, slot) => {
    const rate = slot.seconds > 0 ? slot.tokens / slot.seconds : 0;
    const shown = [slot.id, slot.prompt_tokens, slot.tokens, slot.seconds.toFixed(1), digits(rate)];
    shown.forEach((text, i) => setText(node.children[i], String(text)));
  });
  setText(node.lastElementChild, rest);
}

/** What was lost, and who keeps texts waiting. */
function showNotices({ losses, stall, draining }) {
  const notices = [];
  if (draining) notices.push("The server stops; it takes no new texts.");
  if (stall) notices.push(`Waiting ${stall.seconds} s for ${stall.who} (${stall.doing}).`);
  keep(byId("notices"), notices, (text) => text.replace(/\d+/g, ""), () => el("p", { class: "problem" }), setText);
  const node = byId("losses");
  if (losses.length === 0) return node.replaceChildren();
  if (!node.firstElementChild) node.append(el("h3", {}, "Lost, and gone on"), el("ul"));
  const item = () => el("li", {}, el("time"), el("span"));
  keep(node.lastElementChild, losses.toReversed(), (loss) => `${loss.at} ${loss.what}`, item, (node, loss) => {
    const at = new Date(loss.at * 1000);
    node.firstElementChild.dateTime = at.toISOString();
    setText(node.firstElementChild, at.toLocaleTimeString());
    setText(node.lastElementChild, loss.what);
  });
}
