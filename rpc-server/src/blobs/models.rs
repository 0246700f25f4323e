//! Model files of this host as a source of blobs.
//!
//! A thread looks at the GGUF files of a directory once, when the server starts: their tensors are hashed, or their digests
//! remembered from the last time. What a file had is checked again whenever it is used. Nothing is mapped: a file may be cut at any
//! time, which is an error for who reads it, and the end (SIGBUS) of who has mapped it.

use super::{Blob, PART, Source};
use crate::lock;
use crate::logs::limited;
use outboard_core::{Digest, Error, Result};
use outboard_gguf::{Digests, FileKey, read_tensors};
use outboard_proto::limits::MIN_BLOB;
use std::collections::HashMap;
use std::fs::{self, File};
use std::io::{Read, Seek, SeekFrom};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::time::Duration;
use tokio::sync::Notify;

/// Most model files that are looked at.
const MAX_FILES: usize = 1024;
/// Most tensors that are known: a hundred large models.
const MAX_KNOWN: usize = 1 << 17;
/// Folders inside the directory are looked into this deep.
const MAX_DEPTH: usize = 3;

/// Tensors of model files by their digests.
#[derive(Debug)]
pub(crate) struct Models(Arc<Inner>);

#[derive(Debug, Default)]
struct Inner {
    known: Mutex<HashMap<Digest, Located>>,
    done: Mutex<bool>,
    finished: Condvar,
    /// The same for those who do not block.
    looked: Notify,
    stop: AtomicBool,
}

/// Where a tensor is, and what state its file was in.
#[derive(Clone, Debug)]
struct Located {
    file: Arc<(PathBuf, FileKey)>,
    offset: u64,
    len: u64,
}

impl Models {
    /// Starts to look at the files of `dir`; digests are remembered in `side`.
    pub(crate) fn open(dir: PathBuf, side: Option<PathBuf>) -> Result<Models> {
        let fail = |e: std::io::Error| Error::Request(format!("models {}: {e}", dir.display()));
        fs::read_dir(&dir).map_err(fail)?;
        let inner = Arc::new(Inner::default());
        let worker = inner.clone();
        let look = move || {
            let mut files = Vec::new();
            find(&dir, 0, &mut files);
            for path in &files {
                if let Err(why) = worker.index(path, side.as_deref()) {
                    tracing::warn!("models: {} is left out: {why}", path.display());
                }
            }
            tracing::info!("models: {} tensors in {} files", lock(&worker.known).len(), files.len());
            *lock(&worker.done) = true;
            worker.finished.notify_all();
            worker.looked.notify_waiters();
        };
        let spawned = std::thread::Builder::new().name("models".into()).spawn(look);
        spawned.map_err(|e| Error::Request(format!("no thread to look at models: {e}")))?;
        Ok(Models(inner))
    }

    /// Waits until all files have been looked at; `false` if that takes longer.
    pub(crate) fn wait(&self, timeout: Duration) -> bool {
        let done = lock(&self.0.done);
        let waited = self.0.finished.wait_timeout_while(done, timeout, |done| !*done);
        *waited.unwrap_or_else(PoisonError::into_inner).0
    }

    /// Completes when all files have been looked at.
    pub(crate) async fn looked_at(&self) {
        let mut looked = std::pin::pin!(self.0.looked.notified());
        // From here on no notification is missed.
        looked.as_mut().enable();
        if !*lock(&self.0.done) {
            looked.await;
        }
    }

    /// Whether a file has a tensor of this content.
    pub(crate) fn has(&self, blob: &Blob) -> bool {
        lock(&self.0.known).get(&blob.digest).is_some_and(|l| l.len == blob.len)
    }

    /// The tensor's place in its file, if that has not changed.
    pub(crate) fn open_blob(&self, blob: &Blob) -> Option<Source> {
        let located = lock(&self.0.known).get(&blob.digest).filter(|l| l.len == blob.len).cloned()?;
        let (path, key) = &*located.file;
        if FileKey::of(path).is_ok_and(|now| now == *key)
            && let Ok(file) = File::open(path)
        {
            return Some(Source { file, offset: located.offset });
        }
        self.changed(blob);
        None
    }

    /// The file does not have the tensor any more.
    pub(crate) fn changed(&self, blob: &Blob) {
        if let Some(located) = lock(&self.0.known).remove(&blob.digest) {
            limited!(warn, "models: {} has changed; restart the server to use it again", located.file.0.display());
        }
    }
}

impl Drop for Models {
    fn drop(&mut self) {
        self.0.stop.store(true, Ordering::Relaxed);
    }
}

impl Inner {
    /// Takes the tensors of a file into the index.
    fn index(&self, path: &Path, side: Option<&Path>) -> std::result::Result<(), String> {
        let text = |e: std::io::Error| e.to_string();
        let key = FileKey::of(path).map_err(text)?;
        let mut file = File::open(path).map_err(text)?;
        let mut tensors = read_tensors(&file, key.len()).map_err(|e| e.to_string())?;
        tensors.sort_by_key(|t| t.offset);
        let digests = side.map_or_else(Digests::default, |dir| Digests::load(dir, &key));
        let mut hashed = 0;
        let place = Arc::new((path.to_owned(), key));
        for tensor in tensors {
            let (offset, len) = (tensor.offset as u64, tensor.layout.span() as u64);
            if len < MIN_BLOB {
                continue;
            }
            let cell = digests.of(offset, len);
            let digest = match cell.get() {
                Some(digest) => *digest,
                None => {
                    hashed += 1;
                    let digest = self.hash(&mut file, offset, len).map_err(text)?;
                    *cell.get_or_init(|| digest)
                }
            };
            let mut known = lock(&self.known);
            if known.len() >= MAX_KNOWN {
                return Err(format!("{MAX_KNOWN} tensors are known already"));
            }
            known.insert(digest, Located { file: place.clone(), offset, len });
        }
        // Not remembered, they are computed again at the next start.
        if hashed > 0
            && let Some(dir) = side
            && let Err(e) = digests.save(dir, &place.1)
        {
            tracing::warn!("models: digests cannot be remembered in {}: {e}", dir.display());
        }
        Ok(())
    }

    fn hash(&self, file: &mut File, offset: u64, len: u64) -> std::io::Result<Digest> {
        file.seek(SeekFrom::Start(offset))?;
        let mut hasher = blake3::Hasher::new();
        let mut part = vec![0; PART];
        let mut left = len;
        while left > 0 {
            if self.stop.load(Ordering::Relaxed) {
                return Err(std::io::Error::other("the server stops"));
            }
            let n = usize::try_from(left).map_or(PART, |left| left.min(PART));
            let Some(part) = part.get_mut(..n) else { break };
            file.read_exact(part)?;
            hasher.update(part);
            left -= n as u64;
        }
        Ok(Digest(*hasher.finalize().as_bytes()))
    }
}

/// GGUF files in a directory and the folders in it.
fn find(dir: &Path, depth: usize, out: &mut Vec<PathBuf>) {
    let mut entries: Vec<PathBuf> = fs::read_dir(dir).into_iter().flatten().flatten().map(|e| e.path()).collect();
    entries.sort();
    for path in entries {
        if out.len() >= MAX_FILES {
            tracing::warn!("models: only the first {MAX_FILES} files are used");
            return;
        }
        match fs::metadata(&path) {
            Ok(meta) if meta.is_dir() && depth < MAX_DEPTH => find(&path, depth + 1, out),
            Ok(meta) if meta.is_file() && path.extension().is_some_and(|e| e.eq_ignore_ascii_case("gguf")) => {
                out.push(path);
            }
            _ => {}
        }
    }
}
