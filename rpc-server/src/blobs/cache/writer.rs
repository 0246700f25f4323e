//! A blob that is being written.

use super::ledger::ClientId;
use super::{Commit, Inner, files};
use crate::blobs::Blob;
use crate::lock;
use std::fs::{self, File};
use std::io::Write;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::sync::mpsc::Sender;

/// A blob that is being written. Dropped before its end, it leaves nothing.
#[derive(Debug)]
pub(crate) struct Writer {
    inner: Arc<Inner>,
    commits: Sender<Commit>,
    blob: Blob,
    client: ClientId,
    /// Bytes so far.
    written: u64,
    /// `None` once it is given up.
    file: Option<(File, PathBuf)>,
}

impl Writer {
    /// The ledger has it already.
    pub(super) fn new(inner: &Arc<Inner>, commits: Sender<Commit>, blob: Blob, client: ClientId) -> Writer {
        let file = files::create_temporary(&inner.dir).inspect_err(|e| inner.trouble(e)).ok();
        Writer { inner: inner.clone(), commits, blob, client, written: 0, file }
    }

    /// The next bytes. If they are too many, or the disk does not take them, the blob is not kept, and nobody else is disturbed.
    pub(crate) fn write(&mut self, data: &[u8]) {
        let Some((file, _)) = &mut self.file else { return };
        let bytes = data.len() as u64;
        if bytes > self.blob.len - self.written || !self.inner.may_write(bytes) {
            return self.give_up();
        }
        self.written += bytes;
        if let Err(e) = file.write_all(data) {
            self.inner.trouble(&e);
            self.give_up();
        }
    }

    /// The blob is whole and has its digest: it can be used from now on, if there is room for it.
    pub(crate) fn finish(mut self) {
        if self.written != self.blob.len || self.file.is_none() || !self.inner.admit(&self.blob, self.client) {
            return;
        }
        let Some((file, temporary)) = self.file.take() else { return };
        lock(&self.inner.pending).insert(self.blob.digest, temporary.clone());
        // Fails only if the thread has panicked; then the file is left for the next start.
        let _ = self.commits.send(Commit { blob: self.blob, client: self.client, file, temporary });
    }

    fn give_up(&mut self) {
        if let Some((file, temporary)) = self.file.take() {
            drop(file);
            let _ = fs::remove_file(&temporary);
        }
        self.inner.written.fetch_sub(std::mem::take(&mut self.written), Ordering::Relaxed);
    }
}

impl Drop for Writer {
    fn drop(&mut self) {
        self.give_up();
        lock(&self.inner.state).ledger.end(self.client, self.blob.len);
    }
}
