//! `phi3`: Phi-3, Phi-3.5 and Phi-4 (Abdin et al., "Phi-3 Technical Report" and "Phi-4 Technical Report", 2024): the gate is in the first rows of
//! `ffn_up`, and q, k and v are one matrix. Models with long contexts have two sets of factors of frequencies (LongRoPE, Ding et al., 2024).

use super::*;

pub(super) struct Phi3;

impl Architecture for Phi3 {
    fn name(&self) -> &'static str {
        "phi3"
    }

    fn read(&self, file: &dyn ModelFile, h: &mut Hparams) -> Result<()> {
        h.window = window::read(file, h, Pattern::None, h.rope_freq_base)?;
        only_dense(h)
    }

    fn layer(&self, h: &Hparams, il: usize) -> Layer {
        let layer = Layer::pre_norm(h, RopeMode::Neox);
        Layer {
            attention: layer.attention.with_window(h, il),
            feed_forward: FeedForward::Dense(Dense { gate: Gate::InUp, ..Dense::SWIGLU }),
            ..layer
        }
        .without_scales()
    }
}
