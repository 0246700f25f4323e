//! Real models on ggml's own backends, opened by an rpc-server: `OUTBOARD_GGML` names the folder of their libraries.
#![allow(clippy::unwrap_used, clippy::expect_used)]

use outboard_integration::{Client, Comparison, RunReport, Server, cases, model, skip};
use std::time::Duration;

/// A run takes seconds; on a busy machine it may take long.
const LIMIT: Duration = Duration::from_secs(240);
const TOKENS: usize = 40;

/// The texts of a model by the reference's rule, with all layers on ggml's CPU, split over it and our own, and over two servers. What ggml has
/// not, such as sampling, our CPU device of the same server computes.
fn check(name: &str, texts: usize) {
    if std::env::var_os("OUTBOARD_GGML").is_none() {
        return skip("OUTBOARD_GGML names no folder of ggml's libraries");
    }
    let Some(path) = model(name) else { return };
    let [one, other] = [(); 2].map(|()| Server::start(&["-d", "ggml:CPU,cpu:1", "-t", "1"]));
    let both = format!("{},{}", one.addr, other.addr);
    let mut comparison = Comparison::of(name);
    for case in cases(name).into_iter().take(texts) {
        for (servers, parts, used) in [(&one.addr, "1,0", 1), (&one.addr, "1,1", 2), (&both, "1,1,1,0", 3)] {
            let n = TOKENS.to_string();
            let mut args = vec!["run", "-m", path.to_str().unwrap(), "-p", &case.prompt, "--temp", "0", "-n", &n];
            args.extend(["-c", "512", "--ignore-eos", "--json", "--rpc", servers, "-ts", parts]);
            let report: RunReport = Client::run(&args, LIMIT).json();
            let what = format!("{name}, {servers} in parts {parts}, {:?}", case.prompt);
            if let Err(e) = comparison.add(&case, &report.tokens, &report.log_probs) {
                panic!("{what}: {e}");
            }
            let with_layers = report.devices.iter().filter(|d| d.layers.is_some()).count();
            assert_eq!(with_layers, used, "{what}: {:?}", report.devices);
        }
    }
    let (compared, all, rms) = comparison.finish().unwrap();
    println!("{name}: {compared} of {all} steps compared, log-probabilities differ by {rms:.4} (rms)");
}

#[test]
fn smollm2() {
    check("smollm2", 6);
}

#[test]
fn qwen2_5_coder() {
    check("qwen2.5-coder", 2);
}

#[test]
fn gemma3() {
    check("gemma3", 2);
}
