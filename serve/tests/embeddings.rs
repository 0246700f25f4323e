//! `/v1/embeddings`: what it answers and refuses, and that it keeps nobody waiting.
#![allow(clippy::unwrap_used, clippy::expect_used)]

mod common;

use common::{Served, write_request};
use outboard_serve::{Limits, ServeOptions};
use serde_json::{Value, json};

fn served(places: usize) -> Served {
    Served::new(places, ServeOptions::default())
}

fn vector(embedding: &Value) -> Vec<f32> {
    embedding["embedding"].as_array().unwrap().iter().map(|value| value.as_f64().unwrap() as f32).collect()
}

fn vectors(answer: &Value) -> Vec<Vec<f32>> {
    answer["data"].as_array().unwrap().iter().map(vector).collect()
}

#[test]
fn texts_and_tokens_one_or_several_have_the_same_vectors() {
    let served = served(3);
    let ask = |body: Value| served.post("/v1/embeddings", &body).json();
    let one = ask(json!({"input": "abcd", "model": "small", "user": "me"}));
    assert_eq!((&one["object"], &one["model"]), (&json!("list"), &json!("small")));
    assert_eq!((&one["data"][0]["object"], &one["data"][0]["index"]), (&json!("embedding"), &json!(0)));
    let details = json!({"cached_tokens": 0});
    assert_eq!(one["usage"], json!({"prompt_tokens": 4, "total_tokens": 4, "prompt_tokens_details": details}));
    let length: f32 = vector(&one["data"][0]).iter().map(|value| value * value).sum();
    assert!((length - 1.0).abs() < 1e-5, "{length}");
    let tokens = served.post("/tokenize", &json!({"content": "abcd"})).json()["tokens"].clone();
    let several = ask(json!({"input": ["xy", "abcd", "a", "abcd", "xyz", "b"]}));
    assert_eq!(several["usage"]["total_tokens"], 15);
    let several = vectors(&several);
    for same in [&several[1], &several[3], &vectors(&ask(json!({"input": tokens})))[0]] {
        assert_eq!(*same, vectors(&one)[0]);
    }
    assert!(several[0] != several[2] && several[2] != several[5]);
    assert_eq!(vectors(&ask(json!({"input": [tokens, [1, 2]]})))[0], vectors(&one)[0]);
    assert_eq!(served.metric("outboard_serve_texts_total"), 10.0);
    served.wait("all places are free", |served| served.busy() == 0 && served.service.texts() == 0);
}

#[test]
fn parameters_change_what_is_pooled_and_how_it_is_written() {
    let served = served(1);
    let ask = |body: Value| served.post("/v1/embeddings", &body).json();
    let last = ask(json!({"input": "abcdef"}));
    assert_eq!(last["data"], ask(json!({"input": "abcdef", "pooling": "last"}))["data"]);
    let mean = ask(json!({"input": "abcdef", "pooling": "mean"}));
    assert_ne!(last["data"], mean["data"]);
    let width = vectors(&last)[0].len();
    assert_eq!(last["data"], ask(json!({"input": "abcdef", "dimensions": width, "encoding_format": "float"}))["data"]);
    // One row is its own mean.
    let of_one = |pooling: &str| vectors(&ask(json!({"input": "a", "pooling": pooling}))).remove(0);
    let off: f32 = of_one("mean").iter().zip(of_one("last")).map(|(a, b)| (a - b).abs()).fold(0.0, f32::max);
    assert!(off < 1e-6, "{off}");
    let as_it_is = vectors(&ask(json!({"input": "abcdef", "embd_normalize": -1}))).remove(0);
    let length = as_it_is.iter().map(|value| value * value).sum::<f32>().sqrt();
    let off = as_it_is.iter().zip(&vectors(&last)[0]).map(|(a, b)| (a / length - b).abs()).fold(0.0, f32::max);
    assert!(off < 1e-6 && (length - 1.0).abs() > 1e-3, "{off} {length}");
    let base64 = ask(json!({"input": "abcdef", "encoding_format": "base64"}));
    assert_eq!(base64["data"][0]["embedding"].as_str().unwrap().len(), (4 * width).div_ceil(3) * 4);
}

#[test]
fn what_cannot_be_embedded_is_an_error_that_names_it() {
    let served = served(1);
    let refused = |body: Value| {
        let answer = served.post("/v1/embeddings", &body);
        let error = answer.error(answer.status);
        (answer.status, error["param"].as_str().unwrap_or_default().to_owned())
    };
    for (body, status, param) in [
        (json!({}), 400, "input"),
        (json!({"input": ""}), 400, "input"),
        (json!({"input": []}), 400, "input"),
        (json!({"input": ["a", ""]}), 400, "input[1]"),
        (json!({"input": [[1], [1_000_000]]}), 400, "input[1][0]"),
        (json!({"input": 5}), 400, "input"),
        (json!({"input": "a", "pooling": "cls"}), 400, "pooling"),
        (json!({"input": "a", "dimensions": 2}), 400, "dimensions"),
        (json!({"input": "a", "encoding_format": "hex"}), 400, "encoding_format"),
        (json!({"input": "a", "embd_normalize": 1}), 400, "embd_normalize"),
        (json!({"input": "a", "other": 1}), 400, "other"),
        (json!({"input": "a", "model": "none"}), 404, "model"),
        (json!({"input": ["a", "b".repeat(600)]}), 400, "input"),
        (json!({"input": vec!["a"; 2049]}), 400, "input"),
    ] {
        assert_eq!(refused(body.clone()), (status, param.to_owned()), "{body}");
    }
    let long = served.post("/v1/embeddings", &json!({"input": "b".repeat(600)})).error(400);
    assert_eq!(long["code"], "context_length_exceeded");
    served.service.drain();
    assert_eq!(served.post("/v1/embeddings", &json!({"input": "a"})).status, 503);
}

#[test]
fn more_numbers_than_an_answer_may_have_are_refused_before_they_are_computed() {
    let limits = Limits { bodies_each: 12_000, ..Limits::default() };
    let served = Served::new(1, ServeOptions { limits, ..ServeOptions::default() });
    let answer = served.post("/v1/embeddings", &json!({"input": vec!["a"; 100]}));
    assert_eq!(answer.error(400)["param"], "input");
    assert_eq!(served.metric("outboard_serve_texts_total"), 0.0);
}

/// Many texts of one request have one place after another: others come in between.
#[test]
fn a_request_with_many_inputs_keeps_nobody_from_a_place() {
    let served = served(1);
    let input: Vec<String> = (0..400).map(|i| format!("ab{i}").repeat(20)).collect();
    let mut socket = served.connect();
    let body = json!({"input": input, "pooling": "mean"}).to_string();
    let headers = [("content-type", "application/json")];
    write_request(&mut socket, "POST", "/v1/embeddings", &headers, body.as_bytes());
    served.wait("it has begun", |served| served.metric("outboard_serve_texts_total") >= 1.0);
    let text = served.post("/v1/completions", &json!({"prompt": "ab", "max_tokens": 2}));
    let done = served.metric("outboard_serve_texts_total");
    assert!(text.status == 200 && done < 400.0, "{done} were done before it");
    // Whoever leaves ends what is under way and all that is to come.
    drop(socket);
    served.wait("all places are free", |served| served.busy() == 0 && served.service.texts() == 0);
    assert!(served.metric("outboard_serve_texts_total") < 400.0);
    let again = served.post("/v1/embeddings", &json!({"input": "ab"}));
    assert_eq!(again.status, 200);
}

#[test]
fn too_many_that_wait_are_refused() {
    let limits = Limits { waiting: 2, waiting_each: 1, ..Limits::default() };
    let served = Served::with_context(1, 4096, ServeOptions { limits, ..ServeOptions::default() });
    let long = json!({"prompt": "ab", "max_tokens": 4000, "ignore_eos": true, "stream": true});
    let first = served.stream("/v1/completions", &long);
    served.wait("it has a place", |served| served.busy() == 1);
    let second = served.stream("/v1/completions", &long);
    served.wait("one waits", |served| served.metric("outboard_serve_waiting") == 1.0);
    let refused = served.post("/v1/embeddings", &json!({"input": ["a", "b"]}));
    assert_eq!((refused.status, refused.header("retry-after").is_some()), (429, true));
    drop((first, second));
    served.wait("all have left", |served| served.service.texts() == 0);
    assert_eq!(served.post("/v1/embeddings", &json!({"input": ["a", "b"]})).status, 200);
}
