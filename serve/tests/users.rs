//! Many users: turns, bounds, clients that vanish or do not read, keys, and the end of a server.
#![allow(clippy::unwrap_used, clippy::expect_used)]

mod common;

use common::{Answer, Events, LIMIT, Served, write_request};
use outboard_serve::{Beginnings, Hosts, Limits, ServeOptions, Tokens};
use serde_json::{Value, json};
use std::io::{Read, Write};
use std::sync::Arc;
use std::time::{Duration, Instant};

/// A text that fills its context.
fn endless(seed: u64) -> Value {
    json!({"prompt": "abcd", "max_tokens": 100_000, "ignore_eos": true, "seed": seed, "stream": true})
}

fn short() -> Value {
    json!({"prompt": "abcd", "max_tokens": 2, "temperature": 0})
}

fn limits(change: impl FnOnce(&mut Limits)) -> ServeOptions {
    let mut limits = Limits::default();
    change(&mut limits);
    ServeOptions { limits, ..ServeOptions::default() }
}

/// Places with contexts that take long to fill.
fn slow(places: usize, options: ServeOptions) -> Served {
    Served::with_context(places, 32_768, options)
}

#[test]
fn a_client_that_vanishes_frees_its_place() {
    let served = slow(2, ServeOptions::default());
    let mut streams = [1, 2].map(|seed| served.stream("/v1/completions", &endless(seed)));
    streams.iter_mut().for_each(|stream| drop(stream.next().unwrap()));
    assert_eq!(served.busy(), 2);
    // Tokens are counted as they come, and stay counted.
    assert!(served.metric("outboard_serve_tokens_total") >= 2.0);
    drop(streams);
    served.wait("both places are free", |served| served.busy() == 0);
    assert_eq!(served.metric("outboard_serve_prompt_tokens_total"), 8.0);
    // While it waits for an answer that comes whole.
    let mut socket = served.connect();
    let mut whole = endless(3);
    whole["stream"] = false.into();
    let headers = [("content-type", "application/json")];
    write_request(&mut socket, "POST", "/v1/completions", &headers, whole.to_string().as_bytes());
    served.wait("it is under way", |served| served.busy() == 1);
    drop(socket);
    served.wait("its place is free", |served| served.busy() == 0);
    // With something behind its request that nobody reads meanwhile.
    for more in ["\r\n", "GET /health HTTP/1.1\r\nhost: localhost\r\n\r\n"] {
        let before = served.metric("outboard_serve_tokens_total");
        let mut socket = served.connect();
        write_request(&mut socket, "POST", "/v1/completions", &headers, whole.to_string().as_bytes());
        socket.write_all(more.as_bytes()).unwrap();
        served.wait("it is under way", |served| served.busy() == 1);
        drop(socket);
        served.wait("its place is free", |served| served.busy() == 0);
        let tokens = served.metric("outboard_serve_tokens_total") - before;
        assert!(tokens < 30_000.0, "{tokens} tokens of a text that nobody wants");
    }
    // While it waits for its turn.
    let mut running = [4, 5].map(|seed| served.stream("/v1/completions", &endless(seed)));
    running.iter_mut().for_each(|stream| drop(stream.next().unwrap()));
    let waiting = served.stream("/v1/completions", &endless(6));
    served.wait("one waits", |served| served.metric("outboard_serve_waiting") == 1.0);
    drop(waiting);
    served.wait("nobody waits", |served| served.metric("outboard_serve_waiting") == 0.0);
    drop(running);
    served.wait("all have ended", |served| served.service.texts() == 0);
    served.post("/v1/completions", &short()).json();
}

#[test]
fn more_than_may_wait_are_told_when_to_come_back() {
    let served = slow(1, limits(|limits| (limits.waiting, limits.waiting_each) = (2, 2)));
    let mut running = served.stream("/v1/completions", &endless(1));
    running.next().unwrap();
    let waiting = [2, 3].map(|seed| served.stream("/v1/completions", &endless(seed)));
    served.wait("two wait", |served| served.metric("outboard_serve_waiting") == 2.0);
    let refused = served.post("/v1/completions", &short());
    let error = refused.error(429);
    assert_eq!((&error["type"], &error["code"]), (&json!("rate_limit_error"), &json!("rate_limit_exceeded")));
    let wait: u64 = refused.header("retry-after").unwrap().parse().unwrap();
    assert!((1..=60).contains(&wait), "{wait}");
    // Nothing is done for it: nobody has seen that its grammar is none.
    let mut wrong = short();
    wrong["grammar"] = "start: (".into();
    served.post("/v1/completions", &wrong).error(429);
    drop(waiting);
    served.wait("nobody waits", |served| served.metric("outboard_serve_waiting") == 0.0);
    // Two more than there are places can wait, and three cannot, even if they come together.
    let mut request = short();
    request["n"] = 3.into();
    served.post("/v1/completions", &request).error(429);
    // More than that could never come, so that nobody is told to try again.
    request["n"] = 4.into();
    let never = served.post("/v1/completions", &request).error(400);
    assert!(never["message"].as_str().unwrap().starts_with("4 texts at once"), "{never}");
    request["n"] = 3.into();
    drop(running);
    served.wait("the place is free", |served| served.busy() == 0);
    assert_eq!(served.post("/v1/completions", &request).json()["choices"].as_array().unwrap().len(), 3);
    assert_eq!(served.metric("outboard_serve_refused_total"), 3.0);
    assert_eq!(served.post("/v1/completions", &wrong).error(400)["param"], "grammar");
}

const KEYS: &str = "alice 0123456789abcdef-alice\nbob 0123456789abcdef-bob00\n";

fn keys(dir: &std::path::Path) -> Option<Arc<Tokens>> {
    let path = dir.join("keys");
    std::fs::write(&path, KEYS).unwrap();
    Some(Arc::new(Tokens::load_of("--api-key-file", &path).unwrap()))
}

fn as_user(name: &str) -> [(&'static str, &'static str); 2] {
    let key = if name == "alice" { "Bearer 0123456789abcdef-alice" } else { "Bearer 0123456789abcdef-bob00" };
    [("content-type", "application/json"), ("authorization", key)]
}

#[test]
fn those_without_a_key_are_not_answered() {
    let dir = tempfile::tempdir().unwrap();
    let served = Served::new(1, ServeOptions { keys: keys(dir.path()), ..ServeOptions::default() });
    let json = ("content-type", "application/json");
    for path in ["/v1/models", "/metrics", "/props", "/slots", "/cluster", "/v1/nothing"] {
        let refused = served.get(path);
        assert_eq!(
            (refused.error(401)["code"].as_str(), refused.header("www-authenticate")),
            (Some("invalid_api_key"), Some("bearer"))
        );
    }
    let body = short().to_string();
    for wrong in [
        ("authorization", "Bearer wrong"),
        ("authorization", "Basic 0123456789abcdef-alice"),
        ("x-api-key", "0123456789abcdef-alicE"),
    ] {
        served.send("POST", "/v1/completions", &[json, wrong], &body).error(401);
    }
    assert_eq!(served.get("/health").status, 200);
    served.send("POST", "/v1/completions", &as_user("alice"), &body).json();
    served.send("POST", "/v1/completions", &[json, ("x-api-key", "0123456789abcdef-bob00")], &body).json();
    // With a key, any name of the host is good.
    let named = [as_user("bob").as_slice(), &[("host", "gpubox.lan")]].concat();
    served.send("POST", "/v1/completions", &named, &body).json();
}

#[test]
fn what_others_have_asked_is_not_told_by_the_cache_where_that_is_wished() {
    let dir = tempfile::tempdir().unwrap();
    let cached = |beginnings, asked: &[(&str, Value)]| -> Vec<u64> {
        let options = ServeOptions { keys: keys(dir.path()), beginnings, ..ServeOptions::default() };
        let served = Served::with_context(2, 1024, options);
        let ask = |(user, more): &(&str, Value)| {
            let mut body = json!({"prompt": "abcd".repeat(100), "max_tokens": 2});
            body.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
            let answer = served.send("POST", "/v1/completions", &as_user(user), &body.to_string()).json();
            answer["usage"]["prompt_tokens_details"]["cached_tokens"].as_u64().unwrap()
        };
        asked.iter().map(ask).collect()
    };
    let none = json!({});
    let asked = [("alice", none.clone()), ("alice", none.clone()), ("bob", none.clone()), ("bob", none)];
    assert_eq!(cached(Beginnings::OfAll, &asked), [0, 384, 384, 384]);
    assert_eq!(cached(Beginnings::OfEachClient, &asked), [0, 384, 0, 384]);
    // Who says a salt shares with those who say the same, and with nobody else.
    let salts = [json!({}), json!({"cache_salt": "x"}), json!({"cache_salt": "y"}), json!({"cache_salt": "x"})];
    let asked = salts.map(|salt| ("alice", salt));
    assert_eq!(cached(Beginnings::OfAll, &asked), [0, 0, 0, 384]);
    let asked = ["alice", "bob", "alice"].map(|user| (user, json!({"cache_salt": "x"})));
    assert_eq!(cached(Beginnings::OfEachClient, &asked), [0, 0, 384]);
    let embedded = |beginnings, salt: Value| -> Vec<u64> {
        let options = ServeOptions { keys: keys(dir.path()), beginnings, ..ServeOptions::default() };
        let served = Served::with_context(2, 1024, options);
        let ask = |user| {
            let body = json!({"input": "abcd".repeat(100), "pooling": "last", "cache_salt": salt}).to_string();
            let answer = served.send("POST", "/v1/embeddings", &as_user(user), &body).json();
            answer["usage"]["prompt_tokens_details"]["cached_tokens"].as_u64().unwrap()
        };
        ["alice", "bob", "alice"].into_iter().map(ask).collect()
    };
    assert_eq!(embedded(Beginnings::OfAll, Value::Null), [0, 384, 384]);
    assert_eq!(embedded(Beginnings::OfAll, json!("x")), [0, 384, 384]);
    assert_eq!(embedded(Beginnings::OfEachClient, Value::Null), [0, 0, 384]);
    // And who wants nothing of the cache gets nothing.
    let asked = [json!({}), json!({"cache_prompt": false}), json!({"seed": 1})].map(|more| ("alice", more));
    assert_eq!(cached(Beginnings::OfAll, &asked), [0, 0, 384]);
}

#[test]
fn a_client_whose_prompts_are_scored_leaves_others_room_to_wait() {
    let dir = tempfile::tempdir().unwrap();
    let options = limits(|limits| (limits.waiting, limits.waiting_each) = (16, 8));
    let served = Served::with_context(1, 2048, ServeOptions { keys: keys(dir.path()), ..options });
    // They enter one after another, and have 24 texts.
    let many = json!({"prompt": "abcd", "max_tokens": 300, "ignore_eos": true, "n": 4, "echo": true, "logprobs": 0});
    std::thread::scope(|scope| {
        let ask = || served.send("POST", "/v1/completions", &as_user("alice"), &many.to_string()).json();
        let asked: Vec<_> = (0..6).map(|_| scope.spawn(ask)).collect();
        while !asked.iter().all(|asked| asked.is_finished()) {
            served.send("POST", "/v1/completions", &as_user("bob"), &short().to_string()).json();
        }
        for answer in asked {
            assert_eq!(answer.join().unwrap()["choices"].as_array().unwrap().len(), 4);
        }
    });
}

#[test]
fn a_client_with_many_texts_does_not_hold_up_another() {
    let dir = tempfile::tempdir().unwrap();
    let served = Served::with_context(1, 2048, ServeOptions { keys: keys(dir.path()), ..ServeOptions::default() });
    let many = json!({"prompt": "abcd", "max_tokens": 400, "ignore_eos": true, "n": 24}).to_string();
    let mut socket = served.connect();
    write_request(&mut socket, "POST", "/v1/completions", &as_user("alice"), many.as_bytes());
    served.wait("alice's are there", |served| served.service.texts() >= 20);
    served.send("POST", "/v1/completions", &as_user("bob"), &short().to_string()).json();
    // Those of alice that ended before were at most the one that ran and the one that was next.
    assert!(served.service.texts() >= 20, "{} are left", served.service.texts());
    assert_eq!(Answer::read(socket).json()["choices"].as_array().unwrap().len(), 24);
}

#[test]
fn those_who_do_not_read_hold_up_nobody() {
    let served = Served::with_context(2, 2048, limits(|limits| limits.write_time = Duration::from_millis(500)));
    let silent: Vec<_> = (0..6)
        .map(|seed| {
            let mut socket = served.connect();
            let request = endless(seed).to_string();
            write_request(
                &mut socket,
                "POST",
                "/v1/completions",
                &[("content-type", "application/json")],
                request.as_bytes(),
            );
            socket
        })
        .collect();
    served.wait("all have ended", |served| served.service.texts() == 0);
    served.post("/v1/completions", &short()).json();
    drop(silent);
    // Answers without end: more than sockets and buffers hold.
    let mut socket = served.connect();
    socket.set_write_timeout(Some(Duration::from_secs(2))).unwrap();
    let request = b"GET /metrics HTTP/1.1\r\nhost: localhost\r\n\r\n";
    while socket.write_all(request).is_ok() {}
    served.wait("it is closed", |served| served.metric("outboard_serve_connections") <= 1.0);
}

#[test]
fn heads_and_bodies_that_trickle_end() {
    let served = Served::new(
        1,
        limits(|limits| {
            limits.head_time = Duration::from_secs(2);
            limits.body_time = Duration::from_secs(2);
        }),
    );
    let mut sockets: Vec<_> = (0..50).map(|_| served.connect()).collect();
    sockets.iter_mut().for_each(|socket| socket.write_all(b"POST /v1/completions HTT").unwrap());
    // Nothing at all, and nothing more behind a request.
    sockets.push(served.connect());
    let mut idle = served.connect();
    idle.write_all(b"GET /health HTTP/1.1\r\nhost: localhost\r\n\r\n").unwrap();
    sockets.push(idle);
    let mut body = served.connect();
    body.write_all(b"POST /v1/completions HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\ncontent-length: 100\r\n\r\n{").unwrap();
    served.post("/v1/completions", &short()).json();
    let start = Instant::now();
    Answer::read(body).error(408);
    for mut socket in sockets {
        let mut rest = Vec::new();
        // A reset, or an end.
        let _ = socket.read_to_end(&mut rest);
    }
    assert!(start.elapsed() < LIMIT / 2);
}

#[test]
fn heads_without_end_are_refused() {
    let served = Served::new(1, ServeOptions::default());
    let many: String = (0..1000).map(|i| format!("x-{i}: y\r\n")).collect();
    let long = format!("x: {}\r\n", "y".repeat(1 << 20));
    for headers in [many, long] {
        let mut socket = served.connect();
        let _ = socket.write_all(format!("GET /health HTTP/1.1\r\nhost: localhost\r\n{headers}\r\n").as_bytes());
        let mut answer = String::new();
        let _ = socket.read_to_string(&mut answer);
        assert!(answer.is_empty() || answer.starts_with("HTTP/1.1 4"), "{answer}");
    }
    assert_eq!(served.get("/health").status, 200);
}

#[test]
fn an_address_has_not_all_connections() {
    let served = Served::new(1, limits(|limits| limits.connections_each = 8));
    let held: Vec<_> = (0..8).map(|_| served.connect()).collect();
    served.wait("a further one is closed", |served| {
        let mut socket = served.connect();
        let _ = socket.write_all(b"GET /health HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n\r\n");
        let mut answer = String::new();
        let _ = socket.read_to_string(&mut answer);
        answer.is_empty()
    });
    drop(held);
    served.wait("there is room again", |served| {
        let mut socket = served.connect();
        let _ = socket.write_all(b"GET /health HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n\r\n");
        let mut answer = String::new();
        let _ = socket.read_to_string(&mut answer);
        answer.starts_with("HTTP/1.1 200")
    });
}

#[test]
fn pages_of_others_are_not_answered() {
    let served = Served::new(1, ServeOptions::default());
    assert_eq!(
        served.send("GET", "/v1/models", &[("host", "evil.example")], "").error(403)["type"],
        "permission_error"
    );
    let twice = served.send("GET", "/v1/models", &[("host", "localhost"), ("host", "evil.example")], "");
    assert!(twice.text().contains("more than one Host"), "{}", twice.error(400));
    let plain = served.send("GET", "/v1/models", &[("origin", "https://evil.example")], "");
    assert_eq!((plain.status, plain.header("access-control-allow-origin")), (200, None));
    let preflight = [
        ("origin", "https://chat.lan"),
        ("access-control-request-method", "POST"),
        ("access-control-request-headers", "authorization,x-stainless-os,anthropic-version"),
    ];
    assert_eq!(
        served.send("OPTIONS", "/v1/chat/completions", &preflight, "").header("access-control-allow-origin"),
        None
    );
    let options =
        ServeOptions { origins: vec!["https://chat.lan".into()], hosts: Hosts::Any, ..ServeOptions::default() };
    let served = Served::new(1, options);
    let allowed = served.send("OPTIONS", "/v1/chat/completions", &preflight, "");
    assert_eq!((allowed.status, allowed.header("access-control-allow-origin")), (200, Some("https://chat.lan")));
    // What OpenAI's and Anthropic's clients send.
    let headers = allowed.header("access-control-allow-headers");
    assert_eq!(headers, Some("authorization,x-stainless-os,anthropic-version"));
    let other = served.send("GET", "/v1/models", &[("origin", "https://evil.example"), ("host", "gpubox")], "");
    assert_eq!((other.status, other.header("access-control-allow-origin")), (200, None));
}

#[test]
fn a_server_that_drains_lets_texts_end_and_takes_no_more() {
    let mut served = Served::with_context(1, 4096, ServeOptions::default());
    let request = json!({"prompt": "abcd", "max_tokens": 600, "ignore_eos": true, "stream": true});
    let mut stream = served.stream("/v1/completions", &request);
    stream.next().unwrap();
    let mut kept = served.connect();
    let again = "GET /health HTTP/1.1\r\nhost: localhost\r\n\r\n";
    kept.write_all(again.as_bytes()).unwrap();
    let mut some = [0; 12];
    kept.read_exact(&mut some).unwrap();
    assert_eq!(&some, b"HTTP/1.1 200");
    let mut unused = served.connect();
    served.wait("all are connected", |served| served.server.as_ref().unwrap().connections() == 3);
    let server = served.server.take().unwrap();
    server.drain();
    // It ends connections that wait for a request.
    unused.read_to_end(&mut Vec::new()).unwrap();
    kept.read_to_end(&mut Vec::new()).unwrap();
    assert!(std::net::TcpStream::connect(served.addr).is_err(), "it does not listen any more");
    let events = stream.all();
    assert_eq!(events.last(), Some(&Value::Null), "its end has come");
    assert_eq!(served.service.texts(), 0);
    let start = Instant::now();
    server.stop();
    assert!(start.elapsed() < Duration::from_secs(3));
}

#[test]
fn a_server_that_drains_waits_for_slow_readers() {
    let mut served = Served::with_context(1, 4096, ServeOptions::default());
    // More than lies in sockets.
    let request = json!({
        "messages": [{"role": "user", "content": "abcd"}], "max_tokens": 3000, "ignore_eos": true, "stream": true, "logprobs": true,
        "top_logprobs": 20,
    });
    let mut stream = served.stream("/v1/chat/completions", &request);
    stream.next().unwrap();
    let server = served.server.take().unwrap();
    server.drain();
    served.wait("its text has ended", |served| served.service.texts() == 0);
    assert_eq!(server.connections(), 1, "it is not read yet");
    assert_eq!(stream.all().last(), Some(&Value::Null), "its end has come");
    served.wait("its connection has ended", |_| server.connections() == 0);
    server.stop();
}

#[test]
fn a_server_that_stops_says_so_in_its_streams() {
    let mut served = slow(1, ServeOptions::default());
    let mut running: Events = served.stream("/v1/completions", &endless(1));
    running.next().unwrap();
    let waiting = served.stream("/v1/completions", &endless(2));
    let response = served.stream("/v1/responses", &json!({"input": "ab", "stream": true}));
    let start = Instant::now();
    served.server.take().unwrap().stop();
    assert!(start.elapsed() < Duration::from_secs(5));
    for stream in [running, waiting] {
        let last = stream.all().pop().unwrap();
        assert_eq!(last["error"]["code"], "stopping", "{last}");
    }
    let last = response.all().pop().unwrap();
    let said = (&last["type"], &last["response"]["status"], &last["response"]["error"]["code"]);
    assert_eq!(said, (&json!("response.failed"), &json!("failed"), &json!("stopping")), "{last}");
}

#[test]
fn a_stream_of_messages_that_waits_is_pinged() {
    let served = slow(1, ServeOptions::default());
    let mut running = served.stream("/v1/completions", &endless(1));
    running.next().unwrap();
    let request = json!({"messages": [{"role": "user", "content": "ab"}], "max_tokens": 1, "stream": true});
    let mut waiting = served.stream("/v1/messages", &request);
    assert_eq!(waiting.next().unwrap().0, "message_start");
    assert_eq!(waiting.next(), Some(("ping".into(), json!({"type": "ping"}).to_string())));
}

#[test]
fn its_router_lives_in_other_programs() {
    let dir = tempfile::tempdir().unwrap();
    let service = outboard_serve::Service::new(common::runner(dir.path(), 1, 512), ServeOptions::default()).unwrap();
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let listener = runtime.block_on(tokio::net::TcpListener::bind("127.0.0.1:0")).unwrap();
    let addr = listener.local_addr().unwrap();
    let router = axum::Router::new().route("/", axum::routing::get(async || "mine")).nest("/llm", service.router());
    let (stop, stopped) = tokio::sync::oneshot::channel::<()>();
    let stopping = async move { drop(stopped.await) };
    let serving = std::thread::spawn(move || {
        let serve = axum::serve(listener, router).with_graceful_shutdown(stopping);
        runtime.block_on(async { serve.await }).unwrap();
    });
    let send = |method: &str, path: &str, body: &str| {
        let mut socket = std::net::TcpStream::connect(addr).unwrap();
        write_request(&mut socket, method, path, &[("content-type", "application/json")], body.as_bytes());
        Answer::read(socket)
    };
    assert_eq!(send("GET", "/", "").text(), "mine");
    let answer = send("POST", "/llm/v1/completions", &short().to_string()).json();
    assert_eq!(answer["usage"]["completion_tokens"], 2);
    let wrong = send("POST", "/llm/v1/messages", "{}");
    assert_eq!(
        (wrong.status, serde_json::from_slice::<Value>(&wrong.body).unwrap()["type"].clone()),
        (400, json!("error"))
    );
    stop.send(()).unwrap();
    serving.join().unwrap();
}

#[test]
fn bodies_share_their_room() {
    let served = Served::new(1, limits(|limits| limits.bodies = 2000));
    let head = "POST /v1/completions HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\ncontent-length: 300\r\n\r\n";
    let mut held = served.connect();
    held.write_all(format!("{head}{}", " ".repeat(299)).as_bytes()).unwrap();
    let long = json!({"prompt": "ab", "max_tokens": 1, "user": "x".repeat(1300)});
    served.wait("there is no room beside it", |served| {
        let answer = served.post("/v1/completions", &long);
        answer.status == 503 && answer.error(503)["code"] == "crowded" && answer.header("retry-after") == Some("1")
    });
    served.post("/v1/completions", &short()).json();
    drop(held);
    served.wait("there is room", |served| served.post("/v1/completions", &long).status == 200);
}
