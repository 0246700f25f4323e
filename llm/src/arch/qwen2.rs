//! `qwen2` and `qwen2moe`: Qwen2 and Qwen2.5 (Yang et al., 2024), with biases of q, k and v. With experts, these count what the router's softmax
//! over all of them says, and one more is used by all tokens.

use super::*;

pub(super) struct Qwen2;

impl Architecture for Qwen2 {
    fn name(&self) -> &'static str {
        "qwen2"
    }

    fn read(&self, _: &dyn ModelFile, h: &mut Hparams) -> Result<()> {
        only_dense(h)
    }

    fn layer(&self, h: &Hparams, _: usize) -> Layer {
        Layer::pre_norm(h, RopeMode::Neox).without_scales()
    }
}

pub(super) struct Qwen2Moe;

impl Architecture for Qwen2Moe {
    fn name(&self) -> &'static str {
        "qwen2moe"
    }

    fn read(&self, _: &dyn ModelFile, h: &mut Hparams) -> Result<()> {
        only_experts(h)
    }

    fn layer(&self, h: &Hparams, _: usize) -> Layer {
        let feed_forward = FeedForward::Experts(Experts {
            weights: ExpertWeights::Probabilities,
            shared: SharedExpert::Gated,
            ..Experts::swiglu(h)
        });
        Layer { feed_forward, ..Layer::pre_norm(h, RopeMode::Neox) }.without_scales()
    }
}
