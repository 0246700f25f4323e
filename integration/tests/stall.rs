//! A run whose server hangs, with its connection alive: it goes on without it, and the text is the same.
#![allow(clippy::unwrap_used, clippy::expect_used)]

#[path = "../../local-backends/reference/tests/common/fated.rs"]
mod fated;
#[path = "../../llm/tests/small/mod.rs"]
mod small;

use fated::{Fate, fated_device};
use outboard_core::Device;
use outboard_core::Host;
use outboard_core::op::{Penalties, Sampler};
use outboard_host::MemoryBudget;
use outboard_llm::gguf::Gguf;
use outboard_llm::tokenizer::Tokenizer;
use outboard_llm::{
    Error, Failover, GenerateOptions, Generation, LoadOptions, LogProbs, Model, PlacedModel, Recovery, Sequence,
    generate,
};
use outboard_rpc_client::{ClientOptions, Endpoint, connect};
use outboard_rpc_server::{Limits, Server, ServerConfig, Trust};
use outboard_system::open_mapped;
use std::ops::ControlFlow;
use std::path::Path;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

/// Without progress, a server is given up after this long.
const STALL: Duration = Duration::from_millis(1500);
/// And the run goes on this long after, on a busy machine.
const GOES_ON: Duration = Duration::from_secs(8);
const PROMPT: [u32; 11] = [1, 5, 9, 100, 3, 77, 5, 9, 20, 60, 2];
const TOKENS: usize = 12;

fn server() -> (Server, Arc<Fate>) {
    let (host, budget, fate) = (Host::new(), MemoryBudget::new(Some(1 << 30)), Arc::<Fate>::default());
    let devices = vec![fated_device(&host, "DEV0", &budget, &fate)];
    let (addr, limits) = ("127.0.0.1:0".parse().unwrap(), Limits::default());
    (Server::start(ServerConfig { addr, devices, limits, trust: Trust::default() }).unwrap(), fate)
}

fn device(server: &Server) -> Arc<dyn Device> {
    let options = ClientOptions { stall_after: STALL, ..ClientOptions::default() };
    connect(&[Endpoint::parse(&server.local_addr().to_string()).unwrap()], &options).unwrap().swap_remove(0)
}

/// Keeps what it is told; servers that it is asked for are there.
#[derive(Clone, Default)]
struct Helper {
    told: Arc<Mutex<Vec<Recovery>>>,
    asked: Arc<Mutex<Vec<String>>>,
}

impl Failover for Helper {
    fn replace(&mut self, lost: &[String]) -> Vec<Arc<dyn Device>> {
        self.asked.lock().unwrap().extend_from_slice(lost);
        Vec::new()
    }
    fn recovered(&mut self, recovery: &Recovery) {
        println!("{recovery}");
        self.told.lock().unwrap().push(recovery.clone());
    }
}

/// The sequence of a model that has one.
fn only(model: &mut PlacedModel) -> Sequence {
    let open = model.sequences().next();
    open.unwrap_or_else(|| model.open().unwrap())
}

struct World {
    model: Arc<Model>,
    tokenizer: Tokenizer,
}

impl World {
    fn new() -> World {
        let file = Path::new(env!("CARGO_MANIFEST_DIR")).join("../llm/tests/data/arch/llama-dense.gguf");
        let model = Arc::new(Model::new(Gguf::parse(open_mapped(&file).unwrap()).unwrap()).unwrap());
        World { model, tokenizer: small::tokenizer() }
    }

    fn engine(&self, devices: Vec<Arc<dyn Device>>) -> PlacedModel {
        let split = vec![1.0; devices.len()];
        let options = LoadOptions { n_ctx: 64, n_ubatch: 4, split, ..LoadOptions::default() };
        PlacedModel::load(self.model.clone(), devices, &options, &|_, _| {}).unwrap()
    }

    /// A text; `at` is called when so many pieces of it have come.
    fn text(&self, engine: &mut PlacedModel, at: usize, then: &mut dyn FnMut()) -> Result<Generation, Error> {
        let options = GenerateOptions {
            n_predict: Some(TOKENS),
            sampler: Sampler { temperature: 1.5, top_k: 0, top_p: 1.0, min_p: 0.0, seed: 42 },
            penalties: Some(Penalties { last_n: 16, repeat: 1.3, frequency: 0.2, presence: 0.1 }),
            ignore_eos: true,
            stop: Vec::new(),
            log_probs: LogProbs::Chosen,
            ..GenerateOptions::default()
        };
        let mut pieces = 0;
        if at == 0 {
            then();
        }
        let seq = only(engine);
        generate(engine, seq, &self.tokenizer, &PROMPT, &options, &mut |_| {
            pieces += 1;
            if pieces == at {
                then();
            }
            ControlFlow::Continue(())
        })
    }
}

/// In the prompt and in the text, and either of two servers.
#[test]
fn a_run_goes_on_without_a_server_that_hangs() {
    let world = World::new();
    let expected = {
        let servers = [server(), server()];
        let devices = servers.each_ref().map(|(server, _)| device(server)).to_vec();
        world.text(&mut world.engine(devices), 0, &mut || {}).unwrap()
    };
    assert_eq!(expected.tokens.len(), TOKENS);
    for (unlucky, at) in [(0, 0), (1, 0), (0, 5), (1, 5)] {
        let servers = [server(), server()];
        let devices = servers.each_ref().map(|(server, _)| device(server)).to_vec();
        let mut engine = world.engine(devices);
        let helper = Helper::default();
        engine.set_failover(Box::new(helper.clone()));
        let (fate, mut hung) = (&servers[unlucky].1, Instant::now());
        let mut hang = || {
            fate.hangs.store(true, Ordering::SeqCst);
            hung = Instant::now();
        };
        let got = world.text(&mut engine, at, &mut hang).unwrap();
        let (took, what) = (hung.elapsed(), format!("server {unlucky} hangs after {at} tokens"));
        println!("{what}: {took:?}");
        assert_eq!((got.tokens, got.log_probs), (expected.tokens.clone(), expected.log_probs.clone()), "{what}");
        let told = helper.told.lock().unwrap();
        assert_eq!(told.len(), 1, "{what}: {told:?}");
        let error = told[0].error.to_string();
        assert!(error.starts_with(&servers[unlucky].0.local_addr().to_string()), "{what}: {error}");
        assert!(error.contains("DEV0 has got no further with a graph"), "{what}: {error}");
        assert_eq!(told[0].devices.as_ref().map(Vec::len), Some(1), "{what}: it is used again");
        // Its server answers. Asked for again, it would be there, and hang again.
        assert_eq!(*helper.asked.lock().unwrap(), Vec::<String>::new(), "{what}");
        assert!(took >= STALL / 2 && took < STALL + GOES_ON, "{what}: {took:?}");
        fate.hangs.store(false, Ordering::SeqCst);
    }
}

#[test]
fn without_another_server_it_ends_and_says_why() {
    let world = World::new();
    let (server, fate) = server();
    let mut engine = world.engine(vec![device(&server)]);
    engine.set_failover(Box::new(Helper::default()));
    let mut hung = Instant::now();
    let mut hang = || {
        fate.hangs.store(true, Ordering::SeqCst);
        hung = Instant::now();
    };
    let error = world.text(&mut engine, 3, &mut hang).unwrap_err().to_string();
    println!("after {:?}: {error}", hung.elapsed());
    assert!(error.starts_with(&server.local_addr().to_string()) && error.contains("DEV0"), "{error}");
    assert!(error.contains("got no further with a graph") && error.contains("no other device is left"), "{error}");
    assert!(hung.elapsed() < STALL + GOES_ON, "{:?}", hung.elapsed());
    fate.hangs.store(false, Ordering::SeqCst);
}

/// Steps that take longer than the limit, on one device or the other.
#[test]
fn a_slow_server_is_waited_for() {
    let world = World::new();
    let servers = [server(), server()];
    let devices = servers.each_ref().map(|(server, _)| device(server)).to_vec();
    let mut engine = world.engine(devices);
    let helper = Helper::default();
    engine.set_failover(Box::new(helper.clone()));
    let expected = world.text(&mut engine, 0, &mut || {}).unwrap();
    let seq = only(&mut engine);
    engine.truncate(seq, 0).unwrap();
    for (_, fate) in &servers {
        let slow = 2 * STALL.as_millis() as u64;
        let mut slow_for_a_while = || {
            fate.takes.store(slow, Ordering::SeqCst);
            let fate = fate.clone();
            std::thread::spawn(move || {
                std::thread::sleep(3 * STALL);
                fate.takes.store(0, Ordering::SeqCst);
            });
        };
        let start = Instant::now();
        let got = world.text(&mut engine, 3, &mut slow_for_a_while).unwrap();
        assert_eq!(got.tokens, expected.tokens);
        assert!(start.elapsed() > 2 * STALL, "{:?}", start.elapsed());
        let seq = only(&mut engine);
        engine.truncate(seq, 0).unwrap();
    }
    assert!(helper.told.lock().unwrap().is_empty());
}
