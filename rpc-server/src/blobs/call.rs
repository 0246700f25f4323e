//! A call that places or checks blobs: from where this server has them to where a client wants them, and back, because what
//! another server has sent is checked and kept.
//!
//! A call is worked on in turns ([`super::workers`]). Between them it has no thread, no queue of a device and, but for a blob that is
//! being kept, no file. It ends at its next megabyte when its client has reset it, has taken its session up again, or has gone.
//!
//! Bytes go to their place as they are read, and their digest is known behind the last one. If it is wrong, or the call ends
//! before, the place is filled with zeros: nobody is to have bytes that it has not named, and nobody is to compute with them.

use super::{Begun, Blob, Blobs, Origin, PART, Source, Writer};
use crate::accounts::AccountShare;
use crate::limits::{BLOB_TURN_BLOBS, BLOB_TURN_BYTES};
use crate::session::Session;
use bytes::Bytes;
use outboard_core::{Device, Digest, Error, Pending, Queue, Result, Slice};
use std::collections::hash_map::Entry;
use std::collections::{HashMap, VecDeque};
use std::io::Read;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;
use tokio::sync::{OwnedSemaphorePermit, oneshot};

/// Bytes that a device's queue holds before it is waited for: twice this at most.
const AHEAD: u64 = 4 << 20;
/// Parts that are read from a device while one is hashed.
const READ_AHEAD: usize = 3;
/// Longest wait for a device to take that much. A device that takes longer is broken.
pub(crate) const DEVICE_WAIT: Duration = Duration::from_secs(300);

/// What is done with each blob of a call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Task {
    /// It is copied to its place.
    Place,
    /// It is read from its place and, if it has its digest, kept.
    Check,
}

/// A blob by its digest, and its place, which is as long.
#[derive(Clone)]
pub(crate) struct Placing {
    pub(crate) digest: Digest,
    pub(crate) dst: Slice,
}

impl Placing {
    fn blob(&self) -> Blob {
        Blob { digest: self.digest, len: self.dst.len() }
    }
}

/// The right to one more call, of a client and of a session.
pub(crate) struct Admission {
    pub(crate) _client: AccountShare,
    pub(crate) _session: OwnedSemaphorePermit,
}

/// What a call gives: for each blob, whether it was placed, or had its digest.
type Flags = Result<Vec<bool>>;

/// A call, and all that it takes: given back when it is dropped, in this order.
pub(crate) struct Call {
    task: Task,
    blobs: Arc<Blobs>,
    places: Vec<Placing>,
    /// Of the places so far.
    flags: Vec<bool>,
    placing: Option<Unplaced>,
    checking: Option<Unchecked>,
    cancelled: Arc<AtomicBool>,
    answer: Option<oneshot::Sender<Flags>>,
    pub(super) session: Arc<Session>,
    /// Of the session when the call was made.
    age: u64,
    /// From its first turn on.
    live: Option<Live>,
    _admission: Admission,
}

/// A blob that is not whole in its place yet.
struct Unplaced {
    origin: Origin,
    at: u64,
    hasher: blake3::Hasher,
    /// Bytes of the place that were written to, from this origin or one before.
    written: u64,
}

/// A blob that is not checked to its end.
struct Unchecked {
    at: u64,
    hasher: blake3::Hasher,
    writer: Option<Writer>,
}

/// What a turn has done with a blob.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Done {
    /// All of it: it was placed, or had its digest.
    Blob(bool),
    /// A part of it.
    Part,
    /// Nothing, because the disk is behind.
    Nothing,
}

/// How a turn has ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Ended {
    /// With the call.
    Call,
    /// There is more to do.
    Turn,
    /// There is, when the disk has taken more.
    Behind,
}

impl Call {
    /// A call of a session of this age, and where its answer comes.
    pub(crate) fn new(
        task: Task,
        (session, age): (Arc<Session>, u64),
        blobs: Arc<Blobs>,
        places: Vec<Placing>,
        admission: Admission,
    ) -> (Call, oneshot::Receiver<Flags>) {
        let (to, answer) = oneshot::channel();
        let flags = Vec::with_capacity(places.len());
        let call = Call {
            task,
            blobs,
            places,
            flags,
            placing: None,
            checking: None,
            cancelled: Arc::default(),
            answer: Some(to),
            session,
            age,
            live: None,
            _admission: admission,
        };
        (call, answer)
    }

    /// To be set when nobody waits for the answer any more.
    pub(super) fn cancelled(&self) -> Arc<AtomicBool> {
        self.cancelled.clone()
    }

    /// Whose turns it takes: a client's, and of these a session's.
    pub(super) fn who(&self) -> (u64, u64) {
        (self.session.account.id(), self.session.id)
    }

    /// Whether it can be dropped as it is: nobody waits for it, and no place has bytes that have to be cleared.
    pub(super) fn is_void(&self) -> bool {
        let clean = self.placing.as_ref().is_none_or(|blob| blob.written == 0) || self.session.is_closed();
        clean && self.go_on().is_err()
    }

    fn go_on(&self) -> Result<()> {
        let over = self.cancelled.load(Ordering::Relaxed) || self.session.is_closed();
        if over || self.session.keys.is_renewed(self.age) { Err(Error::Cancelled) } else { Ok(()) }
    }

    /// Works until the call has ended and is answered, or others wait and the turn is over.
    pub(super) fn turn(&mut self, others_wait: &dyn Fn() -> bool) -> Ended {
        let mut turn = Turn::new(&self.session, others_wait);
        let worked = self.work(&mut turn);
        // Also after an error: a place that is cleared then is to be clear before anybody is answered.
        let finished = turn.finish();
        let ended = worked.and_then(|ended| finished.map(|()| ended));
        let answer = match ended {
            Ok(Ended::Call) => Ok(std::mem::take(&mut self.flags)),
            Ok(ended) => return ended,
            Err(error) => Err(error),
        };
        if let Some(to) = self.answer.take() {
            // A client that has gone does not matter.
            let _ = to.send(answer);
        }
        Ended::Call
    }

    fn work(&mut self, turn: &mut Turn<'_>) -> Result<Ended> {
        if self.live.is_none() {
            self.live = Some(Live::new(&self.session));
        }
        while let Some(place) = self.places.get(self.flags.len()).cloned() {
            if turn.is_over() {
                return Ok(Ended::Turn);
            }
            let done = match self.task {
                Task::Place => self.place(&place, turn)?,
                Task::Check => self.check(&place, turn)?,
            };
            match done {
                Done::Blob(flag) => self.flags.push(flag),
                Done::Part => return Ok(Ended::Turn),
                Done::Nothing => return Ok(Ended::Behind),
            }
            turn.blobs = turn.blobs.saturating_sub(1);
        }
        Ok(Ended::Call)
    }

    /// Copies a blob to its place, from where the last turn has ended, and says whether it is there, whole.
    fn place(&mut self, place: &Placing, turn: &mut Turn<'_>) -> Result<Done> {
        let mut blob = self.placing.take().unwrap_or_else(|| Unplaced::new(Origin::Cache, 0));
        let done = self.bring(&mut blob, place, turn);
        match done {
            Ok(Done::Blob(true)) => {}
            Ok(Done::Part | Done::Nothing) => self.placing = Some(blob),
            Ok(Done::Blob(false)) | Err(_) if blob.written > 0 => {
                // Where that fails, so has the device, and nothing can be read any more.
                let _ = turn.fill(&place.dst, blob.written);
            }
            Ok(Done::Blob(false)) | Err(_) => {}
        }
        done
    }

    /// Copies a blob from the first origin that has it.
    fn bring(&self, blob: &mut Unplaced, place: &Placing, turn: &mut Turn<'_>) -> Result<Done> {
        loop {
            self.go_on()?;
            if let Some(source) = self.blobs.open_blob(blob.origin, &place.blob(), &self.session.account) {
                match self.copy(source, blob, place, turn)? {
                    Done::Blob(false) => self.blobs.disbelieve(blob.origin, &place.blob()),
                    done => return Ok(done),
                }
            }
            match blob.origin.next() {
                Some(origin) => *blob = Unplaced::new(origin, blob.written),
                None => return Ok(Done::Blob(false)),
            }
        }
    }

    /// Copies a blob from one origin, and says whether that has it, whole.
    fn copy(&self, source: Source, blob: &mut Unplaced, place: &Placing, turn: &mut Turn<'_>) -> Result<Done> {
        let Placing { digest, dst } = place;
        let Ok(mut file) = source.from(blob.at) else { return Ok(Done::Blob(false)) };
        while blob.at < dst.len() {
            self.go_on()?;
            if turn.is_over() {
                return Ok(Done::Part);
            }
            let mut part = vec![0; part_len(dst.len() - blob.at)];
            // Cut, or the disk has failed.
            if file.read_exact(&mut part).is_err() {
                return Ok(Done::Blob(false));
            }
            blob.hasher.update(&part);
            let (at, len) = (blob.at, part.len() as u64);
            blob.at += len;
            blob.written = blob.written.max(blob.at);
            turn.write(dst, at, part.into())?;
            turn.spend(len);
        }
        Ok(Done::Blob(blob.hasher.finalize() == digest.0))
    }

    /// Reads a blob from its place, from where the last turn has ended, and says whether it has its digest; then it is kept.
    fn check(&mut self, place: &Placing, turn: &mut Turn<'_>) -> Result<Done> {
        let Placing { digest, dst } = place;
        let account = &self.session.account;
        let mut blob = match self.checking.take() {
            Some(blob) => blob,
            None => match self.blobs.begin(place.blob(), account) {
                Begun::Now(writer) => Unchecked::new(Some(writer)),
                Begun::Never => Unchecked::new(None),
                Begun::Later => return self.go_on().map(|()| Done::Nothing),
            },
        };
        while blob.at < dst.len() {
            self.go_on()?;
            if turn.is_over() {
                self.checking = Some(blob);
                return Ok(Done::Part);
            }
            let end = dst.len().min(blob.at + AHEAD);
            turn.read(&dst.part(blob.at, end - blob.at)?, |part| {
                blob.hasher.update(part);
                blob.writer.iter_mut().for_each(|writer| writer.write(part));
                self.go_on()
            })?;
            turn.spend(end - blob.at);
            blob.at = end;
        }
        let good = blob.hasher.finalize() == digest.0;
        if good {
            blob.writer.into_iter().for_each(Writer::finish);
        } else {
            self.blobs.wrong(account);
            turn.fill(dst, dst.len())?;
        }
        Ok(Done::Blob(good))
    }
}

impl Unplaced {
    fn new(origin: Origin, written: u64) -> Unplaced {
        Unplaced { origin, at: 0, hasher: blake3::Hasher::new(), written }
    }
}

impl Unchecked {
    fn new(writer: Option<Writer>) -> Unchecked {
        Unchecked { at: 0, hasher: blake3::Hasher::new(), writer }
    }
}

fn part_len(left: u64) -> usize {
    usize::try_from(left).map_or(PART, |left| left.min(PART))
}

/// Counts a call among what has to come to rest before its session may be taken up again, or has ended.
struct Live(Arc<Session>);

impl Live {
    fn new(session: &Arc<Session>) -> Live {
        session.live_queues.fetch_add(1, Ordering::AcqRel);
        Live(session.clone())
    }
}

impl Drop for Live {
    fn drop(&mut self) {
        self.0.live_queues.fetch_sub(1, Ordering::AcqRel);
        self.0.progress.notify_waiters();
    }
}

/// One turn of a call: what it may do before others have theirs, and the devices' queues that it does it with.
struct Turn<'t> {
    session: Arc<Session>,
    others_wait: &'t dyn Fn() -> bool,
    bytes: u64,
    blobs: usize,
    queues: HashMap<u64, DeviceQueue>,
}

impl<'t> Turn<'t> {
    fn new(session: &Arc<Session>, others_wait: &'t dyn Fn() -> bool) -> Turn<'t> {
        let (bytes, blobs, queues) = (BLOB_TURN_BYTES, BLOB_TURN_BLOBS, HashMap::new());
        Turn { session: session.clone(), others_wait, bytes, blobs, queues }
    }

    fn spend(&mut self, bytes: u64) {
        self.bytes = self.bytes.saturating_sub(bytes);
    }

    /// Whether others have their turn now.
    fn is_over(&mut self) -> bool {
        if self.bytes > 0 && self.blobs > 0 {
            return false;
        }
        (self.bytes, self.blobs) = (BLOB_TURN_BYTES, BLOB_TURN_BLOBS);
        (self.others_wait)()
    }

    /// The queue for a place.
    fn queue(&mut self, place: &Slice) -> Result<&mut DeviceQueue> {
        let uid = place.buffer().device();
        match self.queues.entry(uid) {
            Entry::Occupied(known) => Ok(known.into_mut()),
            Entry::Vacant(new) => {
                let device = self.session.devices.by_uid(uid)?;
                Ok(new.insert(DeviceQueue::new(&self.session, device.as_ref())?))
            }
        }
    }

    fn write(&mut self, dst: &Slice, at: u64, part: Bytes) -> Result<()> {
        self.queue(dst)?.write(&dst.part(at, part.len() as u64)?, part)
    }

    /// Fills the first bytes of a place with zeros.
    fn fill(&mut self, dst: &Slice, len: u64) -> Result<()> {
        self.queue(dst)?.queue.fill(&dst.part(0, len)?, 0)
    }

    fn read(&mut self, src: &Slice, each: impl FnMut(&[u8]) -> Result<()>) -> Result<()> {
        self.queue(src)?.read(src, each)
    }

    /// Waits until the devices have done everything.
    fn finish(self) -> Result<()> {
        self.queues.into_values().try_for_each(|q| q.queue.finish(DEVICE_WAIT))
    }
}

/// A queue of a device that is not given too much ahead of it.
struct DeviceQueue {
    queue: Arc<dyn Queue>,
    anchor: Slice,
    /// Bytes since the last mark.
    unmarked: u64,
    mark: Option<Pending<Bytes>>,
}

impl DeviceQueue {
    fn new(session: &Session, device: &dyn Device) -> Result<DeviceQueue> {
        Ok(DeviceQueue { anchor: session.anchor(device)?, queue: device.queue()?, unmarked: 0, mark: None })
    }

    fn write(&mut self, dst: &Slice, part: Bytes) -> Result<()> {
        let len = part.len() as u64;
        self.queue.write(dst, part)?;
        self.unmarked += len;
        if self.unmarked >= AHEAD {
            self.unmarked = 0;
            let mark = self.queue.read(&self.anchor)?;
            if let Some(before) = self.mark.replace(mark) {
                before.wait(DEVICE_WAIT)?;
            }
        }
        Ok(())
    }

    /// Reads part by part, some ahead of `each`.
    fn read(&self, src: &Slice, mut each: impl FnMut(&[u8]) -> Result<()>) -> Result<()> {
        let (mut read, mut at) = (VecDeque::new(), 0);
        loop {
            while read.len() < READ_AHEAD && at < src.len() {
                let len = part_len(src.len() - at) as u64;
                read.push_back(self.queue.read(&src.part(at, len)?)?);
                at += len;
            }
            let Some(part) = read.pop_front() else { return Ok(()) };
            each(&part.wait(DEVICE_WAIT)?)?;
        }
    }
}
