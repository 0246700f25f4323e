//! A model: its file, its numbers, how its layers are built.

use crate::arch::{self, Architecture, net};
use crate::error::{Error, Result};
use crate::gguf::{Digests, Gguf};
use crate::hparams::Hparams;
use net::{GraphShape, ModelGraph};
use std::fmt;

/// A model whose file has been checked.
pub struct Model {
    gguf: Gguf,
    hparams: Hparams,
    arch: &'static dyn Architecture,
    digests: Digests,
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
        let model = Model { hparams, arch, gguf, digests: Digests::default() };
        model.graph(GraphShape {
            n_tokens: 1,
            n_ctx: 1,
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

    /// Its file.
    pub fn gguf(&self) -> &Gguf {
        &self.gguf
    }

    /// The same model, with digests of its tensors that are known already. They must be of the file as it is.
    pub fn with_digests(self, digests: Digests) -> Model {
        Model { digests, ..self }
    }

    /// Digests of its tensors, as far as somebody needed them.
    pub fn digests(&self) -> &Digests {
        &self.digests
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
