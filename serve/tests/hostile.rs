//! Requests that nobody in their right mind sends. `OUTBOARD_SERVE_REQUESTS` says how many, in place of some thousand, `OUTBOARD_SERVE_SEED` others.
#![allow(clippy::unwrap_used, clippy::expect_used)]

mod common;

use common::{Answer, Served, write_request};
use outboard_serve::ServeOptions;
use rand::prelude::*;
use rand::rngs::StdRng;
use serde_json::{Value, json};
use std::time::{Duration, Instant};

/// Requests that are good, on every path that takes a body.
fn good() -> Vec<(&'static str, Value)> {
    let chat = json!({
        "model": "small", "messages": [{"role": "system", "content": "ab"}, {"role": "user", "content": [{"type": "text", "text": "cd"}]}],
        "max_tokens": 3, "max_completion_tokens": 2, "temperature": 0.7, "top_p": 0.9, "top_k": 5, "min_p": 0.1, "seed": 7, "n": 2,
        "stop": ["x", "yz"], "logprobs": true, "top_logprobs": 0, "stream": true, "stream_options": {"include_usage": true},
        "frequency_penalty": 0.1, "presence_penalty": -0.1, "repeat_penalty": 1.1, "repeat_last_n": 8, "response_format": {"type": "text"},
        "logit_bias": {}, "tools": [], "user": "me", "ignore_eos": false,
    });
    let text =
        json!({"prompt": ["ab", "cd"], "max_tokens": 2, "echo": true, "best_of": 1, "n": 1, "suffix": "", "seed": 1});
    let tokens = json!({"prompt": [1, 2, 3], "max_tokens": 2, "logprobs": 0, "stop": "x"});
    let ranked =
        json!({"prompt": [[1, 2, 3], [4]], "max_tokens": 1, "logprobs": 2, "echo": true, "n": 2, "stream": true});
    let messages = json!({
        "model": "small", "max_tokens": 2, "system": [{"type": "text", "text": "ab"}], "stop_sequences": ["x"], "stream": true,
        "messages": [{"role": "user", "content": "ab"}, {"role": "assistant", "content": "c"}, {"role": "user", "content": "d"}],
        "thinking": {"type": "disabled"}, "metadata": {"user_id": "me"},
    });
    let responses = json!({
        "input": [{"role": "user", "content": [{"type": "input_text", "text": "ab"}]}], "max_output_tokens": 2, "stream": true,
        "instructions": "x", "text": {"format": {"type": "text"}}, "store": false, "truncation": "disabled",
    });
    vec![
        ("/v1/chat/completions", chat),
        ("/v1/completions", text),
        ("/v1/completions", tokens),
        ("/v1/completions", ranked),
        ("/v1/messages", messages.clone()),
        ("/v1/messages/count_tokens", json!({"messages": messages["messages"], "system": "x"})),
        ("/v1/responses", responses),
        ("/tokenize", json!({"content": "abcd", "add_special": true, "parse_special": false, "with_pieces": true})),
        ("/tokenize", json!({"prompt": "abcd", "add_special_tokens": true, "return_token_strs": false})),
        ("/detokenize", json!({"tokens": [1, 2, 3]})),
    ]
}

/// Something that may stand anywhere.
fn odd(rng: &mut StdRng) -> Value {
    match rng.random_range(0..16) {
        0 => Value::Null,
        1 => json!(true),
        2 => json!(0),
        3 => json!(-1),
        4 => json!(i64::MIN),
        5 => json!(u64::MAX),
        6 => json!(1e308),
        7 => json!(0.5),
        8 => json!(""),
        9 => json!("\u{0}\u{fffd}\u{1F600}<|im_end|>\r\n\r\ndata: x"),
        10 => json!("a".repeat(rng.random_range(1..5000))),
        11 => json!([]),
        12 => json!({}),
        13 => (0..rng.random_range(1..300)).map(Value::from).collect(),
        14 => (0..rng.random_range(1..50)).fold(json!(1), |inner, _| json!([inner])),
        _ => {
            json!([{"type": "text", "text": "x"}, {"role": "user", "content": "y"}, {"type": "image_url", "image_url": {"url": "file:///etc/passwd"}}])
        }
    }
}

/// The number of values within a value, itself among them.
fn count(value: &Value) -> usize {
    1 + match value {
        Value::Array(list) => list.iter().map(count).sum(),
        Value::Object(map) => map.values().map(count).sum(),
        _ => 0,
    }
}

/// Replaces, doubles or renames something.
fn mutate(value: &mut Value, n: &mut usize, rng: &mut StdRng) -> bool {
    if *n == 0 {
        match value {
            Value::Object(map) if rng.random_bool(0.5) => {
                map.insert(["x", "tools", "n", "stream", "messages"][rng.random_range(0..5)].into(), odd(rng));
            }
            Value::Array(list) if rng.random_bool(0.5) => {
                let more = list.first().cloned().unwrap_or_else(|| odd(rng));
                list.extend(std::iter::repeat_n(more, rng.random_range(1..200)));
            }
            _ => *value = odd(rng),
        }
        return true;
    }
    *n -= 1;
    match value {
        Value::Array(list) => list.iter_mut().any(|inner| mutate(inner, n, rng)),
        Value::Object(map) => map.values_mut().any(|inner| mutate(inner, n, rng)),
        _ => false,
    }
}

/// A request that is mostly good.
fn bad(rng: &mut StdRng) -> (&'static str, Vec<u8>) {
    let (path, mut body) = good().choose(rng).unwrap().clone();
    for _ in 0..rng.random_range(0..4) {
        let mut n = rng.random_range(0..count(&body));
        mutate(&mut body, &mut n, rng);
    }
    let mut bytes = body.to_string().into_bytes();
    match rng.random_range(0..8) {
        0 => bytes.truncate(rng.random_range(0..=bytes.len())),
        1 | 2 => {
            for _ in 0..rng.random_range(1..8) {
                let i = rng.random_range(0..bytes.len());
                bytes[i] = rng.random();
            }
        }
        3 => {
            let i = rng.random_range(0..bytes.len());
            let part = bytes[i..].to_vec();
            bytes.extend(part);
        }
        _ => {}
    }
    (path, bytes)
}

#[test]
fn thousands_of_bodies_that_are_wrong_somewhere() {
    let requests = std::env::var("OUTBOARD_SERVE_REQUESTS").ok().and_then(|n| n.parse().ok()).unwrap_or(3000);
    let served = Served::with_context(4, 128, ServeOptions::default());
    let seed = std::env::var("OUTBOARD_SERVE_SEED").ok().and_then(|n| n.parse().ok()).unwrap_or(1);
    let mut rng = StdRng::seed_from_u64(seed);
    let mut by_status = std::collections::BTreeMap::<u16, usize>::new();
    for i in 0..requests {
        let (path, body) = bad(&mut rng);
        let mut socket = served.connect();
        write_request(&mut socket, "POST", path, &[("content-type", "application/json")], &body);
        // Some do not wait for the answer.
        if rng.random_bool(0.05) {
            continue;
        }
        let answer = Answer::read(socket);
        *by_status.entry(answer.status).or_default() += 1;
        let shown =
            || format!("request {i} of seed {seed}: {path} {}: {}", String::from_utf8_lossy(&body), answer.text());
        assert!(matches!(answer.status, 200 | 400 | 404 | 413 | 429), "{}", shown());
        if answer.status != 200 {
            let error: Value = serde_json::from_slice(&answer.body).unwrap_or_else(|_| panic!("{}", shown()));
            assert!(error["error"]["message"].is_string(), "{}", shown());
        }
    }
    println!("{by_status:?}");
    assert!(by_status[&200] > requests / 20 && by_status[&400] > requests / 4, "{by_status:?}");
    served.wait("all texts have ended", |served| served.service.texts() == 0);
    assert_eq!(served.busy(), 0);
}

#[test]
fn what_is_no_http_ends_its_own_connection() {
    use std::io::{Read, Write};
    let served = Served::new(1, ServeOptions::default());
    let mut rng = StdRng::seed_from_u64(3);
    for i in 0..300 {
        let mut socket = served.connect();
        let mut bytes = vec![0; rng.random_range(1..2000)];
        rng.fill(bytes.as_mut_slice());
        if i % 2 == 0 {
            let head = b"POST /v1/completions HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\ncontent-length: 500\r\n\r\n";
            bytes.splice(0..0, head.iter().copied());
        }
        let _ = socket.write_all(&bytes);
        let _ = socket.shutdown(std::net::Shutdown::Write);
        let mut answer = Vec::new();
        let start = Instant::now();
        let _ = socket.read_to_end(&mut answer);
        assert!(start.elapsed() < Duration::from_secs(20), "{i} stays open");
        assert!(answer.is_empty() || answer.starts_with(b"HTTP/1.1 4"), "{i}: {}", String::from_utf8_lossy(&answer));
    }
    assert_eq!(served.get("/health").status, 200);
}
