//! Tools, their calls, and reasoning, in each API.
#![allow(clippy::unwrap_used, clippy::expect_used)]

mod common;

use common::{Kind, STOP, Served};
use serde_json::{Value, json};

/// It tells of tools, calls and results, and of reasoning.
const TEMPLATE: &str = "{% for t in tools %}{{ t | tojson }}\n{% endfor %}{% for m in messages %}[{{ m.role }}] {{ m.content }}\
    {% for c in m.tool_calls %}<tool_call>{{ c.function | tojson }}</tool_call>{% endfor %}\n{% endfor %}{# </think> #}";
/// What the model says.
const ANSWER: &str = "<think>\nhm\n</think>\n\nI look.\n<tool_call>\n{\"name\": \"look\", \"arguments\": {\"z\": \"here\", \"a\": 1}}\n</tool_call>\n\
    <tool_call>\n{\"name\": \"look\", \"arguments\": {}}\n</tool_call>$$";
const ARGUMENTS: &str = r#"{"z":"here","a":1}"#;

fn served() -> Served {
    Served::scripted(TEMPLATE, ANSWER, Kind::UserDefined)
}

fn schema() -> Value {
    json!({"type": "object", "properties": {"z": {"type": "string"}, "a": {"type": "integer"}}})
}

fn chat() -> Value {
    let function = json!({"name": "look", "description": "Looks.", "parameters": schema()});
    json!({
        "messages": [{"role": "user", "content": "Look!"}], "tools": [{"type": "function", "function": function}],
        "temperature": 0, "stop": STOP, "max_tokens": 8,
    })
}

fn with(mut request: Value, name: &str, value: Value) -> Value {
    request[name] = value;
    request
}

#[test]
fn a_chat_has_calls_and_reasoning_whole_and_as_it_comes() {
    let served = served();
    let whole = served.post("/v1/chat/completions", &chat()).json();
    let choice = &whole["choices"][0];
    let message = &choice["message"];
    assert_eq!((&message["content"], &message["reasoning_content"]), (&json!("I look."), &json!("hm")));
    assert_eq!(choice["finish_reason"], "tool_calls");
    let calls = message["tool_calls"].as_array().unwrap();
    let function = |i: usize| (calls[i]["function"]["name"].clone(), calls[i]["function"]["arguments"].clone());
    assert_eq!([function(0), function(1)], [(json!("look"), json!(ARGUMENTS)), (json!("look"), json!("{}"))]);
    assert!(calls[0]["id"].as_str().unwrap().starts_with("call_") && calls[0]["id"] != calls[1]["id"]);
    assert_eq!(whole["usage"]["completion_tokens_details"], json!({"reasoning_tokens": 0}), "all is one token here");
    let events = served.stream("/v1/chat/completions", &with(chat(), "stream", true.into())).all();
    let deltas: Vec<&Value> = events.iter().map(|event| &event["choices"][0]["delta"]).collect();
    let texts = |name: &str| deltas.iter().filter_map(|delta| delta[name].as_str()).collect::<String>();
    assert_eq!((texts("content").as_str(), texts("reasoning_content").as_str()), ("I look.", "hm"));
    let mut streamed = vec![(Value::Null, String::new()); 2];
    for call in deltas.iter().filter_map(|delta| delta["tool_calls"].as_array()).flatten() {
        let (name, arguments) = &mut streamed[usize::try_from(call["index"].as_u64().unwrap()).unwrap()];
        if call["id"].is_string() {
            assert_eq!((&call["type"], &name), (&json!("function"), &&mut Value::Null));
            *name = call["function"]["name"].clone();
        }
        *arguments += call["function"]["arguments"].as_str().unwrap();
    }
    assert_eq!(streamed, [(json!("look"), ARGUMENTS.into()), (json!("look"), "{}".into())]);
    let finish = events.iter().find_map(|event| event["choices"][0]["finish_reason"].as_str());
    assert_eq!(finish, Some("tool_calls"));
}

#[test]
fn a_request_says_which_calls_it_wants() {
    let served = served();
    let ask = |request: Value| served.post("/v1/chat/completions", &request).json()["choices"][0].clone();
    let one = ask(with(chat(), "parallel_tool_calls", false.into()));
    assert_eq!(one["message"]["tool_calls"].as_array().unwrap().len(), 1);
    // The model is told of no tools, and what it writes is text.
    let none = ask(with(chat(), "tool_choice", "none".into()));
    assert_eq!((none["message"].get("tool_calls"), &none["finish_reason"]), (None, &json!("stop")));
    assert!(none["message"]["content"].as_str().unwrap().starts_with("I look.\n<tool_call>"));
    let tokens =
        |request: Value| served.post("/v1/chat/completions", &request).json()["usage"]["prompt_tokens"].clone();
    let without = tokens(with(chat(), "tools", Value::Null));
    assert_eq!(tokens(with(chat(), "tool_choice", "none".into())), without);
    assert!(tokens(chat()).as_u64() > without.as_u64());
    // A tool that is not offered is not called.
    let other = json!([{"type": "function", "function": {"name": "other"}}]);
    let text = ask(with(chat(), "tools", other));
    assert!(text["message"]["content"].as_str().unwrap().contains("<tool_call>") && text["finish_reason"] == "stop");
    let error = served.post(
        "/v1/chat/completions",
        &with(chat(), "tool_choice", json!({"type": "function", "function": {"name": "x"}})),
    );
    assert_eq!(error.error(400)["param"], "tool_choice");
}

#[test]
fn a_model_is_made_to_call() {
    let served = served();
    let schema = json!({"type": "object", "properties": {"z": {"const": "here"}}, "required": ["z"], "additionalProperties": false});
    let function = json!({"name": "look", "description": "Looks.", "parameters": schema, "strict": true});
    let mut request = with(chat(), "tools", json!([{"type": "function", "function": function}]));
    request["max_tokens"] = 1500.into();
    for choice in [json!("required"), json!({"type": "function", "function": {"name": "look"}})] {
        let answer = served.post("/v1/chat/completions", &with(request.clone(), "tool_choice", choice)).json();
        let answer = &answer["choices"][0];
        assert_eq!(answer["message"]["tool_calls"][0]["function"]["arguments"], r#"{"z":"here"}"#, "{answer}");
        assert_eq!((&answer["message"]["content"], &answer["finish_reason"]), (&Value::Null, &json!("tool_calls")));
    }
    let tool = json!({"name": "look", "input_schema": schema});
    let messages = json!({
        "messages": [{"role": "user", "content": "Look!"}], "max_tokens": 1500, "temperature": 0,
        "tools": [tool], "tool_choice": {"type": "any"},
    });
    let answer = served.post("/v1/messages", &messages).json();
    assert_eq!((&answer["content"][0]["input"], &answer["stop_reason"]), (&json!({"z": "here"}), &json!("tool_use")));
}

#[test]
fn a_form_does_not_keep_a_model_from_calls_in_silence() {
    let served = served();
    let formed = with(chat(), "regex", json!("[a-z]*"));
    let error = served.post("/v1/chat/completions", &formed).error(400);
    assert_eq!((&error["param"], &error["code"]), (&json!("regex"), &json!("unsupported_parameter")));
    assert!(error["message"].as_str().unwrap().contains("'tool_choice' none"), "{error}");
    let without = with(with(formed, "tool_choice", "none".into()), "max_tokens", 4.into());
    served.post("/v1/chat/completions", &without).json();
    // Calls are JSON as well.
    let json = with(chat(), "response_format", json!({"type": "json_object"}));
    served.post("/v1/chat/completions", &json).json();
}

#[test]
fn a_form_does_not_begin_within_reasoning() {
    let template = "{% for m in messages %}{{ m.content }}{# </think> #}{% endfor %}<think>";
    let served = Served::scripted(template, "x", Kind::UserDefined);
    let request = json!({"messages": [{"role": "user", "content": "Look!"}], "max_tokens": 4, "response_format": {"type": "json_object"}});
    let error = served.post("/v1/chat/completions", &request).error(400);
    assert_eq!((&error["param"], &error["code"]), (&json!("response_format.type"), &json!("unsupported_parameter")));
}

#[test]
fn the_next_turn_has_calls_and_results() {
    let served = served();
    let turn = |arguments: &str, id: &str| {
        let function = json!({"name": "look", "arguments": arguments});
        json!([
            {"role": "user", "content": "Look!"},
            {"role": "assistant", "content": null, "reasoning_content": "hm",
             "tool_calls": [{"id": "1", "type": "function", "function": function}]},
            {"role": "tool", "tool_call_id": id, "content": "a tree"},
        ])
    };
    let ask = |messages: Value| served.post("/v1/chat/completions", &with(chat(), "messages", messages));
    ask(turn(ARGUMENTS, "1")).json();
    assert_eq!(ask(turn("{", "1")).error(400)["param"], "messages[1].tool_calls[0].function.arguments");
    assert_eq!(ask(turn("{}", "2")).error(400)["param"], "messages[2].tool_call_id");
    // The same conversation is as long in each API.
    let messages = json!([
        {"role": "user", "content": "Look!"},
        {"role": "assistant", "content": [
            {"type": "thinking", "thinking": "hm", "signature": ""},
            {"type": "tool_use", "id": "1", "name": "look", "input": {"z": "here", "a": 1}},
        ]},
        {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "1", "content": [{"type": "text", "text": "a tree"}]}]},
    ]);
    let tools = json!([{"name": "look", "description": "Looks.", "input_schema": schema()}]);
    let count = |request: &Value| served.post("/v1/messages/count_tokens", request).json()["input_tokens"].clone();
    let length = ask(turn(ARGUMENTS, "1")).json()["usage"]["prompt_tokens"].clone();
    assert_eq!(count(&json!({"messages": messages, "tools": tools})), length);
    let input = json!([
        {"role": "user", "content": "Look!"},
        {"type": "reasoning", "id": "rs_1", "summary": [], "content": [{"type": "reasoning_text", "text": "hm"}]},
        {"type": "function_call", "id": "fc_1", "call_id": "1", "name": "look", "arguments": ARGUMENTS, "status": "completed"},
        {"type": "function_call_output", "call_id": "1", "output": "a tree"},
    ]);
    let function = json!({"type": "function", "name": "look", "description": "Looks.", "parameters": schema()});
    let request = json!({"input": input, "tools": [function], "temperature": 0, "stop": STOP});
    assert_eq!(served.post("/v1/responses", &request).json()["usage"]["input_tokens"], length);
    let wrong = json!({"messages": [{"role": "user", "content": [{"type": "tool_result", "tool_use_id": "7"}]}], "max_tokens": 1});
    let answer = served.post("/v1/messages", &wrong);
    assert!(answer.status == 400 && answer.text().contains("tool_use_id"), "{}", answer.text());
}

#[test]
fn anthropic_has_blocks() {
    let served = served();
    let request = json!({
        "messages": [{"role": "user", "content": "Look!"}], "max_tokens": 8, "temperature": 0, "stop_sequences": [STOP],
        "tools": [{"name": "look", "description": "Looks.", "input_schema": schema()}],
    });
    let thinking = with(request.clone(), "thinking", json!({"type": "enabled", "budget_tokens": 1024}));
    let whole = served.post("/v1/messages", &thinking).json();
    let [thought, text, one, two] = whole["content"].as_array().unwrap().as_slice() else { panic!("{whole}") };
    assert_eq!(thought, &json!({"type": "thinking", "thinking": "hm", "signature": ""}));
    assert_eq!(text, &json!({"type": "text", "text": "I look."}));
    assert_eq!(
        (&one["type"], &one["name"], &one["input"]),
        (&json!("tool_use"), &json!("look"), &json!({"z": "here", "a": 1}))
    );
    assert_eq!((&two["input"], &whole["stop_reason"]), (&json!({}), &json!("tool_use")));
    let without = served.post("/v1/messages", &request).json();
    let kinds: Vec<&Value> = without["content"].as_array().unwrap().iter().map(|block| &block["type"]).collect();
    assert_eq!(kinds, ["text", "tool_use", "tool_use"]);
    let events = served.stream("/v1/messages", &with(thinking, "stream", true.into())).all();
    let mut blocks: Vec<(Value, String)> = Vec::new();
    for event in &events {
        match event["type"].as_str().unwrap() {
            "content_block_start" => {
                assert_eq!(event["index"], blocks.len());
                blocks.push((event["content_block"]["type"].clone(), String::new()));
            }
            "content_block_delta" => {
                let delta = &event["delta"];
                let text = ["text", "thinking", "partial_json"].iter().find_map(|name| delta[name].as_str());
                blocks.last_mut().unwrap().1 += text.unwrap();
            }
            _ => {}
        }
    }
    let said: Vec<(&str, &str)> = blocks.iter().map(|(kind, text)| (kind.as_str().unwrap(), text.as_str())).collect();
    assert_eq!(said, [("thinking", "hm"), ("text", "I look."), ("tool_use", ARGUMENTS), ("tool_use", "{}")]);
    let count = |name: &str| events.iter().filter(|event| event["type"] == name).count();
    assert_eq!((count("content_block_start"), count("content_block_stop"), count("message_stop")), (4, 4, 1));
    assert!(events.iter().any(|event| event["delta"]["stop_reason"] == "tool_use"));
}

#[test]
fn responses_have_items() {
    let served = served();
    let function =
        json!({"type": "function", "name": "look", "description": "Looks.", "parameters": schema(), "strict": false});
    let request =
        json!({"input": "Look!", "tools": [function], "temperature": 0, "stop": STOP, "max_output_tokens": 8});
    let whole = served.post("/v1/responses", &request).json();
    let [thought, text, one, two] = whole["output"].as_array().unwrap().as_slice() else { panic!("{whole}") };
    assert_eq!((&thought["type"], &thought["content"][0]["text"]), (&json!("reasoning"), &json!("hm")));
    assert_eq!(text["content"][0]["text"], "I look.");
    assert_eq!(
        (&one["type"], &one["name"], &one["arguments"]),
        (&json!("function_call"), &json!("look"), &json!(ARGUMENTS))
    );
    assert!(one["call_id"] != two["call_id"] && whole["tools"] == json!([function]) && whole["status"] == "completed");
    let events = served.stream("/v1/responses", &with(request, "stream", true.into())).all();
    let numbers: Vec<u64> = events.iter().map(|event| event["sequence_number"].as_u64().unwrap()).collect();
    assert_eq!(numbers, (0..events.len() as u64).collect::<Vec<_>>());
    let of = |name: &str| events.iter().filter(|event| event["type"] == name).collect::<Vec<_>>();
    let deltas = |name: &str| of(name).iter().map(|event| event["delta"].as_str().unwrap()).collect::<String>();
    assert_eq!(deltas("response.reasoning_text.delta"), "hm");
    assert_eq!(deltas("response.output_text.delta"), "I look.");
    assert_eq!(deltas("response.function_call_arguments.delta"), format!("{ARGUMENTS}{{}}"));
    let done = of("response.function_call_arguments.done");
    assert_eq!(
        (&done[0]["arguments"], &done[0]["output_index"], &done[1]["output_index"]),
        (&json!(ARGUMENTS), &json!(2), &json!(3))
    );
    let added: Vec<&Value> = of("response.output_item.added").iter().map(|event| &event["item"]["id"]).collect();
    let complete: Vec<&Value> = of("response.output_item.done").iter().map(|event| &event["item"]["id"]).collect();
    let last = &of("response.completed")[0]["response"];
    let items: Vec<&Value> = last["output"].as_array().unwrap().iter().map(|item| &item["id"]).collect();
    assert_eq!((added.len(), &added, &complete), (4, &complete, &items));
}

#[test]
fn log_probabilities_of_responses_are_those_of_the_text_alone() {
    let served = served();
    // Its tokens are characters, as the form wants them.
    let form = r"<think>hm</think>I < look\.";
    let request = json!({
        "input": "Look!", "regex": form, "temperature": 0, "max_output_tokens": 40, "include": ["message.output_text.logprobs"],
    });
    let whole = served.post("/v1/responses", &request).json();
    let [thought, text] = whole["output"].as_array().unwrap().as_slice() else { panic!("{whole}") };
    assert_eq!(thought["content"][0]["text"], "hm");
    assert_eq!(text["content"][0]["text"], "I < look.");
    let of = |log_probs: &Value| -> String {
        log_probs.as_array().unwrap().iter().map(|one| one["token"].as_str().unwrap()).collect()
    };
    assert_eq!(of(&text["content"][0]["logprobs"]), "I < look.");
    let events = served.stream("/v1/responses", &with(request, "stream", true.into())).all();
    let deltas = events.iter().filter(|event| event["type"] == "response.output_text.delta");
    assert_eq!(deltas.map(|event| of(&event["logprobs"])).collect::<String>(), "I < look.");
}

#[test]
fn a_model_that_is_told_of_no_tools_is_given_none() {
    let served = Served::scripted("{% for m in messages %}{{ m.content }}{% endfor %}", ANSWER, Kind::UserDefined);
    let error = served.post("/v1/chat/completions", &chat()).error(400);
    assert_eq!((&error["param"], &error["code"]), (&json!("tools"), &json!("unsupported_parameter")));
    let plain = served.post("/v1/chat/completions", &with(chat(), "tools", json!([]))).json();
    let text = plain["choices"][0]["message"]["content"].as_str().unwrap();
    assert_eq!(format!("{text}{STOP}"), ANSWER, "nothing in it means anything");
    // It is told of them, but not in a form that is known.
    let served = Served::scripted("{{ tools }}{{ messages }}", ANSWER, Kind::UserDefined);
    let error = served.post("/v1/chat/completions", &chat()).error(400);
    assert!(error["param"] == "tools" && error["message"].as_str().unwrap().contains("form"), "{error}");
}

#[test]
fn a_template_is_told_whether_to_reason() {
    const ASKS: &str = "{% for m in messages %}{{ m.content }}{% endfor %}{% if enable_thinking is defined and not enable_thinking %}bb{% endif %}";
    const EFFORT: &str = "{% for m in messages %}{{ m.content }}{% endfor %}{{ reasoning_effort }}";
    let tokens = |template: &str, path: &str, more: &Value| -> Result<u64, Value> {
        let served = Served::scripted(template, "x", Kind::UserDefined);
        let mut request = json!({"max_tokens": 1});
        request[if path == "/v1/responses" { "input" } else { "messages" }] = json!([{"role": "user", "content": "a"}]);
        if path == "/v1/responses" {
            request["max_output_tokens"] = request.as_object_mut().unwrap().remove("max_tokens").unwrap();
        }
        request.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        let answer = served.post(path, &request);
        if answer.status == 400 {
            return Err(serde_json::from_str(&answer.text()).unwrap());
        }
        let usage = answer.json()["usage"].clone();
        Ok(usage["prompt_tokens"].as_u64().or(usage["input_tokens"].as_u64()).unwrap())
    };
    let [chat, responses, messages] = ["/v1/chat/completions", "/v1/responses", "/v1/messages"];
    let off = json!({"chat_template_kwargs": {"enable_thinking": false}});
    for path in [chat, responses, messages] {
        assert_eq!(tokens(ASKS, path, &json!({})), Ok(1));
        assert_eq!(tokens(ASKS, path, &off), Ok(3));
        // A model that never reasons does what is asked for, one that always does cannot.
        assert_eq!(tokens("{{ messages[0].content }}", path, &off), Ok(1));
        let always = "{{ messages[0].content }}{# </think> #}";
        assert!(tokens(always, path, &off).unwrap_err().to_string().contains("no such variable"));
    }
    for (wrong, why) in [
        (json!({"chat_template_kwargs": {"enable_thinking": "x".repeat(5000)}}), "at most 4096"),
        (json!({"chat_template_kwargs": {"messages": []}}), "no such variable"),
        (json!({"chat_template_kwargs": {"enable_thinking": true}, "reasoning_effort": "none"}), "something else"),
    ] {
        assert!(tokens(ASKS, chat, &wrong).unwrap_err().to_string().contains(why), "{wrong}");
    }
    assert_eq!(tokens(ASKS, messages, &json!({"thinking": {"type": "disabled"}})), Ok(3));
    for (path, effort) in [
        (chat, (|effort| json!({"reasoning_effort": effort})) as fn(&str) -> Value),
        (responses, |effort| json!({"reasoning": {"effort": effort, "summary": "auto"}})),
    ] {
        assert_eq!(tokens(ASKS, path, &effort("none")), Ok(3));
        assert_eq!(tokens(ASKS, path, &effort("high")), Ok(1));
        assert_eq!(tokens(EFFORT, path, &effort("low")), Ok(4));
        assert!(tokens(EFFORT, path, &effort("much")).is_err());
        // Programs say it of every model; but one that always reasons cannot do without.
        assert_eq!(tokens("{{ messages[0].content }}", path, &effort("low")), Ok(1));
        assert_eq!(tokens("{{ messages[0].content }}", path, &effort("none")), Ok(1));
        assert!(tokens("{{ messages[0].content }}{# </think> #}", path, &effort("none")).is_err());
    }
}

#[test]
fn control_tokens_that_are_marks_are_seen_in_chats_alone() {
    let served = Served::scripted(TEMPLATE, "<tool_call>", Kind::Control);
    let mut request = with(chat(), "max_tokens", 2.into());
    let chat = served.post("/v1/chat/completions", &request).json();
    assert_eq!(chat["choices"][0]["message"]["content"], "<tool_call><tool_call>", "no call, so that it is text");
    request = json!({"prompt": "a", "max_tokens": 2, "temperature": 0});
    let plain = served.post("/v1/completions", &request).json();
    assert_eq!((&plain["choices"][0]["text"], &plain["usage"]["completion_tokens"]), (&json!(""), &json!(2)));
}
