//! `smollm3` (Hugging Face, 2025): every fourth layer does not rotate (Yang et al., "Rope to Nope and Back Again", 2025).

use super::*;

pub(super) struct SmolLm3;

/// One layer of so many does not rotate.
const NO_ROPE_EVERY: usize = 4;

impl Architecture for SmolLm3 {
    fn name(&self) -> &'static str {
        "smollm3"
    }

    fn read(&self, _: &dyn ModelFile, h: &mut Hparams) -> Result<()> {
        only_dense(h)
    }

    fn layer(&self, h: &Hparams, il: usize) -> Layer {
        let layer = Layer::pre_norm(h, RopeMode::Normal).without_scales();
        let rope = layer.attention.rope.filter(|_| (il + 1) % NO_ROPE_EVERY != 0);
        Layer { attention: Attention { rope, ..layer.attention }, ..layer }
    }
}
