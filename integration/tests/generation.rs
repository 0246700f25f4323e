//! Real models, over every kind of cluster, against llama.cpp's texts.
#![allow(clippy::unwrap_used, clippy::expect_used)]

use outboard_core::Host;
use outboard_cpu::{CpuOptions, cpu_device};
use outboard_host::MemoryBudget;
use outboard_integration::{Client, Comparison, Forced, RunReport, Server, cases, model};
use outboard_llm::gguf::Gguf;
use outboard_llm::{LoadOptions, Model, PlacedModel};
use outboard_system::open_mapped;
use std::sync::Arc;
use std::time::Duration;

/// A run of a model takes seconds; an unoptimised build on a busy machine may take long.
const LIMIT: Duration = Duration::from_secs(240);

/// Devices for a run: a name, and the arguments that choose them.
struct Cluster {
    name: &'static str,
    args: Vec<String>,
    devices: usize,
}

fn clusters(servers: &[Server; 4]) -> Vec<Cluster> {
    let [double, other_double, single, other_single] = servers.each_ref().map(|s| s.addr.clone());
    let rpc = |list: &[&String]| vec!["--rpc".into(), list.iter().map(|s| s.as_str()).collect::<Vec<_>>().join(",")];
    let mut with_local = rpc(&[&single, &other_single]);
    with_local.extend(["-dev".into(), format!("{single},CPU0,{other_single}")]);
    vec![
        Cluster { name: "local", args: Vec::new(), devices: 1 },
        Cluster { name: "one server, two devices", args: rpc(&[&double]), devices: 2 },
        Cluster { name: "two servers, one device each", args: rpc(&[&single, &other_single]), devices: 2 },
        Cluster { name: "two servers, two devices each", args: rpc(&[&double, &other_double]), devices: 4 },
        Cluster { name: "two servers and this host's CPU between them", args: with_local, devices: 3 },
    ]
}

fn servers() -> [Server; 4] {
    [&["-d", "cpu:1,cpu:1"], &["-d", "cpu:1,cpu:1"], &["-d", "cpu:1"], &["-d", "cpu:1"]].map(|args| Server::start(args))
}

/// So many of a model's reference texts, and tokens of each.
fn check(name: &str, texts: usize, tokens: usize) {
    let Some(path) = model(name) else { return };
    let servers = servers();
    let mut comparison = Comparison::of(name);
    let clusters = clusters(&servers);
    for (number, mut case) in cases(name).into_iter().take(texts).enumerate() {
        case.steps.truncate(tokens);
        let mut first: Option<RunReport> = None;
        // On this host, and on half of the others in turns.
        let wanted = |i: usize| i == 0 || i % 2 == number % 2;
        for (_, cluster) in clusters.iter().enumerate().filter(|(i, _)| wanted(*i)) {
            let n = tokens.to_string();
            let mut args = vec!["run", "-m", path.to_str().unwrap(), "-p", &case.prompt, "--temp", "0", "-n", &n];
            args.extend(["-c", "512", "--ignore-eos", "--json"]);
            args.extend(cluster.args.iter().map(String::as_str));
            // All are to be used, however fast they were while other tests ran.
            let parts = vec!["1"; cluster.devices].join(",");
            args.extend(["-ts", &parts].iter().filter(|_| cluster.devices > 1));
            let report: RunReport = Client::run(&args, LIMIT).json();
            let what = format!("{name}, {}, {:?}", cluster.name, case.prompt);
            assert_eq!(report.prompt_tokens, case.tokens, "{what}");
            if let Err(e) = comparison.add(&case, &report.tokens, &report.log_probs) {
                panic!("{what}: {e}");
            }
            let used: Vec<_> = report.devices.iter().filter(|d| d.layers.is_some()).collect();
            assert_eq!(used.len(), cluster.devices, "{what}: {:?}", report.devices);
            assert_eq!(report.net.sent_bytes > 0, !cluster.args.is_empty(), "{what}: {:?}", report.net);
            match &first {
                None => first = Some(report),
                Some(first) => {
                    assert_eq!(report.tokens, first.tokens, "{what}: not the tokens of one device");
                    assert_eq!(report.text, first.text, "{what}");
                }
            }
        }
    }
    let (compared, all, rms) = comparison.finish().unwrap();
    println!("{name}: {compared} of {all} steps compared, log-probabilities differ by {rms:.4} (rms)");
}

/// All steps of the reference texts, with prompts that are read at once, in pieces and one by one.
#[test]
fn every_step_of_the_reference_texts() {
    every_step("smollm2", &[128, 2, 1]);
    every_step("qwen2.5-coder", &[128]);
    every_step("gemma3", &[128, 1]);
}

fn every_step(name: &str, prompts: &[usize]) {
    let Some(path) = model(name) else { return };
    let model = Arc::new(Model::new(Gguf::parse(open_mapped(&path).unwrap()).unwrap()).unwrap());
    let device = cpu_device(&Host::new(), "CPU0", CpuOptions::with_threads(2), &MemoryBudget::new(None));
    let options = LoadOptions { n_ctx: 128, ..LoadOptions::default() };
    let mut engine = PlacedModel::load(model, vec![device], &options, &|_, _| {}).unwrap();
    for &at_once in prompts {
        let mut forced = Forced::default();
        cases(name).iter().for_each(|case| forced.add(&mut engine, case, at_once).unwrap());
        println!(
            "{name}, {at_once} at once: rms {:.4}, worst {:.4}, {} others",
            forced.rms(),
            forced.worst(),
            forced.others.len()
        );
        if let Err(e) = forced.check(name) {
            panic!("{name}, {at_once} tokens of a prompt at once: {e}");
        }
    }
}

#[test]
fn smollm2() {
    check("smollm2", 6, 40);
}

#[test]
fn qwen2_5_coder() {
    check("qwen2.5-coder", 4, 24);
}

#[test]
fn gemma3() {
    check("gemma3", 4, 24);
}

#[test]
fn the_same_seed_gives_the_same_text_everywhere() {
    let Some(path) = model("smollm2") else { return };
    let servers = servers();
    // A prompt of several micro-batches, so that the pipeline is part of it.
    let prompt = "Write a story about a lighthouse keeper and the sea. ".repeat(30);
    let run = |cluster: &Cluster, seed: &str| -> RunReport {
        let mut args =
            vec!["run", "-m", path.to_str().unwrap(), "-p", &prompt, "--temp", "0.8", "-s", seed, "-n", "40"];
        args.extend(["-c", "1024", "--ignore-eos", "--json"]);
        args.extend(cluster.args.iter().map(String::as_str));
        Client::run(&args, LIMIT).json()
    };
    let clusters = clusters(&servers);
    let first = run(&clusters[0], "1");
    for cluster in &clusters[1..] {
        let report = run(cluster, "1");
        assert_eq!(report.tokens, first.tokens, "{}", cluster.name);
        assert_eq!(report.text, first.text, "{}", cluster.name);
    }
    // Penalties are part of what a device computes.
    let penalised = |cluster: &Cluster| -> RunReport {
        let mut args =
            vec!["run", "-m", path.to_str().unwrap(), "-p", "The capital of France is", "--temp", "0", "-n", "60"];
        args.extend(["-c", "512", "--ignore-eos", "--json", "--repeat-penalty", "1.3", "--presence-penalty", "0.5"]);
        args.extend(cluster.args.iter().map(String::as_str));
        Client::run(&args, LIMIT).json()
    };
    let local = penalised(&clusters[0]);
    assert_eq!(penalised(&clusters[3]).tokens, local.tokens);
    let plain = &cases("smollm2")[0];
    assert_ne!(local.tokens[..40], plain.steps.iter().map(|s| s.0).collect::<Vec<u32>>()[..], "{}", local.text);
    println!("with penalties: {}", local.text);
    assert_ne!(run(&clusters[0], "2").tokens, first.tokens, "another seed");
}

#[test]
fn what_was_run_too_far_leaves_no_trace() {
    let Some(path) = model("smollm2") else { return };
    let server = Server::start(&["-d", "cpu:1"]);
    let args = ["run", "-m", path.to_str().unwrap(), "-p", "The capital of France is", "--temp", "0", "-n", "60"];
    let run = |more: &[&str]| -> RunReport {
        Client::run(&[&args[..], &["-c", "512", "--ignore-eos", "--json"], more].concat(), LIMIT).json()
    };
    let whole = run(&[]);
    // Ends at a stop string, with steps under way behind it: at a word of the text, an early one and a late one.
    // Which words there are depends on this host's arithmetic, so they are taken from the run itself.
    let words: Vec<&str> = whole.text.split_whitespace().collect();
    for stop in [words[1], words[words.len() * 2 / 3]] {
        let (local, remote) = (run(&["--stop", stop]), run(&["--stop", stop, "--rpc", &server.addr]));
        assert_eq!((local.finish.as_str(), remote.finish.as_str()), ("stop", "stop"), "{stop:?} in {:?}", whole.text);
        assert_eq!((&local.text, &local.tokens), (&remote.text, &remote.tokens), "{stop:?}");
        assert!(whole.text.starts_with(&local.text), "{:?} {:?}", whole.text, local.text);
        assert!(local.tokens.len() < whole.tokens.len(), "{stop:?}");
    }
}

#[test]
fn a_text_has_the_form_that_is_asked_for() {
    let Some(path) = model("smollm2") else { return };
    let server = Server::start(&["-d", "cpu:1"]);
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("answer.gbnf");
    std::fs::write(&file, "root ::= (\"yes\" | \"no\") \".\"\n").unwrap();
    let args = ["run", "-m", path.to_str().unwrap(), "-p", "Is Paris in France?", "-n", "80", "-s", "7", "--json"];
    let run = |more: &[&str]| Client::run(&[&args[..], more].concat(), LIMIT);
    let schema = r#"{"type": "object", "properties": {"name": {"enum": ["Paris", "Rome"]}}, "required": ["name"]}"#;
    let local: RunReport = run(&["-j", schema]).json();
    let remote: RunReport = run(&["-j", schema, "--rpc", &server.addr]).json();
    let answer: serde_json::Value = serde_json::from_str(&local.text).unwrap();
    assert!(["Paris", "Rome"].contains(&answer["name"].as_str().unwrap()), "{answer}");
    assert_eq!((&local.tokens, local.finish.as_str()), (&remote.tokens, "eos"));
    let said: RunReport = run(&["--grammar-file", file.to_str().unwrap()]).json();
    assert!(["yes.", "no."].contains(&said.text.as_str()), "{}", said.text);
    for (wrong, part) in [
        (["--grammar", "root ::= nothing"], "nothing"),
        (["-j", "{\"type\": 3}"], "JSON schema"),
        (["-jf", "/no/such/file"], "cannot read /no/such/file"),
    ] {
        let ended = run(&wrong);
        assert!(ended.error().contains(part), "{wrong:?}: {}", ended.stderr);
    }
    assert!(run(&["-j", "{}", "--grammar-file", "x"]).stderr.contains("cannot be used with"));
}
