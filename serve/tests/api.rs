//! What the APIs answer.
#![allow(clippy::unwrap_used, clippy::expect_used)]

mod common;

use common::Served;
use outboard_serve::ServeOptions;
use serde_json::{Value, json};

fn served() -> Served {
    Served::new(2, ServeOptions::default())
}

fn user(text: &str) -> Value {
    json!([{"role": "user", "content": text}])
}

#[test]
fn a_chat_is_answered_whole_and_as_it_comes_with_the_same_text() {
    let served = served();
    let mut request =
        json!({"model": "small", "messages": user("abcd"), "max_tokens": 12, "seed": 5, "logprobs": true});
    let whole = served.post("/v1/chat/completions", &request).json();
    let choice = &whole["choices"][0];
    let text = choice["message"]["content"].as_str().unwrap();
    assert_eq!((&whole["object"], &whole["model"]), (&json!("chat.completion"), &json!("small")));
    assert_eq!((&choice["finish_reason"], &choice["message"]["role"]), (&json!("length"), &json!("assistant")));
    let details = json!({"cached_tokens": 0});
    let usage =
        json!({"prompt_tokens": 4, "completion_tokens": 12, "total_tokens": 16, "prompt_tokens_details": details});
    assert_eq!(whole["usage"], usage);
    let log_probs = choice["logprobs"]["content"].as_array().unwrap();
    let tokens: String = log_probs.iter().map(|one| one["token"].as_str().unwrap()).collect();
    assert_eq!((log_probs.len(), tokens.as_str()), (12, text));
    assert!(log_probs.iter().all(|one| one["logprob"].as_f64().unwrap() <= 0.0 && one["top_logprobs"] == json!([])));
    request["stream"] = true.into();
    request["stream_options"] = json!({"include_usage": true});
    let events = served.stream("/v1/chat/completions", &request).all();
    assert_eq!(events[0]["choices"][0]["delta"], json!({"role": "assistant", "content": ""}));
    let [.., last, usage, done] = events.as_slice() else { panic!("{events:?}") };
    assert_eq!((&last["choices"][0]["finish_reason"], &usage["usage"]), (&json!("length"), &whole["usage"]));
    assert_eq!((&usage["choices"], done), (&json!([]), &Value::Null));
    let pieces = events.iter().filter_map(|event| event["choices"][0]["delta"]["content"].as_str());
    assert_eq!(pieces.collect::<String>(), text);
    let streamed: Vec<&Value> =
        events.iter().filter_map(|event| event["choices"][0]["logprobs"]["content"].as_array()).flatten().collect();
    assert_eq!(streamed, log_probs.iter().collect::<Vec<_>>());
    assert!(events[..events.len() - 2].iter().all(|event| event["usage"].is_null() && event["id"] == events[0]["id"]));
}

#[test]
fn a_completion_has_sixteen_tokens_or_as_many_as_are_asked_for() {
    let served = served();
    let tokens = |most: Value| {
        let request = json!({"prompt": "abcd", "max_tokens": most, "ignore_eos": true});
        served.post("/v1/completions", &request).json()["usage"]["completion_tokens"].as_u64().unwrap()
    };
    assert_eq!((tokens(Value::Null), tokens(json!(3)), tokens(json!(4.0))), (16, 3, 4));
    // Until the context is full.
    assert!(tokens(json!(-1)) > 100);
}

#[test]
fn several_texts_have_seeds_that_follow_one_another() {
    let served = served();
    let ask = |n: u64, seed: u64| {
        let request = json!({"messages": user("ab"), "max_tokens": 8, "seed": seed, "n": n, "temperature": 1.5});
        let answer = served.post("/v1/chat/completions", &request).json();
        let text = |choice: &Value| choice["message"]["content"].as_str().unwrap().to_owned();
        answer["choices"].as_array().unwrap().iter().map(text).collect::<Vec<_>>()
    };
    // More than there are places.
    let together = ask(5, 10);
    let alone: Vec<String> = (10..15).flat_map(|seed| ask(1, seed)).collect();
    assert_eq!(together, alone);
    let request =
        json!({"messages": user("ab"), "max_tokens": 8, "seed": 10, "n": 5, "temperature": 1.5, "stream": true});
    let mut streamed = vec![String::new(); 5];
    for event in served.stream("/v1/chat/completions", &request).all() {
        for choice in event["choices"].as_array().into_iter().flatten() {
            let index = usize::try_from(choice["index"].as_u64().unwrap()).unwrap();
            streamed[index] += choice["delta"]["content"].as_str().unwrap_or_default();
        }
    }
    assert_eq!(streamed, alone);
}

#[test]
fn prompts_are_texts_or_tokens_one_or_several() {
    let served = served();
    let tokens = served.post("/tokenize", &json!({"content": "abcd"})).json()["tokens"].clone();
    let ask = |prompt: &Value| {
        let request = json!({"prompt": prompt, "max_tokens": 6, "temperature": 0});
        let answer = served.post("/v1/completions", &request).json();
        let text = |choice: &Value| choice["text"].as_str().unwrap().to_owned();
        answer["choices"].as_array().unwrap().iter().map(text).collect::<Vec<_>>()
    };
    let text = ask(&json!("abcd"));
    assert_eq!(text[0].chars().count(), 6, "{text:?}");
    assert_eq!(
        [ask(&json!(["abcd"])), ask(&tokens), ask(&json!([tokens]))],
        [text.clone(), text.clone(), text.clone()]
    );
    assert_eq!(ask(&json!(["abcd", "abcd", "xy"]))[..2], [text[0].clone(), text[0].clone()]);
    // Sixteen tokens, as OpenAI's API has it where nothing is said.
    let request = json!({"prompt": "abcd", "temperature": 0, "echo": true});
    let answer = served.post("/v1/completions", &request).json();
    assert_eq!(answer["usage"]["completion_tokens"], 16);
    assert!(answer["choices"][0]["text"].as_str().unwrap().starts_with(&format!("abcd{}", text[0])));
    let empty = served.post("/v1/completions", &json!({"prompt": "ab", "max_tokens": 0})).json();
    assert_eq!((&empty["choices"][0]["text"], &empty["usage"]["completion_tokens"]), (&json!(""), &json!(0)));
}

#[test]
fn log_probs_of_completions_are_those_of_the_tokens() {
    let served = served();
    let mut request = json!({"prompt": "abcd", "max_tokens": 6, "temperature": 0, "logprobs": 0});
    let whole = served.post("/v1/completions", &request).json();
    let log_probs = &whole["choices"][0]["logprobs"];
    let tokens = log_probs["tokens"].as_array().unwrap();
    assert_eq!((tokens.len(), log_probs["text_offset"][0].as_u64()), (6, Some(0)));
    let joined: String = tokens.iter().map(|token| token.as_str().unwrap()).collect();
    assert_eq!(joined, whole["choices"][0]["text"].as_str().unwrap());
    request["stream"] = true.into();
    let events = served.stream("/v1/completions", &request).all();
    let of = |name: &str| {
        let all = events.iter().filter_map(|event| event["choices"][0]["logprobs"][name].as_array());
        Value::Array(all.flatten().cloned().collect())
    };
    assert_eq!(of("tokens"), log_probs["tokens"]);
    assert_eq!(of("token_logprobs"), log_probs["token_logprobs"]);
    assert_eq!(of("text_offset"), log_probs["text_offset"]);
}

/// A list of an answer's log-probabilities.
fn list<'a>(choice: &'a Value, name: &str) -> &'a [Value] {
    choice["logprobs"][name].as_array().unwrap()
}

/// What lm-evaluation-harness makes of an answer (`parse_logprobs` of its `LocalCompletionsAPI`): how probable what follows a context of so many tokens is,
/// and whether it is what the model would write.
fn rank(choice: &Value, context: usize) -> (f64, bool) {
    let (own, top) = (list(choice, "token_logprobs"), list(choice, "top_logprobs"));
    let behind = context..own.len() - 1;
    let sum = own[behind.clone()].iter().map(|value| value.as_f64().unwrap()).sum();
    let largest = |top: &Value| top.as_object().unwrap().values().map(|v| v.as_f64().unwrap()).fold(-1e9, f64::max);
    let is_greedy = own[behind.clone()].iter().zip(&top[behind]).all(|(own, top)| own.as_f64() == Some(largest(top)));
    (sum, is_greedy)
}

#[test]
fn with_echo_log_probs_are_those_of_the_prompt_as_well() {
    let served = served();
    let ask = |body: &Value| served.post("/v1/completions", body).json();
    let tokens = |text: &str| served.post("/tokenize", &json!({"content": text})).json()["tokens"].clone();
    let written = ask(&json!({"prompt": "abcd", "max_tokens": 6, "temperature": 0, "logprobs": 0}));
    let (written, text) = (&written["choices"][0], written["choices"][0]["text"].as_str().unwrap());
    let [context, whole] = [tokens("abcd"), tokens(&format!("abcd{text}"))];
    let (context, len) = (context.as_array().unwrap().len(), whole.as_array().unwrap().len());
    assert_eq!(len, context + 6, "tokens of both follow one another");
    let mut request =
        json!({"prompt": whole, "max_tokens": 1, "temperature": 0, "logprobs": 1, "echo": true, "seed": 7});
    let answer = ask(&request);
    let choice = &answer["choices"][0];
    for name in ["tokens", "token_logprobs", "top_logprobs", "text_offset"] {
        assert_eq!(list(choice, name).len(), len + 1, "{name}");
    }
    assert!(choice["text"].as_str().unwrap().starts_with(&format!("abcd{text}")));
    assert_eq!((&list(choice, "token_logprobs")[0], &list(choice, "top_logprobs")[0]), (&Value::Null, &Value::Null));
    // What was written is as probable when it is given.
    let (sum, is_greedy) = rank(choice, context);
    let expected: f64 = list(written, "token_logprobs").iter().map(|value| value.as_f64().unwrap()).sum();
    assert!((sum - expected).abs() < 1e-3 && is_greedy, "{sum}, {expected}, {is_greedy}");
    let other = ask(&json!({"prompt": "abcdzyxwvu", "max_tokens": 1, "temperature": 0, "logprobs": 1, "echo": true}));
    assert!(rank(&other["choices"][0], context).0 < sum && !rank(&other["choices"][0], context).1);
    // Where tokens begin in the text.
    let offsets = list(choice, "text_offset").iter().map(|offset| offset.as_u64().unwrap());
    let shown: Vec<char> = choice["text"].as_str().unwrap().chars().collect();
    for (offset, token) in offsets.zip(list(choice, "tokens")).skip(1) {
        assert!(shown[offset as usize..].starts_with(&token.as_str().unwrap().chars().collect::<Vec<_>>()), "{token}");
    }
    // Of several at once, as a stream, for several texts, and without a text the numbers are the same.
    request["prompt"] = json!([whole, tokens("xy"), whole]);
    let several = ask(&request);
    assert_eq!([&several["choices"][0]["logprobs"], &several["choices"][2]["logprobs"]], [&choice["logprobs"]; 2]);
    request["prompt"] = whole.clone();
    request["stream"] = true.into();
    let events = served.stream("/v1/completions", &request).all();
    let streamed = |name: &str| -> Vec<Value> {
        let lists = events.iter().filter_map(|event| event["choices"][0]["logprobs"][name].as_array());
        lists.flatten().cloned().collect()
    };
    for name in ["tokens", "token_logprobs", "top_logprobs", "text_offset"] {
        assert_eq!(streamed(name), list(choice, name), "{name}");
    }
    // Each with its own beginning, before anything else of it.
    let mut both = json!({"prompt": ["abcd", "xyz"], "n": 2, "max_tokens": 2, "seed": 7, "logprobs": 0, "echo": true});
    let wholes = ask(&both);
    both["stream"] = true.into();
    let events = served.stream("/v1/completions", &both).all();
    for (index, whole) in wholes["choices"].as_array().unwrap().iter().enumerate() {
        let own = events.iter().filter(|event| event["choices"][0]["index"] == index);
        let text: String = own.filter_map(|event| event["choices"][0]["text"].as_str()).collect();
        assert_eq!(whole["text"], text, "{index}");
    }
    // They wait in a few places, however many there are.
    let many = ask(&json!({"prompt": vec!["ab"; 100], "max_tokens": 1, "logprobs": 0, "echo": true}));
    assert_eq!(many["choices"].as_array().unwrap().len(), 100);
    let none = ask(&json!({"prompt": whole, "max_tokens": 0, "logprobs": 1, "echo": true, "n": 2}));
    let used = json!({"prompt_tokens": len, "completion_tokens": 0, "total_tokens": len, "prompt_tokens_details": {"cached_tokens": 0}});
    assert_eq!((&none["usage"], &answer["usage"]["prompt_tokens_details"]), (&used, &json!({"cached_tokens": 0})));
    for none in none["choices"].as_array().unwrap() {
        assert_eq!(list(none, "token_logprobs"), &list(choice, "token_logprobs")[..len]);
    }
    // More than an answer has, and more than the context.
    let prompts = vec!["b".repeat(400); 16];
    let many = json!({"prompt": prompts, "max_tokens": 1, "logprobs": 20, "echo": true});
    assert!(served.post("/v1/completions", &many).error(400)["message"].as_str().unwrap().contains("fewer or shorter"));
    let mut long = json!({"prompt": vec![5; 513], "max_tokens": 0, "logprobs": 0, "echo": true});
    assert_eq!(served.post("/v1/completions", &long).error(400)["code"], "context_length_exceeded");
    // As many as there is room for, where nothing is to follow.
    long["prompt"] = json!(vec![5; 512]);
    assert_eq!(list(&ask(&long)["choices"][0], "token_logprobs").len(), 512);
}

#[test]
fn the_most_probable_tokens_come_with_each_token() {
    let served = served();
    let mut request =
        json!({"messages": user("abcd"), "max_tokens": 6, "temperature": 0, "logprobs": true, "top_logprobs": 3});
    let whole = served.post("/v1/chat/completions", &request).json();
    let content = whole["choices"][0]["logprobs"]["content"].as_array().unwrap();
    assert_eq!(content.len(), 6);
    for one in content {
        let top = one["top_logprobs"].as_array().unwrap();
        let numbers: Vec<f64> = top.iter().map(|top| top["logprob"].as_f64().unwrap()).collect();
        assert!(top.len() == 3 && numbers.is_sorted_by(|a, b| a >= b), "{one}");
        assert!(numbers.iter().map(|number| number.exp()).sum::<f64>() < 1.0, "{one}");
        // The most probable one is drawn.
        let mut own = one.clone();
        own.as_object_mut().unwrap().remove("top_logprobs");
        assert_eq!(top[0], own);
    }
    request["stream"] = true.into();
    let events = served.stream("/v1/chat/completions", &request).all();
    let streamed: Vec<&Value> =
        events.iter().filter_map(|event| event["choices"][0]["logprobs"]["content"].as_array()).flatten().collect();
    assert_eq!(streamed, content.iter().collect::<Vec<_>>());
    // Beside one that wants none, and one that wants all there are.
    request["stream"] = false.into();
    request["top_logprobs"] = 20.into();
    let all = served.post("/v1/chat/completions", &request).json();
    for (all, three) in all["choices"][0]["logprobs"]["content"].as_array().unwrap().iter().zip(content) {
        assert_eq!(all["top_logprobs"].as_array().unwrap()[..3], three["top_logprobs"].as_array().unwrap()[..]);
        assert_eq!(all["top_logprobs"].as_array().unwrap().len(), 20);
    }
    // More than an answer has that is made at once, but not than a stream.
    let mut many = json!({"messages": user("ab"), "n": 32, "max_tokens": 100, "logprobs": true, "top_logprobs": 20, "stop": ["a"]});
    assert_eq!(served.post("/v1/chat/completions", &many).error(400)["param"], "top_logprobs");
    many["stream"] = true.into();
    served.stream("/v1/chat/completions", &many).next().unwrap();
    let many = json!({"prompt": "ab", "n": 32, "max_tokens": 100, "logprobs": 20});
    assert_eq!(served.post("/v1/completions", &many).error(400)["param"], "logprobs");
    // What is drawn at random is there as well, also where it is not among the most probable ones.
    let mut request = json!({"prompt": "abcd", "max_tokens": 12, "temperature": 1.9, "seed": 3, "logprobs": 2});
    let whole = served.post("/v1/completions", &request).json();
    let log_probs = &whole["choices"][0]["logprobs"];
    let top = log_probs["top_logprobs"].as_array().unwrap();
    let own = log_probs["tokens"].as_array().unwrap().iter().zip(log_probs["token_logprobs"].as_array().unwrap());
    for (top, (token, own)) in top.iter().zip(own) {
        assert!(
            (2..=3).contains(&top.as_object().unwrap().len()) && top[token.as_str().unwrap()] == *own,
            "{log_probs}"
        );
    }
    assert!(top.len() == 12 && top.iter().any(|top| top.as_object().unwrap().len() == 3), "{log_probs}");
    request["stream"] = true.into();
    let events = served.stream("/v1/completions", &request).all();
    let streamed = events.iter().filter_map(|event| event["choices"][0]["logprobs"]["top_logprobs"].as_array());
    assert_eq!(streamed.flatten().collect::<Vec<_>>(), top.iter().collect::<Vec<_>>());
}

#[test]
fn a_stop_string_ends_a_text_before_it() {
    let served = served();
    let ask = |stop: Value| {
        let request = json!({"prompt": "abcd", "max_tokens": 20, "temperature": 0, "stop": stop});
        served.post("/v1/completions", &request).json()["choices"][0].clone()
    };
    let free = ask(Value::Null);
    let text = free["text"].as_str().unwrap();
    let characters: Vec<char> = text.chars().collect();
    let stop: String = characters[4..6].iter().collect();
    let stopped = ask(json!([stop, "not there"]));
    assert_eq!((stopped["text"].as_str(), &stopped["finish_reason"]), (text.split(&stop).next(), &json!("stop")));
    assert_eq!(free["finish_reason"], "length");
}

#[test]
fn biases_make_tokens_certain_and_exclude_them() {
    let served = served();
    let ask = |bias: Value| {
        let request = json!({"prompt": "abcd", "max_tokens": 6, "temperature": 0, "logit_bias": bias});
        served.post("/v1/completions", &request).json()["choices"][0]["text"].as_str().unwrap().to_owned()
    };
    let token = served.post("/tokenize", &json!({"content": "q"})).json()["tokens"][0].clone();
    assert_eq!(ask(json!({token.to_string(): 100})), "qqqqqq");
    let free = ask(json!({}));
    let first = served.post("/tokenize", &json!({"content": free[..1]})).json()["tokens"][0].clone();
    assert_ne!(ask(json!({first.to_string(): -100}))[..1], free[..1]);
    // Others that are written beside it have none.
    let mut one = served.stream(
        "/v1/completions",
        &json!({"prompt": "abcd", "max_tokens": 300, "logit_bias": {token.to_string(): 100}, "stream": true}),
    );
    one.next().unwrap();
    assert_eq!(ask(Value::Null), free);
    let pieces: String = one.all().iter().filter_map(|event| event["choices"][0]["text"].as_str()).collect();
    assert!(pieces.chars().all(|c| c == 'q'), "{pieces}");
}

#[test]
fn what_is_not_there_is_refused_by_its_name() {
    let served = served();
    for (name, value) in [
        ("tools", json!([{"type": "function", "function": {"name": "f"}}])),
        ("functions", json!([{"name": "f"}])),
        ("tool_choice", json!("anything")),
        (
            "response_format",
            json!({"type": "json_schema", "json_schema": {"name": "x", "schema": {"uniqueItems": true}}}),
        ),
        ("response_format", json!({"type": "yaml"})),
        ("logit_bias", json!({"5": "much"})),
        ("logit_bias", json!({"5": 101})),
        ("logit_bias", json!({"128": 1})),
        ("logit_bias", json!({"-1": 1})),
        ("logit_bias", json!([1])),
        ("top_logprobs", json!(3)),
        ("top_logprobs", json!(21)),
        ("logprobs", json!(2)),
        ("modalities", json!(["text", "audio"])),
        ("store", json!(true)),
        ("reasoning_effort", json!("a lot")),
        ("service_tier", json!("flex")),
        ("prediction", json!({"type": "content", "content": "x"})),
        ("web_search_options", json!({"search_context_size": "low"})),
        ("grammar", json!("root ::= x")),
        ("chat_template_kwargs", json!({"enable_thinking": true})),
        ("temperature", json!(3)),
        ("n", json!(0)),
        ("n", json!(1000)),
        ("max_tokens", json!("many")),
        ("stream_options", json!({"include_usage": true})),
        ("stop", json!([""])),
    ] {
        let mut request = json!({"messages": user("ab"), "max_tokens": 1});
        request[name] = value.clone();
        let error = served.post("/v1/chat/completions", &request).error(400);
        let param = error["param"].as_str().unwrap();
        assert!(param == name || param.starts_with(&format!("{name}.")), "{name} {value}: {error}");
        assert!(error["message"].as_str().unwrap().contains(name), "{error}");
        assert_eq!(error["type"], "invalid_request_error");
    }
    for (messages, param) in [
        (Value::Null, "messages"),
        (json!([]), "messages"),
        (json!("hi"), "messages"),
        (json!([{"role": "user"}]), "messages[0].content"),
        (json!([{"role": "robot", "content": "x"}]), "messages[0].role"),
        (
            json!([{"role": "user", "content": "x"}, {"role": "tool", "content": "x", "tool_call_id": "1"}]),
            "messages[1].role",
        ),
        (json!([{"role": "user", "content": "x", "likes": "me"}]), "messages[0].likes"),
        (
            json!([{"role": "user", "content": [{"type": "text", "text": "x"}, {"type": "image_url"}]}]),
            "messages[0].content[1]",
        ),
        (json!([{"role": "assistant", "content": "x", "tool_calls": [{}]}]), "messages[0].tool_calls"),
    ] {
        let request = json!({"messages": messages});
        assert_eq!(served.post("/v1/chat/completions", &request).error(400)["param"], param, "{messages}");
    }
    for (name, value) in [
        ("logprobs", json!(21)),
        ("logprobs", json!("a")),
        ("top_logprobs", json!(1)),
        ("best_of", json!(2)),
        ("suffix", json!("end")),
        ("prompt", json!([])),
    ] {
        let mut request = json!({"prompt": "ab", "max_tokens": 1});
        request[name] = value;
        assert_eq!(served.post("/v1/completions", &request).error(400)["param"], name);
    }
    for prompt in [json!([1, 2, 999_999]), json!([1, -1]), json!([[1], "x", {}]), json!(7), json!([1.5])] {
        let error = served.post("/v1/completions", &json!({"prompt": prompt})).error(400);
        assert!(error["param"].as_str().unwrap().starts_with("prompt"), "{error}");
    }
}

#[test]
fn what_asks_for_what_is_done_anyway_is_no_error() {
    let served = served();
    let request = json!({
        "model": "small", "max_completion_tokens": 2, "n": 1, "tools": [], "tool_choice": "auto",
        "response_format": {"type": "text"}, "logit_bias": {}, "top_logprobs": 0, "logprobs": false, "modalities": ["text"],
        "store": false, "service_tier": "auto", "user": "me", "metadata": {"a": "b"}, "stop": null, "seed": null,
        "parallel_tool_calls": true, "top_k": 20, "min_p": 0.1, "repeat_penalty": 1.1, "presence_penalty": 0.5,
        "messages": [
            {"role": "developer", "content": "ab"},
            {"role": "user", "content": [{"type": "text", "text": "cd"}, {"type": "text", "text": "ef"}]},
            {"role": "assistant", "content": "gh", "refusal": null, "tool_calls": null},
            {"role": "user", "content": "x"},
        ],
    });
    let answer = served.post("/v1/chat/completions", &request).json();
    assert_eq!(answer["usage"]["completion_tokens"], 2);
}

#[test]
fn errors_have_one_shape() {
    let served = served();
    assert_eq!(served.get("/v1/nothing").error(404)["code"], "unknown_url");
    assert_eq!(served.get("/v1/models/other").error(404)["code"], "model_not_found");
    served.get("/v1/models/%ff").error(400);
    let request = json!({"model": "gpt-9", "messages": user("a")});
    assert_eq!(served.post("/v1/chat/completions", &request).error(404)["param"], "model");
    let wrong = served.get("/v1/chat/completions");
    assert_eq!((wrong.error(405)["code"].as_str(), wrong.header("allow")), (Some("method_not_allowed"), Some("post")));
    let json = [("content-type", "application/json")];
    for body in ["", "{", "[]", "null", "{\"messages\": [}", "\u{0}"] {
        served.send("POST", "/v1/chat/completions", &json, body).error(400);
    }
    let deep = format!("{{\"messages\": {}1{}}}", "[".repeat(100_000), "]".repeat(100_000));
    assert_eq!(served.send("POST", "/v1/chat/completions", &json, &deep).error(400)["code"], "invalid_json");
    let text = "a".repeat(5 << 20);
    served.send("POST", "/v1/chat/completions", &json, &json!({"messages": user(&text)}).to_string()).error(413);
    // A client that reads nothing before it has sent all gets its answer.
    let mut socket = served.connect();
    let head = "POST /v1/chat/completions HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\ncontent-length: 41943040\r\n\r\n";
    socket.write_all(head.as_bytes()).unwrap();
    (0..40).for_each(|_| socket.write_all(&[b' '; 1 << 20]).unwrap());
    assert_eq!(common::Answer::read(socket).error(413)["code"], "request_too_large");
    served.send("POST", "/v1/chat/completions", &[("content-type", "text/plain")], "{}").error(415);
    let packed = [json[0], ("content-encoding", "gzip")];
    let error = served.send("POST", "/v1/chat/completions", &packed, "{}").error(415);
    assert!(error["message"].as_str().unwrap().contains("Content-Encoding"), "{error}");
    served.send("POST", "/v1/chat/completions", &[], "{}").error(415);
    let long = json!({"messages": user(&"ab".repeat(600))});
    assert_eq!(served.post("/v1/chat/completions", &long).error(400)["code"], "context_length_exceeded");
    // Without a length, and without end.
    let chunks = [("content-type", "application/json"), ("transfer-encoding", "chunked")];
    let mut socket = served.connect();
    use std::io::Write;
    let head = "POST /v1/completions HTTP/1.1\r\nhost: localhost\r\n";
    let head = chunks.iter().fold(head.to_owned(), |head, (name, value)| format!("{head}{name}: {value}\r\n"));
    socket.write_all(format!("{head}\r\n").as_bytes()).unwrap();
    let chunk = format!("10000\r\n{}\r\n", " ".repeat(0x10000));
    for _ in 0..80 {
        if socket.write_all(chunk.as_bytes()).is_err() {
            break;
        }
    }
    common::Answer::read(socket).error(413);
}

#[test]
fn what_there_is_can_be_asked_for() {
    let served = Served::new(3, ServeOptions { names: vec!["tiny".into(), "gpt-x".into()], ..ServeOptions::default() });
    assert_eq!(served.get("/health").json(), json!({"status": "ok"}));
    let models = served.get("/v1/models").json();
    assert_eq!((&models["object"], &models["data"][0]["id"]), (&json!("list"), &json!("tiny")));
    assert_eq!(served.get("/v1/models/gpt-x").json()["id"], "gpt-x");
    let props = served.get("/props").json();
    assert_eq!((&props["total_slots"], &props["n_ctx"]), (&json!(3), &json!(512)));
    assert!(props["chat_template"].as_str().unwrap().contains("messages"));
    assert_eq!(served.get("/slots").json().as_array().unwrap().len(), 3);
    let with_pieces = served.post("/tokenize", &json!({"content": "ab", "with_pieces": true})).json();
    assert_eq!(with_pieces["tokens"][0]["piece"], "a");
    let tokens = served.post("/tokenize", &json!({"content": "hello"})).json()["tokens"].clone();
    assert_eq!(
        served.post("/detokenize", &json!({"tokens": tokens})).json(),
        json!({"content": "hello", "prompt": "hello"})
    );
    // vLLM's words for the same, which lm-evaluation-harness uses.
    let as_vllm = served.post("/tokenize", &json!({"prompt": "hello", "add_special_tokens": false})).json();
    assert_eq!((&as_vllm["tokens"], &as_vllm["count"]), (&tokens, &json!(5)));
    let info = served.get("/tokenizer_info").json();
    // It has none.
    assert_eq!((&info["eos_token"], &info["model_max_length"]), (&Value::Null, &json!(512)));
    assert_eq!(served.get("/tokenizer_info?model=none").status, 404);
    assert_eq!(served.post("/tokenize", &json!({"prompt": "x", "content": "x"})).error(400)["param"], "content");
    assert_eq!(served.post("/detokenize", &json!({"tokens": [70_000]})).error(400)["param"], "tokens[0]");
    assert_eq!(served.post("/tokenize", &json!({"text": "x"})).error(400)["param"], "content");
    served.post("/v1/completions", &json!({"model": "gpt-x", "prompt": "ab", "max_tokens": 3})).json();
    assert_eq!(served.metric("outboard_serve_tokens_total"), 3.0);
    assert!(served.metric("outboard_serve_requests_total") >= 9.0);
    served.send("GET", "/v1/models", &[("host", "evil.example")], "").error(403);
    let metrics = served.get("/metrics").text();
    // Those that the document names.
    let document = std::fs::read_to_string(concat!(env!("CARGO_MANIFEST_DIR"), "/../docs/serve.md")).unwrap();
    let named: Vec<&str> = document.split('`').filter(|word| word.starts_with("outboard_serve_")).collect();
    assert!(named.len() > 10);
    for name in named {
        assert!(metrics.contains(&format!("# TYPE {} ", name.trim_end_matches("_total"))), "{name}: {metrics}");
    }
    for path in ["/v1/models", "/v1/models/{model}", "/tokenize"] {
        assert!(metrics.contains(&format!("path=\"{path}\"")), "{path}: {metrics}");
    }
}
