//! `qwen3` and `qwen3moe` (Yang et al., "Qwen3 Technical Report", 2025): the heads of queries and keys are normalized before they
//! are rotated; no biases. With experts, all layers have them, and what the used ones count adds up to one.

use super::*;
use outboard_core::op::RopeMode;

pub(super) struct Qwen3;

impl Architecture for Qwen3 {
    fn name(&self) -> &'static str {
        "qwen3"
    }

    fn read(&self, _: &dyn ModelFile, h: &mut Hparams) -> Result<()> {
        match h.n_expert {
            0 => Ok(()),
            n => Err(Error::Model(format!("a dense architecture with {n} experts"))),
        }
    }

    fn head_norms(&self) -> bool {
        true
    }

    fn rope_mode(&self) -> RopeMode {
        RopeMode::Neox
    }

    fn layer(&self, net: &mut Net<'_>, il: usize, x: TensorId) -> Result<TensorId> {
        pre_norm_layer(net, il, x)
    }
}

pub(super) struct Qwen3Moe;

impl Architecture for Qwen3Moe {
    fn name(&self) -> &'static str {
        "qwen3moe"
    }

    fn read(&self, _: &dyn ModelFile, h: &mut Hparams) -> Result<()> {
        match h.n_expert {
            0 => Err(Error::Model("an architecture with experts without any (qwen3moe.expert_count)".into())),
            _ => Ok(()),
        }
    }

    fn head_norms(&self) -> bool {
        true
    }

    fn rope_mode(&self) -> RopeMode {
        RopeMode::Neox
    }

    fn layer(&self, net: &mut Net<'_>, il: usize, x: TensorId) -> Result<TensorId> {
        pre_norm_layer(net, il, x)
    }
}
