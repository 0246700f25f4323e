//! `llama`: Llama, Mistral, SmolLM and others (Touvron et al., 2023), dense or with experts (Mixtral).

use super::*;
use outboard_core::op::RopeMode;

pub(super) struct Llama;

impl Architecture for Llama {
    fn name(&self) -> &'static str {
        "llama"
    }

    fn rope_mode(&self) -> RopeMode {
        RopeMode::Normal
    }

    /// Llama 3.1 and later.
    fn rope_factors(&self) -> bool {
        true
    }

    fn layer(&self, net: &mut Net<'_>, il: usize, x: TensorId) -> Result<TensorId> {
        pre_norm_layer(net, il, x)
    }
}
