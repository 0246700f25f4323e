//! Weights as content: what a server has already is not sent.
//!
//! For each endpoint there are stages, on threads of their own. The first computes digests that are not known yet and asks
//! the server which of them it has; where it must compute, it asks in windows, so that the others need not wait for the whole
//! file. The second lets the server place what it has. The last sends the rest from the mapped file on the bulk connections, with
//! the digests, so that the server can check and keep it. Servers that keep nothing are not asked, and nothing is hashed for them.
//! What several devices of an endpoint need is sent to the first, which hands it on; what several endpoints need is sent to one
//! of them, from where the others take it ([`common`]); what one of them has already it lends to the others ([`lend`]).
//!
//! When a stage fails, so does the whole batch, and all that wait for one another are let go.
//!
//! Bytes that wait are those of the queues' bulk lanes; nothing is copied in this process.

mod common;
mod lend;

use crate::device::RemoteDevice;
use crate::link::BULK_CONNECTIONS;
use crate::lock;
use crate::queue::RemoteQueue;
use bytes::Bytes;
use common::{Common, Sources};
use lend::Loan;
use outboard_core::{
    Content, ContentUpload, Device, DeviceContents, Digest, Error, PeerTransfer, Queue, Result, Slice, Ticket, progress,
};
use outboard_proto::blobs::{Blob, Place, encode_places, encode_question};
use outboard_proto::graph::bits_to_flags;
use outboard_proto::limits::{MAX_BLOBS, MAX_INLINE, MIN_BLOB};
use outboard_proto::v1;
use std::cmp::Reverse;
use std::collections::HashMap;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex, OnceLock};
use std::time::Duration;

/// Bytes of contents whose digests are computed before the server is asked about them: some hundredths of a second of work.
const WINDOW: u64 = 32 << 20;
/// Bytes that a server is asked to place at a time; a single larger blob goes alone.
const PLACE_BATCH: u64 = 64 << 20;
/// Requests to place that are under way at a time: one is read while the other is copied.
const PLACING: usize = 2;
/// Blobs that a server checks in one request.
const CHECKED_TOGETHER: usize = 64;
/// Bytes per second that a server's disk gives at least; a slower one is taken for hanging.
const SLOWEST_DISK: u64 = 8 << 20;
/// Bytes that devices of an endpoint hand one another before they are waited for: they may lie in the server's memory.
const HANDED_AHEAD: u64 = 128 << 20;
/// Bytes that wait for a connection: little, so that none has much more to send in the end than the others.
const SENT_AHEAD: usize = 2 << 20;
/// Longest wait for a server to get any further with what it was sent, or with what other servers send it. One that could get further and
/// does not is given up sooner, by its connection.
const FINISH_WAIT: Duration = Duration::from_secs(600);

impl ContentUpload for RemoteDevice {
    fn together(&self, other: &dyn Device) -> bool {
        RemoteDevice::of(other).is_some()
    }

    fn upload(&self, batch: &[DeviceContents], progress: &(dyn Fn(u64) + Sync)) -> Result<()> {
        let mut endpoints: Vec<Upload<'_>> = Vec::new();
        for DeviceContents { device, contents } in batch {
            let remote = RemoteDevice::of(device.as_ref());
            let remote = remote.ok_or_else(|| Error::Misuse(format!("{} is not remote", device.info().id)))?;
            let target = Target { device: remote, sending: Default::default(), taking: OnceLock::new() };
            let same = |u: &&mut Upload<'_>| u.devices.iter().any(|d| Arc::ptr_eq(d.device.link(), remote.link()));
            match endpoints.iter_mut().find(same) {
                Some(upload) => upload.add(target, contents),
                None => {
                    let number = endpoints.len();
                    let mut upload =
                        Upload { number, devices: Vec::new(), items: Vec::new(), handed: Mutex::default(), progress };
                    upload.add(target, contents);
                    endpoints.push(upload);
                }
            }
        }
        common::find(&mut endpoints);
        let batch = &Batch { uploads: endpoints, failed: OnceLock::new() };
        std::thread::scope(|scope| {
            for upload in &batch.uploads {
                scope.spawn(move || batch.stage(|| upload.run(batch)));
            }
        });
        batch.failed.get().cloned().map_or(Ok(()), Err)
    }
}

fn panicked() -> Error {
    Error::Misuse("a thread of an upload panicked; this is a bug of Outboard".into())
}

/// A device, and the queues for its contents: opened when there is something for them.
struct Target<'d> {
    device: &'d RemoteDevice,
    /// For what this process sends, one for each sender, whose bulk connection it uses.
    sending: [OnceLock<RemoteQueue>; BULK_CONNECTIONS],
    /// For what comes from other servers.
    taking: OnceLock<RemoteQueue>,
}

impl Target<'_> {
    /// The queue for what a sender sends.
    fn sending(&self, sender: usize) -> Result<&RemoteQueue> {
        let bug = || Error::Misuse(format!("there is no sender {sender}; this is a bug of Outboard"));
        let slot = self.sending.get(sender).ok_or_else(bug)?;
        opened(slot, || RemoteQueue::open_with(self.device, sender, SENT_AHEAD))
    }

    /// The queue for what comes from other servers.
    fn taking(&self) -> Result<&RemoteQueue> {
        opened(&self.taking, || RemoteQueue::open(self.device))
    }

    /// The queues that are open.
    fn open(&self) -> impl Iterator<Item = &RemoteQueue> {
        self.sending.iter().chain([&self.taking]).filter_map(OnceLock::get)
    }

    /// Waits until its device has done everything.
    fn finish(&self) -> Result<()> {
        self.open().try_for_each(|queue| finish(queue, self.device))
    }
}

/// Waits until a queue of a device has done everything, for as long as its server gets further.
fn finish(queue: &RemoteQueue, device: &RemoteDevice) -> Result<()> {
    progress::finish(queue, FINISH_WAIT, || device.link().shared().moves())
}

/// The queue of a slot. Of two that are opened at the same time, one is closed again.
fn opened(slot: &OnceLock<RemoteQueue>, open: impl FnOnce() -> Result<RemoteQueue>) -> Result<&RemoteQueue> {
    match slot.get() {
        Some(queue) => Ok(queue),
        None => open().map(|queue| slot.get_or_init(|| queue)),
    }
}

/// One content and the places that it goes to.
struct Item {
    data: Bytes,
    digest: Arc<OnceLock<Digest>>,
    /// Number of the device, and where.
    places: Vec<(usize, Slice)>,
    /// Other endpoints need it, too.
    common: Option<Arc<Common>>,
    /// It has come from another server.
    foreign: AtomicBool,
}

impl Item {
    fn len(&self) -> u64 {
        self.data.len() as u64
    }

    /// The digest, computed if need be; another endpoint's thread that needs it waits for this one.
    fn blob(&self) -> Blob {
        let digest = *self.digest.get_or_init(|| Digest(*blake3::hash(&self.data).as_bytes()));
        Blob { digest, len: self.len() }
    }
}

/// How what an endpoint does not have gets there.
#[derive(Clone)]
struct Ways<'i> {
    /// This process sends it.
    to_send: Sender<&'i Item>,
    /// The server that this process sends it to hands it on.
    to_take: Sender<(&'i Item, &'i Common)>,
}

impl<'i> Ways<'i> {
    /// Lets an item go its way. `false` if that has ended, for which there is an error of its own.
    fn bring(&self, upload: &Upload<'_>, item: &'i Item) -> bool {
        match upload.elsewhere(item) {
            Some(common) => self.to_take.send((item, common)).is_ok(),
            None => self.to_send.send(item).is_ok(),
        }
    }
}

/// Where blobs go on, once the server was asked about them.
struct Stages<'i> {
    to_place: Sender<&'i Item>,
    to_borrow: Sender<Loan<'i>>,
    ways: Ways<'i>,
}

/// The uploads to all endpoints. One that fails ends them all.
struct Batch<'a> {
    uploads: Vec<Upload<'a>>,
    /// What went wrong first.
    failed: OnceLock<Error>,
}

impl Batch<'_> {
    /// Does the work of a stage. If it fails, or panics, so does the batch.
    fn stage(&self, work: impl FnOnce() -> Result<()>) {
        if let Err(e) = catch_unwind(AssertUnwindSafe(work)).unwrap_or_else(|_| Err(panicked())) {
            self.fail(e);
        }
    }

    /// Nobody waits any more: neither for what another upload was to bring, nor for a queue that may wait for such.
    fn fail(&self, error: Error) {
        let error = self.failed.get_or_init(|| error);
        for upload in &self.uploads {
            common::give_up(upload);
            upload.devices.iter().flat_map(Target::open).for_each(|queue| queue.fail(error));
        }
    }

    /// Whether to stop.
    fn has_failed(&self) -> bool {
        self.failed.get().is_some()
    }
}

/// All that goes to one endpoint.
struct Upload<'a> {
    /// Its place among the uploads of the batch.
    number: usize,
    devices: Vec<Target<'a>>,
    items: Vec<Item>,
    /// Bytes that devices of the endpoint hand one another and may not have taken yet.
    handed: Mutex<u64>,
    progress: &'a (dyn Fn(u64) + Sync),
}

impl<'d> Upload<'d> {
    /// Adds a device with its contents. The same bytes for several are one item.
    fn add(&mut self, target: Target<'d>, contents: &[Content]) {
        let device = self.devices.len();
        self.devices.push(target);
        let mut known: HashMap<(*const u8, usize), usize> =
            self.items.iter().enumerate().map(|(i, item)| ((item.data.as_ptr(), item.data.len()), i)).collect();
        for content in contents.iter().filter(|c| !c.data.is_empty()) {
            let number = *known.entry((content.data.as_ptr(), content.data.len())).or_insert_with(|| {
                let (data, digest) = (content.data.clone(), content.digest.clone());
                self.items.push(Item {
                    data,
                    digest,
                    places: Vec::new(),
                    common: None,
                    foreign: AtomicBool::new(false),
                });
                self.items.len() - 1
            });
            if let Some(item) = self.items.get_mut(number) {
                item.places.push((device, content.dst.clone()));
            }
        }
    }

    fn keeps_blobs(&self) -> bool {
        self.devices.first().is_some_and(|d| d.device.keeps_blobs())
    }

    fn run(&self, batch: &Batch<'_>) -> Result<()> {
        let may_borrow = lend::possible(self, batch);
        let ask = self.keeps_blobs() || may_borrow;
        // The largest first: what is left in the end is small, and no connection has much to send while the others have nothing.
        let mut items: Vec<&Item> = self.items.iter().collect();
        items.sort_by_key(|item| Reverse(item.len()));
        let (blobs, small): (Vec<&Item>, Vec<&Item>) =
            items.into_iter().partition(|item| ask && item.len() >= MIN_BLOB);
        if self.items.iter().any(|item| item.len() > MAX_INLINE as u64) {
            // The first bulk connection is opened while the server is asked.
            self.target(0)?.sending(0)?.prepare_bulk()?;
        }
        let senders = self.first()?.link().shared().bulk_connections().min(self.items.len());
        let (to_send, sending) = channel();
        let (to_take, taking) = channel();
        let (to_place, placing) = channel();
        let (to_borrow, borrowing) = channel();
        let (sending, placing) = (&Mutex::new(sending), &Mutex::new(placing));
        let ways = Ways { to_send, to_take };
        // Until everything has come: what a queue has not done yet ends with it.
        let mut sources = Sources::default();
        std::thread::scope(|scope| {
            for _ in 0..PLACING.min(blobs.len()) {
                let ways = ways.clone();
                scope.spawn(move || batch.stage(|| self.place_all(batch, placing, &ways)));
            }
            if !blobs.is_empty() && may_borrow {
                let ways = ways.clone();
                scope.spawn(move || batch.stage(|| lend::borrow_all(self, batch, &borrowing, &ways)));
            }
            if self.items.iter().any(|item| self.elsewhere(item).is_some()) {
                let sources = &mut sources;
                scope.spawn(move || batch.stage(|| self.take_all(batch, taking, sources)));
            }
            for sender in 1..senders {
                scope.spawn(move || batch.stage(|| self.send_all(batch, sender, sending)));
            }
            let stages = Stages { to_place, to_borrow, ways };
            scope.spawn(move || batch.stage(|| self.ask_all(batch, &blobs, &small, &stages)));
            batch.stage(|| self.send_all(batch, 0, sending));
        });
        if batch.has_failed() {
            return Ok(());
        }
        self.devices.iter().try_for_each(Target::finish)?;
        self.check_taken()
    }

    /// Asks about all blobs and hands them to the stage that they need. What is too `small` for that would be in the question's way,
    /// hundreds of messages of some bytes: it waits for the first answer, if there is one.
    fn ask_all<'i>(
        &self,
        batch: &Batch<'_>,
        mut blobs: &[&'i Item],
        small: &[&'i Item],
        stages: &Stages<'i>,
    ) -> Result<()> {
        let mut waiting = small.iter();
        while !blobs.is_empty() && !batch.has_failed() {
            let mut unknown = 0;
            let fits = |item: &&&Item| {
                // What is known costs nothing; of the rest there is at least one.
                let before = unknown;
                unknown += if item.digest.get().is_some() { 0 } else { item.len() };
                before < WINDOW
            };
            let n = blobs.iter().take(MAX_BLOBS).take_while(fits).count().max(1);
            let Some((window, rest)) = blobs.split_at_checked(n) else { break };
            blobs = rest;
            let asked: Vec<Blob> = window.iter().map(|item| item.blob()).collect();
            let have = if self.keeps_blobs() { self.ask(&asked)? } else { vec![false; asked.len()] };
            let (here, missing): (Vec<_>, Vec<_>) = window.iter().zip(have).partition(|(_, have)| *have);
            let mut going = here.into_iter().all(|(item, _)| stages.to_place.send(item).is_ok());
            going &= waiting.by_ref().all(|item| stages.ways.bring(self, item));
            // What comes from its origin need not be borrowed.
            let (common, missing): (Vec<&Item>, Vec<&Item>) =
                missing.into_iter().map(|(item, _)| *item).partition(|item| self.elsewhere(item).is_some());
            going &= common.into_iter().all(|item| stages.ways.bring(self, item));
            for (loan, item) in lend::find(self, batch, &missing).into_iter().zip(missing) {
                going &= match loan {
                    Some(loan) => stages.to_borrow.send(loan).is_ok(),
                    None => stages.ways.bring(self, item),
                };
            }
            // A stage that has ended has its own error.
            if !going {
                return Ok(());
            }
        }
        waiting.all(|item| stages.ways.bring(self, item));
        Ok(())
    }

    fn first(&self) -> Result<&RemoteDevice> {
        self.devices.first().map(|d| d.device).ok_or_else(|| Error::Misuse("an upload without devices".into()))
    }

    /// Which of these the server has.
    fn ask(&self, blobs: &[Blob]) -> Result<Vec<bool>> {
        let device = self.first()?;
        let shared = device.link().shared();
        let request = v1::HaveBlobsRequest { session: Some(shared.session.clone()), blobs: encode_question(blobs) };
        let answer = device.call("which weights it has", shared.options.call_timeout, |mut client| async move {
            client.have_blobs(request).await
        })?;
        let flags = bits_to_flags(&answer.have, blobs.len());
        flags.ok_or_else(|| shared.lost("answered about another number of weights than was asked"))
    }

    /// Lets the server place blobs until there are no more; those that it turns out not to have go another way.
    fn place_all<'i>(&self, batch: &Batch<'_>, placing: &Mutex<Receiver<&'i Item>>, ways: &Ways<'i>) -> Result<()> {
        loop {
            let items = gather(&lock(placing));
            if items.is_empty() || batch.has_failed() {
                return Ok(());
            }
            let placed = self.place(&items)?;
            for (item, placed) in items.into_iter().zip(placed) {
                if placed {
                    self.announce(item, None)?;
                    (self.progress)(item.len() * item.places.len() as u64);
                } else {
                    _ = ways.bring(self, item)
                }
            }
        }
    }

    /// Where an item goes, as the server knows it.
    fn places_of(&self, item: &Item) -> Result<Vec<Place>> {
        let blob = item.blob();
        let place = |(number, dst): &(usize, Slice)| {
            let buffer = self.target(*number)?.device.handle(dst)?;
            Ok(Place { blob, buffer, offset: dst.offset() })
        };
        item.places.iter().map(place).collect()
    }

    /// Which of these are now in all their places.
    fn place(&self, items: &[&Item]) -> Result<Vec<bool>> {
        let mut places = Vec::new();
        for item in items {
            places.extend(self.places_of(item)?);
        }
        let mut flags = self.place_at(&places)?.into_iter();
        // All places of an item count; `all` would stop at the first that is missing.
        let whole = |item: &&Item| flags.by_ref().take(item.places.len()).fold(true, |all, placed| all & placed);
        Ok(items.iter().map(whole).collect())
    }

    /// Which of these places the server has filled.
    fn place_at(&self, places: &[Place]) -> Result<Vec<bool>> {
        let device = self.first()?;
        let shared = device.link().shared();
        let mut flags = Vec::with_capacity(places.len());
        for places in places.chunks(MAX_BLOBS) {
            let bytes: u64 = places.iter().map(|p| p.blob.len).sum();
            let deadline = shared.options.call_timeout + Duration::from_secs(bytes / SLOWEST_DISK);
            let request = v1::PlaceBlobsRequest { session: Some(shared.session.clone()), blobs: encode_places(places) };
            let answer = device.call("placing weights that it has", deadline, |mut client| async move {
                client.place_blobs(request).await
            })?;
            let placed = bits_to_flags(&answer.placed, places.len());
            flags.extend(placed.ok_or_else(|| shared.lost("answered about another number of weights than was asked"))?);
        }
        Ok(flags)
    }

    fn target(&self, number: usize) -> Result<&Target<'d>> {
        self.devices.get(number).ok_or_else(|| Error::Misuse("a place on a device that is not in the batch".into()))
    }

    /// An item is in its first place, or on its way there on a queue.
    fn announce(&self, item: &Item, on: Option<&RemoteQueue>) -> Result<()> {
        if let Some(common) = item.common.as_ref().filter(|c| c.origin == self.number) {
            common.is_there(on.map(RemoteQueue::signal).transpose()?);
        }
        Ok(())
    }

    /// What an item has in common with another endpoint that sends it.
    fn elsewhere<'i>(&self, item: &'i Item) -> Option<&'i Common> {
        item.common.as_deref().filter(|c| c.origin != self.number)
    }

    /// Sends items as they come.
    fn send_all(&self, batch: &Batch<'_>, sender: usize, sending: &Mutex<Receiver<&Item>>) -> Result<()> {
        loop {
            let next = lock(sending).recv();
            match next {
                Ok(item) if !batch.has_failed() => self.send(sender, item)?,
                _ => return Ok(()),
            }
        }
    }

    /// Takes items from other servers when these have got them.
    fn take_all(&self, batch: &Batch<'_>, taking: Receiver<(&Item, &Common)>, sources: &mut Sources) -> Result<()> {
        for (item, common) in taking {
            let Some((first, dst)) = item.places.first() else { continue };
            let target = self.target(*first)?;
            if batch.has_failed() || !sources.take(batch, common, dst, target)? {
                return Ok(());
            }
            self.came(item)?;
        }
        Ok(())
    }

    /// An item has been lent by another server, and is there, or comes from its origin on the queue for that.
    fn came(&self, item: &Item) -> Result<()> {
        let Some((first, _)) = item.places.first() else { return Ok(()) };
        let queue = self.target(*first)?.taking()?;
        item.foreign.store(true, Ordering::Relaxed);
        // Without an event: one of this queue could be behind something that waits for what others are to take from here.
        self.announce(item, None)?;
        (self.progress)(item.len());
        self.hand_on(item, queue, Target::taking)
    }

    /// Lets the server check what it has taken from others, and keep it.
    fn check_taken(&self) -> Result<()> {
        if !self.keeps_blobs() {
            return Ok(());
        }
        let device = self.first()?;
        let shared = device.link().shared();
        let taken: Vec<&Item> = self.items.iter().filter(|item| item.foreign.load(Ordering::Relaxed)).collect();
        let mut places = Vec::new();
        for item in taken {
            places.extend(self.places_of(item)?.into_iter().take(1));
        }
        for places in places.chunks(CHECKED_TOGETHER) {
            let bytes: u64 = places.iter().map(|p| p.blob.len).sum();
            let deadline = shared.options.call_timeout + Duration::from_secs(bytes / SLOWEST_DISK);
            let request = v1::CheckBlobsRequest { session: Some(shared.session.clone()), blobs: encode_places(places) };
            let answer = device.call("checking weights of another server", deadline, |mut client| async move {
                client.check_blobs(request).await
            })?;
            let good = bits_to_flags(&answer.good, places.len());
            let good = good.ok_or_else(|| shared.lost("answered about another number of weights than was asked"))?;
            if good.contains(&false) {
                return Err(shared.lost("weights that it got from another server were damaged on the way; load again"));
            }
        }
        Ok(())
    }

    /// Sends one item to its first place, from where the other devices of the endpoint get it.
    fn send(&self, sender: usize, item: &Item) -> Result<()> {
        let Some((first, dst)) = item.places.first() else { return Ok(()) };
        let source = self.target(*first)?;
        let queue = source.sending(sender)?;
        let digest = item.digest.get().filter(|_| item.len() >= MIN_BLOB && source.device.keeps_blobs());
        queue.send(dst, item.data.clone(), digest.copied(), self.progress)?;
        self.announce(item, Some(queue))?;
        self.hand_on(item, queue, |target| target.sending(sender))
    }

    /// Gives an item that comes on `queue` to its further places, which take it on a queue `of` their devices.
    fn hand_on<'t>(
        &'t self,
        item: &Item,
        queue: &RemoteQueue,
        of: impl Fn(&'t Target<'d>) -> Result<&'t RemoteQueue>,
    ) -> Result<()> {
        let Some(((first, dst), others)) = item.places.split_first() else { return Ok(()) };
        let source = self.target(*first)?;
        for (number, other) in others {
            let target = self.target(*number)?;
            let peer = source.device.peer().zip(target.device.peer());
            match peer.filter(|(peer, _)| peer.reaches(target.device)) {
                _ if number == first => queue.copy(dst, other)?,
                Some((from, to)) => {
                    self.hands(item.len())?;
                    let ticket = random_ticket()?;
                    from.offer(queue, ticket, dst, target.device)?;
                    to.accept(of(target)?, ticket, other)?;
                }
                None => of(target)?.send(other, item.data.clone(), None, &|_| {})?,
            }
            (self.progress)(item.len());
        }
        Ok(())
    }

    /// Counts bytes that devices are about to hand one another, and waits for those before if they are many together.
    fn hands(&self, bytes: u64) -> Result<()> {
        let mut handed = lock(&self.handed);
        if *handed > 0 && *handed + bytes > HANDED_AHEAD {
            self.devices.iter().try_for_each(Target::finish)?;
            *handed = 0;
        }
        *handed += bytes;
        Ok(())
    }
}

/// Bytes of one transfer between servers: what waits on either side for the other is some of these.
const PART: u64 = 16 << 20;

/// A place on a device, and the queue that what comes from or goes to it is in order with.
type End<'e> = (&'e RemoteDevice, &'e RemoteQueue, &'e Slice);

/// Brings bytes from one server straight to another that it reaches.
fn carry((source, from, src): End<'_>, (target, to, dst): End<'_>) -> Result<()> {
    let mut at = 0;
    while at < src.len() {
        let len = PART.min(src.len() - at);
        let ticket = random_ticket()?;
        source.offer(from, ticket, &src.part(at, len)?, target)?;
        target.accept(to, ticket, &dst.part(at, len)?)?;
        at += len;
    }
    Ok(())
}

fn random_ticket() -> Result<Ticket> {
    let mut ticket = [0; 32];
    getrandom::fill(&mut ticket).map_err(|e| Error::Misuse(format!("no random numbers: {e}")))?;
    Ok(Ticket(ticket))
}

/// The next items to place: at least one, unless there will be no more, and what else is there up to a batch.
fn gather<'i>(placing: &Receiver<&'i Item>) -> Vec<&'i Item> {
    let mut batch: Vec<&Item> = placing.recv().into_iter().collect();
    let size = |batch: &[&Item]| batch.iter().map(|i| i.len() * i.places.len() as u64).sum::<u64>();
    while size(&batch) < PLACE_BATCH && batch.len() < MAX_BLOBS {
        match placing.try_recv() {
            Ok(item) => batch.push(item),
            Err(_) => break,
        }
    }
    batch
}
