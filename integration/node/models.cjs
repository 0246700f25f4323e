// Uses a server of two models, small and gemma, as programs do, with OpenAI's client for JavaScript: URL.
const OpenAI = require("openai");
const assert = require("node:assert/strict");

const [url] = process.argv.slice(2);
const client = new OpenAI({ baseURL: `${url}/v1`, apiKey: "none", maxRetries: 0, timeout: 240000 });

const near = (a, b) => a.length === b.length && a.every((x, i) => Math.abs(x - b[i]) < 1e-6);

async function main() {
  const names = [];
  for await (const model of client.models.list()) names.push(model.id);
  assert.deepEqual(names, ["small", "gemma"]);
  const input = ["The sea is calm today.", "A second text."];
  const widths = [];
  for (const model of names) {
    const both = await client.embeddings.create({ model, input });
    const alone = await client.embeddings.create({ model, input: input[1], encoding_format: "float" });
    assert.equal(both.model, model);
    assert.ok(near(both.data[1].embedding, alone.data[0].embedding));
    assert.ok(Math.abs(alone.data[0].embedding.reduce((sum, x) => sum + x * x, 0) - 1) < 1e-4);
    assert.equal(alone.usage.prompt_tokens, alone.usage.total_tokens);
    widths.push(alone.data[0].embedding.length);
    const text = await client.completions.create({ model, prompt: "The sea is", max_tokens: 4 });
    assert.equal(text.model, model);
  }
  assert.notEqual(widths[0], widths[1]);
  await assert.rejects(client.embeddings.create({ model: "large", input: "x" }), OpenAI.NotFoundError);
  await assert.rejects(client.embeddings.create({ model: "small", input: "" }), (e) => e.status === 400 && e.param === "input");
  console.log(JSON.stringify({ ok: true, widths }));
}

main().catch((e) => {
  console.error(e);
  process.exit(1);
});
