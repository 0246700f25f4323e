//! `gpt-oss` (OpenAI, "gpt-oss-120b & gpt-oss-20b Model Card", 2025): every other layer sees a window of tokens; heads may attend to nothing
//! (sinks); experts with biases and a clamped gated unit, weighted by the softmax over those that are chosen.

use super::*;

pub(super) struct GptOss;

/// One layer of so many sees all tokens, where the file does not say which do.
const GLOBAL_EVERY: u64 = 2;

impl Architecture for GptOss {
    fn name(&self) -> &'static str {
        "gpt-oss"
    }

    fn read(&self, file: &dyn ModelFile, h: &mut Hparams) -> Result<()> {
        need_floats(file, h, &["rope.freq_base"])?;
        h.window = window::read_required(file, h, Pattern::LastOf(GLOBAL_EVERY), h.rope_freq_base)?;
        only_experts(h)
    }

    fn layer(&self, h: &Hparams, il: usize) -> Layer {
        let layer = Layer::pre_norm(h, RopeMode::Neox);
        let attention = Attention { sinks: Some("attn_sinks"), ..layer.attention };
        Layer {
            attention: attention.with_window(h, il),
            feed_forward_norms: Norms::before("post_attention_norm"),
            feed_forward: FeedForward::Experts(Experts {
                glu: GluKind::SWIGLU_OAI,
                weights: ExpertWeights::SoftMaxOfChosen,
                ..Experts::swiglu(h)
            }),
            ..layer
        }
        .without_scales()
    }
}
