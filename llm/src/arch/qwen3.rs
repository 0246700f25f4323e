//! `qwen3` and `qwen3moe` (Yang et al., "Qwen3 Technical Report", 2025): the heads of queries and keys are normalized before they
//! are rotated; no biases. With experts, all layers have them, and what the used ones count adds up to one.

use super::*;

pub(super) struct Qwen3;

impl Architecture for Qwen3 {
    fn name(&self) -> &'static str {
        "qwen3"
    }

    fn read(&self, _: &dyn ModelFile, h: &mut Hparams) -> Result<()> {
        only_dense(h)
    }

    fn layer(&self, h: &Hparams, _: usize) -> Layer {
        layer(h)
    }
}

pub(super) struct Qwen3Moe;

impl Architecture for Qwen3Moe {
    fn name(&self) -> &'static str {
        "qwen3moe"
    }

    fn read(&self, _: &dyn ModelFile, h: &mut Hparams) -> Result<()> {
        only_experts(h)
    }

    fn layer(&self, h: &Hparams, _: usize) -> Layer {
        layer(h)
    }
}

fn layer(h: &Hparams) -> Layer {
    let layer = Layer::pre_norm(h, RopeMode::Neox);
    Layer { attention: Attention { head_norms: HeadNorms::Each, ..layer.attention }, ..layer }
}
