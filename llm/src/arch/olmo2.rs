//! `olmo2`: OLMo 2 (Team OLMo, "2 OLMo 2 Furious", 2024) and Olmo 3: blocks are normalized behind and not before, queries and keys over all
//! heads together. In Olmo 3, three layers of four see a window of tokens, and rotate as if the context had never been stretched.

use super::*;

pub(super) struct Olmo2;

/// One layer of so many sees all tokens, where there are windows.
const GLOBAL_EVERY: u64 = 4;

impl Architecture for Olmo2 {
    fn name(&self) -> &'static str {
        "olmo2"
    }

    fn read(&self, file: &dyn ModelFile, h: &mut Hparams) -> Result<()> {
        h.window = window::read(file, h, Pattern::LastOf(GLOBAL_EVERY), h.rope_freq_base)?;
        only_dense(h)
    }

    fn layer(&self, h: &Hparams, il: usize) -> Layer {
        let layer = Layer::pre_norm(h, RopeMode::Neox).without_scales();
        let attention = Attention { head_norms: HeadNorms::Together, ..layer.attention };
        Layer {
            attention_norms: Norms::after("post_attention_norm"),
            attention: attention.with_own_rope_in_window(h, il),
            feed_forward_norms: Norms::after("post_ffw_norm"),
            ..layer
        }
    }
}
