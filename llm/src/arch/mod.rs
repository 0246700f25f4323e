//! Architectures: each a short file that says how a layer is put together from the blocks of [`net`].
//!
//! To add one: a file with a type that implements [`Architecture`], a line in [`ALL`].

mod gemma3;
mod llama;
pub mod net;
mod qwen2;
mod qwen3;

use crate::error::{Error, Result};
use crate::hparams::{Hparams, ModelFile};
use net::Net;
use outboard_core::TensorId;
use outboard_core::op::{GluKind, Rope};

/// How the layers of a family of models are built.
pub trait Architecture: Sync {
    /// The value of `general.architecture`.
    fn name(&self) -> &'static str;
    /// Reads what only this family has, and says what of a file it cannot do.
    fn read(&self, _file: &dyn ModelFile, _hparams: &mut Hparams) -> Result<()> {
        Ok(())
    }
    /// Whether the heads of queries and keys are normalized before they are rotated.
    fn head_norms(&self) -> bool {
        false
    }
    /// Whether the rotary embedding uses the factors that a file may have for its frequencies.
    fn rope_factors(&self) -> bool {
        false
    }
    /// Which elements of a head the rotary embedding pairs.
    fn rope_mode(&self) -> outboard_core::op::RopeMode;
    /// The attention of layer `il`. Without more to say, every token sees all before it.
    fn attention(&self, hparams: &Hparams, _il: usize) -> Attention {
        let scale = 1.0 / (hparams.head_dim_k as f32).sqrt();
        Attention { rope: hparams.rope(self.rope_mode()), window: 0, scale }
    }
    /// What embeddings are multiplied by, if they are.
    fn embedding_scale(&self, _hparams: &Hparams) -> Option<f32> {
        None
    }
    /// Whether the feed-forward blocks of dense layers use the `scale` tensors that a file may have beside their weights.
    fn ffn_scales(&self) -> bool {
        true
    }
    /// Layer `il` applied to the residual stream `x`, F32 `[n_embd, n_tokens]`; gives the same shape. Where it may be divided between
    /// devices, it says so with [`Net::section`].
    fn layer(&self, net: &mut Net<'_>, il: usize, x: TensorId) -> Result<TensorId>;
}

/// What the attention of a layer is like.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Attention {
    /// The rotary embedding.
    pub rope: Rope,
    /// Tokens that a token sees back, itself included; 0: all.
    pub window: usize,
    /// Factor of the products of queries and keys.
    pub scale: f32,
}

/// Every architecture.
pub const ALL: &[&dyn Architecture] = &[&llama::Llama, &qwen2::Qwen2, &qwen3::Qwen3, &qwen3::Qwen3Moe, &gemma3::Gemma3];

/// The architecture of that name, or an error that lists those there are.
pub fn by_name(name: &str) -> Result<&'static dyn Architecture> {
    ALL.iter().copied().find(|a| a.name() == name).ok_or_else(|| Error::UnknownArchitecture {
        name: name.chars().take(64).collect(),
        known: ALL.iter().map(|a| a.name()).collect::<Vec<_>>().join(", "),
    })
}

/// The pre-norm layer that most decoders share: attention and feed-forward, each added to the stream.
fn pre_norm_layer(net: &mut Net<'_>, il: usize, x: TensorId) -> Result<TensorId> {
    let normed = net.rms_norm(x, &format!("blk.{il}.attn_norm"))?;
    let attended = net.attention(il, normed)?;
    let x = net.add(x, attended)?;
    net.section(il);
    let normed = net.rms_norm(x, &format!("blk.{il}.ffn_norm"))?;
    let fed = match net.hparams().n_expert {
        0 => net.gated(&format!("blk.{il}"), normed, GluKind::Swiglu)?,
        _ => net.experts(il, normed)?,
    };
    net.add(x, fed)
}
