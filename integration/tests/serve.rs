//! `outboard serve` as a process: servers that die below it, its end, many users at once, and clients that others have written.
#![allow(clippy::unwrap_used, clippy::expect_used)]

#[path = "../../serve/tests/common/http.rs"]
#[allow(dead_code, missing_docs, unreachable_pub)]
mod http;

use http::{Answer, Events, write_request};
use outboard::{Model, PlaceOptions, Request, devices};
use outboard_integration::{Client, Server, Serving, model, skip, small_model};
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::io::{Read, Write as _};
use std::net::{SocketAddr, TcpStream};
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

const LIMIT: Duration = Duration::from_secs(240);
const JSON: (&str, &str) = ("content-type", "application/json");

fn begin(addr: SocketAddr, body: &Value) -> TcpStream {
    let mut socket = TcpStream::connect(addr).unwrap();
    socket.set_read_timeout(Some(LIMIT)).unwrap();
    write_request(&mut socket, "POST", "/v1/completions", &[JSON], body.to_string().as_bytes());
    socket
}

fn get(addr: SocketAddr, path: &str) -> Answer {
    let mut socket = TcpStream::connect(addr).unwrap();
    write_request(&mut socket, "GET", path, &[], b"");
    Answer::read(socket)
}

fn metric(addr: SocketAddr, name: &str) -> f64 {
    let text = get(addr, "/metrics").text();
    let line = |l: &str| match l.strip_prefix(name)? {
        rest if rest.starts_with([' ', '{']) => rest.rsplit(' ').next()?.parse::<f64>().ok(),
        _ => None,
    };
    text.lines().filter_map(line).sum()
}

/// A text of so many tokens.
fn text(seed: u64, tokens: usize) -> Value {
    json!({"prompt": "abcd", "max_tokens": tokens, "ignore_eos": true, "seed": seed, "temperature": 1.5})
}

/// The text that a whole answer has.
fn whole(addr: SocketAddr, seed: u64, tokens: usize) -> String {
    let answer = Answer::read(begin(addr, &text(seed, tokens)));
    answer.json()["choices"][0]["text"].as_str().unwrap().to_owned()
}

/// The same as it comes.
struct Streamed {
    events: Events,
    text: String,
}

impl Streamed {
    fn begin(addr: SocketAddr, seed: u64, tokens: usize) -> Streamed {
        let mut body = text(seed, tokens);
        body["stream"] = true.into();
        let events = Events::read(begin(addr, &body));
        assert_eq!(events.status, 200, "{}", events.head);
        Streamed { events, text: String::new() }
    }

    /// Takes an event; gives whether there may be more.
    fn take(&mut self) -> bool {
        let (_, data) = self.events.next().expect("an end");
        if data == "[DONE]" {
            return false;
        }
        let event: Value = serde_json::from_str(&data).unwrap();
        assert!(event.get("error").is_none(), "{event}");
        self.text += event["choices"][0]["text"].as_str().unwrap();
        true
    }

    fn rest(mut self) -> String {
        while self.take() {}
        self.text
    }
}

#[test]
fn streams_go_on_when_a_server_is_killed() {
    let dir = tempfile::tempdir().unwrap();
    let file = small_model(dir.path());
    let [one, mut two] = [(); 2].map(|()| Server::start(&["-d", "cpu:1"]));
    let rpc = format!("{},{}", one.addr, two.addr);
    let mut serving = Serving::start(file.to_str().unwrap(), &["--rpc", &rpc, "-np", "3", "-ts", "1,1"]);
    const TOKENS: usize = 300;
    let expected: Vec<String> = (0..5).map(|seed| whole(serving.addr, seed, TOKENS)).collect();
    // Three are under way, and two wait.
    let mut streams: Vec<Streamed> = (0..5).map(|seed| Streamed::begin(serving.addr, seed, TOKENS)).collect();
    streams[..3].iter_mut().for_each(|stream| assert!(stream.take()));
    two.kill();
    let texts: Vec<String> = streams.into_iter().map(Streamed::rest).collect();
    assert_eq!(texts, expected);
    assert_eq!(whole(serving.addr, 1, TOKENS), expected[1]);
    assert!(serving.client.is_running());
    assert!(serving.client.said().contains("warning:"), "{}", serving.client.said());
}

#[test]
fn all_servers_lost_is_an_error_of_the_text_and_not_the_end() {
    let dir = tempfile::tempdir().unwrap();
    let file = small_model(dir.path());
    let mut one = Server::start(&["-d", "cpu:1"]);
    let mut serving = Serving::start(file.to_str().unwrap(), &["--rpc", &one.addr, "-np", "2", "--no-failover"]);
    let mut stream = Streamed::begin(serving.addr, 1, 100_000);
    assert!(stream.take());
    one.kill();
    let mut last = Value::Null;
    while let Some((_, data)) = stream.events.next() {
        last = serde_json::from_str(&data).unwrap();
    }
    assert_eq!(
        (&last["error"]["type"], &last["error"]["code"]),
        (&json!("server_error"), &json!("devices_failed")),
        "{last}"
    );
    let answer = Answer::read(begin(serving.addr, &text(1, 4)));
    assert_eq!((answer.status, answer.header("retry-after")), (503, Some("5")), "{}", answer.text());
    assert!(serving.client.is_running());
}

#[test]
fn sigterm_lets_texts_come_to_their_end() {
    let dir = tempfile::tempdir().unwrap();
    let file = small_model(dir.path());
    let serving = Serving::start(file.to_str().unwrap(), &["-np", "1", "-t", "1", "-c", "4096"]);
    let expected = whole(serving.addr, 1, 500);
    let mut stream = Streamed::begin(serving.addr, 1, 500);
    assert!(stream.take());
    serving.client.signal("TERM");
    assert_eq!(stream.rest(), expected);
    let ended = serving.client.wait(LIMIT);
    assert_eq!(ended.code, Some(0), "{}", ended.stderr);
    // With nothing left of the time that there is for it.
    let serving =
        Serving::start(file.to_str().unwrap(), &["-np", "1", "-t", "1", "-c", "32768", "--drain-timeout", "0"]);
    let mut stream = Streamed::begin(serving.addr, 1, 100_000);
    assert!(stream.take());
    serving.client.signal("INT");
    let ended = serving.client.wait(LIMIT);
    assert_eq!(ended.code, Some(0), "{}", ended.stderr);
    assert!(ended.stderr.contains("1 texts are ended"), "{}", ended.stderr);
}

#[test]
fn what_is_asked_again_is_in_the_cache() {
    let dir = tempfile::tempdir().unwrap();
    let file = small_model(dir.path());
    let cached = |addr, key: &str| {
        let body = json!({"prompt": "abcd".repeat(100), "max_tokens": 2}).to_string();
        let mut socket = TcpStream::connect(addr).unwrap();
        write_request(&mut socket, "POST", "/v1/completions", &[JSON, ("x-api-key", key)], body.as_bytes());
        Answer::read(socket).json()["usage"]["prompt_tokens_details"]["cached_tokens"].as_u64().unwrap()
    };
    let args = ["-np", "2", "-t", "1", "-c", "512"];
    let serving = Serving::start(file.to_str().unwrap(), &args);
    assert_eq!([cached(serving.addr, ""), cached(serving.addr, "")], [0, 384]);
    let keys = dir.path().join("keys");
    let [alice, bob] = ["0123456789abcdef-alice", "0123456789abcdef-bob00"];
    std::fs::write(&keys, format!("alice {alice}\nbob {bob}\n")).unwrap();
    let apart = ["--api-key-file", keys.to_str().unwrap(), "--cache-per-key"];
    let serving = Serving::start(file.to_str().unwrap(), &[&args[..], &apart].concat());
    assert_eq!([alice, alice, bob].map(|key| cached(serving.addr, key)), [0, 384, 0]);
}

#[test]
fn arguments_that_are_wrong_are_refused_before_a_model_is_read() {
    for (args, part) in [
        (vec!["--host", "0.0.0.0"], "refusing to listen on 0.0.0.0"),
        (vec!["--api-key-file", "/no/such/file"], "--api-key-file /no/such/file"),
        (vec!["--tls-cert", "/no/such/file", "--tls-key", "/no/such/file"], "--tls-cert /no/such/file"),
        (vec!["--host", "no.such.host.invalid"], "--host"),
    ] {
        let ended = Client::run(&[&["serve", "-m", "/no/such/model"], args.as_slice()].concat(), LIMIT);
        assert!(ended.error().contains(part), "{}", ended.stderr);
    }
}

/// What many users have seen.
#[derive(Default)]
struct Seen {
    complete: AtomicUsize,
    refused: AtomicUsize,
    vanished: AtomicUsize,
    /// Tokens per second of complete texts.
    rates: Mutex<Vec<f64>>,
}

/// One who asks again and again, until it is over.
fn user(number: u64, addr: SocketAddr, expected: &BTreeMap<u64, String>, over: &AtomicBool, seen: &Seen) {
    for round in number.. {
        if over.load(Ordering::Relaxed) {
            return;
        }
        let (&seed, text) = expected.iter().nth(round as usize % expected.len()).unwrap();
        let mut body = self::text(seed, TOKENS);
        body["stream"] = true.into();
        let events = Events::read(begin(addr, &body));
        if events.status == 429 {
            seen.refused.fetch_add(1, Ordering::Relaxed);
            std::thread::sleep(Duration::from_millis(200));
            continue;
        }
        assert_eq!(events.status, 200, "{}", events.head);
        let mut stream = Streamed { events, text: String::new() };
        let mut first = None;
        let mut left = match round % 8 {
            0 => 5,
            _ => usize::MAX,
        };
        while left > 0 && stream.take() {
            first.get_or_insert_with(Instant::now);
            left -= 1;
            if round % 8 == 1 {
                std::thread::sleep(Duration::from_millis(2));
            }
        }
        if left == 0 {
            seen.vanished.fetch_add(1, Ordering::Relaxed);
            continue;
        }
        assert_eq!(stream.text, *text, "seed {seed}");
        seen.complete.fetch_add(1, Ordering::Relaxed);
        if round % 8 > 1 {
            let took = first.unwrap_or_else(Instant::now).elapsed().as_secs_f64().max(1e-3);
            seen.rates.lock().unwrap().push(TOKENS as f64 / took);
        }
    }
}

/// Tokens of the texts of many users.
const TOKENS: usize = 120;
/// Texts of them at a time.
const PLACES: u64 = 8;

/// What happens to the servers meanwhile.
#[derive(Clone, Copy, PartialEq)]
enum Fate {
    /// Both live.
    Live,
    /// The second one is killed, another one comes in its place, and then the first one is killed.
    Change,
}

/// Two servers of a crowd, with what happens to them.
struct Servers {
    pair: [Server; 2],
    /// How much of it has happened.
    steps: usize,
}

impl Servers {
    fn start() -> Servers {
        Servers { pair: [(); 2].map(|()| Server::start(&["-d", "cpu:1"])), steps: 0 }
    }

    /// Does what is due when so much of the time is over.
    fn change(&mut self, over: f64) {
        let due = (over * 4.0) as usize;
        while self.steps < due.min(3) {
            match self.steps {
                0 => self.pair[1].kill(),
                1 => self.pair[1] = Server::start_at(&self.pair[1].addr.clone(), &["-d", "cpu:1"]),
                _ => self.pair[0].kill(),
            }
            self.steps += 1;
        }
    }
}

/// A number that an environment variable may say.
fn number(name: &str, usual: u64) -> u64 {
    std::env::var(name).ok().and_then(|n| n.parse().ok()).unwrap_or(usual)
}

/// 64 users who come, stall and vanish, for some seconds, or `OUTBOARD_SERVE_SECONDS`, of whom a few are served at a time, or `OUTBOARD_SERVE_PLACES`.
/// Gives the tokens per second of the texts that were read as they came, slowest first.
fn crowd(fate: Fate) -> Vec<f64> {
    let (seconds, places) = (number("OUTBOARD_SERVE_SECONDS", 8), number("OUTBOARD_SERVE_PLACES", PLACES));
    let dir = tempfile::tempdir().unwrap();
    let file = small_model(dir.path());
    let mut servers = Servers::start();
    let rpc = format!("{},{}", servers.pair[0].addr, servers.pair[1].addr);
    let args = ["--rpc", &rpc, "-np", &places.to_string(), "-ts", "1,1", "-c", "512", "--max-waiting", "80"];
    let mut serving = Serving::start(file.to_str().unwrap(), &args);
    let addr = serving.addr;
    let expected: BTreeMap<u64, String> = (0..7).map(|seed| (seed, whole(addr, seed, TOKENS))).collect();
    let (seen, over) = (Seen::default(), AtomicBool::new(false));
    let mut memory = Vec::new();
    std::thread::scope(|scope| {
        let users: Vec<_> = (0..64)
            .map(|n| {
                scope.spawn({
                    let (expected, over, seen) = (&expected, &over, &seen);
                    move || user(n, addr, expected, over, seen)
                })
            })
            .collect();
        let start = Instant::now();
        let time = Duration::from_secs(seconds);
        while start.elapsed() < time && !users.iter().any(std::thread::ScopedJoinHandle::is_finished) {
            std::thread::sleep(time / 20);
            memory.push(serving.resident());
            if fate == Fate::Change {
                servers.change(start.elapsed().as_secs_f64() / time.as_secs_f64());
            }
        }
        over.store(true, Ordering::Relaxed);
        users.into_iter().for_each(|user| user.join().unwrap());
    });
    let mut rates = std::mem::take(&mut *seen.rates.lock().unwrap());
    rates.sort_by(f64::total_cmp);
    let (complete, refused, vanished) =
        (seen.complete.into_inner(), seen.refused.into_inner(), seen.vanished.into_inner());
    println!(
        "{complete} texts right, {vanished} given up, {refused} refused; tokens per second of a text: {:.0} at least, {:.0} in the middle; {} to {} MiB",
        rates.first().unwrap_or(&0.0),
        rates.get(rates.len() / 2).unwrap_or(&0.0),
        memory[0] >> 20,
        memory.last().unwrap() >> 20
    );
    assert!(complete > 64 && vanished > 0, "{complete} {vanished}");
    // Half of the places to wait are for one address.
    let most = places + 40;
    assert_eq!(refused > 0, most < 64, "{refused} refused of 64 users, where {most} may be there");
    assert!(serving.client.is_running());
    let start = Instant::now();
    while metric(addr, "outboard_serve_running") + metric(addr, "outboard_serve_waiting") > 0.0 {
        assert!(start.elapsed() < LIMIT, "texts are left");
        std::thread::sleep(Duration::from_millis(10));
    }
    let grown = serving.resident().saturating_sub(memory[memory.len() / 4]);
    assert!(grown < 64 << 20, "{} MiB more than after a quarter of the time", grown >> 20);
    assert_eq!(whole(addr, 3, TOKENS), expected[&3]);
    rates
}

#[test]
fn many_users_who_come_stall_and_vanish_while_servers_die_and_come() {
    let rates = crowd(Fate::Change);
    // Those that were under way have waited for a failover, and one server is slower than two: nobody was left behind.
    let (slowest, middle) = (rates[0], rates[rates.len() / 2]);
    assert!(
        slowest >= middle / 50.0,
        "{slowest:.0} tokens per second of the slowest text, {middle:.0} of the middle one"
    );
}

#[test]
fn texts_of_many_users_come_evenly() {
    let rates = crowd(Fate::Live);
    let [slowest, slow, middle] = [0, rates.len() / 10, rates.len() / 2].map(|i| rates[i]);
    // A pause of the machine is for the few that are under way.
    assert!(
        slow >= middle / 4.0 && slowest >= middle / 20.0,
        "{slowest:.0} tokens per second of the slowest text, {slow:.0} of one in ten, {middle:.0} of the middle one"
    );
}

#[test]
fn streams_that_begin_together_come_evenly() {
    let dir = tempfile::tempdir().unwrap();
    let file = small_model(dir.path());
    let [one, two] = [(); 2].map(|()| Server::start(&["-d", "cpu:1"]));
    let rpc = format!("{},{}", one.addr, two.addr);
    let args = ["--rpc", &rpc, "-np", "64", "-ts", "1,1", "-c", "512"];
    let serving = Serving::start(file.to_str().unwrap(), &args);
    let addr = serving.addr;
    let mut rates: Vec<f64> = std::thread::scope(|scope| {
        let stream = |seed| {
            let mut stream = Streamed::begin(addr, seed, 2 * TOKENS);
            assert!(stream.take());
            let first = Instant::now();
            stream.rest();
            2.0 * TOKENS as f64 / first.elapsed().as_secs_f64()
        };
        let streams: Vec<_> = (0..64).map(|seed| scope.spawn(move || stream(seed))).collect();
        streams.into_iter().map(|stream| stream.join().unwrap()).collect()
    });
    rates.sort_by(f64::total_cmp);
    println!("tokens per second of a stream: {:.0} to {:.0}, {:.0} in the middle", rates[0], rates[63], rates[32]);
    assert!(rates[0] >= rates[32] / 4.0, "{rates:?}");
}

#[test]
fn a_real_model_says_what_it_says_without_a_server() {
    let Some(file) = model("smollm2") else { return };
    let options = PlaceOptions { context: Some(512), sequences: 2, ..PlaceOptions::default() };
    let prompt = "Once upon a time, in a small village by the sea,";
    let opened = Model::open(&file).unwrap();
    let runner = opened.place(&devices::local(Some(1)).unwrap(), &options).unwrap().run().unwrap();
    let expected = runner.generate(Request::new(prompt).max_tokens(48)).unwrap().complete().unwrap();
    drop(runner);
    let serving = Serving::start(file.to_str().unwrap(), &["-np", "2", "-t", "1", "-c", "512"]);
    let mut body = json!({"model": "smollm2", "prompt": prompt, "max_tokens": 48, "temperature": 0});
    let answer = Answer::read(begin(serving.addr, &body)).json();
    assert_eq!(answer["choices"][0]["text"], expected.text.as_str());
    assert_eq!(answer["usage"]["completion_tokens"], expected.tokens.len());
    body["stream"] = true.into();
    let events = Events::read(begin(serving.addr, &body)).all();
    let pieces: String = events.iter().filter_map(|event| event["choices"][0]["text"].as_str()).collect();
    assert_eq!(pieces, expected.text);
}

/// On this host and on two devices of a server, with characters of several tokens.
#[test]
fn a_real_model_says_how_probable_a_text_is() {
    let Some(file) = model("smollm2") else { return };
    let server = Server::start(&["-d", "cpu:1,cpu:1"]);
    let text = "Größe 🐈🐈 naïve: once upon a time, in a small village by the sea, there was a";
    let mut body = json!({"prompt": text, "max_tokens": 1, "temperature": 0, "echo": true, "logprobs": 2});
    let start = |args: &[&str]| Serving::start(file.to_str().unwrap(), &[&["-np", "2", "-c", "512"], args].concat());
    let [local, remote] = [start(&["-t", "1"]), start(&["--rpc", &server.addr])];
    let ask = |serving: &Serving, body: &Value| Answer::read(begin(serving.addr, body)).json()["choices"][0].clone();
    let [here, there] = [ask(&local, &body), ask(&remote, &body)];
    assert_eq!(here, there);
    let list = |name: &str| here["logprobs"][name].as_array().unwrap();
    // A token that ends the text is one of them: who counts from the end finds the prompt.
    let eos = get(local.addr, "/tokenizer_info").json()["eos_token"].as_str().unwrap().to_owned();
    let mut socket = TcpStream::connect(local.addr).unwrap();
    let tokenize = json!({"prompt": eos, "add_special_tokens": false}).to_string();
    write_request(&mut socket, "POST", "/tokenize", &[JSON], tokenize.as_bytes());
    let eos = Answer::read(socket).json()["tokens"].clone();
    assert_eq!(eos.as_array().unwrap().len(), 1);
    body["logit_bias"] = json!({eos[0].to_string(): 100});
    let ended = ask(&local, &body);
    assert_eq!((&ended["finish_reason"], &ended["text"]), (&json!("stop"), &json!(text)));
    assert_eq!(ended["logprobs"]["token_logprobs"].as_array().unwrap().len(), list("token_logprobs").len());
    let shown: Vec<char> = here["text"].as_str().unwrap().chars().collect();
    assert!(here["text"].as_str().unwrap().starts_with(text));
    let mut parts = 0;
    for (offset, token) in list("text_offset").iter().zip(list("tokens")) {
        let (offset, token) = (offset.as_u64().unwrap() as usize, token.as_str().unwrap());
        if token.contains('\u{fffd}') {
            parts += 1;
        } else {
            assert!(shown[offset..].starts_with(&token.chars().collect::<Vec<_>>()), "{token} at {offset}");
        }
    }
    assert!(parts >= 4, "{parts} tokens are parts of characters");
    // It knows how tales begin, and not what comes before them.
    let own: Vec<f64> = list("token_logprobs").iter().filter_map(Value::as_f64).collect();
    let begins = list("tokens").iter().position(|token| token == " upon").unwrap() - 1;
    let mean = |some: &[f64]| some.iter().sum::<f64>() / some.len() as f64;
    assert!(mean(&own[begins..]) > mean(&own[..begins]) + 2.0, "{own:?}");
}

/// A schema whose parts llguidance writes once more for each other one, at three levels: 38 GB.
fn endless_schema() -> Value {
    let level = |first: char, within: Value| {
        let named: serde_json::Map<String, Value> = (0..400).map(|i| (format!("{first}{i}"), true.into())).collect();
        json!({"properties": named, "patternProperties": {format!("^{first}"): within}})
    };
    level('a', level('b', level('c', json!({"type": "null"}))))
}

#[test]
fn a_form_that_takes_all_memory_ends_another_process_and_is_refused() {
    let dir = tempfile::tempdir().unwrap();
    let file = small_model(dir.path());
    let mut serving = Serving::start(file.to_str().unwrap(), &[]);
    let ask = |form: (&str, Value)| {
        let mut body = json!({"prompt": "abcd", "max_tokens": 3});
        body[form.0] = form.1;
        Answer::read(begin(serving.addr, &body))
    };
    assert_eq!(ask(("regex", "a+".into())).status, 200);
    let before = serving.resident();
    let refused = ask(("json_schema", endless_schema()));
    assert!(
        refused.status == 400 && refused.text().contains("takes too long, or too much memory"),
        "{}",
        refused.text()
    );
    assert!(serving.resident() < before + (256 << 20), "{} MiB of the server's", serving.resident() >> 20);
    // The next form has a process again.
    assert_eq!(ask(("regex", "b+".into())).status, 200);
    assert!(serving.client.is_running());
}

/// A grammar whose texts begin with 60 letters. What may follow takes llguidance gigabytes to find out, and no first token shows it.
fn grammar_that_waits() -> String {
    let letter = |first: u8, i: u8| char::from(first + i % 20);
    let one = |i: u16| {
        let (row, column) = ((i / 20) as u8, (i % 20) as u8);
        let [begin, end] = [letter(b'A', row), letter(b'a', column)];
        format!("[{begin}-{end}]{end}{begin}")
    };
    let any = (0..400).map(one).collect::<Vec<_>>().join("|");
    let all = ["X?"; 400].join(" ");
    format!("start: T\nT: D M{{20,100}}\nD: /[a-d]{{60}}/\nX: /{any}/\nM: {all} \"!!\"\n")
}

#[test]
fn a_form_that_takes_all_memory_behind_some_tokens_ends_its_own_text_alone() {
    let dir = tempfile::tempdir().unwrap();
    let file = small_model(dir.path());
    let mut serving = Serving::start(file.to_str().unwrap(), &[]);
    let ask =
        |form: &str| Answer::read(begin(serving.addr, &json!({"prompt": "abcd", "max_tokens": 100, "grammar": form})));
    assert_eq!(ask("start: /a{3}/").status, 200);
    let before = serving.resident();
    let ended = ask(&grammar_that_waits());
    assert!(ended.status == 400 && ended.text().contains("the text cannot go on"), "{}", ended.text());
    assert!(serving.resident() < before + (64 << 20), "{} MiB of the server's", serving.resident() >> 20);
    assert_eq!(ask("start: /b{3}/").status, 200);
    assert!(serving.client.is_running());
}

#[test]
fn forms_of_a_model_whose_file_was_replaced_are_an_error() {
    let dir = tempfile::tempdir().unwrap();
    let file = small_model(dir.path());
    let serving = Serving::start(file.to_str().unwrap(), &[]);
    let ask = || Answer::read(begin(serving.addr, &json!({"prompt": "abcd", "max_tokens": 8, "regex": "[0-9]{3}"})));
    // One with two tokens exchanged takes its place before a form has come.
    let mut other = std::fs::read(&file).unwrap();
    let token = |letter: u8| {
        let said = [1, 0, 0, 0, 0, 0, 0, 0, letter];
        other.windows(said.len()).position(|bytes| bytes == said).unwrap() + 8
    };
    let (one, two) = (token(b'1'), token(b'2'));
    other.swap(one, two);
    let new = dir.path().join("new.gguf");
    std::fs::write(&new, &other).unwrap();
    std::fs::rename(&new, &file).unwrap();
    let refused = ask();
    assert!(
        refused.status == 500 && refused.text().contains("another model has taken its place"),
        "{}",
        refused.text()
    );
    assert!(!whole(serving.addr, 1, 5).is_empty(), "texts without a form go on");
}

/// What a process for forms answers to a request: a byte that says what it is, and what it says. `None` if it has ended.
fn answer(from: &mut impl Read) -> Option<(char, Vec<u8>)> {
    let mut head = [0; 5];
    from.read_exact(&mut head).ok()?;
    let mut said = vec![0; u32::from_le_bytes(head[1..].try_into().unwrap()) as usize];
    from.read_exact(&mut said).ok()?;
    Some((head[0].into(), said))
}

#[test]
fn a_process_that_follows_forms_keeps_to_its_limits() {
    let dir = tempfile::tempdir().unwrap();
    let file = small_model(dir.path());
    let program = outboard_integration::program("outboard");
    for (args, code, said) in
        [(&[][..], Some(0), Some('s')), (&["--memory", "0"], Some(3), None), (&["--seconds", "0"], Some(3), None)]
    {
        let mut process = Command::new(&program)
            .arg("follow-forms")
            .args(args)
            .arg(&file)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let (mut to, mut from) = (process.stdin.take().unwrap(), process.stdout.take().unwrap());
        assert_eq!(answer(&mut from).map(|(kind, _)| kind), Some('r'));
        let form = if said.is_some() { "true".into() } else { endless_schema().to_string() };
        let form = json!({"JsonSchema": form}).to_string();
        // It may have ended by now.
        let _ = to.write_all(&[b"f", &(form.len() as u32).to_le_bytes()[..], form.as_bytes()].concat());
        assert_eq!(answer(&mut from).map(|(kind, _)| kind), said, "{args:?}");
        drop(to);
        assert_eq!(process.wait().unwrap().code(), code, "{args:?}");
    }
}

#[test]
fn a_model_larger_than_what_a_process_for_forms_may_have_is_opened() {
    let dir = tempfile::tempdir().unwrap();
    let file = small_model(dir.path());
    // Its end is empty, and takes no room on a disk.
    std::fs::File::options().write(true).open(&file).unwrap().set_len(10 << 30).unwrap();
    let mut process = Command::new(outboard_integration::program("outboard"))
        .arg("follow-forms")
        .arg(&file)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let (to, mut from) = (process.stdin.take().unwrap(), process.stdout.take().unwrap());
    assert_eq!(answer(&mut from).map(|(kind, _)| kind), Some('r'));
    drop(to);
    assert_eq!(process.wait().unwrap().code(), Some(0));
}

/// Runs a script with the packages that programs for these APIs use.
fn run_python(script: &str, args: &[&str]) -> Option<String> {
    let named = std::env::var("OUTBOARD_TEST_PYTHON").ok();
    let python = named.clone().unwrap_or_else(|| "python3".into());
    if !Command::new(&python)
        .args(["-c", "import openai, anthropic, langchain_openai"])
        .output()
        .is_ok_and(|o| o.status.success())
    {
        // Whoever names an interpreter wants the test to run.
        assert!(named.is_none(), "{python} of OUTBOARD_TEST_PYTHON has not openai, anthropic and langchain-openai");
        skip(&format!("{python} has no openai; pip install openai anthropic langchain-openai"));
        return None;
    }
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("python").join(script);
    let output = Command::new(&python).arg(path).args(args).output().unwrap();
    let (out, err) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    assert!(output.status.success(), "{out}\n{err}");
    Some(out.into_owned())
}

/// Runs a script with the packages of the folder that `OUTBOARD_TEST_NODE` names.
fn run_node(script: &str, args: &[&str], ca: &str) -> Option<String> {
    let Ok(folder) = std::env::var("OUTBOARD_TEST_NODE") else {
        skip("OUTBOARD_TEST_NODE names no folder; npm install --prefix FOLDER openai");
        return None;
    };
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("node").join(script);
    let mut node = Command::new("node");
    node.arg(path).args(args).env("NODE_PATH", Path::new(&folder).join("node_modules")).env("NODE_EXTRA_CA_CERTS", ca);
    let output = node.output().unwrap();
    let (out, err) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    assert!(output.status.success(), "{out}\n{err}");
    Some(out.into_owned())
}

#[test]
fn clients_of_others_chat_stream_fail_and_cancel() {
    let Some(file) = model("smollm2") else { return };
    let dir = tempfile::tempdir().unwrap();
    let path = |name: &str| dir.path().join(name).to_str().unwrap().to_owned();
    std::fs::write(path("keys"), "tester 0123456789abcdef-tester\n").unwrap();
    let pki = path("pki");
    let made = Client::run(&["cert", &pki, "--name", "localhost", "--name", "127.0.0.1"], LIMIT);
    assert_eq!(made.code, Some(0), "{}", made.stderr);
    let (cert, key, keys) = (format!("{pki}/server.pem"), format!("{pki}/server-key.pem"), path("keys"));
    let args = ["-np", "2", "-c", "1024", "--api-key-file", &keys, "--tls-cert", &cert, "--tls-key", &key];
    let serving = Serving::start(file.to_str().unwrap(), &[args.as_slice(), &["-a", "smollm2,gpt-4o-mini"]].concat());
    let url = format!("https://{}", serving.addr);
    let (key, ca) = ("0123456789abcdef-tester", format!("{pki}/ca.pem"));
    let python = run_python("api_clients.py", &[&url, key, &ca]);
    let node = run_node("openai.cjs", &[&url, key], &ca);
    println!("{python:?} {node:?}");
}

#[test]
fn two_models_answer_and_embed_by_name() {
    let (Some(small), Some(gemma)) = (model("smollm2"), model("gemma3")) else { return };
    let named = |name: &str, file: &std::path::Path| format!("{name}={}", file.to_str().unwrap());
    let (small, gemma) = (named("small", &small), named("gemma", &gemma));
    let serving = Serving::start(&small, &["-m", &gemma, "-np", "2", "-c", "1024"]);
    let url = format!("http://{}", serving.addr);
    let python = run_python("models_clients.py", &[&url]);
    let node = run_node("models.cjs", &[&url], "");
    println!("{python:?} {node:?}");
    // Names that are the same, or of one model only, are told of.
    let same = Client::run(&["serve", "-m", &small, "-m", &gemma, "-a", "x"], LIMIT);
    assert!(same.code == Some(2) && same.stderr.contains("--alias names one model"), "{}", same.stderr);
    let one = Client::run(&["run", "-m", &small, "-m", &gemma, "-p", "x"], LIMIT);
    assert!(one.code == Some(2) && one.stderr.contains("-m is given once"), "{}", one.stderr);
}

#[test]
fn clients_of_others_call_tools() {
    let Some(file) = model("qwen2.5-coder") else { return };
    let serving = Serving::start(file.to_str().unwrap(), &["-np", "1", "-c", "2048"]);
    let url = format!("http://{}", serving.addr);
    let python = run_python("tool_clients.py", &[&url]);
    let node = run_node("tools.cjs", &[&url], "");
    let types = run_python("published_types.py", &[&url, "qwen2.5-coder", "tools"]);
    println!("{python:?} {node:?} {types:?}");
}

/// `OUTBOARD_TEST_SCHEMAS` names the folder of the JSON Schema Test Suite, `OUTBOARD_SCHEMAS` says how many of its schemas are tried.
#[test]
fn answers_keep_to_the_schemas_of_the_test_suite() {
    let Some(file) = model("smollm2") else { return };
    let Ok(suite) = std::env::var("OUTBOARD_TEST_SCHEMAS") else {
        return skip("OUTBOARD_TEST_SCHEMAS names no folder; it is json/tests of the source package of jsonschema");
    };
    let number = std::env::var("OUTBOARD_SCHEMAS").unwrap_or_else(|_| "24".into());
    let serving = Serving::start(file.to_str().unwrap(), &["-np", "8", "-c", "512"]);
    println!("{:?}", run_python("schemas.py", &[&format!("http://{}", serving.addr), &suite, &number]));
}
