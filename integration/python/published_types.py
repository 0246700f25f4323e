"""Answers beside the types that OpenAI and Anthropic publish: their packages have them, made from the descriptions of their APIs.

    published_types.py URL MODEL [tools]

Every answer, whole and in events, must be of its type strictly, and have no field that the type has not, but those that are named here."""

import json
import sys
import typing

import anthropic.types
import httpx
import openai.types
import openai.types.chat
import openai.types.responses
import openai.types.shared
import pydantic

# Beyond the published ones: what llama-server says of a model, reasoning as vLLM and llama-server have it, cached tokens of embeddings, and `store`,
# which OpenAI's own responses have as well; and the name of a function in an event that some versions of the type have it in.
OURS = {"aliases", "meta", "reasoning_content", "prompt_tokens_details", "store", "ResponseFunctionCallArgumentsDoneEvent.name", "Model.type", "Model.display_name"}
# Anthropic's models, which have the same path.
OURS |= {"Model.created_at", "Model.lifecycle", "Model.max_input_tokens", "Model.max_tokens"}

url, model, *more = sys.argv[1:]
http = httpx.Client(base_url=url, timeout=600)
seen, wrong = set(), set()


def check(kind, value):
    """Looks whether a value is of a type."""
    try:
        made = pydantic.TypeAdapter(kind).validate_json(json.dumps(value), strict=True)
    except pydantic.ValidationError as why:
        wrong.add(str(why))
        return
    unknown(made, type(made).__name__, wrong)
    seen.add(type(made).__name__)


def event_of(union, event):
    """The type of an event, among all there are."""
    members = typing.get_args(typing.get_args(union)[0])
    return next(kind for kind in members if event["type"] in typing.get_args(kind.model_fields["type"].annotation))


def unknown(value, at, found):
    """Fields that their type does not have."""
    if isinstance(value, pydantic.BaseModel):
        found.update(f"{at}.{name}: not published" for name in value.model_extra or {} if not {name, f"{at}.{name}"} & OURS)
        for name in type(value).model_fields:
            unknown(getattr(value, name), f"{at}.{name}", found)
    elif isinstance(value, (list, tuple)):
        for one in value:
            unknown(one, at, found)


def get(path, status=200):
    answer = http.get(path)
    assert answer.status_code == status, answer.text
    return answer.json()


def post(path, body, status=200):
    answer = http.post(path, json={"model": model, **body})
    assert answer.status_code == status, answer.text
    return answer.json()


def events(path, body):
    """The data of the events of a stream."""
    with http.stream("POST", path, json={"model": model, "stream": True, **body}) as answer:
        assert answer.status_code == 200, answer.read()
        for line in answer.iter_lines():
            if line.startswith("data: ") and line != "data: [DONE]":
                yield json.loads(line.removeprefix("data: "))


chat = {"messages": [{"role": "user", "content": "Say hello."}], "max_tokens": 8, "temperature": 0}
text = {"prompt": "The sea is", "max_tokens": 6, "temperature": 0}
response = {"input": "Say hello.", "max_output_tokens": 8, "temperature": 0}
schema = {"type": "object", "properties": {"city": {"type": "string", "maxLength": 9}}, "required": ["city"], "additionalProperties": False}
called = "What is the weather in Paris?"
function = {"name": "weather", "description": "The weather of a city.", "parameters": schema}

for one in get("/v1/models")["data"]:
    check(openai.types.Model, one)
check(openai.types.Model, get(f"/v1/models/{model}"))

asked = [chat, {**chat, "n": 2, "logprobs": True, "top_logprobs": 2}]
asked.append({**chat, "max_tokens": 40, "response_format": {"type": "json_schema", "json_schema": {"name": "x", "schema": schema}}})
if more:
    tools = {"tools": [{"type": "function", "function": function}], "tool_choice": "required", "max_tokens": 40}
    asked.append({**chat, **tools, "messages": [{"role": "user", "content": called}]})
for body in asked:
    check(openai.types.chat.ChatCompletion, post("/v1/chat/completions", body))
    for event in events("/v1/chat/completions", {**body, "stream_options": {"include_usage": True}}):
        check(openai.types.chat.ChatCompletionChunk, event)
for body in [text, {**text, "logprobs": 2, "n": 2}]:
    check(openai.types.Completion, post("/v1/completions", body))
    for event in events("/v1/completions", body):
        # The type is that of whole answers, which have a reason; parts of OpenAI's own have null as well.
        for choice in event["choices"]:
            choice["finish_reason"] = choice["finish_reason"] or "stop"
        check(openai.types.Completion, event)
check(openai.types.CreateEmbeddingResponse, post("/v1/embeddings", {"input": ["a", "b c"]}))

asked = [response, {**response, "include": ["message.output_text.logprobs"], "top_logprobs": 2}]
asked.append({**response, "max_output_tokens": 40, "text": {"format": {"type": "json_schema", "name": "x", "schema": schema}}})
if more:
    asked.append({**response, "input": called, "tools": [{"type": "function", "strict": False, **function}], "tool_choice": "required", "max_output_tokens": 40})
for body in asked:
    check(openai.types.responses.Response, post("/v1/responses", body))
    for event in events("/v1/responses", body):
        check(event_of(openai.types.responses.ResponseStreamEvent, event), event)

message = {"messages": chat["messages"], "max_tokens": 8, "temperature": 0}
asked = [message, {**message, "system": "Be short.", "stop_sequences": ["!"]}]
if more:
    named = {"name": "weather", "description": function["description"], "input_schema": schema}
    asked.append({**message, "messages": [{"role": "user", "content": called}], "tools": [named], "tool_choice": {"type": "any"}, "max_tokens": 40})
for body in asked:
    check(anthropic.types.Message, post("/v1/messages", body))
    for event in events("/v1/messages", body):
        # Pings are not among the types of the package, which passes them over.
        if event != {"type": "ping"}:
            check(event_of(anthropic.types.RawMessageStreamEvent, event), event)
check(anthropic.types.MessageTokensCount, post("/v1/messages/count_tokens", {"messages": chat["messages"]}))

for path, body in [("/v1/chat/completions", {**chat, "max_tokens": "x"}), ("/v1/responses", {**response, "store": True})]:
    check(openai.types.shared.ErrorObject, post(path, body, 400)["error"])
check(anthropic.types.ErrorResponse, post("/v1/messages", {**message, "max_tokens": "x"}, 400))
assert not wrong, "\n".join(sorted(wrong))
print("types:", " ".join(sorted(seen)))
