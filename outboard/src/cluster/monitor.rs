//! Collects what is known of a runner's devices. Servers are asked, and spans recorded, only while somebody looks.

use super::server;
use super::spans::{Activity, SETTLED, Spans, WINDOW, token_times};
use super::{Cluster, DeviceState, Loss, ServerState, TokenTime};
use crate::devices::Devices;
use outboard_core::device::TimeRange as Range;
use outboard_core::{Device, DeviceInfo, Host, MemoryInfo, lock};
use outboard_llm::{DeviceLoad, Recovery, Stall};
use outboard_rpc_client::RemoteDevice;
use std::collections::VecDeque;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Condvar, Mutex, Once, PoisonError, Weak};
use std::time::{Duration, Instant, SystemTime};

/// Devices are asked again after this long.
const EVERY: Duration = Duration::from_secs(1);
/// Somebody who has looked so long ago does not look any more.
const LOOKS: Duration = Duration::from_secs(10);
/// Tokens per second are of this long.
const RATE_OVER: Duration = Duration::from_secs(3);
/// Losses that are remembered.
const LOSSES: usize = 16;
/// A stall that was told of so long ago is over: they are told of every five seconds.
const STALL_LASTS: Duration = Duration::from_secs(6);
/// What asks a server may be in the middle of a call when the runner ends, and is waited for no longer than this.
const ENDING: Duration = Duration::from_secs(1);

/// What is known of a runner's devices. It keeps none of them.
pub(crate) struct Monitor {
    state: Arc<State>,
    start: Once,
    /// For each thread a clone, which is dropped at its end.
    alive: Mutex<Option<Sender<()>>>,
    ended: Mutex<Receiver<()>>,
}

/// What the threads share.
pub(super) struct State {
    devices: Mutex<Vec<Known>>,
    pub(super) servers: Vec<Mutex<server::Polled>>,
    spans: Mutex<Spans>,
    activity: Mutex<Activity>,
    tokens: AtomicU64,
    losses: Mutex<VecDeque<Loss>>,
    stall: Mutex<Option<(Stall, Instant)>>,
    /// Whether spans and tokens are recorded, without a lock.
    records: AtomicBool,
    /// What devices of this process do is known from here on.
    local_since: Mutex<Option<Instant>>,
    look: Mutex<Look>,
    changed: Condvar,
}

/// A device of the list that the model was placed on.
struct Known {
    info: DeviceInfo,
    /// Place among the servers.
    server: Option<usize>,
    device: Weak<dyn Device>,
    load: Option<DeviceLoad>,
    memory: Option<MemoryInfo>,
}

#[derive(Default)]
struct Look {
    last: Option<Instant>,
    since: Option<Instant>,
    ended: bool,
}

/// What a thread that asks does next.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Next {
    Ask,
    /// Nobody looks.
    Rest,
    End,
}

impl Monitor {
    /// Of devices that hold these parts of a model.
    pub(crate) fn new(devices: &Devices, loads: &[DeviceLoad]) -> Monitor {
        let mut endpoints: Vec<String> = Vec::new();
        let mut known = Vec::new();
        for device in devices.list() {
            let endpoint = RemoteDevice::of(device.as_ref()).map(|remote| remote.endpoint().to_string());
            let server = endpoint.map(|endpoint| {
                endpoints.iter().position(|known| *known == endpoint).unwrap_or_else(|| {
                    endpoints.push(endpoint);
                    endpoints.len() - 1
                })
            });
            let info = device.info().clone();
            let load = loads.iter().find(|load| load.id == info.id).cloned();
            known.push(Known { info, server, device: Arc::downgrade(device), load, memory: None });
        }
        let servers = endpoints.into_iter().map(|endpoint| Mutex::new(server::Polled::new(endpoint))).collect();
        let state = Arc::new(State {
            devices: Mutex::new(known),
            servers,
            spans: Mutex::default(),
            activity: Mutex::default(),
            tokens: AtomicU64::new(0),
            losses: Mutex::default(),
            stall: Mutex::default(),
            records: AtomicBool::new(false),
            local_since: Mutex::default(),
            look: Mutex::default(),
            changed: Condvar::new(),
        });
        listen(devices.host(), &state);
        let (alive, ended) = channel();
        Monitor { state, start: Once::new(), alive: Mutex::new(Some(alive)), ended: Mutex::new(ended) }
    }

    /// What is told to those who generate texts.
    pub(crate) fn told(&self) -> Told {
        Told(self.state.clone())
    }

    /// What is known now. Somebody looks, so that it is asked for from now on.
    pub(crate) fn look(&self) -> Cluster {
        self.state.looked();
        self.start.call_once(|| self.spawn());
        self.state.cluster(Instant::now())
    }

    /// Starts what asks. Where there can be no thread, nothing is measured.
    fn spawn(&self) {
        let Some(alive) = lock(&self.alive).take() else { return };
        let begin = |work: Box<dyn FnOnce(&State) + Send>| {
            let (alive, state) = (alive.clone(), self.state.clone());
            let work = move || {
                work(&state);
                drop(alive);
            };
            let _ = std::thread::Builder::new().name("look".into()).spawn(work);
        };
        (0..self.state.servers.len()).for_each(|place| begin(Box::new(move |state| server::watch(state, place))));
        begin(Box::new(watch_local));
    }
}

impl Drop for Monitor {
    fn drop(&mut self) {
        lock(&self.state.look).ended = true;
        self.state.changed.notify_all();
        lock(&self.alive).take();
        let _ = lock(&self.ended).recv_timeout(ENDING);
    }
}

/// Records what devices of this process do.
fn listen(host: &Host, state: &Arc<State>) {
    let state = Arc::downgrade(state);
    host.set_trace(move |event| {
        let is_work = matches!(event.what, "execute" | "copy" | "fill");
        if let Some(state) = state.upgrade().filter(|state| is_work && state.records()) {
            lock(&state.spans).push(event.device, (event.start, event.end));
        }
    });
}

/// Asks devices of this process for their memory.
fn watch_local(state: &State) {
    loop {
        match state.next() {
            Next::Ask => {
                state.ask_memory(None);
                state.pause();
            }
            Next::Rest => state.rest(),
            Next::End => return,
        }
    }
}

impl State {
    pub(super) fn records(&self) -> bool {
        self.records.load(Ordering::Relaxed)
    }

    fn looked(&self) {
        let (mut look, now) = (lock(&self.look), Instant::now());
        if !look.is_on(now) {
            look.since = Some(now);
            lock(&self.spans).clear();
            *lock(&self.local_since) = Some(now);
        }
        look.last = Some(now);
        self.records.store(true, Ordering::Relaxed);
        self.changed.notify_all();
    }

    /// What a thread that asks does now.
    pub(super) fn next(&self) -> Next {
        let look = lock(&self.look);
        match (look.ended, look.is_on(Instant::now())) {
            (true, _) => Next::End,
            (_, true) => Next::Ask,
            (_, false) => Next::Rest,
        }
    }

    /// Waits until it is time to ask again, or the end.
    pub(super) fn pause(&self) {
        drop(self.changed.wait_timeout_while(lock(&self.look), EVERY, |look| !look.ended));
    }

    /// Waits until somebody looks.
    pub(super) fn rest(&self) {
        let mut look = lock(&self.look);
        while !look.ended && !look.is_on(Instant::now()) {
            self.records.store(false, Ordering::Relaxed);
            look = self.changed.wait(look).unwrap_or_else(PoisonError::into_inner);
        }
    }

    /// Devices of a server, or of this process, that are there.
    pub(super) fn devices_of(&self, server: Option<usize>) -> Vec<Arc<dyn Device>> {
        let devices = lock(&self.devices);
        devices.iter().filter(|known| known.server == server).filter_map(|known| known.device.upgrade()).collect()
    }

    /// Asks those for their memory. What cannot be asked has none.
    pub(super) fn ask_memory(&self, server: Option<usize>) {
        for device in self.devices_of(server) {
            let memory = device.memory().ok();
            let mut devices = lock(&self.devices);
            devices
                .iter_mut()
                .filter(|known| known.info.id == device.info().id)
                .for_each(|known| known.memory = memory);
        }
    }

    pub(super) fn forget_memory(&self, server: usize) {
        lock(&self.devices)
            .iter_mut()
            .filter(|known| known.server == Some(server))
            .for_each(|known| known.memory = None);
    }

    pub(super) fn push_spans<'a>(&self, spans: impl Iterator<Item = (&'a str, Range)>) {
        let mut kept = lock(&self.spans);
        spans.for_each(|(device, range)| kept.push(device, range));
    }

    fn cluster(&self, now: Instant) -> Cluster {
        let devices = lock(&self.devices);
        let times = self.times(&devices, now);
        let times_of = |place| times.as_ref().and_then(|(_, of)| of.iter().find(|(p, _)| *p == place)).map(|(_, t)| *t);
        let device = |(place, known): (usize, &Known)| DeviceState {
            info: known.info.clone(),
            server: known.server,
            load: known.load.clone(),
            memory: known.memory,
            token: times_of(place),
        };
        Cluster {
            devices: devices.iter().enumerate().map(device).collect(),
            servers: self.servers.iter().map(|polled| lock(polled).state(now)).collect::<Vec<ServerState>>(),
            tokens: self.tokens.load(Ordering::Relaxed),
            tokens_per_second: self.rate(now),
            token_time: times.as_ref().map(|(total, _)| *total),
            losses: lock(&self.losses).iter().cloned().collect(),
            stall: self.stall(now),
        }
    }

    fn stall(&self, now: Instant) -> Option<Stall> {
        let stall = lock(&self.stall);
        stall
            .as_ref()
            .filter(|(_, at)| now.saturating_duration_since(*at) < STALL_LASTS)
            .map(|(stall, _)| stall.clone())
    }

    fn rate(&self, now: Instant) -> Option<f64> {
        let since = lock(&self.look).since?;
        let from = now.checked_sub(RATE_OVER).map_or(since, |from| from.max(since));
        let seconds = now.saturating_duration_since(from).as_secs_f64();
        // A moment after the first look says nothing.
        (seconds >= 0.5).then(|| lock(&self.activity).tokens((from, now)) as f64 / seconds)
    }

    /// The time of a token, and the parts of the devices that hold something of the model, by their places.
    fn times(&self, devices: &[Known], now: Instant) -> Option<(Duration, Vec<(usize, TokenTime)>)> {
        let used: Vec<(usize, &Known)> =
            devices.iter().enumerate().filter(|(_, k)| k.load.as_ref().is_some_and(DeviceLoad::is_used)).collect();
        let (mut since, mut until) = (lock(&self.look).since?, now);
        for (_, known) in &used {
            let (from, to) = match known.server {
                Some(place) => lock(self.servers.get(place)?).known()?,
                None => ((*lock(&self.local_since))?, now),
            };
            (since, until) = (since.max(from), until.min(to));
        }
        let until = until.checked_sub(SETTLED)?;
        let window = (until.checked_sub(WINDOW)?.max(since), until);
        if window.0 >= window.1 {
            return None;
        }
        let ids: Vec<&str> = used.iter().map(|(_, known)| known.info.id.as_str()).collect();
        let (total, times) = token_times(&lock(&self.spans), &lock(&self.activity), &ids, window)?;
        Some((total, used.iter().map(|(place, _)| *place).zip(times).collect()))
    }
}

impl Look {
    fn is_on(&self, now: Instant) -> bool {
        self.last.is_some_and(|last| now.saturating_duration_since(last) < LOOKS)
    }
}

/// What those who generate texts tell. Clones tell the same monitor.
#[derive(Clone)]
pub(crate) struct Told(Arc<State>);

impl Told {
    /// Texts are under way from now on.
    pub(crate) fn begins(&self) {
        lock(&self.0.activity).begin(Instant::now());
    }

    /// No text is.
    pub(crate) fn ends(&self) {
        lock(&self.0.activity).end(Instant::now());
    }

    /// A token has come.
    pub(crate) fn token(&self) {
        self.0.tokens.fetch_add(1, Ordering::Relaxed);
        if self.0.records() {
            lock(&self.0.activity).token(Instant::now());
        }
    }

    /// Somebody keeps texts waiting.
    pub(crate) fn stalls(&self, stall: &Stall) {
        *lock(&self.0.stall) = Some((stall.clone(), Instant::now()));
    }

    /// Devices have come back, with nothing on them yet.
    pub(crate) fn came_back(&self, back: &[Arc<dyn Device>]) {
        let mut devices = lock(&self.0.devices);
        for device in back {
            for known in devices.iter_mut().filter(|known| known.info.id == device.info().id) {
                known.device = Arc::downgrade(device);
            }
        }
    }

    /// Texts go on after something was lost.
    pub(crate) fn recovered(&self, recovery: &Recovery) {
        for known in lock(&self.0.devices).iter_mut() {
            known.load = recovery.loads.iter().find(|load| load.id == known.info.id).cloned();
        }
        let mut losses = lock(&self.0.losses);
        if losses.len() >= LOSSES {
            losses.pop_front();
        }
        losses.push_back(Loss { at: SystemTime::now(), what: recovery.to_string(), took: recovery.took });
    }
}
