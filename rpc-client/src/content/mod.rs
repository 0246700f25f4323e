//! Weights as content: what a server has already is not sent.
//!
//! For each endpoint there are three stages, on threads of their own. The first computes digests that are not known yet and asks
//! the server which of them it has; where it must compute, it asks in windows, so that the others need not wait for the whole
//! file. The second lets the server place what it has. The third sends the rest from the mapped file on the bulk connection, with
//! the digests, so that the server can check and keep it. Servers that keep nothing are not asked, and nothing is hashed for them.
//! What several devices of an endpoint need is sent to the first, which hands it on; what several endpoints need is sent to one
//! of them, from where the others get it ([`common`]); what one of them has already it lends to the others ([`lend`]).
//!
//! Bytes that wait are those of the queues' bulk lanes; nothing is copied in this process.

mod common;
mod lend;

use crate::device::RemoteDevice;
use crate::queue::RemoteQueue;
use bytes::Bytes;
use common::{Common, Sources};
use lend::Loan;
use outboard_core::{
    Content, ContentUpload, Device, DeviceContents, Digest, Error, PeerTransfer, Queue, Result, Slice, Ticket,
};
use outboard_proto::blobs::{Blob, Place, encode_places, encode_question};
use outboard_proto::graph::bits_to_flags;
use outboard_proto::limits::{MAX_BLOBS, MIN_BLOB};
use outboard_proto::v1;
use std::collections::{HashMap, VecDeque};
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
/// Longest wait for a server to have taken what was sent, when all of it has left this process but some ten megabytes.
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
            let target = Target { device: remote, queue: RemoteQueue::open(remote)?, taking: OnceLock::new() };
            let same = |u: &&mut Upload<'_>| u.devices.iter().any(|d| Arc::ptr_eq(d.device.link(), remote.link()));
            match endpoints.iter_mut().find(same) {
                Some(upload) => upload.add(target, contents),
                None => {
                    let number = endpoints.len();
                    let mut upload = Upload { number, devices: Vec::new(), items: Vec::new(), progress };
                    upload.add(target, contents);
                    endpoints.push(upload);
                }
            }
        }
        common::find(&mut endpoints);
        let all = &endpoints[..];
        std::thread::scope(|scope| {
            let threads: Vec<_> = all.iter().map(|u| scope.spawn(|| u.run(all))).collect();
            threads.into_iter().map(|t| t.join().unwrap_or_else(|_| Err(panicked()))).fold(Ok(()), Result::and)
        })
    }
}

fn panicked() -> Error {
    Error::Misuse("a thread of an upload panicked; this is a bug of Outboard".into())
}

/// A device with a queue for its contents.
struct Target<'d> {
    device: &'d RemoteDevice,
    queue: RemoteQueue,
    /// For what comes from other servers, once there is any.
    taking: OnceLock<RemoteQueue>,
}

impl Target<'_> {
    /// The queue for what comes from other servers.
    fn taking(&self) -> Result<&RemoteQueue> {
        if let Some(queue) = self.taking.get() {
            return Ok(queue);
        }
        // Only one thread of an upload gets here.
        let queue = RemoteQueue::open(self.device)?;
        Ok(self.taking.get_or_init(|| queue))
    }

    /// Waits until its device has done everything.
    fn finish(&self) -> Result<()> {
        self.queue.finish(FINISH_WAIT)?;
        self.taking.get().map_or(Ok(()), |queue| queue.finish(FINISH_WAIT))
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

/// Where blobs go on, once the server was asked about them.
struct Stages<'i> {
    to_place: Sender<&'i Item>,
    to_borrow: Sender<Loan<'i>>,
    to_send: Sender<&'i Item>,
}

/// All that goes to one endpoint.
struct Upload<'a> {
    /// Its place among the uploads of the batch.
    number: usize,
    devices: Vec<Target<'a>>,
    items: Vec<Item>,
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

    fn run(&self, all: &[Upload<'_>]) -> Result<()> {
        let _origin = common::Origin(self);
        let may_borrow = lend::possible(self, all);
        let ask = self.keeps_blobs() || may_borrow;
        let (blobs, small): (Vec<&Item>, Vec<&Item>) =
            self.items.iter().partition(|item| ask && item.len() >= MIN_BLOB);
        let (to_send, sending) = channel();
        let (to_place, placing) = channel();
        let (to_borrow, borrowing) = channel();
        let placing = Mutex::new(placing);
        // Until everything has come: what a queue has not done yet ends with it.
        let mut sources = Sources::default();
        std::thread::scope(|scope| {
            let mut threads = Vec::new();
            for _ in 0..PLACING.min(blobs.len()) {
                let (to_send, placing) = (to_send.clone(), &placing);
                threads.push(scope.spawn(move || self.place_all(placing, &to_send)));
            }
            // What is no blob would be in the question's way, hundreds of messages of some bytes: it waits for the first answer, all but
            // one, for which the bulk connection is opened meanwhile. Sending to a thread fails only if it has ended with an error,
            // which is found below.
            let now = if blobs.is_empty() { small.len() } else { small.len().min(1) };
            let (now, small) = small.split_at(now);
            now.iter().for_each(|item| _ = to_send.send(item));
            if !blobs.is_empty() && may_borrow {
                let to_send = to_send.clone();
                threads.push(scope.spawn(move || lend::borrow_all(self, all, &borrowing, &to_send)));
            }
            let stages = Stages { to_place, to_borrow, to_send };
            threads.push(scope.spawn(move || self.ask_all(all, &blobs, small, &stages)));
            let sent = self.send_all(sending, all, &mut sources);
            threads.into_iter().fold(sent, |result, t| result.and(t.join().unwrap_or_else(|_| Err(panicked()))))
        })?;
        self.devices.iter().try_for_each(Target::finish)?;
        self.check_taken()
    }

    /// Asks about all blobs and hands them to the stage that they need; what is `small` is sent when there is an answer.
    fn ask_all<'i>(
        &self,
        all: &[Upload<'_>],
        mut blobs: &[&'i Item],
        mut small: &[&'i Item],
        stages: &Stages<'i>,
    ) -> Result<()> {
        while !blobs.is_empty() {
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
            going &= std::mem::take(&mut small).iter().all(|item| stages.to_send.send(item).is_ok());
            // What comes from its origin need not be borrowed.
            let (common, missing): (Vec<&Item>, Vec<&Item>) =
                missing.into_iter().map(|(item, _)| *item).partition(|item| self.elsewhere(item).is_some());
            going &= common.into_iter().all(|item| stages.to_send.send(item).is_ok());
            for (loan, item) in lend::find(self, all, &missing).into_iter().zip(missing) {
                going &= match loan {
                    Some(loan) => stages.to_borrow.send(loan).is_ok(),
                    None => stages.to_send.send(item).is_ok(),
                };
            }
            // A stage that has ended has its own error.
            if !going {
                return Ok(());
            }
        }
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

    /// Lets the server place blobs until there are no more; those that it turns out not to have are sent.
    fn place_all<'i>(&self, placing: &Mutex<Receiver<&'i Item>>, to_send: &Sender<&'i Item>) -> Result<()> {
        loop {
            let batch = gather(&crate::lock(placing));
            if batch.is_empty() {
                return Ok(());
            }
            let placed = self.place(&batch)?;
            for (item, placed) in batch.into_iter().zip(placed) {
                match placed {
                    true => {
                        self.announce(item, None)?;
                        (self.progress)(item.len() * item.places.len() as u64);
                    }
                    false => _ = to_send.send(item),
                }
            }
        }
    }

    /// Where an item goes, as the server knows it.
    fn places_of(&self, item: &Item) -> Result<Vec<Place>> {
        let blob = item.blob();
        let place = |(number, dst): &(usize, Slice)| {
            let buffer = self.target(*number)?.queue.handle(dst)?;
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

    fn target(&self, number: usize) -> Result<&Target<'_>> {
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

    /// Sends items as they come, and takes from other servers what these have got.
    fn send_all(&self, sending: Receiver<&Item>, all: &[Upload<'_>], sources: &mut Sources) -> Result<()> {
        let mut handed = 0;
        let mut coming: VecDeque<(&Item, &Common)> = VecDeque::new();
        let mut take = |item: &Item, common: &Common, handed: &mut u64| -> Result<bool> {
            let Some((first, dst)) = item.places.first() else { return Ok(true) };
            let target = self.target(*first)?;
            let taken = sources.take(all, common, dst, target)?;
            if taken {
                self.came(item, target.taking()?, handed)?;
            }
            Ok(taken)
        };
        for item in sending {
            match self.elsewhere(item) {
                Some(common) => coming.push_back((item, common)),
                None => self.send(item, &mut handed)?,
            }
            while let Some(&(item, common)) = coming.front()
                && common.is_known()
            {
                coming.pop_front();
                if !take(item, common, &mut handed)? {
                    return Ok(());
                }
            }
        }
        for (item, common) in coming {
            // Where its origin has failed, the whole batch fails with what that says.
            if !take(item, common, &mut handed)? {
                return Ok(());
            }
        }
        Ok(())
    }

    /// An item has come from another server, or comes on `queue`.
    fn came(&self, item: &Item, queue: &RemoteQueue, handed: &mut u64) -> Result<()> {
        item.foreign.store(true, Ordering::Relaxed);
        self.announce(item, Some(queue))?;
        (self.progress)(item.len());
        self.hand_on(item, queue, handed)
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
    fn send(&self, item: &Item, handed: &mut u64) -> Result<()> {
        let Some((first, dst)) = item.places.first() else { return Ok(()) };
        let source = self.target(*first)?;
        let digest = item.digest.get().filter(|_| item.len() >= MIN_BLOB && source.device.keeps_blobs());
        source.queue.send(dst, item.data.clone(), digest.copied(), self.progress)?;
        self.announce(item, Some(&source.queue))?;
        self.hand_on(item, &source.queue, handed)
    }

    /// Gives an item that comes on `queue` to its further places; `handed` counts the bytes that these may not have taken yet.
    fn hand_on(&self, item: &Item, queue: &RemoteQueue, handed: &mut u64) -> Result<()> {
        let Some(((first, dst), others)) = item.places.split_first() else { return Ok(()) };
        let source = self.target(*first)?;
        for (number, other) in others {
            let target = self.target(*number)?;
            let peer = source.device.peer().zip(target.device.peer());
            match peer.filter(|(peer, _)| peer.reaches(target.device)) {
                _ if number == first => queue.copy(dst, other)?,
                Some((from, to)) => {
                    let ticket = random_ticket()?;
                    from.offer(queue, ticket, dst, target.device)?;
                    to.accept(&target.queue, ticket, other)?;
                    *handed += item.len();
                    if *handed >= HANDED_AHEAD {
                        self.devices.iter().try_for_each(Target::finish)?;
                        *handed = 0;
                    }
                }
                None => target.queue.send(other, item.data.clone(), None, &|_| {})?,
            }
            (self.progress)(item.len());
        }
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
