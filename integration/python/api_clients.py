"""Uses a server as programs do, with the clients of OpenAI and Anthropic: URL KEY CA."""

import json
import re
import ssl
import sys
import time
from typing import Literal

import anthropic
import openai
import pydantic
from langchain_openai import ChatOpenAI

url, key, ca = sys.argv[1:]
trust = ssl.create_default_context(cafile=ca)
http = openai.DefaultHttpxClient(verify=trust, timeout=120)
client = openai.OpenAI(base_url=url + "/v1", api_key=key, http_client=http, max_retries=0)
question = [{"role": "system", "content": "You answer in one sentence."}, {"role": "user", "content": "What is the sea?"}]


def expect(kind, part, ask):
    """What is asked for fails with this error."""
    try:
        ask()
    except kind as e:
        assert part in str(e), (part, str(e))
        return e
    raise AssertionError(f"no {kind.__name__}")


def metric(name):
    lines = http.get(url + "/metrics", headers={"authorization": "Bearer " + key}).text.splitlines()
    return sum(float(line.rsplit(" ", 1)[1]) for line in lines if line.split("{")[0].split(" ")[0] == name)


def slots():
    found = http.get(url + "/slots", headers={"authorization": "Bearer " + key}).json()
    return sum(slot["is_processing"] for slot in found)


# Models and a chat, whole and as it comes.
assert [m.id for m in client.models.list()] == ["smollm2"]
assert client.models.retrieve("gpt-4o-mini").id == "gpt-4o-mini"
chat = client.chat.completions.create(model="gpt-4o-mini", messages=question, max_completion_tokens=24, temperature=0)
said = chat.choices[0].message.content
assert said and chat.choices[0].finish_reason in ("stop", "length") and chat.usage.completion_tokens <= 24, chat
print("chat:", said)
pieces, usage, reason = [], None, None
stream = client.chat.completions.create(
    model="smollm2", messages=question, max_tokens=24, temperature=0, stream=True, stream_options={"include_usage": True}
)
for chunk in stream:
    usage = chunk.usage or usage
    for choice in chunk.choices:
        pieces.append(choice.delta.content or "")
        reason = choice.finish_reason or reason
assert "".join(pieces) == said and reason == chat.choices[0].finish_reason, (pieces, said)
assert usage.completion_tokens == chat.usage.completion_tokens and usage.prompt_tokens == chat.usage.prompt_tokens
# The prompt has been read before.
several = client.chat.completions.create(
    model="smollm2", messages=question, max_tokens=8, n=3, seed=1, temperature=1, logprobs=True, stop=["."]
)
assert len(several.choices) == 3 and all(c.logprobs.content and c.logprobs.content[0].logprob <= 0 for c in several.choices)
again = client.chat.completions.create(
    model="smollm2", messages=question, max_tokens=8, n=3, seed=1, temperature=1, extra_body={"top_k": 0, "min_p": 0.0}, stop=["."]
)
assert [c.message.content for c in again.choices] == [c.message.content for c in several.choices]
text = client.completions.create(model="smollm2", prompt=["The sea is", "The sky is"], max_tokens=6, temperature=0, logprobs=0)
assert [c.index for c in text.choices] == [0, 1] and len(text.choices[0].logprobs.tokens) == 6
print("texts:", [c.text for c in text.choices])

# Responses, whole and as they come.
response = client.responses.create(model="smollm2", instructions=question[0]["content"], input=question[1]["content"], max_output_tokens=24, temperature=0)
assert response.output_text == said, (response.output_text, said)
response = client.responses.create(
    model="smollm2", input=question[1]["content"], max_output_tokens=8, temperature=0, include=["message.output_text.logprobs"], top_logprobs=2
)
known = response.output[0].content[0].logprobs
assert "".join(one.token for one in known) == response.output_text and all(one.top_logprobs[0].logprob == one.logprob for one in known)
with client.responses.stream(model="smollm2", instructions=question[0]["content"], input=question[1]["content"], max_output_tokens=24, temperature=0) as events:
    deltas = "".join(e.delta for e in events if e.type == "response.output_text.delta")
assert deltas == said

# Answers that have a form.
class Town(pydantic.BaseModel):
    name: str = pydantic.Field(max_length=30)
    inhabitants: int = pydantic.Field(ge=0, le=50_000_000)
    kind: Literal["port", "capital", "village"]
    twins: list[str] = pydantic.Field(max_length=2)


about = [{"role": "user", "content": "Describe a town as JSON."}]
for temperature in (0, 1):
    town = client.chat.completions.parse(model="smollm2", messages=about, response_format=Town, max_tokens=400, temperature=temperature, seed=3)
    assert town.choices[0].finish_reason == "stop" and isinstance(town.choices[0].message.parsed, Town), town
print("town:", town.choices[0].message.parsed)
with client.chat.completions.stream(model="smollm2", messages=about, response_format=Town, max_tokens=400, temperature=1, seed=3) as stream:
    assert stream.get_final_completion().choices[0].message.parsed == town.choices[0].message.parsed
town = client.responses.parse(model="smollm2", input=about[0]["content"], text_format=Town, max_output_tokens=400, temperature=0)
assert isinstance(town.output_parsed, Town), town
lines = client.chat.completions.create(
    model="smollm2", messages=about, max_tokens=40, extra_body={"grammar": 'start: "yes" | "no" ", " WORD\nWORD: /[a-z]{3,8}/'}
)
assert re.fullmatch("yes|no, [a-z]{3,8}", lines.choices[0].message.content), lines

top = client.chat.completions.create(
    model="smollm2", messages=question, max_tokens=6, temperature=0, logprobs=True, top_logprobs=2
)
for one in top.choices[0].logprobs.content:
    assert len(one.top_logprobs) == 2 and one.top_logprobs[0].token == one.token, one
    assert one.top_logprobs[0].logprob == one.logprob >= one.top_logprobs[1].logprob, one

# Errors.
tools = [{"type": "function", "function": {"name": "f", "parameters": {}}}]
ask = lambda **more: client.chat.completions.create(**{"model": "smollm2", "messages": question, "max_tokens": 4, **more})
assert expect(openai.BadRequestError, "tools", lambda: ask(tools=tools)).param == "tools"
assert expect(openai.BadRequestError, "store", lambda: ask(store=True)).code == "unsupported_parameter"
expect(openai.BadRequestError, "top_logprobs", lambda: ask(logprobs=True, top_logprobs=21))
expect(openai.BadRequestError, "logit_bias", lambda: ask(logit_bias={"1": 1000}))
expect(openai.BadRequestError, "uniqueItems", lambda: ask(extra_body={"guided_json": {"type": "array", "uniqueItems": True}}))
expect(openai.NotFoundError, "gpt-9", lambda: ask(model="gpt-9"))
long = [{"role": "user", "content": "sea " * 4000}]
assert expect(openai.BadRequestError, "context", lambda: ask(messages=long)).code == "context_length_exceeded"
assert len(client.embeddings.create(model="smollm2", input="x").data[0].embedding) == 576
stranger = openai.OpenAI(base_url=url + "/v1", api_key="wrong", http_client=http, max_retries=0)
expect(openai.AuthenticationError, "key", stranger.models.list)

# A stream that is given up frees its place.
endless = {"model": "smollm2", "messages": question, "max_tokens": 900, "extra_body": {"ignore_eos": True}}
given_up = client.chat.completions.create(stream=True, **endless)
for chunk, _ in zip(given_up, range(4)):
    pass
assert slots() == 1
given_up.close()
end = time.monotonic() + 60
while slots() > 0:
    assert time.monotonic() < end, "its place is still taken"
    time.sleep(0.01)
# So does a request that runs out of time.
expect(openai.APITimeoutError, "", lambda: client.with_options(timeout=0.5).chat.completions.create(**endless))
while slots() > 0:
    assert time.monotonic() < end, "its place is still taken"
    time.sleep(0.01)
assert metric("outboard_serve_texts_total") >= 10

# The same through Anthropic's, whose clients of today know no temperature.
claude = anthropic.Anthropic(base_url=url, api_key=key, http_client=anthropic.DefaultHttpxClient(verify=trust, timeout=120), max_retries=0)
same = {"model": "smollm2", "system": question[0]["content"], "messages": question[1:], "max_tokens": 24, "extra_body": {"temperature": 0}}
message = claude.messages.create(**same)
assert message.content[0].text == said and message.stop_reason in ("end_turn", "max_tokens"), message
with claude.messages.stream(**same) as stream:
    assert "".join(stream.text_stream) == said
    assert stream.get_final_message().usage.output_tokens == message.usage.output_tokens
counted = claude.messages.count_tokens(model="smollm2", system=question[0]["content"], messages=question[1:])
assert counted.input_tokens == chat.usage.prompt_tokens
expect(anthropic.BadRequestError, "tools", lambda: claude.messages.create(**same, tools=[{"name": "f", "input_schema": {"type": "object"}}]))
expect(anthropic.AuthenticationError, "key", lambda: claude.with_options(api_key="wrong").messages.create(**same))
# And through LangChain.
chain = ChatOpenAI(model="smollm2", base_url=url + "/v1", api_key=key, http_client=http, temperature=0, max_tokens=24, max_retries=0)
turns = [(m["role"], m["content"]) for m in question]
answer = chain.invoke(turns)
assert answer.content == said and answer.usage_metadata["output_tokens"] == chat.usage.completion_tokens, answer
assert "".join(str(chunk.content) for chunk in chain.stream(turns)) == said
print(json.dumps({"ok": True, "openai": openai.__version__, "anthropic": anthropic.__version__}))
