//! Weights as content: what this server has by its digest, in its cache and in model files of its own.

mod cache;
mod models;
mod place;
mod receive;

use outboard_core::{Digest, Result};
pub(crate) use outboard_proto::blobs::Blob;
use std::fs::File;
use std::io::{self, Read, Seek, SeekFrom};
use std::path::PathBuf;
use std::time::Duration;
use tokio::sync::Semaphore;

pub(crate) use place::{Placing, check, place};
pub(crate) use receive::Receiver;

/// Bytes that are read, hashed and given to a device at a time.
pub(crate) const PART: usize = 1 << 20;
/// Requests to place blobs that are worked on at a time, of all sessions: each is a thread that reads and hashes.
const PLACING: usize = 4;

/// Where a server has blobs.
#[derive(Clone, Debug, Default)]
pub struct BlobOptions {
    /// A directory to keep blobs in.
    pub cache: Option<PathBuf>,
    /// Most bytes in it; a part of the disk if nothing is said.
    pub cache_limit: Option<u64>,
    /// A directory with GGUF files, whose tensors are blobs, too.
    pub models: Option<PathBuf>,
    /// Where digests of those are remembered; nowhere if nothing is said.
    pub digests: Option<PathBuf>,
}

/// What a server has by its digest.
#[derive(Debug)]
pub struct Blobs {
    cache: Option<cache::Cache>,
    models: Option<models::Models>,
    pub(crate) placing: Semaphore,
}

/// A blob's bytes: part of a file.
#[derive(Debug)]
pub(crate) struct Source {
    file: File,
    offset: u64,
}

impl Source {
    /// A reader from its first byte.
    fn reader(mut self, len: u64) -> io::Result<io::Take<File>> {
        self.file.seek(SeekFrom::Start(self.offset))?;
        Ok(self.file.take(len))
    }
}

impl Blobs {
    /// Opens the cache and starts to look at the model files.
    pub fn open(options: &BlobOptions) -> Result<Blobs> {
        let cache = options.cache.as_deref().map(|dir| cache::Cache::open(dir, options.cache_limit)).transpose()?;
        let models =
            options.models.clone().map(|dir| models::Models::open(dir, options.digests.clone())).transpose()?;
        Ok(Blobs { cache, models, placing: Semaphore::new(PLACING) })
    }

    /// The cache's directory and limit in bytes.
    pub fn cache(&self) -> Option<(&std::path::Path, u64)> {
        self.cache.as_ref().map(|c| (c.dir(), c.limit()))
    }

    /// Waits until all model files have been looked at, at most `timeout`. `false` if they have not.
    pub fn wait_for_models(&self, timeout: Duration) -> bool {
        self.models.as_ref().is_none_or(|m| m.wait(timeout))
    }

    /// Whether a blob is here, as far as can be told without reading it. May block.
    pub(crate) fn has(&self, blob: &Blob) -> bool {
        self.cache.as_ref().is_some_and(|c| c.has(blob)) || self.models.as_ref().is_some_and(|m| m.has(blob))
    }

    /// Reads a blob part by part and says at its end whether they had its digest. A source that is damaged is forgotten, and
    /// the next one tried, so that `each` may see parts from the first one again: it is told where each part begins. `Err` is
    /// what `each` gave.
    pub(crate) fn read(&self, blob: &Blob, mut each: impl FnMut(u64, Vec<u8>) -> Result<()>) -> Result<bool> {
        if let Some(cache) = &self.cache
            && let Some(source) = cache.open_blob(blob)
        {
            match read(source, blob, &mut each)? {
                true => return Ok(true),
                false => cache.damaged(blob),
            }
        }
        if let Some(models) = &self.models
            && let Some(source) = models.open_blob(blob)
        {
            match read(source, blob, &mut each)? {
                true => return Ok(true),
                false => models.changed(blob),
            }
        }
        Ok(false)
    }

    /// Begins to keep a blob, if it can be kept.
    fn begin(&self, blob: Blob) -> Option<cache::Writer<'_>> {
        self.cache.as_ref()?.begin(blob)
    }
}

/// Reads a source to its end; `false` if it does not have the blob's bytes.
fn read(source: Source, blob: &Blob, each: &mut dyn FnMut(u64, Vec<u8>) -> Result<()>) -> Result<bool> {
    let Ok(mut reader) = source.reader(blob.len) else { return Ok(false) };
    let mut hasher = blake3::Hasher::new();
    let mut at = 0;
    while at < blob.len {
        let len = usize::try_from(blob.len - at).map_or(PART, |left| left.min(PART));
        let mut part = vec![0; len];
        // Cut, or the disk has failed.
        if reader.read_exact(&mut part).is_err() {
            return Ok(false);
        }
        hasher.update(&part);
        each(at, part)?;
        at += len as u64;
    }
    Ok(Digest(*hasher.finalize().as_bytes()) == blob.digest)
}
