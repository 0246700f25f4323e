//! Connections that are lost while their server lives: the session is taken up again, and what it holds is still there.
#![allow(clippy::unwrap_used, clippy::expect_used, missing_docs)]

mod common;
#[path = "common/proxy.rs"]
#[allow(unreachable_pub)]
mod proxy;

use common::*;
use outboard_core::device::Bytes;
use outboard_core::*;
use outboard_host::MemoryBudget;
use outboard_reference::reference_device;
use outboard_rpc_client::{ClientOptions, Endpoint, RemoteDevice, connect};
use outboard_rpc_server::{Limits, Server, ServerConfig, Trust};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

/// A client behind a proxy.
fn client(proxy: &proxy::Proxy) -> Vec<Arc<dyn Device>> {
    connect(&[Endpoint::parse(&proxy.addr.to_string()).unwrap()], &ClientOptions::default()).unwrap()
}

fn cut_all(proxy: &proxy::Proxy) {
    (0..proxy.count()).for_each(|connection| proxy.cut(connection));
}

fn is_lost(error: &Error) -> bool {
    matches!(error, Error::Peer { .. })
}

#[test]
fn buffers_and_executables_live_on() {
    let (server, budget) = server();
    let proxy = proxy::Proxy::start(server.local_addr());
    let devices = client(&proxy);
    let p = program();
    let placed = Placed::new(&devices[0], &p);
    let large = buffer(&devices[1], 4 << 20);
    {
        let queues = [devices[0].queue().unwrap(), devices[1].queue().unwrap()];
        queues[0].write(&placed.slice(&p, p.x), f32s(&[1.5; 8])).unwrap();
        queues[0].write(&placed.slice(&p, p.ids), Bytes::copy_from_slice(&[0; 4])).unwrap();
        queues[0].finish(WAIT).unwrap();
        queues[1].write(&large, Bytes::from(vec![7; 4 << 20])).unwrap();
        queues[1].finish(WAIT).unwrap();
    }
    let dropped = buffer(&devices[0], 1 << 20);
    let sent = RemoteDevice::of(devices[0].as_ref()).unwrap().net_stats().sent_bytes;
    for round in 0..5 {
        let lost = devices[0].queue().unwrap();
        // Something that waits for ever, and something that is under way.
        let waits = devices[1].queue().unwrap();
        devices[1].peer().unwrap().accept(waits.as_ref(), Ticket([round; 32]), &large.part(0, 64).unwrap()).unwrap();
        (0..200).for_each(|_| lost.execute(&placed.executable).unwrap());
        cut_all(&proxy);
        let error = waits.finish(WAIT).unwrap_err();
        assert!(is_lost(&error) && is_lost(&lost.finish(WAIT).unwrap_err()), "{error}");
        drop((lost, waits));
        let start = Instant::now();
        devices.iter().for_each(|d| d.resume().unwrap());
        println!("taken up again in {:?}", start.elapsed());
        let (queue, other) = (devices[0].queue().unwrap(), devices[1].queue().unwrap());
        queue.execute(&placed.executable).unwrap();
        assert_eq!(read(queue.as_ref(), &placed.slice(&p, p.y)), f32s(&[3.0; 8]));
        assert!(read(other.as_ref(), &large) == vec![7; 4 << 20]);
    }
    let sent = RemoteDevice::of(devices[0].as_ref()).unwrap().net_stats().sent_bytes - sent;
    assert!(sent < 1 << 20, "{sent} bytes were sent again");
    // What is dropped while there is no connection is freed, too.
    let before = budget.info().free;
    let queue = devices[0].queue().unwrap();
    cut_all(&proxy);
    assert!(is_lost(&queue.finish(WAIT).unwrap_err()));
    drop((dropped, queue));
    devices[0].resume().unwrap();
    eventually(Duration::from_secs(2), || budget.info().free >= before + (1 << 20));
    assert_eq!(server.sessions(), 1);
    drop((placed, large, devices));
    assert_eq!((server.sessions(), budget.info().free), (0, MEMORY));
}

#[test]
fn nothing_of_the_old_queues_is_under_way_afterwards() {
    let (server, _) = server();
    let device = devices(&server).remove(0);
    let a = buffer(&device, 8 << 20);
    for round in 0..20 {
        let old = device.queue().unwrap();
        // On a connection that lives: its queues are given up all the same.
        (0..50).for_each(|_| old.fill(&a, 1).unwrap());
        drop(old);
        device.resume().unwrap();
        let queue = device.queue().unwrap();
        queue.fill(&a, 2 + round).unwrap();
        queue.finish(WAIT).unwrap();
        std::thread::sleep(Duration::from_millis(5));
        assert!(read(queue.as_ref(), &a) == vec![2 + round; 8 << 20]);
    }
    // Nothing to do: not even a connection.
    let sent = || RemoteDevice::of(device.as_ref()).unwrap().net_stats().sent_bytes;
    device.resume().unwrap();
    let before = sent();
    device.resume().unwrap();
    assert_eq!(sent(), before);
}

#[test]
fn a_network_that_is_away_for_a_while() {
    let (server, _) = server_with(Limits { lease: Duration::from_secs(4), ..Limits::default() });
    let proxy = proxy::Proxy::start(server.local_addr());
    let devices = client(&proxy);
    let a = buffer(&devices[0], 64);
    let queue = devices[0].queue().unwrap();
    queue.fill(&a, 9).unwrap();
    queue.finish(WAIT).unwrap();
    proxy.refuse();
    cut_all(&proxy);
    assert!(is_lost(&queue.finish(WAIT).unwrap_err()));
    drop(queue);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            std::thread::sleep(Duration::from_millis(1500));
            proxy.admit();
        });
        devices[0].resume().unwrap();
    });
    let queue = devices[0].queue().unwrap();
    assert_eq!(read(queue.as_ref(), &a), [9; 64]);
    // And for longer than the lease.
    proxy.refuse();
    cut_all(&proxy);
    assert!(is_lost(&queue.finish(WAIT).unwrap_err()));
    drop(queue);
    let start = Instant::now();
    let error = devices[0].resume().unwrap_err();
    println!("{error}, after {:?}", start.elapsed());
    assert!(is_lost(&error) && error.to_string().contains("session is lost"), "{error}");
    eventually(Duration::from_secs(4), || server.sessions() == 0);
}

#[test]
fn sessions_that_are_over() {
    let lease = Duration::from_secs(1);
    let (mut server, _) = server_with(Limits { lease, ..Limits::default() });
    let proxy = proxy::Proxy::start(server.local_addr());
    let lost = |devices: &[Arc<dyn Device>]| {
        let start = Instant::now();
        let error = devices[0].resume().unwrap_err();
        println!("{error}, after {:?}", start.elapsed());
        assert!(is_lost(&error), "{error}");
        error.to_string()
    };
    let devices = client(&proxy);
    let queue = devices[0].queue().unwrap();
    queue.finish(WAIT).unwrap();
    cut_all(&proxy);
    eventually(Duration::from_secs(3), || server.sessions() == 0);
    drop(queue);
    assert!(lost(&devices).contains("no such session"));
    // The server is gone.
    let devices = common::devices(&server);
    devices[0].queue().unwrap().finish(WAIT).unwrap();
    server.stop();
    drop(server);
    assert!(lost(&devices).contains("refused"));
}

/// A device that says, when it is told to, that it got no further for whoever asks.
struct Stuck {
    inner: Arc<dyn Device>,
    is_stuck: Arc<AtomicBool>,
}

impl Device for Stuck {
    fn uid(&self) -> u64 {
        self.inner.uid()
    }
    fn info(&self) -> &DeviceInfo {
        self.inner.info()
    }
    fn memory(&self) -> Result<MemoryInfo> {
        self.inner.memory()
    }
    fn supports(&self, graph: &Graph) -> Result<NodeSet> {
        self.inner.supports(graph)
    }
    fn alloc(&self, size: u64, usage: Usage) -> Result<Arc<dyn Buffer>> {
        self.inner.alloc(size, usage)
    }
    fn compile(&self, graph: Arc<Graph>, placement: Placement) -> Result<Arc<dyn Executable>> {
        self.inner.compile(graph, placement)
    }
    fn queue(&self) -> Result<Arc<dyn Queue>> {
        self.inner.queue()
    }
    fn for_client(&self, client: outboard_core::device::Client) -> Result<Arc<dyn Device>> {
        Ok(Arc::new(Stuck { inner: self.inner.for_client(client)?, is_stuck: self.is_stuck.clone() }))
    }
    fn resume(&self) -> Result<()> {
        let stuck = self.is_stuck.load(Ordering::SeqCst);
        let after = Duration::from_secs(600);
        if stuck { Err(Error::Timeout { what: "REF1 to get any further".into(), after }) } else { Ok(()) }
    }
    fn host(&self) -> Option<&Arc<Host>> {
        self.inner.host()
    }
    fn peer(&self) -> Option<&dyn PeerTransfer> {
        self.inner.peer()
    }
    fn as_any(&self) -> &dyn std::any::Any {
        self.inner.as_any()
    }
}

/// A server of two devices, of which the second one may be stuck.
fn server_that_may_be_stuck() -> (Server, Arc<AtomicBool>) {
    let (host, budget, is_stuck) = (Host::new(), MemoryBudget::new(Some(MEMORY)), Arc::<AtomicBool>::default());
    let [good, inner] = ["REF0", "REF1"].map(|name| reference_device(&host, name, &budget));
    let devices = vec![good, Arc::new(Stuck { inner, is_stuck: is_stuck.clone() })];
    let addr = "127.0.0.1:0".parse().unwrap();
    let config = ServerConfig { addr, devices, limits: Limits::default(), trust: Trust::default() };
    (Server::start(config).unwrap(), is_stuck)
}

#[test]
fn the_device_that_got_no_further_is_left_out_and_not_its_neighbour() {
    for order in [[0, 1], [1, 0]] {
        let (server, is_stuck) = server_that_may_be_stuck();
        let devices = common::devices(&server);
        let queues: Vec<_> = devices.iter().map(|device| device.queue().unwrap()).collect();
        queues.iter().for_each(|queue| queue.finish(WAIT).unwrap());
        drop(queues);
        devices.iter().for_each(|device| device.resume().unwrap());
        drop(devices[0].queue().unwrap());
        is_stuck.store(true, Ordering::SeqCst);
        // Whichever is asked first.
        let mut errors = [None, None];
        order.into_iter().for_each(|d: usize| errors[d] = devices[d].resume().err());
        let [Some(of_good), Some(of_stuck)] = errors else { panic!("{errors:?}") };
        println!("{of_good}; {of_stuck}");
        assert!(is_lost(&of_good) && of_good.to_string().contains("/REF1"), "{of_good}");
        let Error::Timeout { what, .. } = &of_stuck else { panic!("{of_stuck}") };
        assert!(what.starts_with(&devices[1].info().id), "{what}");
        // It is not asked again: there is no such session any more.
        assert_eq!(devices[0].resume().unwrap_err(), of_good);
        assert_eq!(devices[1].resume().unwrap_err(), of_stuck);
    }
}
