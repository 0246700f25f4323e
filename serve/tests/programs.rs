//! Bodies as known programs send them: each is answered. What is in them beside the text is what these programs say to every server.
#![allow(clippy::unwrap_used, clippy::expect_used)]

mod common;

use common::{Kind, STOP, Served};
use serde_json::{Value, json};

/// It tells of tools and their calls, and not of reasoning.
const TEMPLATE: &str = "{% for t in tools %}{{ t | tojson }}\n{% endfor %}{% for m in messages %}[{{ m.role }}] {{ m.content }}\
    {% for c in m.tool_calls %}<tool_call>{{ c.function | tojson }}</tool_call>{% endfor %}\n{% endfor %}";
const ANSWER: &str = "<tool_call>\n{\"name\": \"look\", \"arguments\": {\"z\": \"here\"}}\n</tool_call>$$";

fn function() -> Value {
    let parameters = json!({"type": "object", "properties": {"z": {"type": "string"}}, "required": ["z"], "additionalProperties": false});
    json!({"name": "look", "description": "Looks.", "parameters": parameters, "strict": true})
}

/// OpenAI's tools, in a chat.
fn tools() -> Value {
    json!([{"type": "function", "function": function()}])
}

fn call(more: Value) -> Value {
    let mut call = json!({"id": "call_1", "type": "function", "function": {"name": "look", "arguments": "{}"}});
    call.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
    call
}

fn result() -> Value {
    json!({"role": "tool", "tool_call_id": "call_1", "content": "a"})
}

/// A chat with tools, as PydanticAI, AutoGen, LangChain's agents, proxies such as LiteLLM, and Open WebUI send them.
fn chats() -> Vec<(&'static str, Value)> {
    let user = json!({"role": "user", "content": "a"});
    let answer =
        json!({"title": "Place", "type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]});
    let answer = json!({"type": "json_schema", "json_schema": {"name": "Place", "schema": answer, "strict": true}});
    vec![
        (
            "PydanticAI",
            json!({"messages": [user], "tools": tools(), "tool_choice": "auto", "parallel_tool_calls": true}),
        ),
        (
            "AutoGen",
            json!({"messages": [{"role": "user", "name": "user", "content": "a"}], "tools": tools(), "user": "x"}),
        ),
        (
            "LangChain",
            json!({"messages": [user, {"role": "assistant", "name": "planner", "content": "b"}, user], "tools": tools(), "response_format": answer}),
        ),
        (
            "LiteLLM",
            json!({
                "messages": [
                    {"role": "system", "content": "b", "cache_control": {"type": "ephemeral"}}, user,
                    {
                        "role": "assistant", "content": null, "tool_calls": [call(json!({"index": 0, "extra_content": {"google": {}}}))],
                        "provider_specific_fields": {"a": 1}, "thinking_blocks": [], "reasoning": "hm", "images": [], "refusal": "no",
                    },
                    result(),
                ],
                "tools": [{"type": "function", "function": function(), "cache_control": {"type": "ephemeral"}}],
                "session_id": "x", "reasoning_effort": "low",
            }),
        ),
        (
            "Open WebUI",
            json!({"model": "", "messages": [user], "tools": tools(), "stream_options": {"include_usage": true}, "stream": true}),
        ),
    ]
}

fn responses() -> Vec<(&'static str, Value)> {
    let flat = json!({"type": "function", "name": "look", "description": "Looks.", "parameters": function()["parameters"], "strict": false});
    let said = |role: &str, kind: &str, text: &str| json!({"type": "message", "role": role, "content": [{"type": kind, "text": text}]});
    let mut back = said("assistant", "output_text", "c");
    back["phase"] = "commentary".into();
    vec![(
        "Codex",
        json!({
            "instructions": "b", "store": false, "stream": true, "include": ["reasoning.encrypted_content"], "prompt_cache_key": "x",
            "client_metadata": {"x-codex-installation-id": "a"}, "reasoning": {"effort": "medium", "summary": "auto"},
            "tools": [flat, {"type": "web_search", "external_web_access": false}], "tool_choice": "auto", "parallel_tool_calls": false,
            "input": [
                said("developer", "input_text", "b"), said("developer", "input_text", "c"), said("user", "input_text", "a"), back,
                {"type": "function_call", "name": "look", "arguments": "{}", "call_id": "call_1", "namespace": null, "internal": 1},
                {"type": "function_call_output", "call_id": "call_1", "output": "d"},
            ],
        }),
    )]
}

fn messages() -> Vec<(&'static str, Value)> {
    let tool = json!({
        "name": "look", "description": "Looks.", "input_schema": function()["parameters"], "eager_input_streaming": true, "input_examples": [{"z": "a"}],
        "cache_control": {"type": "ephemeral"},
    });
    let text = |text: &str| json!([{"type": "text", "text": text, "cache_control": {"type": "ephemeral"}}]);
    vec![(
        "Claude Code",
        json!({
            "system": text("b"), "messages": [{"role": "user", "content": text("a")}], "tools": [tool], "metadata": {"user_id": "x"}, "max_tokens": 8,
            "thinking": {"type": "enabled", "budget_tokens": 1024}, "output_config": {"effort": "medium"}, "stream": true,
            "context_management": {"edits": [{"type": "clear_thinking_20251015", "keep": "all"}]},
        }),
    )]
}

#[test]
fn bodies_of_known_programs_are_answered() {
    let served = Served::scripted(TEMPLATE, ANSWER, Kind::UserDefined);
    for (path, most, stop, bodies) in [
        ("/v1/chat/completions", "max_tokens", "stop", chats()),
        ("/v1/responses", "max_output_tokens", "stop", responses()),
        ("/v1/messages", "max_tokens", "stop_sequences", messages()),
    ] {
        for (program, mut body) in bodies {
            (body[most], body[stop], body["temperature"]) = (8.into(), json!([STOP]), 0.into());
            let answer = served.post(path, &body);
            assert!(answer.status == 200, "{program}: {}", answer.text());
            let id = answer.header("x-request-id").unwrap_or_default().to_owned();
            assert!(id.starts_with("req_") && answer.header("request-id") == Some(&id), "{program}");
            let text = answer.text();
            // A form holds from the first token on, which is none of what this model says.
            let has_call = ["\"tool_calls\":[", "\"type\":\"function_call\"", "\"type\":\"tool_use\""]
                .iter()
                .any(|call| text.contains(call));
            assert!(has_call || body.get("response_format").is_some(), "{program}: {text}");
            assert!(!text.contains("\"error\":{"), "{program}: {text}");
        }
    }
}

#[test]
fn a_thread_is_refused_so_that_anthropics_clients_go_on_without() {
    let served = Served::scripted(TEMPLATE, ANSWER, Kind::UserDefined);
    let request =
        json!({"messages": [{"role": "user", "content": "a"}], "max_tokens": 1, "thread": {"type": "create"}});
    let answer = served.post("/v1/messages", &request);
    let body: Value = serde_json::from_str(&answer.text()).unwrap();
    assert_eq!(answer.status, 400);
    assert_eq!(
        body["error"]["details"],
        json!({"error_code": "thread_unsupported_request", "unsupported": ["thread"]})
    );
}

#[test]
fn programs_know_a_prompt_that_is_too_long_by_its_words() {
    let served = Served::scripted(TEMPLATE, ANSWER, Kind::UserDefined);
    let long = json!([{"role": "user", "content": "a ".repeat(5000)}]);
    for path in ["/v1/chat/completions", "/v1/messages", "/v1/responses"] {
        let text = if path.ends_with("responses") { "input" } else { "messages" };
        let mut request = json!({ text: long });
        if path.ends_with("messages") {
            request["max_tokens"] = 1.into();
        }
        let body: Value = serde_json::from_str(&served.post(path, &request).text()).unwrap();
        let message = body["error"]["message"].as_str().unwrap();
        assert!(message.starts_with("prompt is too long: ") && message.contains(" tokens > "), "{path}: {message}");
        assert!(message.contains("maximum context length is "), "{path}: {message}");
    }
}
