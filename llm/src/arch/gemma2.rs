//! `gemma2` (Gemma Team, "Gemma 2: Improving Open Language Models at a Practical Size", 2024): embeddings are scaled up, every block is
//! normalized before and behind, logits are bent, those of attention as well; every other layer sees a window of tokens.

use super::*;

pub(super) struct Gemma2;

/// One layer of so many sees all tokens, where the file does not say which do.
const GLOBAL_EVERY: u64 = 2;
/// Layers of the 27B model, whose attention is scaled by the width that a head would have if all heads had the stream's together.
const LAYERS_27B: usize = 46;
/// Bound of the logits of attention, where the file does not say.
const ATTENTION_SOFTCAP: f32 = 50.0;
/// Bound of logits, where the file does not say.
const LOGIT_SOFTCAP: f32 = 30.0;

impl Architecture for Gemma2 {
    fn name(&self) -> &'static str {
        "gemma2"
    }

    fn read(&self, file: &dyn ModelFile, h: &mut Hparams) -> Result<()> {
        need_floats(file, h, &["attention.layer_norm_rms_epsilon"])?;
        h.window = window::read_required(file, h, Pattern::LastOf(GLOBAL_EVERY), h.rope_freq_base)?;
        only_dense(h)
    }

    fn frame(&self, h: &Hparams) -> Frame {
        Frame {
            embedding_scale: (h.n_embd as f32).sqrt(),
            logit_softcap: h.factors.logit_softcap.unwrap_or(LOGIT_SOFTCAP),
            ..Frame::PLAIN
        }
    }

    fn layer(&self, h: &Hparams, il: usize) -> Layer {
        let softcap = h.factors.attention_softcap.unwrap_or(ATTENTION_SOFTCAP);
        let layer = gemma3::layer(h, LAYERS_27B);
        Layer { attention: Attention { softcap, ..layer.attention }.with_window(h, il), ..layer }
    }
}
