//! Answers that have a form: each has it, whole and as it comes, and a form that cannot be used is an error that says why.
#![allow(clippy::unwrap_used, clippy::expect_used)]

mod common;

use common::Served;
use outboard_serve::ServeOptions;
use serde_json::{Value, json};

/// Three words, and an end.
const WORDS: &str = "(ab|cd|ef){3}";

fn is_of_it(text: &str) -> bool {
    text.len() == 6 && text.as_bytes().chunks(2).all(|word| [b"ab", b"cd", b"ef"].iter().any(|known| word == *known))
}

fn served() -> Served {
    Served::new(4, ServeOptions::default())
}

#[test]
fn answers_have_their_form() {
    let served = served();
    let mut request = json!({"prompt": "abcd", "max_tokens": 30, "regex": WORDS, "seed": 1, "n": 3, "logprobs": 0});
    let whole = served.post("/v1/completions", &request).json();
    let texts: Vec<String> = (0..3).map(|i| whole["choices"][i]["text"].as_str().unwrap().to_owned()).collect();
    assert!(texts.iter().all(|text| is_of_it(text)), "{texts:?}");
    for choice in whole["choices"].as_array().unwrap() {
        assert_eq!(choice["finish_reason"], "stop");
    }
    let tokens = |choice: &Value| choice["logprobs"]["tokens"].as_array().unwrap().len();
    let tokens: usize = whole["choices"].as_array().unwrap().iter().map(tokens).sum();
    assert_eq!(whole["usage"]["completion_tokens"], tokens, "what is complete ends without one more token");
    request["stream"] = true.into();
    let mut streamed = vec![String::new(); 3];
    for event in served.stream("/v1/completions", &request).all() {
        let Some(choice) = event["choices"].get(0) else { continue };
        streamed[choice["index"].as_u64().unwrap() as usize] += choice["text"].as_str().unwrap();
    }
    assert_eq!(streamed, texts);
    let messages = json!([{"role": "user", "content": "ab"}]);
    for (name, form) in [
        ("guided_regex", WORDS),
        ("grammar", "start: WORD WORD WORD\nWORD: \"ab\" | \"cd\" | \"ef\""),
        ("grammar", "root ::= word{3}\nword ::= \"ab\" | \"cd\" | \"ef\""),
    ] {
        let mut request = json!({"messages": messages, "max_tokens": 30, "ignore_eos": true});
        request[name] = form.into();
        let answer = served.post("/v1/chat/completions", &request).json();
        assert!(is_of_it(answer["choices"][0]["message"]["content"].as_str().unwrap()), "{answer}");
    }
    let answer = served.post("/v1/responses", &json!({"input": "ab", "regex": WORDS})).json();
    assert!(is_of_it(answer["output"][0]["content"][0]["text"].as_str().unwrap()), "{answer}");
    assert_eq!(answer["status"], "completed");
    let format = json!({"type": "json_schema", "json_schema": {"name": "x", "schema": {"enum": ["ab", 12, null]}}});
    let request = json!({"messages": messages, "max_tokens": 30, "temperature": 1, "response_format": format});
    let answer = served.post("/v1/chat/completions", &request).json();
    let content = answer["choices"][0]["message"]["content"].as_str().unwrap();
    assert!(["\"ab\"", "12", "null"].contains(&content.trim()), "{answer}");
    let format = json!({"type": "json_schema", "name": "x", "schema": {"const": "ab"}});
    let answer = served.post("/v1/responses", &json!({"input": "ab", "text": {"format": format}})).json();
    assert_eq!(answer["output"][0]["content"][0]["text"].as_str().unwrap().trim(), "\"ab\"");
    assert_eq!(
        (&answer["text"]["format"]["schema"], &answer["text"]["format"]["name"]),
        (&format["schema"], &json!("x"))
    );
    // A text that is cut off is the beginning of one.
    let answer = served.post("/v1/completions", &json!({"prompt": "abcd", "max_tokens": 2, "regex": WORDS})).json();
    assert_eq!(answer["choices"][0]["finish_reason"], "length");
}

#[test]
fn a_form_that_cannot_be_used_says_why() {
    let served = served();
    let schema =
        |schema: Value| json!({"type": "json_schema", "json_schema": {"name": "x", "strict": true, "schema": schema}});
    for (name, value, param, why) in [
        ("regex", json!("a("), "regex", "the regular expression cannot be used"),
        ("grammar", json!("root ::= \"ab"), "grammar", "line 1: '\"' is missing"),
        ("guided_grammar", json!("start: none"), "guided_grammar", "none"),
        (
            "response_format",
            schema(json!({"type": "array", "uniqueItems": true})),
            "response_format.json_schema.schema",
            "uniqueItems",
        ),
        ("response_format", schema(json!(5)), "response_format.json_schema.schema", "a schema is an object"),
        ("guided_json", json!("{"), "guided_json", "not JSON"),
        ("regex", json!("a".repeat(70_000)), "regex", "65536 are the most"),
    ] {
        let mut request = json!({"messages": [{"role": "user", "content": "ab"}], "max_tokens": 4});
        request[name] = value.clone();
        let error = served.post("/v1/chat/completions", &request).error(400);
        assert_eq!(error["param"], param, "{error}");
        let message = error["message"].as_str().unwrap();
        assert!(message.contains(why) && message.contains(param), "{error}");
    }
    let request =
        json!({"input": "ab", "text": {"format": {"type": "json_schema", "name": "x", "schema": {"type": "text"}}}});
    assert_eq!(served.post("/v1/responses", &request).error(400)["param"], "text.format.schema");
}
