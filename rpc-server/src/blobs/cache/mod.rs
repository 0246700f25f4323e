//! The cache of blobs on disk.
//!
//! A directory with a file per blob, named by its digest in hexadecimal. A blob is written under another name, flushed to the disk
//! and renamed, so that a file with a digest for its name is whole unless the disk damaged it; readers check the digest all the
//! same. Several servers may share the directory: each looks at what is really there before it removes anything, and files being
//! written are locked, so that one that a killed server left can be told from one that is under way.
//!
//! Room is made only for a blob that is whole and has its digest. The time of change of a file is when it was last used; the least
//! recently used ones go first. A client with more than half of the cache makes room among its own, and among what nobody has used
//! since the server was started. What is being written is counted apart from the limit, for each client and for all together.

mod files;
mod ledger;
mod writer;

use super::{Blob, Source};
use crate::accounts::Account;
use crate::limits::{BLOB_WRITING_PART, DISK_WAIT, DISTRUST};
use crate::lock;
use crate::logs::limited;
use files::Entry;
pub(crate) use files::{tighten, warn_if_open};
use ledger::{Admitted, ClientId, Ledger};
use outboard_core::error::Bytes as Size;
use outboard_core::{Digest, Error, Result};
use outboard_proto::limits::MIN_BLOB;
use outboard_system::disk_space;
use std::collections::{HashMap, HashSet};
use std::fs::{self, File};
use std::io;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, SyncSender, channel, sync_channel};
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::time::{Duration, Instant, SystemTime};
pub(crate) use writer::Writer;

/// Most blobs in a directory: a hundred large models; more would make looking at all of them slow.
const MAX_FILES: usize = 1 << 17;
/// The directory is looked at again after this long: other servers may have changed it.
const LOOK_AGAIN: Duration = Duration::from_secs(5);
/// Nothing is written for this long after the disk has failed to take something.
const AFTER_TROUBLE: Duration = Duration::from_secs(60);
/// How often one who waits for the disk looks whether it may go on, and its client is still there.
const LOOK_AGAIN_FOR_DISK: Duration = Duration::from_millis(20);
/// Longest wait for the disk to have all blobs when the server stops.
const STOP_WAIT: Duration = Duration::from_secs(5);
/// The default limit is this part of the disk,
const DISK_PART: u64 = 5;
/// or this part of what is free, if that is less.
const FREE_PART: u64 = 2;
/// The default limit where the size of the disk is not known, in bytes.
const UNKNOWN_DISK: u64 = 8 << 30;
/// Who makes room makes this part of the limit more, so that the directory need not be looked at for each small blob.
const SLACK_PART: u64 = 64;

/// A cache directory in use.
#[derive(Debug)]
pub(crate) struct Cache {
    inner: Arc<Inner>,
    commits: Option<Sender<Commit>>,
    /// Ends when the thread that commits does.
    committed: Mutex<Receiver<()>>,
}

#[derive(Debug)]
struct Inner {
    dir: PathBuf,
    limit: u64,
    state: Mutex<State>,
    /// Blobs that are whole but still have their temporary names.
    pending: Mutex<HashMap<Digest, PathBuf>>,
    /// Bytes of blobs that are not whole, of all clients.
    written: AtomicU64,
    /// The disk has taken, or refused, a blob.
    disk: Condvar,
    warned: AtomicBool,
}

#[derive(Debug)]
struct State {
    /// Bytes and files of whole blobs.
    used: u64,
    files: usize,
    looked: Option<Instant>,
    /// Nothing is written until then.
    suspended: Option<Instant>,
    ledger: Ledger,
}

/// What became of the wish to write a blob.
#[derive(Debug)]
pub(crate) enum Begun {
    /// It is written here.
    Now(Writer),
    /// The disk has to take more of what the client has sent first.
    Later,
    /// It is not kept.
    Never,
}

/// A blob that is whole, on its way to its name.
#[derive(Debug)]
struct Commit {
    blob: Blob,
    client: ClientId,
    file: File,
    temporary: PathBuf,
}

impl Cache {
    /// Uses a directory, which is made if need be, for this user alone; at most `limit` bytes of blobs, or a part of the disk.
    pub(crate) fn open(dir: &Path, limit: Option<u64>) -> Result<Cache> {
        let fail = |what: &str, e: io::Error| Error::Request(format!("cache {}: {what}: {e}", dir.display()));
        files::make_private_dir(dir).map_err(|e| fail("cannot be made", e))?;
        let dir = dir.canonicalize().map_err(|e| fail("cannot be used", e))?;
        files::remove_abandoned(&dir);
        let files = files::list(&dir).map_err(|e| fail("cannot be read", e))?;
        let used = files.iter().map(|f| f.len).sum::<u64>();
        let limit = limit.unwrap_or_else(|| match disk_space(&dir) {
            Ok(space) => (space.total / DISK_PART).min(space.free.saturating_add(used) / FREE_PART),
            Err(_) => UNKNOWN_DISK,
        });
        let ledger = Ledger::new(limit, MAX_FILES);
        let state = State { used, files: files.len(), looked: Some(Instant::now()), suspended: None, ledger };
        let inner = Arc::new(Inner {
            dir,
            limit,
            state: Mutex::new(state),
            pending: Mutex::default(),
            written: AtomicU64::new(0),
            disk: Condvar::new(),
            warned: AtomicBool::new(false),
        });
        inner.make_room(0, None, &mut lock(&inner.state));
        let (commits, todo) = channel::<Commit>();
        let (running, committed) = sync_channel(0);
        let worker = inner.clone();
        std::thread::Builder::new()
            .name("cache".into())
            .spawn(move || {
                let _running: SyncSender<()> = running;
                todo.into_iter().for_each(|commit| worker.commit(commit));
            })
            .map_err(|e| fail("no thread", e))?;
        Ok(Cache { inner, commits: Some(commits), committed: Mutex::new(committed) })
    }

    /// Its directory.
    pub(crate) fn dir(&self) -> &Path {
        &self.inner.dir
    }

    /// Most bytes of blobs in it.
    pub(crate) fn limit(&self) -> u64 {
        self.inner.limit
    }

    /// Whether there is a file for the blob, of its length.
    pub(crate) fn has(&self, blob: &Blob) -> bool {
        let pending = lock(&self.inner.pending).get(&blob.digest).cloned();
        let has = |path: &Path| fs::metadata(path).is_ok_and(|m| m.is_file() && m.len() == blob.len);
        pending.is_some_and(|path| has(&path)) || has(&self.inner.path(&blob.digest))
    }

    /// The blob's file for reading; from now on it is the most recently used one, and one that this client uses. A file of another
    /// length is none: it is cut and will be replaced, or it was asked for with a wrong length, which must not harm it.
    pub(crate) fn open_blob(&self, blob: &Blob, client: &Account) -> Option<Source> {
        let pending = lock(&self.inner.pending).get(&blob.digest).cloned();
        // It may get its name just now.
        let paths = pending.into_iter().chain([self.inner.path(&blob.digest)]);
        for path in paths {
            let Ok(file) = File::open(&path) else { continue };
            if file.metadata().is_ok_and(|m| m.is_file() && m.len() == blob.len) {
                // A directory that cannot be written to has no order of use.
                let _ = file.set_modified(SystemTime::now());
                lock(&self.inner.state).ledger.used(blob.digest, blob.len, client.id());
                return Some(Source { file, offset: 0 });
            }
        }
        None
    }

    /// A file turned out not to have what its name says.
    pub(crate) fn damaged(&self, blob: &Blob) {
        let path = self.inner.path(&blob.digest);
        limited!(warn, "cache: {} is damaged and removed", path.display());
        if fs::remove_file(&path).is_ok() {
            lock(&self.inner.state).looked = None;
        }
    }

    /// Begins to write a blob of a client, if it is not there already and is to be kept.
    pub(crate) fn begin(&self, blob: Blob, client: &Account) -> Begun {
        if blob.len < MIN_BLOB || self.has(&blob) {
            return Begun::Never;
        }
        let now = Instant::now();
        let admitted = {
            let mut state = lock(&self.inner.state);
            if state.suspended.is_some_and(|until| now < until) {
                return Begun::Never;
            }
            state.ledger.begin(client.id(), blob.len, now)
        };
        match (admitted, self.commits.clone()) {
            (Admitted::Now, Some(commits)) => Begun::Now(Writer::new(&self.inner, commits, blob, client.id())),
            (Admitted::Later, _) => Begun::Later,
            _ => Begun::Never,
        }
    }

    /// The same, when the disk has taken what it is behind with: some time later, or never if `gone` is set meanwhile.
    pub(crate) fn begin_in_time(&self, blob: Blob, client: &Account, gone: &AtomicBool) -> Option<Writer> {
        let end = Instant::now() + DISK_WAIT;
        loop {
            match self.begin(blob, client) {
                Begun::Now(writer) => return Some(writer),
                Begun::Later if !gone.load(Ordering::Relaxed) && Instant::now() < end => {}
                _ => return None,
            }
            // One that is missed is made up for soon.
            let waited = self.inner.disk.wait_timeout(lock(&self.inner.state), LOOK_AGAIN_FOR_DISK);
            drop(waited.unwrap_or_else(PoisonError::into_inner));
        }
    }

    /// A blob of a client did not have its digest. After some of these nothing of what it sends is kept, for a while.
    pub(crate) fn wrong(&self, client: &Account) {
        if lock(&self.inner.state).ledger.wrong(client.id(), Instant::now()) {
            let minutes = DISTRUST.as_secs() / 60;
            limited!(
                warn,
                "cache: several weights of {client} did not have their digests; for {minutes} minutes nothing that it sends is kept"
            );
        }
    }
}

impl Drop for Cache {
    fn drop(&mut self) {
        drop(self.commits.take());
        if let Err(RecvTimeoutError::Timeout) = lock(&self.committed).recv_timeout(STOP_WAIT) {
            limited!(warn, "cache: the disk is slow; what it has not taken yet is lost");
        }
    }
}

impl Inner {
    fn path(&self, digest: &Digest) -> PathBuf {
        self.dir.join(digest.to_string())
    }

    /// Whether so many bytes more of blobs that are not whole may be written; counts them.
    fn may_write(&self, bytes: u64) -> bool {
        let most = self.limit / BLOB_WRITING_PART;
        let fits = |written: u64| written.checked_add(bytes).filter(|&sum| sum <= most);
        self.written.fetch_update(Ordering::Relaxed, Ordering::Relaxed, fits).is_ok()
    }

    /// Takes in a blob that is whole and has its digest, if there can be room for it.
    fn admit(&self, blob: &Blob, client: ClientId) -> bool {
        let mut state = lock(&self.state);
        if !self.make_room(blob.len, Some(client), &mut state) {
            return false;
        }
        state.used += blob.len;
        state.files += 1;
        state.ledger.used(blob.digest, blob.len, client);
        state.ledger.commit(client);
        true
    }

    /// Gives a whole blob its name once the disk has its bytes.
    fn commit(&self, Commit { blob, client, file, temporary }: Commit) {
        let named = file.sync_all().and_then(|()| fs::rename(&temporary, self.path(&blob.digest)));
        let mut pending = lock(&self.pending);
        if pending.get(&blob.digest) == Some(&temporary) {
            pending.remove(&blob.digest);
        }
        drop((pending, file));
        let mut state = lock(&self.state);
        state.ledger.committed(client);
        if let Err(e) = named {
            state.used = state.used.saturating_sub(blob.len);
            state.files = state.files.saturating_sub(1);
            state.ledger.forget(&blob.digest);
            let _ = fs::remove_file(&temporary);
            // Somebody has cleared the directory; if it is gone as a whole, the next blob finds out.
            if e.kind() != io::ErrorKind::NotFound {
                self.trouble_in(&e, &mut state);
            }
        }
        drop(state);
        self.disk.notify_all();
    }

    /// Removes blobs until `needed` bytes and a file more have room, for a client or, at the start, for nobody. `false` if there is
    /// none that the client may take.
    fn make_room(&self, needed: u64, client: Option<ClientId>, state: &mut State) -> bool {
        let recent = state.looked.is_some_and(|at| at.elapsed() < LOOK_AGAIN);
        if recent && self.fits(needed, 0, state) {
            return true;
        }
        let Ok(mut files) = self.look(state) else { return false };
        if self.fits(needed, 0, state) {
            return true;
        }
        files.sort_by_key(|f| f.used);
        let greedy = |state: &State| client.filter(|&c| state.ledger.is_greedy(c, needed));
        // First what costs the others nothing.
        files.retain(|file| match greedy(state) {
            Some(client) if !self.fits(needed, 1, state) && !state.ledger.is_of_others(&file.digest, client) => {
                self.remove(file, state);
                false
            }
            _ => true,
        });
        if greedy(state).is_none() {
            for file in &files {
                if self.fits(needed, 1, state) {
                    break;
                }
                self.remove(file, state);
            }
        }
        self.fits(needed, 0, state)
    }

    /// Whether so many bytes and a file more have room, and so many times the slack.
    fn fits(&self, needed: u64, slack: u64, state: &State) -> bool {
        let bytes = state.used.saturating_add(needed).saturating_add(slack * (self.limit / SLACK_PART));
        let files = state.files as u64 + slack * (MAX_FILES as u64 / SLACK_PART);
        bytes <= self.limit && files < MAX_FILES as u64
    }

    /// Looks at what is really there.
    fn look(&self, state: &mut State) -> io::Result<Vec<Entry>> {
        let files = files::list(&self.dir)?;
        let there: HashSet<Digest> = files.iter().map(|f| f.digest).collect();
        let pending = lock(&self.pending);
        state.used = files.iter().map(|f| f.len).sum();
        state.files = files.len() + pending.len();
        state.looked = Some(Instant::now());
        for path in pending.values() {
            state.used += fs::metadata(path).map_or(0, |m| m.len());
        }
        state.ledger.retain(|digest| there.contains(digest) || pending.contains_key(digest));
        Ok(files)
    }

    fn remove(&self, file: &Entry, state: &mut State) {
        // Another server may have removed it; it is gone either way.
        match fs::remove_file(&file.path) {
            Err(e) if e.kind() != io::ErrorKind::NotFound => self.trouble_in(&e, state),
            _ => {
                state.used = state.used.saturating_sub(file.len);
                state.files = state.files.saturating_sub(1);
                state.ledger.forget(&file.digest);
            }
        }
    }

    /// The directory does not take anything: one line, and some time without it.
    fn trouble(&self, e: &io::Error) {
        self.trouble_in(e, &mut lock(&self.state));
    }

    fn trouble_in(&self, e: &io::Error, state: &mut State) {
        state.suspended = Some(Instant::now() + AFTER_TROUBLE);
        if !self.warned.swap(true, Ordering::Relaxed) {
            let (dir, used) = (self.dir.display(), Size(state.used));
            limited!(warn, "cache {dir} ({used} used): {e}; weights are loaded without being kept");
        }
    }
}
