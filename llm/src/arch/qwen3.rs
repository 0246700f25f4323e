//! `qwen3` and `qwen3moe` (Yang et al., "Qwen3 Technical Report", 2025): the heads of queries and keys are normalized before they
//! are rotated, which the shared blocks do where a file has weights for it; no biases. With experts, all layers have them.

use super::*;
use outboard_core::op::RopeMode;

pub(super) struct Qwen3;

impl Architecture for Qwen3 {
    fn name(&self) -> &'static str {
        "qwen3"
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

    fn rope_mode(&self) -> RopeMode {
        RopeMode::Neox
    }

    fn layer(&self, net: &mut Net<'_>, il: usize, x: TensorId) -> Result<TensorId> {
        pre_norm_layer(net, il, x)
    }
}
