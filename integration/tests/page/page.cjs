// The page in a browser: it types and clicks, and looks at what comes of it.
//
// node page.cjs URL URL_WITH_KEY KEY [FOLDER]: a model over two servers, one that asks for a key and has a single place, and where pictures go. What it
// needs done it says on a line, and goes on when it has read a line: `lose` a server of the first model, `end` the first one's process.

const assert = require("node:assert/strict");
const readline = require("node:readline");
const puppeteer = require("puppeteer-core");
const axe = require("axe-core").source;

const [url, guarded, key, folder] = process.argv.slice(2);
const LIMIT = 20000;
const problems = [];
/** The browser itself tells the console of answers that are errors. */
let errorsAreMeant = false;

const answers = readline.createInterface({ input: process.stdin })[Symbol.asyncIterator]();
const ask = async (what) => {
  console.log(what);
  await answers.next();
};

async function open(browser, address) {
  const page = await (await browser.createBrowserContext()).newPage();
  page.setDefaultTimeout(LIMIT);
  page.on("console", (m) => {
    const isMeant = errorsAreMeant && m.text().startsWith("Failed to load resource");
    if (["error", "warn"].includes(m.type()) && !isMeant) problems.push(`console: ${m.text()}`);
  });
  page.on("pageerror", (e) => problems.push(`error: ${e.stack}`));
  page.on("request", (r) => {
    if (new URL(r.url()).host !== new URL(address).host) problems.push(`a request to ${r.url()}`);
  });
  await page.setViewport({ width: 1360, height: 860 });
  await page.goto(address);
  return page;
}

const picture = (page, name) => folder && page.screenshot({ path: `${folder}/${name}.png` });
const text = (page, selector) => page.$eval(selector, (node) => node.textContent);
const idle = (page) => page.waitForFunction(() => !document.querySelector(".writes") && !document.querySelector("#send").hidden);
const scheme = (page, value) => page.emulateMediaFeatures([{ name: "prefers-color-scheme", value }]);

/** Everything that axe knows to be wrong, in light and dark. */
async function accessible(page, what) {
  // Not as a script of the page, whose policy allows none but its own.
  if (!(await page.evaluate(() => Boolean(window.axe)))) await page.evaluate(axe);
  for (const value of ["light", "dark"]) {
    await scheme(page, value);
    const { violations } = await page.evaluate(() => window.axe.run(document, { resultTypes: ["violations"] }));
    const shown = violations.map((v) => `${v.id}: ${v.help}: ${v.nodes.map((n) => `${n.html} ${n.failureSummary}`).join("; ")}`);
    assert.deepEqual(shown, [], `${what}, ${value}`);
  }
  await scheme(page, "light");
}

/** Asks by keyboard, and waits for the answer. */
async function say(page, question) {
  await page.focus("#question");
  await page.keyboard.type(question);
  await page.keyboard.press("Enter");
  await idle(page);
}

async function set(page, values) {
  await page.click("#open-settings");
  for (const [id, value] of Object.entries(values)) {
    await page.$eval(`#${id}`, (field) => field.select());
    await page.keyboard.press("Backspace");
    await page.type(`#${id}`, value);
  }
  await page.keyboard.press("Enter");
  await page.waitForFunction(() => !document.querySelector("dialog[open]"));
}

const last = (page) => page.$$eval(".message.assistant .text", (nodes) => nodes.at(-1).textContent);

/** A chat, with its settings. */
async function chats(page) {
  await page.waitForSelector(".host");
  assert.equal(await page.$$eval(".host", (hosts) => hosts.length), 2);
  assert.equal(await page.$$eval(".device .bar .layer", (bars) => bars.length >= 4), true);
  await picture(page, "empty-light");
  await accessible(page, "before anything is said");
  await set(page, { temperature: "0", max_tokens: "24", seed: "7" });
  await say(page, "Say hello.");
  const first = await last(page);
  assert.ok(first.length > 0);
  assert.match(await text(page, ".message.assistant .foot"), /24 tokens|\d+ tokens?/);
  await page.click(".again");
  await idle(page);
  assert.equal(await last(page), first, "the same seed");
  assert.equal(await page.$$eval(".message", (m) => m.length), 2);
  await page.reload();
  await page.waitForSelector(".host");
  assert.equal(await last(page), first, "a conversation survives a reload");
  assert.equal(await page.evaluate(() => JSON.parse(localStorage["outboard.settings"]).seed), 7);
}

/** Stopping, by button and by key, and that nothing needs a mouse. */
async function stops(page) {
  await set(page, { max_tokens: "1500", temperature: "1" });
  for (const way of ["button", "key"]) {
    await page.focus("#question");
    await page.keyboard.type("Tell a very long story about a harbour.");
    await page.keyboard.press("Enter");
    await page.waitForFunction(() => document.querySelector(".writes .text")?.textContent.length > 60);
    assert.equal(await page.$eval("#send", (send) => send.hidden), true);
    if (way === "button") {
      // From the field, the next stop is the button.
      await page.keyboard.press("Tab");
      assert.equal(await page.evaluate(() => document.activeElement.id), "stop");
      await page.keyboard.press("Space");
    } else {
      await page.keyboard.press("Escape");
    }
    await idle(page);
    assert.match(await page.$$eval(".foot", (feet) => feet.at(-1).textContent), /stopped/);
  }
}

/** Every stop of the Tab key can be seen. */
async function keyboard(page) {
  const stops = [];
  // Round once, wherever it begins.
  for (let i = 0; i < 24; i += 1) {
    await page.keyboard.press("Tab");
    const at = await page.evaluate(() => {
      const node = document.activeElement;
      if (node === document.body) return null;
      const { width, height } = node.getBoundingClientRect();
      const ring = [node, node.closest(".entry")].some((n) => n && getComputedStyle(n).outlineStyle !== "none");
      return { id: node.id || node.textContent.slice(0, 20), seen: width > 0 && height > 0 && ring };
    });
    if (at) stops.push(at);
  }
  const names = stops.map((stop) => stop.id);
  for (const id of ["scroll", "question", "send", "new", "open-settings", "cluster"]) assert.ok(names.includes(id), `${id}: ${names}`);
  assert.deepEqual(stops.filter((stop) => !stop.seen), []);
  await page.focus("#open-settings");
  await page.keyboard.press("Enter");
  await page.waitForSelector("#settings[open]");
  await accessible(page, "settings");
  await picture(page, "settings-light");
  await page.keyboard.press("Escape");
  await page.waitForFunction(() => !document.querySelector("dialog[open]"));
  assert.equal(await page.evaluate(() => document.activeElement.id), "open-settings");
}

const MARKDOWN = [
  ["a *b* **c** ~~d~~ `e`", "<p>a <em>b</em> <strong>c</strong> <del>d</del> <code>e</code></p>"],
  ["# T\n\ntext\n- one\n- two\n  more\n\n1. x", "<h4 class=\"level1\">T</h4><p>text</p><ul><li>one</li><li>two\nmore</li></ul><ol><li>x</li></ol>"],
  ["```js\nlet x = \"<b>\";", 'let x = "&lt;b&gt;";'],
  ["<img src=x onerror=alert(1)>", "<p>&lt;img src=x onerror=alert(1)&gt;</p>"],
  ["[a](javascript:alert(1)) [b](data:text/html,x)", "<p><span>a</span> <span>b</span></p>"],
  ["![p](https://example.com/p.png)", '<p><a href="https://example.com/p.png" target="_blank" rel="noopener noreferrer">p</a></p>'],
  ["snake_case_name 2 * 3 * 4", "<p>snake_case_name 2 * 3 * 4</p>"],
  ["| a | b |\n|---|--:|\n| 1 | 2 |", '<td style="text-align: right;">2</td>'],
  ["> q\n> r", "<blockquote><p>q\nr</p></blockquote>"],
  ["see https://a.example/x.", '<p>see <a href="https://a.example/x" target="_blank" rel="noopener noreferrer">https://a.example/x</a>.</p>'],
  ["**open", "<p>**open</p>"],
  [`${"> ".repeat(60)}deep`, "deep"],
  ["## T #  \n", '<h4 class="level2">T</h4>'],
  ["a | b\n-|:-:\n1 | 2", '<td style="text-align: center;">2</td>'],
  ["a*b* *c* d* e", "<p>a<em>b</em> <em>c</em> d* e</p>"],
  // What would take minutes if each part of an expression could have the blanks.
  [`# a${" ".repeat(20000)}b`, "b</h4>"],
  [`a | b\n-${" ".repeat(20000)}x`, "x</li>"],
  ["*a ".repeat(20000), "*a"],
  [`\`\`\`${" ".repeat(20000)}\``, "`"],
  [`http://a.example/${".".repeat(20000)}x`, "x</a>"],
  ["*".repeat(3000) + "[".repeat(3000) + "`".repeat(999), "["],
];

/** What a model writes is shown, and is nothing but text. */
async function markdown(page) {
  for (const [source, expected] of MARKDOWN) {
    const html = await page.evaluate(async (source) => {
      const { render } = await import(new URL("page/markdown.js", document.baseURI));
      const node = document.createElement("div");
      // As it comes, and at once.
      for (let n = 1; n < Math.min(source.length, 200); n += 1) render(node, source.slice(0, n));
      render(node, source);
      const whole = document.createElement("div");
      render(whole, source);
      return whole.innerHTML === node.innerHTML ? node.innerHTML : `differs: ${node.innerHTML}\n${whole.innerHTML}`;
    }, source);
    assert.ok(html.includes(expected), `${source}\n${html}`);
  }
}

/** A conversation with all that is hard to lay out, on a desk and on a phone. */
async function layout(page) {
  const said = [
    { role: "user", content: "How do I read a file line by line in Rust, and what does it cost?" },
    {
      role: "assistant",
      note: "212 tokens · 41.3 per second · first after 0.21 s",
      content: "Use a **buffered reader**. Each call of `read_line` takes what is in the buffer, and asks the system only when that is empty:\n\n" +
        "```rust\nuse std::io::{BufRead, BufReader};\n\nfn main() -> std::io::Result<()> {\n    let file = std::fs::File::open(std::env::args().nth(1).unwrap_or_else(|| \"a long default name of a file\".into()))?;\n" +
        "    for line in BufReader::new(file).lines() {\n        println!(\"{}\", line?);\n    }\n    Ok(())\n}\n```\n\n" +
        "Three things to know:\n\n1. `lines()` allocates a `String` for each line.\n2. A line may be as long as the file.\n3. Bytes that are no UTF-8 are an error.\n\n" +
        "| way | allocations | speed |\n|---|---|--:|\n| `lines()` | one a line | 1.0 |\n| `read_line` into one `String` | one | 1.4 |\n\n> Measure before you choose.\n\n" +
        `${"Donaudampfschifffahrtselektrizitätenhauptbetriebswerkbauunterbeamtengesellschaft".repeat(2)}`,
    },
    { role: "user", content: "Thanks." },
    { role: "assistant", content: "You are welcome.", note: "5 tokens · 40.1 per second · first after 0.09 s" },
  ];
  const put = (said) => (sessionStorage["outboard.messages"] = JSON.stringify(said));
  const { identifier } = await page.evaluateOnNewDocument(put, said);
  await page.reload();
  await page.waitForSelector(".host");
  await accessible(page, "a conversation");
  for (const value of ["light", "dark"]) {
    await scheme(page, value);
    await page.$eval("#scroll", (node) => (node.scrollTop = 0));
    await picture(page, `chat-${value}`);
  }
  await page.setViewport({ width: 390, height: 844, hasTouch: true, isMobile: true });
  await page.waitForFunction(() => getComputedStyle(document.querySelector(".views")).display !== "none");
  for (const view of ["chat", "cluster"]) {
    await page.click(`#show-${view}`);
    assert.equal(await page.evaluate(() => document.documentElement.scrollWidth), 390, `${view} is as wide as a phone`);
    assert.equal(await page.$eval(view === "chat" ? "#scroll" : "#cluster", (n) => n.scrollWidth <= n.clientWidth), true);
    await accessible(page, `${view} on a phone`);
    await picture(page, `phone-${view}-light`);
    await scheme(page, "dark");
    await picture(page, `phone-${view}-dark`);
    await scheme(page, "light");
  }
  await page.click("#show-chat");
  await page.removeScriptToEvaluateOnNewDocument(identifier);
  await page.setViewport({ width: 1360, height: 860 });
  await page.waitForSelector(".host");
  await page.click("#new");
}

/** Times of a token are there while texts are under way, and a lost server is red while the text goes on. */
async function loses(page) {
  await set(page, { max_tokens: "1200", temperature: "1", seed: "3" });
  await page.focus("#question");
  await page.keyboard.type("Tell a very long story about a lighthouse.");
  await page.keyboard.press("Enter");
  await page.waitForFunction(() => /ms/.test(document.querySelector("#token-time").textContent));
  await page.waitForFunction(() => Number(document.querySelector("#rate").textContent) > 0 && document.querySelector(".requests td"));
  assert.ok((await page.$$eval(".bar .compute", (parts) => parts.length)) >= 4);
  await picture(page, "running-light");
  await scheme(page, "dark");
  await picture(page, "running-dark");
  const before = (await last(page)).length;
  await ask("lose");
  await page.waitForSelector(".host.lost");
  await page.waitForSelector("#losses li");
  await page.waitForFunction((before) => [...document.querySelectorAll(".writes .text")].at(-1)?.textContent.length > before + 60, {}, before);
  await picture(page, "lost-dark");
  await scheme(page, "light");
  await picture(page, "lost-light");
  await page.keyboard.press("Escape");
  await idle(page);
  await accessible(page, "a lost server");
  assert.equal(await page.$$eval(".problem", (nodes) => nodes.length), 0, "the text went on");
}

/** A server that asks for a key, and has one place. */
async function refuses(page) {
  await page.waitForSelector("#key-dialog[open]");
  await accessible(page, "key");
  await picture(page, "key-light");
  await page.type("#key", "wrong");
  await page.keyboard.press("Enter");
  await page.waitForFunction(() => /not known/.test(document.querySelector("#key-why").textContent));
  await page.type("#key", key);
  await page.keyboard.press("Enter");
  await page.waitForSelector(".host");
  await set(page, { max_tokens: "8" });
  const headers = { authorization: `Bearer ${key}`, "content-type": "application/json" };
  const body = JSON.stringify({ prompt: "abcd", max_tokens: 100000, ignore_eos: true, stream: true });
  const leave = new AbortController();
  const busy = await fetch(`${guarded}v1/completions`, { method: "POST", headers, body, signal: leave.signal });
  assert.equal(busy.status, 200);
  await say(page, "abcd");
  assert.match(await text(page, ".problem"), /busy.*a pause of \d+ second/);
  await picture(page, "busy-light");
  leave.abort();
  await page.waitForFunction(() => /^0 of/.test(document.querySelector("#running").textContent));
  await page.click(".again");
  await idle(page);
  assert.equal(await page.$$eval(".problem", (nodes) => nodes.length), 0);
}

/** The server is gone. */
async function ends(page) {
  await ask("end");
  await page.waitForFunction(() => /does not answer/.test(document.querySelector("#state").textContent));
  await say(page, "Are you there?");
  assert.match(await text(page, ".problem"), /does not answer/);
  await picture(page, "gone-light");
}

async function main() {
  const browser = await puppeteer.launch({
    executablePath: process.env.CHROMIUM,
    args: ["--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--no-first-run"],
  });
  try {
    const begun = Date.now();
    const step = async (name, work) => {
      await work();
      if (folder) console.error(`${name}: ${Date.now() - begun} ms`);
    };
    const page = await open(browser, url);
    await step("chats", () => chats(page));
    await step("stops", () => stops(page));
    await step("keyboard", () => keyboard(page));
    await step("markdown", () => markdown(page));
    await step("layout", () => layout(page));
    await step("loses", () => loses(page));
    errorsAreMeant = true;
    await step("refuses", async () => refuses(await open(browser, guarded)));
    await step("ends", () => ends(page));
    assert.deepEqual(problems, []);
  } finally {
    await browser.close();
  }
  console.log("done");
}

main().then(() => process.exit(0), (error) => {
  console.error(error);
  console.error(problems.join("\n"));
  process.exit(1);
});
