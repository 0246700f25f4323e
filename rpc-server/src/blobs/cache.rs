//! The cache of blobs on disk.
//!
//! A directory with a file per blob, named by its digest in hexadecimal. A blob is written under another name, flushed to the disk
//! and renamed, so that a file with a digest for its name is whole unless the disk damaged it; readers check the digest all the
//! same. The time of change of a file is when it was last used; the least recently used ones go first. Several servers may
//! share the directory: each looks at what is really there before it removes anything, and files being written are locked, so
//! that one that a killed server left can be told from one that is under way.

use super::{Blob, Source};
use crate::lock;
use outboard_core::error::Bytes as Size;
use outboard_core::{Digest, Error, Result};
use outboard_host::disk_space;
use std::collections::HashMap;
use std::fs::{self, File, TryLockError};
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant, SystemTime};

/// Names of files that are being written begin with this.
const TEMPORARY: &str = ".writing-";
/// Most blobs in a directory: a hundred large models; more would make looking at all of them slow.
const MAX_FILES: usize = 1 << 17;
/// The directory is looked at again after this long: other servers may have changed it.
const LOOK_AGAIN: Duration = Duration::from_secs(5);
/// Nothing is written for this long after the disk has failed to take something.
const AFTER_TROUBLE: Duration = Duration::from_secs(60);
/// Where a file system has no locks, a file being written that was not touched for this long was left by a killed server.
const ABANDONED: Duration = Duration::from_secs(3600);
/// Blobs that wait for the disk to have them for certain; then receiving waits, too. Each is an open file.
const COMMITS: usize = 64;
/// Longest wait for them when the server stops.
const STOP_WAIT: Duration = Duration::from_secs(5);
/// The default limit is this part of the disk,
const DISK_PART: u64 = 5;
/// or this part of what is free, if that is less.
const FREE_PART: u64 = 2;
/// The default limit where the size of the disk is not known, in bytes.
const UNKNOWN_DISK: u64 = 8 << 30;

/// A cache directory in use.
#[derive(Debug)]
pub(crate) struct Cache {
    inner: Arc<Inner>,
    commits: Option<SyncSender<Commit>>,
    /// Ends when the thread that commits does.
    committed: Mutex<Receiver<()>>,
}

#[derive(Debug)]
struct Inner {
    dir: PathBuf,
    limit: u64,
    state: Mutex<State>,
    warned: AtomicBool,
}

#[derive(Debug, Default)]
struct State {
    /// Bytes and files in the directory, those being written included.
    used: u64,
    files: usize,
    looked: Option<Instant>,
    /// Blobs that are whole but still have their temporary names.
    pending: HashMap<Digest, PathBuf>,
    /// Nothing is written until then.
    suspended: Option<Instant>,
}

/// A blob that is whole, on its way to its name.
#[derive(Debug)]
struct Commit {
    blob: Blob,
    file: File,
    temporary: PathBuf,
}

/// A blob that is being written. Dropped before its end, it leaves nothing.
#[derive(Debug)]
pub(crate) struct Writer<'c> {
    cache: &'c Cache,
    blob: Blob,
    temporary: PathBuf,
    file: Option<File>,
}

impl Cache {
    /// Uses a directory, which is made if need be; at most `limit` bytes, or a part of the disk.
    pub(crate) fn open(dir: &Path, limit: Option<u64>) -> Result<Cache> {
        let fail = |what: &str, e: io::Error| Error::Request(format!("cache {}: {what}: {e}", dir.display()));
        fs::create_dir_all(dir).map_err(|e| fail("cannot be made", e))?;
        let dir = dir.canonicalize().map_err(|e| fail("cannot be used", e))?;
        remove_abandoned(&dir);
        let files = list(&dir).map_err(|e| fail("cannot be read", e))?;
        let used = files.iter().map(|f| f.len).sum::<u64>();
        let limit = limit.unwrap_or_else(|| match disk_space(&dir) {
            Ok(space) => (space.total / DISK_PART).min(space.free.saturating_add(used) / FREE_PART),
            Err(_) => UNKNOWN_DISK,
        });
        let state = State { used, files: files.len(), looked: Some(Instant::now()), ..State::default() };
        let inner = Arc::new(Inner { dir, limit, state: Mutex::new(state), warned: AtomicBool::new(false) });
        inner.make_room(0, &mut lock(&inner.state));
        let (commits, todo) = sync_channel::<Commit>(COMMITS);
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

    /// Most bytes in it.
    pub(crate) fn limit(&self) -> u64 {
        self.inner.limit
    }

    /// Whether there is a file for the blob, of its length.
    pub(crate) fn has(&self, blob: &Blob) -> bool {
        let pending = lock(&self.inner.state).pending.get(&blob.digest).cloned();
        let has = |path: &Path| fs::metadata(path).is_ok_and(|m| m.is_file() && m.len() == blob.len);
        pending.is_some_and(|path| has(&path)) || has(&self.inner.path(&blob.digest))
    }

    /// The blob's file for reading; from now on it is the most recently used one. A file of another length is none: it is cut
    /// and will be replaced, or it was asked for with a wrong length, which must not harm it.
    pub(crate) fn open_blob(&self, blob: &Blob) -> Option<Source> {
        let pending = lock(&self.inner.state).pending.get(&blob.digest).cloned();
        // It may get its name just now.
        let paths = pending.into_iter().chain([self.inner.path(&blob.digest)]);
        for path in paths {
            let Ok(file) = File::open(&path) else { continue };
            if file.metadata().is_ok_and(|m| m.len() == blob.len) {
                // A directory that cannot be written to has no order of use.
                let _ = file.set_modified(SystemTime::now());
                return Some(Source { file, offset: 0 });
            }
        }
        None
    }

    /// A file turned out not to have what its name says.
    pub(crate) fn damaged(&self, blob: &Blob) {
        let path = self.inner.path(&blob.digest);
        tracing::warn!("cache: {} is damaged and removed", path.display());
        if fs::remove_file(&path).is_ok() {
            lock(&self.inner.state).looked = None;
        }
    }

    /// Begins to write a blob; `None` if it is there already or cannot be kept.
    pub(crate) fn begin(&self, blob: Blob) -> Option<Writer<'_>> {
        let inner = &self.inner;
        if blob.len > inner.limit || self.has(&blob) {
            return None;
        }
        {
            let mut state = lock(&inner.state);
            if state.suspended.is_some_and(|until| Instant::now() < until) {
                return None;
            }
            inner.make_room(blob.len, &mut state);
            state.used += blob.len;
            state.files += 1;
        }
        // Random, because servers in different containers have equal process numbers.
        let temporary = inner.dir.join(format!("{TEMPORARY}{:016x}", rand::random::<u64>()));
        let mut writer = Writer { cache: self, blob, temporary, file: None };
        // Locked for as long as it is written; where there are no locks, its age has to do.
        let created = File::create_new(&writer.temporary).inspect(|file| _ = file.try_lock());
        match created {
            Ok(file) => writer.file = Some(file),
            Err(e) => {
                inner.trouble(&e);
                return None;
            }
        }
        Some(writer)
    }
}

impl Drop for Cache {
    fn drop(&mut self) {
        drop(self.commits.take());
        if let Err(std::sync::mpsc::RecvTimeoutError::Timeout) = lock(&self.committed).recv_timeout(STOP_WAIT) {
            tracing::warn!("cache: the disk is slow; what it has not taken yet is lost");
        }
    }
}

impl Writer<'_> {
    /// The next bytes. If the disk does not take them, the blob is not kept, and nobody else is disturbed.
    pub(crate) fn write(&mut self, data: &[u8]) {
        if let Some(Err(e)) = self.file.as_mut().map(|file| file.write_all(data)) {
            self.cache.inner.trouble(&e);
            self.file = None;
        }
    }

    /// The blob is whole and has its digest: it can be used from now on.
    pub(crate) fn finish(mut self) {
        let (Some(file), Some(commits)) = (self.file.take(), &self.cache.commits) else { return };
        let temporary = std::mem::take(&mut self.temporary);
        lock(&self.cache.inner.state).pending.insert(self.blob.digest, temporary.clone());
        // Fails only if the thread has panicked; then the file is left for the next start.
        let _ = commits.send(Commit { blob: self.blob, file, temporary });
    }
}

impl Drop for Writer<'_> {
    fn drop(&mut self) {
        if self.temporary.as_os_str().is_empty() {
            return;
        }
        let _ = fs::remove_file(&self.temporary);
        let mut state = lock(&self.cache.inner.state);
        state.used = state.used.saturating_sub(self.blob.len);
        state.files = state.files.saturating_sub(1);
    }
}

impl Inner {
    fn path(&self, digest: &Digest) -> PathBuf {
        self.dir.join(digest.to_string())
    }

    /// Gives a whole blob its name once the disk has its bytes.
    fn commit(&self, Commit { blob, file, temporary }: Commit) {
        let named = file.sync_all().and_then(|()| fs::rename(&temporary, self.path(&blob.digest)));
        let mut state = lock(&self.state);
        if state.pending.get(&blob.digest) == Some(&temporary) {
            state.pending.remove(&blob.digest);
        }
        if let Err(e) = named {
            state.used = state.used.saturating_sub(blob.len);
            drop(state);
            let _ = fs::remove_file(&temporary);
            // Somebody has cleared the directory; if it is gone as a whole, the next blob finds out.
            if e.kind() != io::ErrorKind::NotFound {
                self.trouble(&e);
            }
        }
    }

    /// Removes the least recently used blobs until `needed` bytes and a file more have room.
    fn make_room(&self, needed: u64, state: &mut State) {
        let fits = |used: u64, files: usize| used.saturating_add(needed) <= self.limit && files < MAX_FILES;
        let recent = state.looked.is_some_and(|at| at.elapsed() < LOOK_AGAIN);
        if recent && fits(state.used, state.files) {
            return;
        }
        let Ok(mut files) = list(&self.dir) else { return };
        state.used = files.iter().map(|f| f.len).sum();
        state.files = files.len();
        state.looked = Some(Instant::now());
        files.retain(|f| f.blob);
        files.sort_by_key(|f| f.used);
        for file in files {
            if fits(state.used, state.files) {
                break;
            }
            // Another server may have removed it; it is gone either way.
            match fs::remove_file(&file.path) {
                Err(e) if e.kind() != io::ErrorKind::NotFound => self.trouble_in(&e, state),
                _ => {
                    state.used = state.used.saturating_sub(file.len);
                    state.files = state.files.saturating_sub(1);
                }
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
            tracing::warn!("cache {dir} ({used} used): {e}; weights are loaded without being kept");
        }
    }
}

/// A file of the directory.
struct Entry {
    path: PathBuf,
    len: u64,
    used: SystemTime,
    /// Its name is a digest.
    blob: bool,
}

/// The blobs of a directory, and what is being written there.
fn list(dir: &Path) -> io::Result<Vec<Entry>> {
    let mut out = Vec::new();
    for entry in fs::read_dir(dir)? {
        let entry = entry?;
        let name = entry.file_name();
        let Some(name) = name.to_str() else { continue };
        let blob = name.parse::<Digest>().is_ok();
        if !blob && !name.starts_with(TEMPORARY) {
            continue;
        }
        // One that has gone since does not count.
        let Ok(meta) = entry.metadata() else { continue };
        let used = meta.modified().unwrap_or(SystemTime::UNIX_EPOCH);
        out.push(Entry { path: entry.path(), len: meta.len(), used, blob });
    }
    Ok(out)
}

/// Removes what servers that were killed have left half written.
fn remove_abandoned(dir: &Path) {
    for entry in list(dir).unwrap_or_default().iter().filter(|e| !e.blob) {
        let Ok(file) = File::open(&entry.path) else { continue };
        let abandoned = match file.try_lock() {
            Ok(()) => true,
            Err(TryLockError::WouldBlock) => false,
            Err(TryLockError::Error(_)) => entry.used.elapsed().is_ok_and(|age| age > ABANDONED),
        };
        if abandoned {
            let _ = fs::remove_file(&entry.path);
        }
    }
}
