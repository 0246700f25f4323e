//! Weights as content: what a server has already is not sent.
//!
//! For each endpoint there are stages, on threads of their own. The first ([`ask`]) computes digests that are not known yet and asks
//! the server which of them it has; where it must compute, it asks in windows, so that the others need not wait for the whole
//! file. The second ([`place`]) lets the server place what it has. The last ([`send`]) sends the rest from the mapped file on the bulk
//! connections, with the digests, so that the server can check and keep it. Servers that keep nothing are not asked, and nothing is
//! hashed for them. What several devices of an endpoint need is sent to the first, which hands it on; what several endpoints need is
//! sent to one of them, from where the others take it ([`common`]); what one of them has already it lends to the others ([`lend`]).
//!
//! When a stage fails, so does the whole batch, and all that wait for one another are let go.
//!
//! Bytes that wait are those of the queues' bulk lanes; nothing is copied in this process.

mod ask;
mod common;
mod lend;
mod place;
mod requests;
mod send;
mod target;

use crate::device::RemoteDevice;
use ask::Stages;
use bytes::Bytes;
use common::{Common, Sources};
use outboard_core::{Content, ContentUpload, Device, DeviceContents, Digest, Error, Result, Slice};
use outboard_proto::blobs::{Blob, Place};
use outboard_proto::limits::{MAX_INLINE, MIN_BLOB};
use std::cmp::Reverse;
use std::collections::HashMap;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Sender, channel};
use std::sync::{Arc, Mutex, OnceLock};
use target::Target;

/// Requests to place that are under way at a time: one is read while the other is copied.
const PLACING: usize = 2;

impl ContentUpload for RemoteDevice {
    fn together(&self, other: &dyn Device) -> bool {
        RemoteDevice::of(other).is_some()
    }

    fn upload(&self, batch: &[DeviceContents], progress: &(dyn Fn(u64) + Sync)) -> Result<()> {
        let mut uploads: Vec<Upload<'_>> = Vec::new();
        for DeviceContents { device, contents } in batch {
            let remote = RemoteDevice::of(device.as_ref());
            let remote = remote.ok_or_else(|| Error::Misuse(format!("{} is not remote", device.info().id)))?;
            let at = uploads.iter().position(|upload| upload.is_for(remote)).unwrap_or(uploads.len());
            if at == uploads.len() {
                uploads.push(Upload::new(at, progress));
            }
            if let Some(upload) = uploads.get_mut(at) {
                upload.add(remote, contents);
            }
        }
        common::find(&mut uploads);
        let batch = &Batch { uploads, failed: OnceLock::new() };
        std::thread::scope(|scope| {
            for upload in &batch.uploads {
                scope.spawn(move || batch.stage(|| upload.run(batch)));
            }
        });
        batch.failed.get().cloned().map_or(Ok(()), Err)
    }
}

/// Where a content goes: the number of a device of the upload, and the place in its memory.
struct Destination {
    device: usize,
    slice: Slice,
}

/// One content and where it goes.
struct Item {
    data: Bytes,
    digest: Arc<OnceLock<Digest>>,
    /// Where it is sent to.
    first: Destination,
    /// Where it goes on from there.
    others: Vec<Destination>,
    /// Other endpoints need it, too.
    common: Option<Arc<Common>>,
    /// It has come from another server.
    from_peer: AtomicBool,
}

impl Item {
    fn len(&self) -> u64 {
        self.data.len() as u64
    }

    fn destinations(&self) -> impl Iterator<Item = &Destination> {
        std::iter::once(&self.first).chain(&self.others)
    }

    /// Bytes in all destinations together.
    fn bytes_in_all(&self) -> u64 {
        self.len() * self.destinations().count() as u64
    }

    /// The digest, computed if need be; another endpoint's thread that needs it waits for this one.
    fn blob(&self) -> Blob {
        let digest = *self.digest.get_or_init(|| Digest(*blake3::hash(&self.data).as_bytes()));
        Blob { digest, len: self.len() }
    }
}

/// The two ways in which an endpoint gets what it does not have.
#[derive(Clone)]
struct Routes<'i> {
    /// This process sends it.
    to_send: Sender<&'i Item>,
    /// The server that this process sends it to hands it on.
    to_take: Sender<(&'i Item, &'i Common)>,
}

/// A stage has ended before its time. Its own error says why.
struct StageEnded;

impl<'i> Routes<'i> {
    /// Lets an item go the way by which its endpoint gets it.
    fn dispatch(&self, upload: &Upload<'_>, item: &'i Item) -> std::result::Result<(), StageEnded> {
        let sent = match upload.elsewhere(item) {
            Some(common) => self.to_take.send((item, common)).is_ok(),
            None => self.to_send.send(item).is_ok(),
        };
        if sent { Ok(()) } else { Err(StageEnded) }
    }
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

fn panicked() -> Error {
    Error::Misuse("a thread of an upload panicked; this is a bug of Outboard".into())
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
    fn new(number: usize, progress: &'d (dyn Fn(u64) + Sync)) -> Upload<'d> {
        Upload { number, devices: Vec::new(), items: Vec::new(), handed: Mutex::default(), progress }
    }

    /// Whether a device is one of its endpoint.
    fn is_for(&self, device: &RemoteDevice) -> bool {
        self.devices.iter().any(|target| Arc::ptr_eq(target.device.session(), device.session()))
    }

    /// Adds a device with its contents. The same bytes for several are one item.
    fn add(&mut self, device: &'d RemoteDevice, contents: &[Content]) {
        let number = self.devices.len();
        self.devices.push(Target::new(device));
        let mut known: HashMap<(*const u8, usize), usize> =
            self.items.iter().enumerate().map(|(i, item)| ((item.data.as_ptr(), item.data.len()), i)).collect();
        for content in contents.iter().filter(|c| !c.data.is_empty()) {
            let destination = Destination { device: number, slice: content.dst.clone() };
            let key = (content.data.as_ptr(), content.data.len());
            match known.get(&key).and_then(|&i| self.items.get_mut(i)) {
                Some(item) => item.others.push(destination),
                None => {
                    known.insert(key, self.items.len());
                    self.items.push(Item {
                        data: content.data.clone(),
                        digest: content.digest.clone(),
                        first: destination,
                        others: Vec::new(),
                        common: None,
                        from_peer: AtomicBool::new(false),
                    });
                }
            }
        }
    }

    /// Brings everything where it goes, and waits until it is there.
    fn run(&self, batch: &Batch<'_>) -> Result<()> {
        if self.items.iter().any(|item| item.len() > MAX_INLINE as u64) {
            // The first bulk connection is opened while the server is asked.
            self.target(0)?.sending(0)?.prepare_bulk()?;
        }
        // Until everything has come: what a queue has not done yet ends with it.
        let mut sources = Sources::default();
        self.run_stages(batch, &mut sources)?;
        if batch.has_failed() {
            return Ok(());
        }
        self.devices.iter().try_for_each(Target::finish)?;
        self.check_received()
    }

    /// Runs all stages side by side until each has done its work.
    fn run_stages(&self, batch: &Batch<'_>, sources: &mut Sources) -> Result<()> {
        let may_borrow = lend::possible(self, batch);
        let ask = self.keeps_blobs() || may_borrow;
        // The largest first: what is left in the end is small, and no connection has much to send while the others have nothing.
        let mut items: Vec<&Item> = self.items.iter().collect();
        items.sort_by_key(|item| Reverse(item.len()));
        let (blobs, small): (Vec<&Item>, Vec<&Item>) =
            items.into_iter().partition(|item| ask && item.len() >= MIN_BLOB);
        let senders = self.first()?.session().connection().bulk_connections().min(self.items.len());
        let (to_send, sending) = channel();
        let (to_take, taking) = channel();
        let (to_place, placing) = channel();
        let (to_borrow, borrowing) = channel();
        let (sending, placing) = (&Mutex::new(sending), &Mutex::new(placing));
        let routes = Routes { to_send, to_take };
        std::thread::scope(|scope| {
            for _ in 0..PLACING.min(blobs.len()) {
                let routes = routes.clone();
                scope.spawn(move || batch.stage(|| self.place_all(batch, placing, &routes)));
            }
            if !blobs.is_empty() && may_borrow {
                let routes = routes.clone();
                scope.spawn(move || batch.stage(|| lend::borrow_all(self, batch, &borrowing, &routes)));
            }
            if self.items.iter().any(|item| self.elsewhere(item).is_some()) {
                scope.spawn(move || batch.stage(|| common::take_all(self, batch, taking, sources)));
            }
            for sender in 1..senders {
                scope.spawn(move || batch.stage(|| self.send_all(batch, sender, sending)));
            }
            let stages = Stages { to_place, to_borrow, routes };
            scope.spawn(move || batch.stage(|| self.ask_all(batch, &blobs, &small, &stages)));
            batch.stage(|| self.send_all(batch, 0, sending));
        });
        Ok(())
    }

    fn keeps_blobs(&self) -> bool {
        self.devices.first().is_some_and(|d| d.device.keeps_blobs())
    }

    fn first(&self) -> Result<&RemoteDevice> {
        self.devices.first().map(|d| d.device).ok_or_else(|| Error::Misuse("an upload without devices".into()))
    }

    fn target(&self, number: usize) -> Result<&Target<'d>> {
        self.devices.get(number).ok_or_else(|| Error::Misuse("a place on a device that is not in the batch".into()))
    }

    /// A destination of an item, as the server knows it.
    fn place_of(&self, item: &Item, to: &Destination) -> Result<Place> {
        let buffer = self.target(to.device)?.device.handle(&to.slice)?;
        Ok(Place { blob: item.blob(), buffer, offset: to.slice.offset() })
    }

    /// What an item has in common with another endpoint that sends it.
    fn elsewhere<'i>(&self, item: &'i Item) -> Option<&'i Common> {
        item.common.as_deref().filter(|c| c.origin != self.number)
    }

    /// Lets the server check what it has got from others, and keep it.
    fn check_received(&self) -> Result<()> {
        if !self.keeps_blobs() {
            return Ok(());
        }
        let received = self.items.iter().filter(|item| item.from_peer.load(Ordering::Relaxed));
        let places: Vec<Place> = received.map(|item| self.place_of(item, &item.first)).collect::<Result<_>>()?;
        requests::check(self.first()?, &places)
    }
}
