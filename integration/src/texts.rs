//! Real models on devices of servers, whose texts llama.cpp wrote before.

use crate::{Case, Client, Comparison, RunReport, Server, cases, model};
use outboard::{Model, PlaceOptions, Request, Split, devices};
use outboard_rpc_client::ClientOptions;
use std::time::Duration;

/// A run takes seconds; on a busy machine it may take long.
const LIMIT: Duration = Duration::from_secs(240);

/// The texts of a model by the reference's rule, with all layers on a device, split over it and our own CPU device, and over two servers.
/// What the device has not, such as sampling, that CPU device of the same server computes.
pub fn texts_on(name: &str, device: &str, texts: usize, tokens: usize) {
    let Some(path) = model(name) else { return };
    let [one, other] = [(); 2].map(|()| Server::start(&["-d", &format!("{device},cpu:1"), "-t", "1"]));
    let both = format!("{},{}", one.addr, other.addr);
    let mut comparison = Comparison::of(name);
    for mut case in cases(name).into_iter().take(texts) {
        case.steps.truncate(tokens);
        for (servers, parts, used) in [(&one.addr, "1,0", 1), (&one.addr, "1,1", 2), (&both, "1,1,1,0", 3)] {
            let n = tokens.to_string();
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

/// Texts side by side, with the model in these parts of the servers' devices: each by the reference's rule, as if it were alone. `came` is called when the
/// first token is there.
pub fn texts_together(servers: &str, parts: &[f64], tokens: usize, came: impl FnOnce()) {
    let Some(path) = model("smollm2") else { return };
    let devices = devices::connect(servers, &ClientOptions::default()).unwrap();
    let split = Split::Parts(parts.to_vec());
    let options = PlaceOptions { sequences: 8, context: Some(512), split, ..PlaceOptions::default() };
    let runner = Model::open(&path).unwrap().place(&devices, &options).unwrap().run().unwrap();
    let cases: Vec<_> = cases("smollm2").into_iter().take(8).collect();
    let begin = |case: &Case| {
        let request = Request::new(case.prompt.as_str()).max_tokens(tokens).log_probs().ignore_eos();
        runner.generate(request).unwrap()
    };
    let mut texts: Vec<_> = cases.iter().map(begin).collect();
    let first = texts[0].next().unwrap().unwrap();
    came();
    let mut comparison = Comparison::of("smollm2");
    for (i, (mut case, text)) in cases.into_iter().zip(texts).enumerate() {
        case.steps.truncate(tokens);
        let done = text.complete().unwrap();
        let first = Some(&first).filter(|_| i == 0);
        let (id, log_prob) = first.map_or((None, None), |piece| (piece.token, piece.log_prob));
        // What was taken before is in the whole as well.
        assert!(id.is_none_or(|id| done.tokens[0] == id && log_prob == Some(done.log_probs[0])));
        comparison.add(&case, &done.tokens, &done.log_probs).unwrap_or_else(|e| panic!("{:?}: {e}", case.prompt));
    }
    let (compared, all, rms) = comparison.finish().unwrap();
    println!("{compared} of {all} steps compared, log-probabilities differ by {rms:.4} (rms)");
}
