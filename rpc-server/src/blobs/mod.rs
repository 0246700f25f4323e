//! Weights as content: what this server has by its digest, in its cache and in model files of its own.

mod cache;
mod call;
mod line;
mod models;
mod receive;
mod workers;

use crate::accounts::Account;
use outboard_core::Result;
pub(crate) use outboard_proto::blobs::Blob;
use std::fs::File;
use std::io::{self, Seek, SeekFrom};
use std::path::PathBuf;
use std::sync::atomic::AtomicBool;
use std::time::Duration;

use cache::{Begun, Writer};
pub(crate) use cache::{tighten, warn_if_open};
pub(crate) use call::{Admission, Call, DEVICE_WAIT, Placing, Task};
pub(crate) use receive::{Receiver, Wrong};
pub(crate) use workers::Underway;

/// Bytes that are read, hashed and given to a device at a time.
pub(crate) const PART: usize = 1 << 20;

/// Where a server has blobs.
#[derive(Clone, Debug, Default)]
pub struct BlobOptions {
    /// A directory to keep blobs in.
    pub cache: Option<PathBuf>,
    /// Most bytes in it; a part of the disk if nothing is said. Blobs that are being written have up to half as much beside it.
    pub cache_limit: Option<u64>,
    /// A directory with GGUF files, whose tensors are blobs, too.
    pub models: Option<PathBuf>,
    /// Where digests of those are remembered; nowhere if nothing is said.
    pub digests: Option<PathBuf>,
}

/// What a server has by its digest, and the threads that bring it to where clients want it.
#[derive(Debug)]
pub struct Blobs {
    cache: Option<cache::Cache>,
    models: Option<models::Models>,
    workers: workers::Workers,
}

/// Places where a blob may be.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Origin {
    Cache,
    Models,
}

impl Origin {
    /// Where to look when a blob was not there, or not whole.
    fn next(self) -> Option<Origin> {
        match self {
            Origin::Cache => Some(Origin::Models),
            Origin::Models => None,
        }
    }
}

/// A blob's bytes: part of a file.
#[derive(Debug)]
struct Source {
    file: File,
    offset: u64,
}

impl Source {
    /// The file, to be read from the blob's byte `at` on.
    fn from(mut self, at: u64) -> io::Result<File> {
        self.file.seek(SeekFrom::Start(self.offset.saturating_add(at)))?;
        Ok(self.file)
    }
}

impl Blobs {
    /// Opens the cache and starts to look at the model files.
    pub fn open(options: &BlobOptions) -> Result<Blobs> {
        let cache = options.cache.as_deref().map(|dir| cache::Cache::open(dir, options.cache_limit)).transpose()?;
        let models =
            options.models.clone().map(|dir| models::Models::open(dir, options.digests.clone())).transpose()?;
        Ok(Blobs { cache, models, workers: workers::Workers::start()? })
    }

    /// The cache's directory and limit in bytes.
    pub fn cache(&self) -> Option<(&std::path::Path, u64)> {
        self.cache.as_ref().map(|c| (c.dir(), c.limit()))
    }

    /// Waits until all model files have been looked at, at most `timeout`. `false` if they have not.
    pub fn wait_for_models(&self, timeout: Duration) -> bool {
        self.models.as_ref().is_none_or(|m| m.wait(timeout))
    }

    /// Completes when all model files have been looked at.
    pub(crate) async fn models_looked_at(&self) {
        if let Some(models) = &self.models {
            models.looked_at().await;
        }
    }

    /// Whether a blob is here, as far as can be told without reading it. May block.
    pub(crate) fn has(&self, blob: &Blob) -> bool {
        self.cache.as_ref().is_some_and(|c| c.has(blob)) || self.models.as_ref().is_some_and(|m| m.has(blob))
    }

    /// Does the work of a call when it is its turn.
    pub(crate) fn start(&self, call: Call) -> Underway {
        self.workers.start_call(call)
    }

    /// A blob for a client, if it is there.
    fn open_blob(&self, origin: Origin, blob: &Blob, client: &Account) -> Option<Source> {
        match origin {
            Origin::Cache => self.cache.as_ref()?.open_blob(blob, client),
            Origin::Models => self.models.as_ref()?.open_blob(blob),
        }
    }

    /// A blob turned out to be something else.
    fn disbelieve(&self, origin: Origin, blob: &Blob) {
        match origin {
            Origin::Cache => self.cache.iter().for_each(|cache| cache.damaged(blob)),
            Origin::Models => self.models.iter().for_each(|models| models.changed(blob)),
        }
    }

    /// Begins to keep a blob of a client, if it is to be kept.
    fn begin(&self, blob: Blob, client: &Account) -> Begun {
        self.cache.as_ref().map_or(Begun::Never, |cache| cache.begin(blob, client))
    }

    /// The same; waits for the disk for some time, or until `gone` is set.
    fn begin_in_time(&self, blob: Blob, client: &Account, gone: &AtomicBool) -> Option<Writer> {
        self.cache.as_ref()?.begin_in_time(blob, client, gone)
    }

    /// A blob of a client did not have its digest.
    fn wrong(&self, client: &Account) {
        self.cache.iter().for_each(|cache| cache.wrong(client));
    }
}
