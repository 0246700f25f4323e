//! Many sequences of a real model, which begin and end at random moments: each text is the same alone and among others, over any devices, and behind
//! faults. `OUTBOARD_FAULT_TRIES=100` cuts connections so often.
#![allow(clippy::unwrap_used, clippy::expect_used)]

#[path = "../../rpc-client/tests/common/proxy.rs"]
#[allow(unreachable_pub)]
mod proxy;
#[path = "../../llm/tests/texts/mod.rs"]
mod texts;

use outboard_core::op::{Penalties, Sampler};
use outboard_core::{Device, Host};
use outboard_cpu::{CpuOptions, cpu_device};
use outboard_host::MemoryBudget;
use outboard_integration::{Server, fault_tries, model};
use outboard_llm::gguf::Gguf;
use outboard_llm::tokenizer::{Bos, SpecialText, Tokenizer};
use outboard_llm::{Failover, LoadOptions, LogProbs, Model, PlacedModel, Prefixes, Recovery, Sampling};
use outboard_rpc_client::{ClientOptions, Endpoint, connect};
use outboard_system::open_mapped;
use proxy::Proxy;
use std::collections::HashMap;
use std::sync::{Arc, Mutex};
use texts::{Random, Request, Text, alone, rest, together};

const TEXTS: usize = 16;
const WORDS: [&str; 8] =
    ["The", " ship left the harbour", " at dawn,", " and nobody", " could say when", " it would", " be back.", " Once"];

struct World {
    model: Arc<Model>,
    requests: Vec<Request>,
}

impl World {
    fn new() -> Option<World> {
        let model = Arc::new(Model::new(Gguf::open(&model("smollm2")?, open_mapped).unwrap()).unwrap());
        let tokenizer = Tokenizer::from_gguf(model.gguf()).unwrap();
        let mut random = Random(11);
        let request = |i: usize| {
            let text: String = (0..1 + random.below(25)).map(|_| WORDS[random.below(WORDS.len())]).collect();
            let sampler = match i % 3 {
                0 => Sampler::GREEDY,
                _ => Sampler { temperature: 0.9, top_k: 40, top_p: 0.95, min_p: 0.02, seed: i as u64 },
            };
            let penalties =
                (i % 4 == 1).then_some(Penalties { last_n: 64, repeat: 1.2, frequency: 0.0, presence: 0.3 });
            Request {
                prompt: tokenizer.encode(&text, SpecialText::Literal, Bos::Add).unwrap(),
                sampling: Sampling { sampler, penalties, log_probs: LogProbs::Chosen },
                most: 1 + random.below(24),
            }
        };
        Some(World { requests: (0..TEXTS).map(request).collect(), model })
    }

    fn load(&self, devices: Vec<Arc<dyn Device>>) -> PlacedModel {
        let split = vec![1.0; devices.len()];
        let options = LoadOptions { n_ctx: 256, n_seqs: TEXTS, split, ..LoadOptions::default() };
        PlacedModel::load(self.model.clone(), devices, &options, &|_, _| {}).unwrap()
    }

    /// Each text with no other one beside it.
    fn alone(&self, model: &mut PlacedModel) -> Vec<Text> {
        self.requests.iter().map(|request| alone(model, request)).collect()
    }

    /// All texts, which begin at random moments. `came` is told how many tokens there are by now.
    fn together(&self, model: &mut PlacedModel, random: &mut Random, came: &mut dyn FnMut(usize)) -> Vec<Text> {
        together(model, &self.requests, &HashMap::new(), random, came)
    }

    fn tokens(&self) -> usize {
        self.requests.iter().map(|request| request.most).sum()
    }
}

fn cpus(n: usize) -> Vec<Arc<dyn Device>> {
    let (host, budget) = (Host::new(), MemoryBudget::new(None));
    let cpu = |i| cpu_device(&host, &format!("CPU{i}"), CpuOptions::with_threads(1), &budget);
    (0..n).map(|i| -> Arc<dyn Device> { cpu(i) }).collect()
}

fn servers(n: usize) -> Vec<Server> {
    (0..n).map(|_| Server::start(&["-d", "cpu:1"])).collect()
}

fn connected(addrs: &[String]) -> Vec<Arc<dyn Device>> {
    connect(&Endpoint::parse_list(&addrs.join(",")).unwrap(), &ClientOptions::default()).unwrap()
}

fn addrs(servers: &[Server]) -> Vec<String> {
    servers.iter().map(|server| server.addr.clone()).collect()
}

/// Keeps what it is told.
#[derive(Clone, Default)]
struct Told(Arc<Mutex<Vec<Recovery>>>);

impl Failover for Told {
    fn replace(&mut self, _: &[String]) -> Vec<Arc<dyn Device>> {
        Vec::new()
    }
    fn recovered(&mut self, recovery: &Recovery) {
        println!("{recovery}");
        self.0.lock().unwrap().push(recovery.clone());
    }
}

#[test]
fn texts_are_the_same_alone_and_together_wherever_the_model_is() {
    let Some(world) = World::new() else { return };
    let mut random = Random(1);
    let mut model = world.load(cpus(1));
    let want = world.alone(&mut model);
    let mut check = |model: &mut PlacedModel, what: &str| {
        assert_eq!(world.together(model, &mut random, &mut |_| {}), want, "{what}");
        assert_eq!(model.free_tokens(), model.cache_tokens(), "{what}");
    };
    check(&mut model, "one device");
    drop(model);
    check(&mut world.load(cpus(2)), "two devices");
    for n in [2, 4] {
        let servers = servers(n);
        check(&mut world.load(connected(&addrs(&servers))), &format!("{n} servers"));
    }
}

#[test]
fn texts_go_on_when_a_server_is_killed() {
    let Some(world) = World::new() else { return };
    let mut random = Random(2);
    let want = world.alone(&mut world.load(cpus(1)));
    for victim in [0, 1] {
        let mut servers = servers(2);
        let mut model = world.load(connected(&addrs(&servers)));
        let told = Told::default();
        model.set_failover(Box::new(told.clone()));
        let moment = 1 + random.below(world.tokens() - 20);
        let mut kill = |came: usize| {
            if came == moment {
                servers[victim].kill();
            }
        };
        let got = world.together(&mut model, &mut random, &mut kill);
        assert_eq!(got, want, "server {victim} killed behind {moment} tokens");
        assert_eq!(told.0.lock().unwrap().len(), 1, "server {victim} killed behind {moment} tokens");
    }
}

#[test]
fn texts_go_on_when_connections_are_cut() {
    let Some(world) = World::new() else { return };
    let mut random = Random(3);
    let servers = servers(2);
    let proxies: Vec<Proxy> = servers.iter().map(|server| Proxy::start(server.addr.parse().unwrap())).collect();
    let through: Vec<String> = proxies.iter().map(|proxy| proxy.addr.to_string()).collect();
    let mut model = world.load(connected(&through));
    let want = world.alone(&mut model);
    let told = Told::default();
    model.set_failover(Box::new(told.clone()));
    for _ in 0..fault_tries(4) {
        let (victim, moment) = (random.below(3), 1 + random.below(world.tokens() - 20));
        let mut cut = |came: usize| {
            let cut = proxies.iter().enumerate().filter(|(i, _)| came == moment && (victim == 2 || victim == *i));
            cut.for_each(|(_, proxy)| (0..proxy.count()).for_each(|connection| proxy.cut(connection)));
        };
        let got = world.together(&mut model, &mut random, &mut cut);
        assert_eq!(got, want, "connections {victim} cut behind {moment} tokens");
    }
    let told = told.0.lock().unwrap();
    assert!(told.len() >= 2 && told.iter().all(|recovery| recovery.devices.is_none()), "{told:?}");
}

/// What comes second and begins as the first is not read again, nor held twice.
#[test]
fn a_long_beginning_is_read_once() {
    let Some(world) = World::new() else { return };
    let mut random = Random(4);
    let beginning: Vec<u32> = (0..2000).map(|_| random.below(40_000) as u32).collect();
    let servers = servers(2);
    let options = LoadOptions {
        n_ctx: 2304,
        n_seqs: 3,
        prefixes: Prefixes::Shared,
        split: vec![1.0; 2],
        ..LoadOptions::default()
    };
    let mut model = PlacedModel::load(world.model.clone(), connected(&addrs(&servers)), &options, &|_, _| {}).unwrap();
    let sampling = Sampling { sampler: Sampler::GREEDY, penalties: None, log_probs: LogProbs::Chosen };
    let mut texts = Vec::new();
    for i in 0..3 {
        let free = model.free_tokens();
        let sequence = model.open().unwrap();
        let prompt: Vec<u32> = beginning.iter().copied().chain([100 + i, 7, 9]).collect();
        model.begin(sequence, &prompt, sampling, 4).unwrap();
        let held = free - model.free_tokens();
        assert_eq!(held, if i == 0 { 2048 } else { 128 }, "blocks of text {i}");
        let text = rest(&mut model, sequence, sampling);
        texts.push((prompt, text));
    }
    let mut apart = PlacedModel::load(
        world.model.clone(),
        cpus(1),
        &LoadOptions { prefixes: Prefixes::Apart, split: Vec::new(), n_seqs: 2, ..options },
        &|_, _| {},
    )
    .unwrap();
    for (prompt, text) in texts {
        let want = alone(&mut apart, &Request { prompt, sampling, most: 4 });
        assert_eq!(text, want);
    }
}
