//! The page at `/`, and what it shows of the cluster.
#![allow(clippy::unwrap_used, clippy::expect_used)]

mod common;

use common::Served;
use outboard_serve::{Page, ServeOptions, Tokens};
use serde_json::{Value, json};
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Paths of what the page loads: of attributes of its markup, and of imports of its scripts.
fn files(served: &Served) -> Vec<String> {
    let mut found = vec!["/".to_owned()];
    let mut next = 0;
    while let Some(path) = found.get(next).cloned() {
        next += 1;
        let text = served.get(&path).text();
        for part in text.split('"') {
            let is_file = [".js", ".css", ".svg"].iter().any(|end| part.ends_with(end)) && !part.contains(' ');
            let whole = match part.strip_prefix("./") {
                Some(beside) => format!("/page/{beside}"),
                None => format!("/{part}"),
            };
            if is_file && !found.contains(&whole) {
                found.push(whole);
            }
        }
    }
    found
}

#[test]
fn the_page_is_there_for_everybody_and_loads_nothing_else() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("keys");
    std::fs::write(&path, "tester 0123456789abcdef-tester\n").unwrap();
    let keys = Some(Arc::new(Tokens::load(&path).unwrap()));
    let served = Served::new(1, ServeOptions { keys, ..ServeOptions::default() });
    let files = files(&served);
    assert!(files.len() > 5 && files.iter().any(|file| file == "/page/chat.js"), "{files:?}");
    for file in &files {
        let answer = served.get(file);
        let kind = match file.rsplit('.').next().unwrap() {
            "js" => "text/javascript; charset=utf-8",
            "css" => "text/css; charset=utf-8",
            "svg" => "image/svg+xml",
            _ => "text/html; charset=utf-8",
        };
        assert_eq!((answer.status, answer.header("content-type")), (200, Some(kind)), "{file}");
        let policy = answer.header("content-security-policy").unwrap();
        assert!(policy.starts_with("default-src 'none'; script-src 'self';"), "{policy}");
        assert!(!policy.contains("unsafe") && !policy.contains("http") && policy.contains("frame-ancestors 'none'"));
        let fixed =
            [("x-content-type-options", "nosniff"), ("referrer-policy", "no-referrer"), ("cache-control", "no-cache")];
        assert!(fixed.iter().all(|(name, value)| answer.header(name) == Some(value)), "{}", answer.head);
        // Nothing that the policy would forbid, and nothing of others.
        let text = answer.text();
        let of_others = text.replace("http://www.w3.org/2000/svg", "").contains("http://");
        assert!(!of_others && !text.contains("style=") && !text.contains("innerHTML"), "{file}");
        assert!(!text.contains(" onclick=") && !text.contains("<script>"), "{file}");
        let tag = answer.header("etag").unwrap().to_owned();
        let again = served.send("GET", file, &[("if-none-match", &tag)], "");
        assert_eq!((again.status, again.body.len(), again.header("etag")), (304, 0, Some(tag.as_str())), "{file}");
    }
    let key = [("authorization", "Bearer 0123456789abcdef-tester")];
    served.send("POST", "/", &key, "").error(405);
    // What it shows needs a key, and so does what is not there.
    for path in ["/cluster", "/slots", "/page/", "/page/other.js", "/index.html"] {
        served.get(path).error(401);
    }
    assert_eq!(served.send("GET", "/cluster", &key, "").status, 200);
    let text = served.send("GET", "/metrics", &key, "").text();
    assert!(
        text.contains("path=\"/\",status=\"200\"") && text.contains("path=\"/page/{file}\",status=\"304\""),
        "{text}"
    );
}

#[test]
fn there_need_not_be_a_page() {
    let served = Served::new(1, ServeOptions { page: Page::Absent, ..ServeOptions::default() });
    for path in ["/", "/page/main.js"] {
        served.get(path).error(404);
    }
    assert_eq!(served.get("/cluster").status, 200);
}

#[test]
fn a_page_of_another_name_gets_neither() {
    let served = Served::new(1, ServeOptions::default());
    for path in ["/", "/page/main.js", "/cluster"] {
        served.send("GET", path, &[("host", "evil.example")], "").error(403);
    }
}

/// What `/cluster` says once something is so.
fn cluster(served: &Served, is_so: impl Fn(&Value) -> bool) -> Value {
    let start = Instant::now();
    loop {
        let cluster = served.get("/cluster").json();
        if is_so(&cluster) {
            return cluster;
        }
        assert!(start.elapsed() < common::LIMIT, "{cluster:#}");
        std::thread::sleep(Duration::from_millis(50));
    }
}

#[test]
fn the_cluster_tells_what_is_where_and_where_time_goes() {
    let served = Served::with_context(2, 8192, ServeOptions::default());
    let first = served.get("/cluster").json();
    assert_eq!((&first["tokens"], &first["token_ms"], &first["losses"]), (&json!(0), &Value::Null, &json!([])));
    assert_eq!((&first["model"]["id"], &first["model"]["n_ctx"]), (&json!("small"), &json!(8192)));
    let host = &first["hosts"][0];
    assert_eq!((&host["endpoint"], &host["state"]), (&Value::Null, &json!("here")));
    let device = &host["devices"][0];
    let layers = first["model"]["layers"].as_u64().unwrap();
    assert_eq!(device["holds"]["layers"], json!([[0, layers - 1]]));
    assert!(
        device["holds"]["weight_bytes"].as_u64().unwrap() > 0 && device["holds"]["cache_bytes"].as_u64().unwrap() > 0
    );
    let text = json!({"prompt": "abcd", "max_tokens": 8000, "ignore_eos": true, "stream": true, "seed": 1});
    let stream = served.stream("/v1/completions", &text);
    let seen = cluster(&served, |seen| !seen["token_ms"].is_null());
    let device = &seen["hosts"][0]["devices"][0];
    assert!(device["memory"]["total"].as_u64().unwrap() >= device["memory"]["free"].as_u64().unwrap(), "{seen}");
    let part = |name: &str| device["token"][name].as_f64().unwrap();
    let whole = part("compute_ms") + part("wire_ms") + part("waiting_ms");
    // Alone it waits for nobody.
    assert!(part("compute_ms") > 0.0 && part("waiting_ms") == 0.0, "{seen}");
    assert!((whole - seen["token_ms"].as_f64().unwrap()).abs() < 0.01, "{seen}");
    assert!(seen["tokens_per_second"].as_f64().unwrap() > 0.0 && seen["tokens"].as_u64().unwrap() > 0, "{seen}");
    assert_eq!(seen["slots"].as_array().unwrap().iter().filter(|slot| slot["is_processing"] == true).count(), 1);
    drop(stream);
    cluster(&served, |seen| seen["slots"].as_array().unwrap().iter().all(|slot| slot["is_processing"] == false));
}
