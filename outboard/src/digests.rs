//! Digests of a model's tensors, remembered from one run to the next.

use outboard_llm::Model;
use outboard_llm::gguf::{Digests, FileKey};
use std::io;
use std::path::PathBuf;

/// Where digests are remembered: in a folder, in a side file for each of the model's files.
pub(crate) struct Remembered {
    dir: PathBuf,
    keys: Vec<FileKey>,
}

impl Remembered {
    /// Nothing is remembered of files that have no place in a file system.
    pub(crate) fn open(dir: PathBuf, paths: &[PathBuf]) -> Option<Remembered> {
        let keys = paths.iter().map(|path| FileKey::of(path)).collect::<io::Result<_>>().ok()?;
        Some(Remembered { dir, keys })
    }

    /// What is known of each file.
    pub(crate) fn load(&self) -> Vec<Digests> {
        self.keys.iter().map(|key| Digests::load(&self.dir, key)).collect()
    }

    /// How many are known of each of a model's files.
    pub(crate) fn known(model: &Model) -> Vec<usize> {
        model.digests().iter().map(|file| file.known().len()).collect()
    }

    /// Takes note of what was computed since so many were known.
    pub(crate) fn save(&self, model: &Model, known_before: &[usize]) {
        for ((key, digests), before) in self.keys.iter().zip(model.digests()).zip(known_before) {
            if digests.known().len() > *before {
                // Not remembered, they are computed again.
                let _ = digests.save(&self.dir, key);
            }
        }
    }

    /// After a load that has failed: perhaps a digest was wrong.
    pub(crate) fn forget(&self) {
        self.keys.iter().for_each(|key| Digests::forget(&self.dir, key));
    }
}
