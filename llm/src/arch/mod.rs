//! Architectures: each a short file that says how a layer is put together from the blocks of [`net`].
//!
//! To add one: a file with a type that implements [`Architecture`], a line in [`ALL`].

mod llama;
pub mod net;
mod qwen2;

use crate::error::{Error, Result};
use net::Net;
use outboard_core::TensorId;

/// How the layers of a family of models are built.
pub trait Architecture: Sync {
    /// The value of `general.architecture`.
    fn name(&self) -> &'static str;
    /// Which elements of a head the rotary embedding pairs.
    fn rope_mode(&self) -> outboard_core::op::RopeMode;
    /// Whether the feed-forward blocks of dense layers use the `scale` tensors that a file may have beside their weights.
    fn ffn_scales(&self) -> bool {
        true
    }
    /// Layer `il` applied to the residual stream `x`, F32 `[n_embd, n_tokens]`; gives the same shape. Where it may be divided between
    /// devices, it says so with [`Net::section`].
    fn layer(&self, net: &mut Net<'_>, il: usize, x: TensorId) -> Result<TensorId>;
}

/// Every architecture.
pub const ALL: &[&dyn Architecture] = &[&llama::Llama, &qwen2::Qwen2];

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
        0 => net.swiglu(&format!("blk.{il}"), normed)?,
        _ => net.experts(il, normed)?,
    };
    net.add(x, fed)
}
