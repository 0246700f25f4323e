//! Architectures: each a short file that says what its layers are made of, as data ([`layer`]). What they have in common is built of it in
//! [`net`].
//!
//! To add one: a file with a type that implements [`Architecture`], a line in [`ALL`].

mod gemma2;
mod gemma3;
mod gpt_oss;
mod granite;
pub mod layer;
mod llama;
mod mistral3;
pub mod net;
mod olmo2;
mod phi3;
mod qwen2;
mod qwen3;
mod smollm3;
#[cfg(test)]
mod tests;
mod window;

use crate::error::{Error, Result};
use crate::hparams::{Hparams, ModelFile};
use layer::*;
use outboard_core::op::{GluKind, RopeMode};
use window::Pattern;

/// A family of models.
pub trait Architecture: Sync {
    /// The value of `general.architecture`.
    fn name(&self) -> &'static str;
    /// Reads what only this family has, and says what of a file it cannot do.
    fn read(&self, _file: &dyn ModelFile, _hparams: &mut Hparams) -> Result<()> {
        Ok(())
    }
    /// What is around the layers. Without more to say, embeddings and logits stay as they are.
    fn frame(&self, _hparams: &Hparams) -> Frame {
        Frame::PLAIN
    }
    /// Layer `il`.
    fn layer(&self, hparams: &Hparams, il: usize) -> Layer;
}

/// Every architecture.
pub const ALL: &[&dyn Architecture] = &[
    &llama::Llama,
    &mistral3::Mistral3,
    &granite::Granite,
    &smollm3::SmolLm3,
    &qwen2::Qwen2,
    &qwen2::Qwen2Moe,
    &qwen3::Qwen3,
    &qwen3::Qwen3Moe,
    &gemma2::Gemma2,
    &gemma3::Gemma3,
    &phi3::Phi3,
    &olmo2::Olmo2,
    &gpt_oss::GptOss,
];

/// The architecture of that name, or an error that lists those there are.
pub fn by_name(name: &str) -> Result<&'static dyn Architecture> {
    ALL.iter().copied().find(|a| a.name() == name).ok_or_else(|| Error::UnknownArchitecture {
        name: name.chars().take(64).collect(),
        known: ALL.iter().map(|a| a.name()).collect::<Vec<_>>().join(", "),
    })
}

fn refuse<T>(why: String) -> Result<T> {
    Err(Error::Model(why))
}

/// Refuses a file with experts.
fn only_dense(h: &Hparams) -> Result<()> {
    match h.n_expert {
        0 => Ok(()),
        n => refuse(format!("a dense architecture ({}) with {n} experts", h.arch)),
    }
}

/// Refuses a file without experts.
fn only_experts(h: &Hparams) -> Result<()> {
    match h.n_expert {
        0 => refuse(format!("an architecture with experts without any ({}.expert_count)", h.arch)),
        _ => Ok(()),
    }
}

/// Refuses a file that lacks one of these numbers, whose usual values are not this family's.
fn need_floats(file: &dyn ModelFile, h: &Hparams, keys: &[&str]) -> Result<()> {
    match keys.iter().map(|key| format!("{}.{key}", h.arch)).find(|key| file.float(key).is_none()) {
        Some(key) => refuse(format!("{key} is missing")),
        None => Ok(()),
    }
}
