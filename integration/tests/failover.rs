//! Servers that are killed and connections that are cut, at random moments of a run: the text is the same as without the fault.
//!
//! `OUTBOARD_FAULT_TRIES=100` repeats each fault so often (12 times without it), `OUTBOARD_FAULT_SEED` gives other moments.
#![allow(clippy::unwrap_used, clippy::expect_used)]

#[path = "../../rpc-client/tests/common/proxy.rs"]
#[allow(unreachable_pub)]
mod proxy;

use outboard_integration::{Client, RunReport, Server, fault_tries, model};
use proxy::Proxy;
use std::time::{Duration, Instant};

const LIMIT: Duration = Duration::from_secs(240);
/// A dead server has to be found out within this time.
const FOUND_OUT: Duration = Duration::from_secs(2);
/// What is freed sooner was freed by its client, not by the end of a lease (10 s).
const FREED: Duration = Duration::from_secs(4);
/// Less than the weights of one layer.
const NO_WEIGHTS: u64 = 1 << 20;
/// Faults of each kind.
const TRIES: usize = 12;
/// From so many tries on, some have to hit the prompt and some the text.
const BOTH_PARTS: usize = 10;
/// About 21 tokens.
const SENTENCE: &str = "The ship left the harbour at dawn, and nobody on the pier could say when it would be back. ";

/// Random moments, the same in every run.
struct Random(u64);

impl Random {
    fn new() -> Random {
        let seed = std::env::var("OUTBOARD_FAULT_SEED").ok().and_then(|v| v.parse().ok());
        Random(seed.unwrap_or(0x9e37_79b9_7f4a_7c15_u64) | 1)
    }

    fn below(&mut self, n: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0 % n.max(1)
    }

    /// A moment in one of the equal parts of a time: a few of them hit all of it.
    fn within(&mut self, span: u64, part: usize, parts: usize) -> u64 {
        let length = span / parts as u64;
        part as u64 * length + self.below(length)
    }
}

/// The two kinds of drawing tokens: the best, and at random with a memory of what was used.
const DRAWS: [&[&str]; 2] =
    [&["--temp", "0"], &["--temp", "0.9", "-s", "7", "--repeat-penalty", "1.2", "--presence-penalty", "0.3"]];

fn args(model: &str, rpc: &str, draw: &[&str]) -> Vec<String> {
    // Some micro-batches, and as much time for the text as for them. Both servers have a part, however fast each was when it was measured.
    let prompt = SENTENCE.repeat(9);
    let parts = ["-ts", "1,1"];
    let fixed = ["run", "-m", model, "--rpc", rpc, "-p", &prompt, "-n", "40", "-c", "512", "--ignore-eos", "--json"];
    [&fixed[..], &parts, draw].concat().into_iter().map(str::to_owned).collect()
}

/// A run that has its model on its devices.
fn loaded(args: &[String]) -> Client {
    let client = Client::start(args);
    let start = Instant::now();
    while !client.said().contains("KV cache") {
        assert!(start.elapsed() < LIMIT, "not loaded: {}", client.said());
        std::thread::sleep(Duration::from_millis(2));
    }
    client
}

/// How long prompt and text took, in microseconds.
fn duration(report: &RunReport) -> u64 {
    ((report.timings.prompt_ms + report.timings.decode_ms) * 1000.0) as u64
}

/// The shorter time of a run and of another one like it, in microseconds: what comes first takes longer.
fn span(first: &RunReport, args: &[String]) -> u64 {
    duration(first).min(duration(&Client::run(args, LIMIT).json()))
}

fn same(got: &RunReport, want: &RunReport, what: &str) {
    assert_eq!(got.tokens, want.tokens, "{what}");
    assert_eq!(got.text, want.text, "{what}");
    assert_eq!(got.log_probs, want.log_probs, "{what}");
}

/// Faults that hit a run, and the longest it took to go on.
#[derive(Default)]
struct Faults {
    in_prompt: usize,
    in_text: usize,
    missed: usize,
    /// Milliseconds.
    worst: f64,
    /// Longer than without a fault, in all, in milliseconds.
    worst_delay: f64,
}

impl Faults {
    /// Counts a run that takes so long if it is undisturbed; gives that time, shorter if this run had ended before its fault.
    fn add(&mut self, report: &RunReport, undisturbed: u64, resumed: bool, what: &str) -> u64 {
        match report.recoveries.first() {
            None => self.missed += 1,
            // With its cache a text goes on from its last token, without it from the beginning.
            Some(first) if first.tokens == report.prompt_tokens.len() => self.in_prompt += 1,
            Some(_) => self.in_text += 1,
        }
        for recovery in &report.recoveries {
            println!("{what}: {:.0} ms, {} tokens again: {}", recovery.ms, recovery.tokens, recovery.error);
            assert_eq!(recovery.resumed, resumed, "{what}: {}", recovery.error);
            self.worst = self.worst.max(recovery.ms);
        }
        let delay = (duration(report) as f64 - undisturbed as f64) / 1000.0;
        self.worst_delay = self.worst_delay.max(delay);
        if report.recoveries.is_empty() { undisturbed.min(duration(report)) } else { undisturbed }
    }

    fn print(&self, what: &str) {
        let (in_prompt, in_text, missed, tries) = (self.in_prompt, self.in_text, self.missed, fault_tries(TRIES));
        println!(
            "{what}: {in_prompt} in the prompt, {in_text} in the text, {missed} came too late, 0 texts wrong; at most {:.0} ms until the run \
             went on, {:.0} ms longer in all",
            self.worst, self.worst_delay
        );
        assert!(in_prompt + in_text + missed >= tries, "{in_prompt} + {in_text} + {missed} faults in place of {tries}");
        // A moment behind the end of a run that was faster than the first one is no fault; most are.
        assert!(2 * missed <= tries, "{missed} of {tries} faults came too late");
        assert!(tries < BOTH_PARTS || in_prompt > 0 && in_text > 0, "{in_prompt} in the prompt, {in_text} in the text");
    }
}

#[test]
fn servers_that_are_killed() {
    let Some(path) = model("smollm2") else { return };
    let start = || Server::start(&["-d", "cpu:1", "--memory-limit", "1G"]);
    let mut servers = [start(), start()];
    let (mut random, mut faults) = (Random::new(), Faults::default());
    for draw in DRAWS {
        let list = |servers: &[Server; 2]| servers.each_ref().map(|s| s.addr.clone()).join(",");
        let run = |servers: &[Server; 2]| args(path.to_str().unwrap(), &list(servers), draw);
        let want: RunReport = Client::run(&run(&servers), LIMIT).json();
        assert!(want.recoveries.is_empty() && want.devices.iter().filter(|d| d.layers.is_some()).count() == 2);
        let mut span = span(&want, &run(&servers));
        let tries = fault_tries(TRIES).div_ceil(2);
        for number in 0..tries {
            let client = loaded(&run(&servers));
            let (victim, moment) = (random.below(2) as usize, random.within(span, number, tries));
            std::thread::sleep(Duration::from_micros(moment));
            servers[victim].kill();
            let done = client.wait(LIMIT);
            let report: RunReport = done.json();
            let what = format!("server {victim} killed after {} ms, try {number}", moment / 1000);
            same(&report, &want, &what);
            span = faults.add(&report, span, false, &what);
            let told = done.stderr.lines().filter(|l| l.starts_with("warning: ")).count();
            assert_eq!(told, report.recoveries.len(), "{}", done.stderr);
            servers[victim] = start();
        }
    }
    faults.print("killed servers");
}

#[test]
fn connections_that_are_cut() {
    let Some(path) = model("smollm2") else { return };
    let servers = [&["-d", "cpu:1"], &["-d", "cpu:1"]].map(|args| Server::start(args));
    let proxies = servers.each_ref().map(|s| Proxy::start(s.addr.parse().unwrap()));
    let rpc = proxies.each_ref().map(|p| p.addr.to_string()).join(",");
    let (mut random, mut faults) = (Random::new(), Faults::default());
    for draw in DRAWS {
        let run = args(path.to_str().unwrap(), &rpc, draw);
        let want: RunReport = Client::run(&run, LIMIT).json();
        assert!(want.recoveries.is_empty() && want.net.sent_bytes > 50 << 20);
        let mut span = span(&want, &run);
        let tries = fault_tries(TRIES).div_ceil(2);
        for number in 0..tries {
            let client = loaded(&run);
            let (victim, moment) = (random.below(3) as usize, random.within(span, number, tries));
            // Sometimes the network is back at once, sometimes later.
            let away = random.below(2) * random.below(700);
            std::thread::sleep(Duration::from_micros(moment));
            // The first, the second, or both; with them go the connections between the servers.
            let cut: Vec<&Proxy> =
                proxies.iter().enumerate().filter(|(i, _)| victim == 2 || victim == *i).map(|(_, p)| p).collect();
            if away > 0 {
                cut.iter().for_each(|p| p.refuse());
            }
            cut.iter().for_each(|p| (0..p.count()).for_each(|connection| p.cut(connection)));
            std::thread::sleep(Duration::from_millis(away));
            cut.iter().for_each(|p| p.admit());
            let report: RunReport = client.wait(LIMIT).json();
            let what = format!("connections {victim} cut after {} ms for {away} ms, try {number}", moment / 1000);
            same(&report, &want, &what);
            span = faults.add(&report, span, true, &what);
            let again = report.net.sent_bytes.saturating_sub(want.net.sent_bytes);
            assert!(again < NO_WEIGHTS, "{what}: {again} bytes more were sent");
        }
    }
    faults.print("cut connections");
}

#[test]
fn without_failover_a_run_ends_with_the_error() {
    let Some(path) = model("smollm2") else { return };
    let (mut a, mut b) = (Server::start(&["-d", "cpu:1"]), Server::start(&["-d", "cpu:1"]));
    let base = ["run", "-m", path.to_str().unwrap(), "-p", "Once", "-n", "2000", "--ignore-eos"];
    for (rpc, victim, more) in
        [(format!("{},{}", a.addr, b.addr), &mut b, &["--no-failover"][..]), (a.addr.clone(), &mut a, &[])]
    {
        let mut client = Client::start(&[&base[..], &["--rpc", &rpc], more].concat());
        client.wait_for_text(LIMIT);
        let killed = Instant::now();
        victim.kill();
        let done = client.wait(LIMIT);
        let took = killed.elapsed();
        println!("after {took:?}: {}", done.error());
        assert!(done.code == Some(1) && done.error().contains(&victim.addr), "{}", done.stderr);
        assert!(!done.stderr.contains("warning"), "{}", done.stderr);
        assert!(took < FOUND_OUT, "{took:?}");
    }
}

#[test]
fn a_server_that_comes_back_is_used_again() {
    let Some(path) = model("smollm2") else { return };
    // Too small for all of the model: there is nothing to go on with but the other one.
    let small = Server::start(&["-d", "cpu:1", "--memory-limit", "80M"]);
    let mut other = Server::start(&["-d", "cpu:1"]);
    let rpc = format!("{},{}", small.addr, other.addr);
    let run = args(path.to_str().unwrap(), &rpc, DRAWS[1]);
    let want: RunReport = Client::run(&run, LIMIT).json();
    let span = span(&want, &run);
    let client = loaded(&run);
    std::thread::sleep(Duration::from_micros(span / 4));
    let addr = other.addr.clone();
    // It is asked for a second long: on a busy host a program may take longer to start.
    client.signal("STOP");
    other.kill();
    let again = Server::start_at(&addr, &["-d", "cpu:1"]);
    client.signal("CONT");
    let report: RunReport = client.wait(LIMIT).json();
    same(&report, &want, "come back");
    assert_eq!(report.recoveries.len(), 1, "{:?}", report.recoveries);
    assert!(report.devices.iter().any(|d| d.id.starts_with(&again.addr) && d.layers.is_some()));
    // Without it, the run says that the model does not fit.
    drop(again);
    let mut other = Server::start(&["-d", "cpu:1"]);
    let run: Vec<String> = run.iter().map(|arg| arg.replace(&addr, &other.addr)).collect();
    let client = loaded(&run);
    other.kill();
    let done = client.wait(LIMIT);
    println!("{}", done.error());
    assert!(done.error().contains(&other.addr) && done.error().contains("memory"), "{}", done.stderr);
}

#[test]
fn a_client_that_stands_still_does_not_take_its_servers_for_dead() {
    let Some(path) = model("smollm2") else { return };
    let servers = [(); 2].map(|()| Server::start(&["-d", "cpu:1"]));
    let rpc = servers.each_ref().map(|s| s.addr.clone()).join(",");
    let run = args(path.to_str().unwrap(), &rpc, DRAWS[0]);
    let want: RunReport = Client::run(&run, LIMIT).json();
    let client = loaded(&run);
    // Longer than a server may be silent, and long enough that a heartbeat is under way.
    for _ in 0..3 {
        client.signal("STOP");
        std::thread::sleep(Duration::from_millis(2500));
        client.signal("CONT");
        std::thread::sleep(Duration::from_millis(100));
    }
    let report: RunReport = client.wait(LIMIT).json();
    same(&report, &want, "stood still");
    assert!(report.recoveries.is_empty(), "{:?}", report.recoveries);
}

#[test]
fn an_interrupt_frees_everything_on_the_servers() {
    let Some(path) = model("smollm2") else { return };
    let servers = [(); 2].map(|()| Server::start(&["-d", "cpu:1", "--memory-limit", "1G"]));
    let free = servers.each_ref().map(Server::memory_free);
    let rpc = servers.each_ref().map(|s| s.addr.clone()).join(",");
    let long = SENTENCE.repeat(100);
    // In the text, and in a prompt that takes long.
    for (prompt, in_text) in [("Once", true), (long.as_str(), false)] {
        let args = ["run", "-m", path.to_str().unwrap(), "--rpc", &rpc, "-p", prompt, "-n", "1500", "--ignore-eos"];
        let args: Vec<String> = args.iter().chain(&["-c", "4096"]).map(|&a| a.to_owned()).collect();
        let mut client = loaded(&args);
        if in_text {
            client.wait_for_text(LIMIT)
        } else {
            std::thread::sleep(Duration::from_millis(200))
        }
        assert!(servers[0].memory_free() < free[0] && servers[1].memory_free() < free[1]);
        let start = Instant::now();
        client.signal("INT");
        let done = client.wait(LIMIT);
        assert_eq!(done.code, Some(130), "{}", done.stderr);
        while servers.each_ref().map(Server::memory_free) != free {
            assert!(start.elapsed() < FREED, "not freed by its client");
            std::thread::sleep(Duration::from_millis(10));
        }
        println!("ended and freed after {:?}", start.elapsed());
    }
}
