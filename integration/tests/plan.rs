//! `outboard plan`: what it says agrees with `run`, sends next to nothing and leaves nothing behind.
#![allow(clippy::unwrap_used, clippy::expect_used)]

use outboard_integration::{Client, RunReport, Server, model};
use serde_json::{Value, json};
use std::time::{Duration, Instant};

const LIMIT: Duration = Duration::from_secs(300);
/// The lease of a server, and as much again for a busy machine.
const LEASE: Duration = Duration::from_secs(20);
const LAYERS: usize = 30;

fn number(of: &Value, name: &str) -> f64 {
    of[name].as_f64().unwrap_or_else(|| panic!("no number {name}: {of}"))
}

#[test]
fn two_servers() {
    let Some(file) = model("smollm2") else { return };
    // With a limit, free memory is what clients have left, and not what other programs of this host have.
    let servers = [(); 2].map(|()| Server::start(&["-d", "cpu:1", "--memory-limit", "1G"]));
    let free = servers.each_ref().map(Server::memory_free);
    let rpc = servers.each_ref().map(|s| s.addr.as_str()).join(",");
    let common = ["-m", file.to_str().unwrap(), "--rpc", &rpc, "-c", "256", "-ts", "2,1", "--json"];
    let run: RunReport =
        Client::run(&[&["run", "-p", "Once", "-n", "2", "--temp", "0"], &common[..]].concat(), LIMIT).json();
    let dir = tempfile::tempdir().unwrap();
    let picture = dir.path().join("plan.svg");
    let plan: Value = Client::run(&[&["plan", "--svg", picture.to_str().unwrap()], &common[..]].concat(), LIMIT).json();

    // The same placement as that of a run.
    let devices = plan["devices"].as_array().unwrap();
    assert_eq!(devices.len(), run.devices.len(), "{plan}");
    let mut layers = Vec::new();
    for (device, ran) in devices.iter().zip(&run.devices) {
        assert_eq!(device["id"], ran.id.as_str(), "{device}");
        assert_eq!(device["weight_bytes"], ran.weight_bytes, "{device}");
        assert_eq!(json!(ran.layer_ranges), device["layer_ranges"], "{device}");
        let ends = ran.layer_ranges.first().zip(ran.layer_ranges.last()).map(|(first, last)| [first[0], last[1]]);
        assert!(ran.layers == ends && json!(ends) == device["layers"], "{device}");
        layers.extend(ran.layer_ranges.iter().flat_map(|&[first, last]| first..=last));
        assert!(number(device, "cache_bytes") > 0.0 && number(device, "compute_bytes") > 0.0, "{device}");
    }
    // The end of the model and its beginning are on the last device.
    assert_eq!(run.devices[1].layer_ranges.len(), 2, "{plan}");
    layers.sort_unstable();
    assert_eq!(layers, (0..LAYERS).collect::<Vec<_>>(), "{plan}");

    // Where the time goes.
    let token_ms = number(&plan, "token_ms");
    for device in devices {
        let [compute, wire, waiting] = ["compute_ms", "wire_ms", "waiting_ms"].map(|name| number(device, name));
        assert!(compute > 0.0 && wire >= 0.0 && waiting >= 0.0, "{device}");
        assert!((compute + wire + waiting - token_ms).abs() <= 0.01 * token_ms, "{token_ms}: {device}");
        assert!(number(device, "prompt_busy") > 0.0 && number(device, "prompt_busy") <= 1.01, "{device}");
        assert!(number(device, "layer_ms") < compute, "{device}");
    }
    assert!((number(&plan, "decode_tps") * token_ms - 1e3).abs() < 1.0 && number(&plan, "prompt_tps") > 0.0, "{plan}");
    assert_eq!(plan["prompt_tokens"], 256, "{plan}");
    assert!(number(&plan, "head_ms") < number(&devices[1], "compute_ms"), "{plan}");

    // The residual stream to the first server and back, straight.
    let copies = plan["copies"].as_array().unwrap();
    let (first, second) = (&devices[0]["id"], &devices[1]["id"]);
    let copied = |from: &Value, to: &Value, bytes: u64| {
        copies.iter().any(|c| c["from"] == *from && c["to"] == *to && c["bytes"] == bytes && c["direct"] == true)
    };
    assert!(copied(first, second, 576 * 4) && copied(second, first, 576 * 4), "{copies:?}");
    let rtts = plan["servers"].as_array().unwrap();
    assert!(rtts.len() == 2 && rtts.iter().all(|s| number(s, "rtt_ms") > 0.0), "{rtts:?}");

    // What each of them brings, and what another one would.
    let changes = plan["changes"].as_array().unwrap();
    assert_eq!(changes.len(), 4, "{changes:?}");
    for server in &servers {
        let row = |change: &str| {
            let found = changes.iter().find(|c| c["change"] == change && c["host"] == server.addr.as_str());
            found.unwrap_or_else(|| panic!("no row {change} {}: {changes:?}", server.addr))
        };
        for (change, devices) in [("without", 1), ("another", 3)] {
            let row = row(change);
            assert_eq!((row["fits"].as_bool(), row["missing_bytes"].as_u64()), (Some(true), Some(0)), "{row}");
            assert_eq!(row["devices"].as_array().unwrap().len(), devices, "{row}");
            assert!(number(row, "decode_tps") > 0.0 && number(row, "prompt_tps") > 0.0, "{row}");
            assert!(number(row, "room_bytes") > 0.0 && number(row, "context_tokens") > 256.0, "{row}");
            let ranges = |d: &Value| serde_json::from_value::<Vec<[usize; 2]>>(d["layer_ranges"].clone()).unwrap();
            let ranges = row["devices"].as_array().unwrap().iter().flat_map(ranges);
            assert_eq!(ranges.map(|[first, last]| last + 1 - first).sum::<usize>(), LAYERS, "{row}");
        }
    }

    // No weights were sent, and nothing is left.
    let weights: u64 = run.devices.iter().map(|d| d.weight_bytes).sum();
    let sent = plan["net"]["sent_bytes"].as_u64().unwrap();
    println!("{sent} bytes sent for {weights} bytes of weights");
    assert!(sent > 0 && sent < weights / 20, "{sent} of {weights}");
    let start = Instant::now();
    while servers.each_ref().map(Server::memory_free) != free {
        assert!(start.elapsed() < LEASE, "the servers have not freed their memory");
        std::thread::sleep(Duration::from_millis(50));
    }

    let picture = std::fs::read_to_string(&picture).unwrap();
    well_formed(&picture);
    assert!(servers.iter().all(|s| picture.contains(&s.addr)), "{picture}");
    assert!(picture.matches("url(#arrow)").count() >= 2, "there and back: {picture}");
}

/// Elements are closed in their order, attributes are quoted, `<` and `&` stand for themselves nowhere.
fn well_formed(xml: &str) {
    let plain = |text: &str| {
        for (at, _) in text.match_indices('&') {
            let end = text[at..].find(';').unwrap_or_else(|| panic!("an open entity: {text}"));
            assert!(["lt", "gt", "amp", "quot", "apos"].contains(&&text[at + 1..at + end]), "{text}");
        }
        assert!(!text.contains('<') && !text.chars().any(|c| c.is_control() && c != '\n'), "{text:?}");
    };
    let mut open: Vec<&str> = Vec::new();
    let mut roots = 0;
    let mut rest = xml;
    while let Some(at) = rest.find('<') {
        plain(&rest[..at]);
        let end = rest[at..].find('>').unwrap_or_else(|| panic!("an open tag: {}", &rest[at..])) + at;
        let tag = &rest[at + 1..end];
        rest = &rest[end + 1..];
        if let Some(name) = tag.strip_prefix('/') {
            assert_eq!(open.pop(), Some(name), "closed in another order");
            continue;
        }
        let (tag, empty) = tag.strip_suffix('/').map_or((tag, false), |tag| (tag, true));
        let (name, mut attributes) = tag.split_once(' ').unwrap_or((tag, ""));
        assert!(!name.is_empty() && name.chars().all(|c| c.is_ascii_alphabetic()), "{tag}");
        while !attributes.trim().is_empty() {
            let (key, value) = attributes.split_once("=\"").unwrap_or_else(|| panic!("no value: {tag}"));
            assert!(key.trim().chars().all(|c| c.is_ascii_alphanumeric() || c == '-'), "{tag}");
            let (value, behind) = value.split_once('"').unwrap_or_else(|| panic!("an open value: {tag}"));
            plain(value);
            attributes = behind;
        }
        roots += usize::from(open.is_empty());
        if !empty {
            open.push(name);
        }
    }
    assert!(rest.trim().is_empty() && open.is_empty() && roots == 1, "{roots} roots, open: {open:?}");
}

#[test]
fn for_people() {
    let Some(file) = model("smollm2") else { return };
    let done = Client::run(&["plan", "-m", file.to_str().unwrap(), "-c", "64", "-t", "1"], LIMIT);
    assert_eq!(done.code, Some(0), "{}", done.stderr);
    println!("{}", done.stdout);
    for part in
        ["model: ", "ms a token", "prompt  ", "busy", "without CPU0", "another host like CPU0", "not known from here"]
    {
        assert!(done.stdout.contains(part), "no {part}: {}", done.stdout);
    }
}

#[test]
fn a_model_that_does_not_fit() {
    let Some(file) = model("smollm2") else { return };
    let server = Server::start(&["-d", "cpu:1", "--memory-limit", "40M"]);
    let common = ["-m", file.to_str().unwrap(), "--rpc", &server.addr, "-c", "512"];
    let run = Client::run(&[&["run", "-p", "Once", "-n", "2"], &common[..]].concat(), LIMIT);
    let plan = Client::run(&[&["plan"], &common[..]].concat(), LIMIT);
    assert_eq!((plan.code, plan.error()), (Some(1), run.error()));
    assert!(plan.stdout.contains("needed") && plan.stdout.contains("missing"), "{}", plan.stdout);
    let dir = tempfile::tempdir().unwrap();
    let picture = dir.path().join("plan.svg");
    let args = [&["plan", "--json", "--svg", picture.to_str().unwrap()], &common[..]].concat();
    let json = Client::run(&args, LIMIT);
    assert_eq!((json.code, json.error()), (Some(1), run.error()));
    let document: Value = serde_json::from_str(&json.stdout).unwrap();
    assert_eq!(document["fits"], false, "{document}");
    let (missing, free) = (number(&document, "missing_bytes"), number(&document["devices"][0], "free_bytes"));
    let needed = number(&document, "weight_bytes") + number(&document, "cache_bytes");
    assert!(missing >= needed - free && missing <= needed, "{document}");
    assert!(!picture.exists());
}

#[test]
fn a_picture_that_cannot_be_written() {
    // Before anything else is looked at.
    let done = Client::run(&["plan", "-m", "no-such-model.gguf", "--svg", "/no/such/folder/plan.svg"], LIMIT);
    assert!(done.error().contains("cannot write /no/such/folder/plan.svg"), "{}", done.stderr);
    assert_eq!(done.stdout, "");
}
