"""Calls tools as programs do, with the clients of OpenAI, Anthropic and LangChain: URL. The model is qwen2.5-coder, which calls one for this question."""

import json
import sys

import anthropic
import openai
from langchain_core.exceptions import ContextOverflowError
from langchain_core.tools import tool
from langchain_openai import ChatOpenAI
from pydantic import BaseModel

url = sys.argv[1]
client = openai.OpenAI(base_url=url + "/v1", api_key="none", max_retries=0, timeout=240)
schema = {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}
about = {"name": "get_weather", "description": "Gets the weather of a city."}
tools = [{"type": "function", "function": {**about, "parameters": schema}}]
question = [{"role": "user", "content": "What is the weather in Paris?"}]
ask = {"model": "qwen2.5-coder", "messages": question, "tools": tools, "temperature": 0, "max_tokens": 64}
PARIS = {"city": "Paris"}


def expect(kind, part, ask):
    """What is asked for fails with this error."""
    try:
        ask()
    except kind as e:
        assert part in str(e), (part, str(e))
        return e
    raise AssertionError(f"no {kind.__name__}")


# A chat, whole and as it comes.
chat = client.chat.completions.create(**ask).choices[0]
(call,) = chat.message.tool_calls
assert chat.finish_reason == "tool_calls" and not chat.message.content, chat
assert call.function.name == "get_weather" and json.loads(call.function.arguments) == PARIS, call
with client.chat.completions.stream(**ask) as stream:
    events = [event.type for event in stream]
    final = stream.get_final_completion().choices[0]
assert "tool_calls.function.arguments.delta" in events and "tool_calls.function.arguments.done" in events, events
assert final.finish_reason == "tool_calls" and json.loads(final.message.tool_calls[0].function.arguments) == PARIS, final
# The result goes back, and the model says something.
turn = question + [chat.message.model_dump(exclude_none=True), {"role": "tool", "tool_call_id": call.id, "content": '{"celsius": 21}'}]
assert client.chat.completions.create(**{**ask, "messages": turn, "tool_choice": "none"}).choices[0].message.content
expect(openai.BadRequestError, "tool_call_id", lambda: client.chat.completions.create(**{**ask, "messages": turn[:1] + turn[2:]}))
none = client.chat.completions.create(**ask, tool_choice="none").choices[0]
assert none.message.content and not none.message.tool_calls, none
forced = {"type": "function", "function": {"name": "get_weather"}}
for choice in ["required", forced]:
    made = client.chat.completions.create(**ask, tool_choice=choice).choices[0]
    assert made.finish_reason == "tool_calls" and json.loads(made.message.tool_calls[0].function.arguments)["city"], made
other = {"type": "function", "function": {"name": "other"}}
assert expect(openai.BadRequestError, "tool_choice", lambda: client.chat.completions.create(**ask, tool_choice=other)).param == "tool_choice"

# Responses, whole and as they come.
request = {"model": "qwen2.5-coder", "input": question, "temperature": 0, "max_output_tokens": 64}
request["tools"] = [{"type": "function", **about, "parameters": schema, "strict": False}]
response = client.responses.create(**request)
(item,) = [item for item in response.output if item.type == "function_call"]
assert (item.name, json.loads(item.arguments)) == ("get_weather", PARIS), response
with client.responses.stream(**request) as events:
    kinds = [event.type for event in events]
    final = events.get_final_response()
assert "response.function_call_arguments.delta" in kinds and "response.function_call_arguments.done" in kinds, kinds
assert json.loads([item for item in final.output if item.type == "function_call"][0].arguments) == PARIS
answered = question + [item.model_dump(exclude_none=True), {"type": "function_call_output", "call_id": item.call_id, "output": "21"}]
assert client.responses.create(**{**request, "input": answered, "tools": []}).output_text

# Anthropic's, whole and as they come.
claude = anthropic.Anthropic(base_url=url, api_key="none", max_retries=0, timeout=240)
same = {"model": "qwen2.5-coder", "messages": question, "max_tokens": 64, "extra_body": {"temperature": 0}}
same["tools"] = [{**about, "input_schema": schema}]
message = claude.messages.create(**same)
(used,) = [block for block in message.content if block.type == "tool_use"]
assert (message.stop_reason, used.name, used.input) == ("tool_use", "get_weather", PARIS), message
with claude.messages.stream(**same) as stream:
    partial = "".join(event.partial_json for event in stream if event.type == "input_json")
    final = stream.get_final_message()
assert json.loads(partial) == PARIS and final.stop_reason == "tool_use" and final.content[-1].input == PARIS, final
result = {"role": "user", "content": [{"type": "tool_result", "tool_use_id": used.id, "content": "21"}]}
history = question + [{"role": "assistant", "content": [block.model_dump(exclude_none=True) for block in message.content]}, result]
assert claude.messages.create(**{**same, "messages": history}).content
counts = [claude.messages.count_tokens(model="qwen2.5-coder", messages=question, **more).input_tokens for more in ({}, {"tools": same["tools"]})]
assert counts[0] < counts[1] == message.usage.input_tokens + (message.usage.cache_read_input_tokens or 0), counts


# LangChain's, whole and as they come.
@tool
def get_weather(city: str) -> str:
    """Gets the weather of a city."""
    return "21"


class Place(BaseModel):
    """A place."""

    city: str


model = ChatOpenAI(model="qwen2.5-coder", base_url=url + "/v1", api_key="none", temperature=0, max_tokens=64, max_retries=0)
for method in ["function_calling", "json_schema"]:
    assert model.with_structured_output(Place, method=method).invoke(question[0]["content"]).city, method
chain = model.bind_tools([get_weather])
answer = chain.invoke(question[0]["content"])
assert [(call["name"], call["args"]) for call in answer.tool_calls] == [("get_weather", PARIS)], answer
whole = None
for chunk in chain.stream(question[0]["content"]):
    whole = chunk if whole is None else whole + chunk
assert [(call["name"], call["args"]) for call in whole.tool_calls] == [("get_weather", PARIS)], whole

# Programs that set `strict` of their own accord, and LangChain's agents, which ask for a form beside tools.
strict = {**ask, "tools": [{"type": "function", "function": {**about, "parameters": {**schema, "additionalProperties": False}, "strict": True}}]}
assert client.chat.completions.create(**strict).choices[0].message.tool_calls
place = {"type": "json_schema", "json_schema": {"name": "place", "schema": Place.model_json_schema(), "strict": True}}
called = client.chat.completions.create(**strict, response_format=place).choices[0].message
assert called.tool_calls or json.loads(called.content)["city"], called
said = turn + [{"role": "user", "content": "Which city was it? Answer with {\"city\": ...}"}]
either = client.chat.completions.create(**{**strict, "messages": said}, response_format=place).choices[0].message
assert either.tool_calls or json.loads(either.content)["city"], either


# Anthropic's helper that calls tools by itself asks for a thread first, and goes on without one.
@anthropic.beta_tool
def get_temperature(city: str) -> str:
    """Gets the temperature in a city.

    Args:
        city: The city.
    """
    calls.append(city)
    return "21 degrees"


calls = []
runner = claude.beta.messages.tool_runner(
    model="qwen2.5-coder", max_tokens=64, messages=[{"role": "user", "content": "What is the temperature in Paris?"}], tools=[get_temperature], extra_body={"temperature": 0}, max_iterations=2
)
assert list(runner) and calls == ["Paris"], calls

# What is too long, programs know by the error's words.
long = "one two three " * 2000
too_long = expect(openai.BadRequestError, "maximum context length is 2048 tokens", lambda: client.chat.completions.create(**{**ask, "messages": [{"role": "user", "content": long}]}))
assert too_long.code == "context_length_exceeded"
expect(anthropic.BadRequestError, "prompt is too long: ", lambda: claude.messages.create(**{**same, "messages": [{"role": "user", "content": long}]}))
expect(ContextOverflowError, "prompt is too long", lambda: model.invoke(long))
assert chat._request_id if hasattr(chat, "_request_id") else client.models.list()._request_id
print(json.dumps({"ok": True, "openai": openai.__version__, "anthropic": anthropic.__version__}))
