// Calls a tool as programs do, with OpenAI's client for JavaScript: URL. The model is qwen2.5-coder, which calls one for this question.
const OpenAI = require("openai");
const assert = require("node:assert/strict");

const [url] = process.argv.slice(2);
const client = new OpenAI({ baseURL: `${url}/v1`, apiKey: "none", maxRetries: 0, timeout: 240000 });
const parameters = { type: "object", properties: { city: { type: "string" } }, required: ["city"] };
const about = { name: "get_weather", description: "Gets the weather of a city." };
const messages = [{ role: "user", content: "What is the weather in Paris?" }];
const tools = [{ type: "function", function: { ...about, parameters } }];
const request = { model: "qwen2.5-coder", messages, tools, temperature: 0, max_tokens: 64 };
const paris = { city: "Paris" };

async function main() {
  const { message, finish_reason } = (await client.chat.completions.create(request)).choices[0];
  assert.equal(finish_reason, "tool_calls");
  const [call] = message.tool_calls;
  assert.equal(call.function.name, "get_weather");
  assert.deepEqual(JSON.parse(call.function.arguments), paris);
  const stream = client.chat.completions.stream(request);
  const final = await stream.finalChatCompletion();
  assert.equal(final.choices[0].finish_reason, "tool_calls");
  assert.deepEqual(JSON.parse(final.choices[0].message.tool_calls[0].function.arguments), paris);
  // The client calls the function itself.
  const cities = [];
  const run = client.chat.completions.runTools(
    { ...request, tools: [{ type: "function", function: { ...about, parameters, parse: JSON.parse, function: ({ city }) => cities.push(city) && "21" } }] },
    { maxChatCompletions: 1 },
  );
  await run.done();
  assert.equal(cities[0], "Paris");
  assert.ok(run.messages.some((said) => said.role === "tool" && said.content === "21"));
  const flat = [{ type: "function", ...about, parameters, strict: false }];
  const events = client.responses.stream({ model: "qwen2.5-coder", input: messages, tools: flat, temperature: 0, max_output_tokens: 64 });
  const item = (await events.finalResponse()).output.find(({ type }) => type === "function_call");
  assert.deepEqual(JSON.parse(item.arguments), paris);
  const made = (await client.chat.completions.create({ ...request, tool_choice: "required" })).choices[0];
  assert.ok(JSON.parse(made.message.tool_calls[0].function.arguments).city);
  const other = { type: "function", function: { name: "other" } };
  await assert.rejects(client.chat.completions.create({ ...request, tool_choice: other }), (e) => e.status === 400 && e.param === "tool_choice");
  console.log(JSON.stringify({ ok: true, cities }));
}

main().catch((e) => {
  console.error(e);
  process.exit(1);
});
