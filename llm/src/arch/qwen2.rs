//! `qwen2`: Qwen2 and Qwen2.5 (Yang et al., 2024): biases on q, k and v, which the shared blocks find by themselves.

use super::*;
use outboard_core::op::RopeMode;

pub(super) struct Qwen2;

impl Architecture for Qwen2 {
    fn name(&self) -> &'static str {
        "qwen2"
    }

    fn rope_mode(&self) -> RopeMode {
        RopeMode::Neox
    }

    /// Files that llama.cpp writes have them, its model does not use them.
    fn ffn_scales(&self) -> bool {
        false
    }

    fn layer(&self, net: &mut Net<'_>, il: usize, x: TensorId) -> Result<TensorId> {
        pre_norm_layer(net, il, x)
    }
}
