//! Servers that expose a card with memory of its own beside a CPU: nothing between a client and a device asks for memory that the host can
//! address. The card is the test device `detached`, which computes what the reference does.
#![allow(clippy::unwrap_used, clippy::expect_used)]

#[path = "../../llm/tests/small/mod.rs"]
mod small;

use outboard_backends::{DeviceSpec, local_devices};
use outboard_conformance::{Filter, run};
use outboard_core::op::Sampler;
use outboard_core::{Device, DeviceKind, Host, WeightTail};
use outboard_host::MemoryBudget;
use outboard_integration::Server;
use outboard_llm::{LoadOptions, Model, PlacedModel};
use outboard_reference::reference_device;
use outboard_rpc_client::{ClientOptions, Endpoint, RemoteDevice, Tracing, connect};
use std::path::Path;
use std::sync::Arc;

fn remote(servers: &[Server]) -> Vec<Arc<dyn Device>> {
    let endpoints: Vec<Endpoint> = servers.iter().map(|s| Endpoint::parse(&s.addr).unwrap()).collect();
    connect(&endpoints, &ClientOptions::default()).unwrap()
}

/// A model with weights of blocks, behind which the card wants zeros.
fn model() -> Arc<Model> {
    small::quantized(&Path::new(env!("CARGO_MANIFEST_DIR")).join("../llm/tests/data/arch/llama-dense.gguf"))
}

fn load(devices: Vec<Arc<dyn Device>>) -> PlacedModel {
    // Small micro-batches, so that several are under way.
    let split = vec![1.0; devices.len()];
    let options = LoadOptions { n_ctx: 64, n_ubatch: 7, split, ..LoadOptions::default() };
    let engine = PlacedModel::load(model(), devices, &options, &|_, _| {}).unwrap();
    // The model has four sections, of which the last device takes the first, too.
    let used = engine.loads().iter().filter(|load| load.is_used()).count();
    assert!(used >= engine.loads().len().min(3), "{:?}", engine.loads());
    engine
}

/// The logits of a prompt, and tokens behind it.
fn outcome(engine: &mut PlacedModel) -> (Vec<f32>, Vec<(u32, f32)>) {
    let prompt: Vec<u32> = (0..30).map(|i| i * 37 % 128).collect();
    let seq = engine.open().unwrap();
    let logits = engine.logits(seq, &prompt).unwrap();
    engine.truncate(seq, 0).unwrap();
    let mut tokens = vec![engine.eval(seq, &prompt, Sampler::GREEDY).unwrap()];
    for i in 0..8 {
        let last = tokens[i].0;
        tokens.push(engine.eval(seq, &[last], Sampler::GREEDY).unwrap());
    }
    (logits, tokens)
}

/// Bytes of the client, to and from its servers, while a model is loaded and used.
fn client_bytes(devices: &[Arc<dyn Device>]) -> u64 {
    let stats = |d: &Arc<dyn Device>| RemoteDevice::of(d.as_ref()).unwrap().own_net_stats();
    let of_each_server = devices.iter().step_by(2).map(stats);
    of_each_server.map(|stats| stats.sent_bytes + stats.recv_bytes).sum()
}

#[test]
fn a_card_behind_a_server_computes_what_the_reference_does() {
    let server = Server::start(&["-d", "detached"]);
    let devices = remote(std::slice::from_ref(&server));
    let info = devices[0].info();
    assert_eq!((info.kind, info.alignment, info.unified), (DeviceKind::Accelerator, 256, false));
    assert_eq!((info.max_alloc, info.memory_pool.as_str()), (64 << 20, ""));
    assert_eq!(info.weight_tail, WeightTail(510));
    let reference = reference_device(&Host::new(), "REF", &MemoryBudget::new(None));
    let report = run(devices[0].as_ref(), reference.as_ref(), &Filter::default()).unwrap();
    assert!(report.ok(), "{report}");
}

#[test]
fn a_model_on_cards_and_cpus_of_one_server_and_of_two() {
    for count in [1, 2] {
        let local = DeviceSpec::parse_list(&["detached,cpu:1"].repeat(count).join(",")).unwrap();
        let want = outcome(&mut load(local_devices(&Host::new(), &local, None, None).unwrap()));
        let start = |devices: &str| -> Vec<Server> {
            (0..count).map(|_| Server::start(&["-d", devices, "--metrics", "127.0.0.1:0"])).collect()
        };
        let servers = start("detached,cpu:1");
        let devices = remote(&servers);
        for device in devices.iter().step_by(2) {
            RemoteDevice::of(device.as_ref()).unwrap().trace(Tracing::GoOn).unwrap();
        }
        let mut engine = load(devices.clone());
        assert_eq!(outcome(&mut engine), want, "{count} servers");
        // What a card's queue did has its times, like a CPU's.
        for (server, device) in servers.iter().zip(devices.iter().step_by(2)) {
            let trace = RemoteDevice::of(device.as_ref()).unwrap().trace(Tracing::Stop).unwrap();
            let of_server = |name: &str| device.info().id.replace("DETACHED0", name);
            let is_used = |name: &&str| engine.loads().iter().any(|l| l.id == of_server(name) && l.is_used());
            for name in ["DETACHED0", "CPU0"].into_iter().filter(is_used) {
                let spans = trace.spans.iter().filter(|s| s.device.ends_with(name) && s.what == "execute");
                let spans: Vec<_> = spans.map(|s| (s.start_us, s.end_us)).collect();
                assert!(spans.len() > 8, "{name}: {} graphs", spans.len());
                assert!(spans.is_sorted() && spans.iter().all(|(_, end)| *end <= trace.now_us), "{name}: {spans:?}");
            }
            assert!(server.metric("outboard_executed_graphs_total") > 8.0);
        }
        // Tensors go from card to CPU and back on the server: the client sends and gets as much as with two CPUs.
        let bytes = client_bytes(&devices);
        drop(engine);
        let cpus = start("cpu:1,cpu:1");
        let devices = remote(&cpus);
        outcome(&mut load(devices.clone()));
        let of_cpus = client_bytes(&devices);
        let ratio = bytes as f64 / of_cpus as f64;
        assert!((0.9..1.1).contains(&ratio), "{bytes} bytes of the client, {of_cpus} with CPUs");
    }
}
