//! A model: its files, its numbers, how its layers are built.

use crate::arch::{self, Architecture, net};
use crate::error::{Error, Result};
use crate::gguf::{Digests, FileRange, Gguf, WeightRef};
use crate::hparams::Hparams;
use bytes::Bytes;
use net::{GraphShape, ModelGraph};
use outboard_core::Digest;
use std::fmt;
use std::sync::{Arc, OnceLock};

/// A model whose files have been checked.
pub struct Model {
    gguf: Gguf,
    hparams: Hparams,
    arch: &'static dyn Architecture,
    /// One for each file.
    digests: Vec<Digests>,
}

impl fmt::Debug for Model {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Model").field("hparams", &self.hparams).finish_non_exhaustive()
    }
}

impl Model {
    /// Finds the architecture and reads the hyperparameters. Building a small graph here shows that every tensor is there and of
    /// the right shape, before a device is touched.
    pub fn new(gguf: Gguf) -> Result<Model> {
        let name = gguf.str("general.architecture");
        let name = name.ok_or_else(|| Error::Model("general.architecture is missing".into()))?;
        let arch = arch::by_name(name)?;
        let mut hparams = Hparams::read(&gguf, name)?;
        arch.read(&gguf, &mut hparams)?;
        let model = Model { hparams, arch, gguf, digests: Vec::new() }.with_digests(Vec::new());
        model.graph(GraphShape {
            n_tokens: 1,
            cache: net::Cache::of_one(1),
            feed: net::Feed::Input,
            history: false,
            outputs: net::Outputs::Logits(1),
        })?;
        Ok(model)
    }

    /// The graph of one shape.
    pub fn graph(&self, shape: GraphShape) -> Result<ModelGraph> {
        net::build(self.arch, &self.hparams, &self.gguf, shape)
    }

    /// Its file, or its files as one.
    pub fn gguf(&self) -> &Gguf {
        &self.gguf
    }

    /// The same model, with digests that are known already, for each of its files in order. They must be of the files as they are. Files
    /// for which none are given have none that are known.
    pub fn with_digests(self, mut digests: Vec<Digests>) -> Model {
        digests.resize_with(self.gguf.files().len(), Digests::default);
        Model { digests, ..self }
    }

    /// Digests of its tensors, as far as somebody needed them, for each of its files.
    pub fn digests(&self) -> &[Digests] {
        &self.digests
    }

    /// The bytes of weights, without a copy.
    pub fn bytes(&self, weight: WeightRef) -> Result<Bytes> {
        Ok(self.gguf.bytes(self.range(weight)?))
    }

    /// The digest of the bytes of weights; whoever computes it sets it.
    pub fn digest(&self, weight: WeightRef) -> Result<Arc<OnceLock<Digest>>> {
        let range = self.range(weight)?;
        Ok(self.digests.get(range.file).map(|file| file.of(range.offset, range.len)).unwrap_or_default())
    }

    /// Which bytes of its files weights are.
    pub fn range(&self, weight: WeightRef) -> Result<FileRange> {
        self.gguf.range(weight).ok_or_else(|| Error::Model(format!("{weight:?} is of another model")))
    }

    /// Its numbers.
    pub fn hparams(&self) -> &Hparams {
        &self.hparams
    }

    /// Name for people.
    pub fn name(&self) -> &str {
        self.gguf.str("general.name").unwrap_or("unnamed model")
    }
}
