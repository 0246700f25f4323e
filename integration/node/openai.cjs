// Uses a server as programs do, with OpenAI's client for JavaScript: URL KEY. The CA comes by NODE_EXTRA_CA_CERTS.
const OpenAI = require("openai");
const assert = require("node:assert/strict");

const [url, apiKey] = process.argv.slice(2);
const client = new OpenAI({ baseURL: `${url}/v1`, apiKey, maxRetries: 0, timeout: 120000 });
const messages = [{ role: "user", content: "What is the sea?" }];
const request = { model: "smollm2", messages, max_tokens: 24, temperature: 0 };

async function busy() {
  const slots = await fetch(`${url}/slots`, { headers: { authorization: `Bearer ${apiKey}` } });
  return (await slots.json()).filter((slot) => slot.is_processing).length;
}

async function main() {
  const chat = await client.chat.completions.create(request);
  const said = chat.choices[0].message.content;
  assert.ok(said.length > 0 && chat.usage.completion_tokens <= 24);
  let pieces = "";
  let usage = null;
  const stream = await client.chat.completions.create({ ...request, stream: true, stream_options: { include_usage: true } });
  for await (const chunk of stream) {
    pieces += chunk.choices[0]?.delta?.content ?? "";
    usage = chunk.usage ?? usage;
  }
  assert.equal(pieces, said);
  assert.equal(usage.completion_tokens, chat.usage.completion_tokens);
  const response = await client.responses.create({ model: "smollm2", input: messages, max_output_tokens: 24, temperature: 0 });
  assert.equal(response.output_text, said);
  const tools = [{ type: "function", function: { name: "f", parameters: {} } }];
  await assert.rejects(client.chat.completions.create({ ...request, tools }), (e) => e.status === 400 && e.param === "tools");
  await assert.rejects(client.chat.completions.create({ ...request, model: "gpt-9" }), OpenAI.NotFoundError);
  const stranger = new OpenAI({ baseURL: `${url}/v1`, apiKey: "wrong", maxRetries: 0 });
  await assert.rejects(stranger.models.list(), OpenAI.AuthenticationError);
  // A stream that is given up frees its place.
  const endless = await client.chat.completions.create({ ...request, max_tokens: 900, ignore_eos: true, stream: true });
  for await (const _ of endless) {
    assert.equal(await busy(), 1);
    break;
  }
  const end = Date.now() + 60000;
  while ((await busy()) > 0) {
    assert.ok(Date.now() < end, "its place is still taken");
  }
  console.log(JSON.stringify({ ok: true, said }));
}

main().catch((e) => {
  console.error(e);
  process.exit(1);
});
