//! Anthropic's messages and OpenAI's responses; the same conversations as through chat completions.
#![allow(clippy::unwrap_used, clippy::expect_used)]

mod common;

use common::{Kind, Served};
use outboard_serve::ServeOptions;
use serde_json::{Value, json};

fn served() -> Served {
    Served::new(1, ServeOptions::default())
}

/// What chat completions say.
fn expected(served: &Served, messages: Value) -> String {
    let request = json!({"messages": messages, "max_tokens": 10, "temperature": 0});
    let answer = served.post("/v1/chat/completions", &request).json();
    answer["choices"][0]["message"]["content"].as_str().unwrap().to_owned()
}

#[test]
fn messages_are_answered_whole_and_as_they_come() {
    let served = served();
    let text = expected(&served, json!([{"role": "system", "content": "xy"}, {"role": "user", "content": "abcd"}]));
    let mut request = json!({
        "model": "small", "max_tokens": 10, "temperature": 0, "system": "xy",
        "messages": [{"role": "user", "content": [{"type": "text", "text": "abcd", "cache_control": {"type": "ephemeral"}}]}],
    });
    let whole = served.post("/v1/messages", &request).json();
    assert_eq!(whole["content"], json!([{"type": "text", "text": text}]));
    assert_eq!(
        (&whole["type"], &whole["role"], &whole["stop_reason"]),
        (&json!("message"), &json!("assistant"), &json!("max_tokens"))
    );
    assert_eq!((&whole["usage"]["input_tokens"], &whole["usage"]["output_tokens"]), (&json!(6), &json!(10)));
    let counted = json!({"messages": request["messages"], "system": "xy"});
    assert_eq!(served.post("/v1/messages/count_tokens", &counted).json(), json!({"input_tokens": 6}));
    request["stream"] = true.into();
    let mut stream = served.stream("/v1/messages", &request);
    let (mut names, mut streamed, mut last) = (Vec::new(), String::new(), Value::Null);
    while let Some((name, data)) = stream.next() {
        let event: Value = serde_json::from_str(&data).unwrap();
        assert_eq!(event["type"], name.as_str());
        streamed += event["delta"]["text"].as_str().unwrap_or_default();
        if name == "message_delta" {
            last = event;
        }
        if names.last() != Some(&name) {
            names.push(name);
        }
    }
    let order = [
        "message_start",
        "content_block_start",
        "content_block_delta",
        "content_block_stop",
        "message_delta",
        "message_stop",
    ];
    assert_eq!((names, streamed), (order.map(str::to_owned).to_vec(), text.clone()));
    assert_eq!((&last["delta"]["stop_reason"], &last["usage"]["output_tokens"]), (&json!("max_tokens"), &json!(10)));
    let stop: String = text.chars().skip(3).take(2).collect();
    request["stream"] = false.into();
    request["stop_sequences"] = json!(["not there", stop]);
    let stopped = served.post("/v1/messages", &request).json();
    assert_eq!((&stopped["stop_reason"], &stopped["stop_sequence"]), (&json!("stop_sequence"), &json!(stop)));
}

#[test]
fn an_answer_goes_on_from_a_last_message_of_the_assistants() {
    let served = served();
    // The template of this model puts the contents one behind the other.
    let text = expected(&served, json!([{"role": "user", "content": "abcd"}]));
    let messages = json!([{"role": "user", "content": "ab"}, {"role": "assistant", "content": "cd"}]);
    let mut request = json!({"messages": messages, "max_tokens": 10, "temperature": 0});
    assert_eq!(served.post("/v1/messages", &request).json()["content"][0]["text"], text.as_str());
    request["continue_final_message"] = true.into();
    let chat = |request: &Value| served.post("/v1/chat/completions", request);
    assert_eq!(chat(&request).json()["choices"][0]["message"]["content"], text.as_str());
    request["add_generation_prompt"] = true.into();
    assert!(chat(&request).text().contains("add_generation_prompt"));
    request["add_generation_prompt"] = false.into();
    assert_eq!(chat(&request).json()["choices"][0]["message"]["content"], text.as_str());
    request["messages"] = json!([{"role": "user", "content": "ab"}]);
    let answer = chat(&request);
    assert!(answer.status == 400 && answer.text().contains("must be the assistant's"), "{}", answer.text());
}

#[test]
fn messages_may_have_a_form_and_say_what_is_left_out() {
    let served = served();
    let user = json!([{"role": "user", "content": "a"}]);
    let format = json!({"type": "json_schema", "schema": {"enum": ["ab", 12, null]}});
    for (name, value) in [("output_config", json!({"format": format})), ("output_format", format.clone())] {
        let answer = served.post("/v1/messages", &json!({"max_tokens": 30, "messages": user, name: value})).json();
        let text = answer["content"][0]["text"].as_str().unwrap();
        assert!(["\"ab\"", "12", "null"].contains(&text.trim()), "{answer}");
    }
    let edits = |kind: &str| json!({"edits": [{"type": kind, "keep": "all"}]});
    let asked = |name: &str, value: Value| {
        served.post("/v1/messages", &json!({"max_tokens": 1, "messages": user, name: value}))
    };
    assert_eq!(asked("context_management", edits("clear_thinking_20251015")).status, 200);
    let error = asked("context_management", edits("clear_tool_uses_20250919"));
    assert!(error.status == 400 && error.text().contains("context_management.edits"), "{}", error.text());
    // Clients say these of every model; this one never reasons.
    let enabled = json!({"type": "enabled", "budget_tokens": 1024});
    for (name, value) in
        [("output_config", json!({"effort": "max"})), ("thinking", json!({"type": "adaptive"})), ("thinking", enabled)]
    {
        assert_eq!(asked(name, value).status, 200, "{name}");
    }
}

#[test]
fn errors_of_messages_have_the_shape_of_their_api() {
    let served = served();
    let user = json!([{"role": "user", "content": "a"}]);
    for (request, status, part) in [
        (json!({"messages": user}), 400, "max_tokens"),
        (json!({"max_tokens": 1, "messages": user, "tools": [{"name": "f"}]}), 400, "tools"),
        (json!({"max_tokens": 1, "messages": user, "thinking": {"type": "sometimes"}}), 400, "thinking"),
        (json!({"max_tokens": 1, "messages": [{"role": "user", "content": [{"type": "image"}]}]}), 400, "image"),
        (json!({"max_tokens": 1, "messages": [{"role": "assistant", "content": "b"}]}), 400, "user's"),
        (json!({"max_tokens": 1, "messages": []}), 400, "messages"),
        (json!({"max_tokens": 1, "model": "claude", "messages": user}), 404, "claude"),
    ] {
        let answer = served.post("/v1/messages", &request);
        assert_eq!(answer.status, status, "{}", answer.text());
        let body: Value = serde_json::from_slice(&answer.body).unwrap();
        assert_eq!(body["type"], "error");
        let kind = if status == 404 { "not_found_error" } else { "invalid_request_error" };
        assert_eq!(body["error"]["type"], kind);
        assert!(body["error"]["message"].as_str().unwrap().contains(part), "{body}");
    }
    let wrong = served.get("/v1/messages");
    assert_eq!((wrong.status, wrong.header("allow")), (405, Some("post")));
}

#[test]
fn responses_are_answered_whole_and_as_they_come() {
    let served = served();
    let text = expected(&served, json!([{"role": "system", "content": "xy"}, {"role": "user", "content": "abcd"}]));
    let mut request = json!({"max_output_tokens": 10, "temperature": 0, "instructions": "xy", "input": "abcd"});
    let whole = served.post("/v1/responses", &request).json();
    assert_eq!((&whole["object"], &whole["status"]), (&json!("response"), &json!("incomplete")));
    assert_eq!(whole["output"][0]["content"][0]["text"], text.as_str());
    assert_eq!(whole["usage"]["total_tokens"], 16);
    request["input"] = json!([{"role": "user", "content": [{"type": "input_text", "text": "abcd"}]}]);
    request["stream"] = true.into();
    let mut stream = served.stream("/v1/responses", &request);
    let (mut numbers, mut streamed, mut names) = (Vec::new(), String::new(), Vec::new());
    let mut last = Value::Null;
    while let Some((name, data)) = stream.next() {
        last = serde_json::from_str(&data).unwrap();
        numbers.push(last["sequence_number"].as_u64().unwrap());
        streamed += last["delta"].as_str().unwrap_or_default();
        names.push(name);
    }
    assert_eq!((streamed, numbers.clone()), (text.clone(), (0..numbers.len() as u64).collect()));
    assert_eq!((names[0].as_str(), names[names.len() - 1].as_str()), ("response.created", "response.incomplete"));
    assert_eq!(last["response"]["output"][0]["content"][0]["text"], text.as_str());
    // What was answered is sent back.
    let again = json!({"max_output_tokens": 3, "input": [{"role": "user", "content": "ab"}, whole["output"][0], {"role": "user", "content": "c"}]});
    served.post("/v1/responses", &again).json();
    for (name, value) in [
        ("previous_response_id", json!("resp_1")),
        ("tools", json!([{"type": "custom", "name": "x"}])),
        ("text", json!({"format": {"type": "yaml"}})),
        ("store", json!(true)),
        ("background", json!(true)),
        ("input", json!([{"type": "function_call_output", "output": "x"}])),
        ("truncation", json!("auto")),
    ] {
        let mut request = json!({"input": "ab", "max_output_tokens": 1});
        request[name] = value;
        let error = served.post("/v1/responses", &request).error(400);
        assert!(error["param"].as_str().unwrap().starts_with(name), "{error}");
    }
}

#[test]
fn responses_have_log_probabilities_where_they_are_included() {
    let served = served();
    let mut request = json!({
        "input": "abcd", "max_output_tokens": 6, "temperature": 0, "include": ["message.output_text.logprobs"], "top_logprobs": 3,
    });
    let chat = json!({
        "messages": [{"role": "user", "content": "abcd"}], "max_tokens": 6, "temperature": 0, "logprobs": true, "top_logprobs": 3,
    });
    let chat = served.post("/v1/chat/completions", &chat).json();
    let want = &chat["choices"][0]["logprobs"]["content"];
    assert_eq!(want.as_array().unwrap().len(), 6);
    let whole = served.post("/v1/responses", &request).json();
    assert_eq!((&whole["output"][0]["content"][0]["logprobs"], &whole["top_logprobs"]), (want, &json!(3)));
    // They may be sent back with the text.
    let again = json!({"max_output_tokens": 3, "input": [{"role": "user", "content": "ab"}, whole["output"][0], {"role": "user", "content": "c"}]});
    served.post("/v1/responses", &again).json();
    // Events have them without bytes.
    let mut bare = want.clone();
    for one in bare.as_array_mut().unwrap() {
        one.as_object_mut().unwrap().remove("bytes");
        for top in one["top_logprobs"].as_array_mut().unwrap() {
            top.as_object_mut().unwrap().remove("bytes");
        }
    }
    request["stream"] = true.into();
    let events = served.stream("/v1/responses", &request).all();
    let of = |name: &'static str| events.iter().filter(move |event| event["type"] == name);
    let deltas = of("response.output_text.delta").flat_map(|event| event["logprobs"].as_array().unwrap());
    assert_eq!(deltas.collect::<Vec<_>>(), bare.as_array().unwrap().iter().collect::<Vec<_>>());
    assert_eq!(of("response.output_text.done").next().unwrap()["logprobs"], bare);
    let last = &of("response.incomplete").next().unwrap()["response"];
    assert_eq!(&last["output"][0]["content"][0]["logprobs"], want);
    for (name, value) in [
        ("include", json!(["file_search_call.results"])),
        ("include", json!([3])),
        ("top_logprobs", json!(21)),
        ("top_logprobs", json!(3)),
    ] {
        let error = served.post("/v1/responses", &json!({"input": "ab", name: value})).error(400);
        assert_eq!(error["param"], name, "{error}");
    }
}

#[test]
fn the_next_turn_of_a_conversation_reads_what_is_new() {
    let served = Served::with_context(1, 2048, ServeOptions::default());
    let long = "abcd".repeat(200);
    let turn = |messages: Value| {
        let request = json!({"messages": messages, "max_tokens": 4, "temperature": 0});
        served.post("/v1/chat/completions", &request).json()
    };
    let first = turn(json!([{"role": "user", "content": long}]));
    let said = first["choices"][0]["message"]["content"].clone();
    let conversation = json!([{"role": "user", "content": long}, {"role": "assistant", "content": said}, {"role": "user", "content": "x"}]);
    let second = turn(conversation.clone());
    // In whole blocks of 128.
    let cached = second["usage"]["prompt_tokens_details"]["cached_tokens"].as_u64().unwrap();
    assert_eq!(cached, 768, "{second}");
    let one_at_a_time = json!({"messages": conversation, "max_tokens": 4, "n": 3, "seed": 1, "cache_prompt": true});
    let three = served.post("/v1/chat/completions", &one_at_a_time).json();
    assert_eq!(three["usage"]["prompt_tokens_details"]["cached_tokens"], 768, "of the prompt, once");
    assert_eq!(first["usage"]["prompt_tokens_details"]["cached_tokens"], 0);
    // It is what a server says that has never seen the first turn.
    let fresh = Served::with_context(1, 2048, ServeOptions::default());
    let request = json!({"messages": conversation, "max_tokens": 4, "temperature": 0});
    let alone = fresh.post("/v1/chat/completions", &request).json();
    assert_eq!(alone["choices"][0]["message"], second["choices"][0]["message"]);
}

#[test]
fn the_next_turn_of_a_conversation_does_not_read_the_answer() {
    let served = Served::scripted("{% for m in messages %}{{ m.content }}{% endfor %}", "x", Kind::UserDefined);
    let mut messages = vec![json!({"role": "user", "content": "b".repeat(200)})];
    let turn = |messages: &[Value], more: Value| {
        let mut request = json!({"messages": messages, "max_tokens": 300, "temperature": 0});
        request.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        let answer = served.post("/v1/chat/completions", &request).json();
        let usage = &answer["usage"];
        let tokens =
            [&usage["prompt_tokens"], &usage["prompt_tokens_details"]["cached_tokens"]].map(|n| n.as_u64().unwrap());
        (tokens, answer["choices"][0]["message"].clone())
    };
    let (first, said) = turn(&messages, json!({}));
    assert_eq!((first, said["content"].as_str().unwrap()), ([200, 0], &*"x".repeat(300)));
    messages.extend([said, json!({"role": "user", "content": "c"})]);
    // In whole blocks of 128, of which one is of the prompt alone.
    assert_eq!(turn(&messages, json!({})).0, [501, 384]);
    assert_eq!(turn(&messages, json!({"seed": 1})).0, [501, 128]);
    assert_eq!(turn(&messages, json!({"seed": 1, "cache_prompt": true})).0, [501, 384]);
}
