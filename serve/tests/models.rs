//! Several models behind one service, chosen by name.
#![allow(clippy::unwrap_used, clippy::expect_used)]

mod common;

use common::{Served, runner};
use outboard_serve::{ServeOptions, ServedModel, Service};
use serde_json::{Value, json};

/// Two models, of two places and of one, which are told apart by their contexts.
fn served() -> Served {
    let dir = tempfile::tempdir().unwrap();
    let names = |names: &[&str]| names.iter().map(|name| (*name).to_owned()).collect();
    let large = ServedModel { runner: runner(dir.path(), 2, 4096), names: names(&["large", "default"]) };
    let small = ServedModel { runner: runner(dir.path(), 1, 64), names: names(&["a model/small"]) };
    let service = Service::of_models(vec![large, small], ServeOptions::default()).unwrap();
    Served::of(service, dir)
}

#[test]
fn a_request_gets_the_model_that_it_names_or_the_first() {
    let served = served();
    let ask = |path: &str, mut body: Value, model: Option<&str>| {
        if let Some(model) = model {
            body["model"] = model.into();
        }
        served.post(path, &body)
    };
    let messages = json!([{"role": "user", "content": "ab"}]);
    let requests = [
        ("/v1/chat/completions", json!({"messages": messages, "max_tokens": 2})),
        ("/v1/completions", json!({"prompt": "ab", "max_tokens": 2})),
        ("/v1/responses", json!({"input": "ab", "max_output_tokens": 2})),
        ("/v1/messages", json!({"messages": messages, "max_tokens": 2})),
        ("/v1/embeddings", json!({"input": "ab"})),
    ];
    for (path, body) in &requests {
        for (model, told) in [
            (None, "large"),
            (Some("large"), "large"),
            (Some("default"), "large"),
            (Some("a model/small"), "a model/small"),
        ] {
            let answer = ask(path, body.clone(), model);
            assert_eq!((answer.status, &answer.json()["model"]), (200, &json!(told)), "{path} {model:?}");
        }
        let missing = ask(path, body.clone(), Some("other"));
        let body: Value = serde_json::from_str(&missing.text()).unwrap();
        let error = &body["error"];
        let message = error["message"].as_str().unwrap();
        assert!(
            missing.status == 404 && message.contains("'other'") && message.contains("'large', 'a model/small'"),
            "{message}"
        );
        assert!(*path == "/v1/messages" || error["code"] == "model_not_found", "{error}");
    }
    // What the first has room for, the second has not.
    let long = json!({"prompt": "ab".repeat(60), "max_tokens": 1});
    assert_eq!(ask("/v1/completions", long.clone(), None).status, 200);
    assert_eq!(ask("/v1/completions", long, Some("a model/small")).status, 400);
    assert_eq!(ask("/tokenize", json!({"content": "ab"}), Some("other")).status, 404);
    assert_eq!(ask("/v1/messages/count_tokens", json!({"messages": messages}), Some("a model/small")).status, 200);
}

#[test]
fn what_is_told_of_models_is_told_of_each() {
    let served = served();
    let get = |path: &str| served.get(path).json();
    let ids = |list: &Value| list.as_array().unwrap().iter().map(|one| one["id"].clone()).collect::<Vec<_>>();
    assert_eq!(ids(&get("/v1/models")["data"]), ["large", "a model/small"]);
    assert_eq!(get("/v1/models/default")["meta"]["n_ctx"], 4096);
    assert_eq!(served.get("/v1/models/other").status, 404);
    let of = |path: &str, field: &str| get(path)[field].clone();
    assert_eq!((of("/props", "n_ctx"), of("/props?model=a%20model%2Fsmall", "n_ctx")), (json!(4096), json!(64)));
    let slots = get("/slots");
    let told: Vec<_> = slots.as_array().unwrap().iter().map(|s| (s["id"].as_u64(), s["n_ctx"].as_u64())).collect();
    assert_eq!(told, [(Some(0), Some(4096)), (Some(1), Some(4096)), (Some(2), Some(64))]);
    assert_eq!(slots[2]["model"], "a model/small");
    assert_eq!(get("/slots?model=a+model%2Fsmall").as_array().unwrap().len(), 1);
    for path in ["/props", "/slots", "/cluster"] {
        assert_eq!(served.get(&format!("{path}?model=other")).status, 404, "{path}");
    }
    let (first, second) = (get("/cluster"), get("/cluster?model=a%20model/small"));
    assert_eq!((&first["models"], &first["models"]), (&json!(["large", "a model/small"]), &second["models"]));
    assert_eq!((&first["model"]["id"], &second["model"]["id"]), (&json!("large"), &json!("a model/small")));
    assert_eq!(second["slots"].as_array().unwrap().len(), 1);
    served.post("/v1/completions", &json!({"prompt": "ab", "max_tokens": 2, "model": "a model/small"}));
    let metrics = served.get("/metrics").text();
    for line in
        ["tokens_total{model=\"a model/small\"} 2", "slots{model=\"large\"} 2", "tokens_total{model=\"large\"} 0"]
    {
        assert!(metrics.lines().any(|l| l == format!("outboard_serve_{line}")), "{line} in {metrics}");
    }
}

/// The places of one are not taken by texts of the other.
#[test]
fn each_has_places_of_its_own() {
    let served = served();
    let long = json!({"prompt": "ab", "max_tokens": 3000, "ignore_eos": true, "stream": true, "model": "large"});
    let texts = [(); 3].map(|()| served.stream("/v1/completions", &long));
    served.wait("two have places", |served| served.busy() == 2);
    let other = json!({"prompt": "ab", "max_tokens": 3, "model": "a model/small"});
    assert_eq!(served.post("/v1/completions", &other).json()["usage"]["completion_tokens"], 3);
    assert!(served.service.texts() >= 1);
    drop(texts);
    served.wait("all have left", |served| served.service.texts() == 0 && served.busy() == 0);
}

#[test]
fn two_models_have_different_names() {
    let dir = tempfile::tempdir().unwrap();
    let model = |names: &[&str]| {
        let names = names.iter().map(|name| (*name).to_owned()).collect();
        ServedModel { runner: runner(dir.path(), 1, 64), names }
    };
    // Both are called as their file is.
    let twice = Service::of_models(vec![model(&[]), model(&[])], ServeOptions::default()).unwrap_err().to_string();
    assert!(twice.contains("two models are called 'small'"), "{twice}");
    let twice = Service::of_models(vec![model(&["a"]), model(&["b", "a"])], ServeOptions::default());
    assert!(twice.is_err());
    assert!(Service::of_models(Vec::new(), ServeOptions::default()).is_err());
}
