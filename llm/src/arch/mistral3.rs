//! `mistral3`: Ministral 3 (Mistral AI, 2025). Beyond the context before YaRN, its queries grow with the logarithm of their position, which is
//! not supported: the context ends there.

use super::*;

pub(super) struct Mistral3;

impl Architecture for Mistral3 {
    fn name(&self) -> &'static str {
        "mistral3"
    }

    fn read(&self, _: &dyn ModelFile, h: &mut Hparams) -> Result<()> {
        if h.factors.attention_temperature.is_some() {
            h.n_ctx_train = h.n_ctx_train.min(h.n_ctx_orig);
        }
        Ok(())
    }

    fn frame(&self, h: &Hparams) -> Frame {
        Frame { max_ctx: h.factors.attention_temperature.map_or(0, |_| h.n_ctx_orig), ..Frame::PLAIN }
    }

    fn layer(&self, h: &Hparams, _: usize) -> Layer {
        Layer::pre_norm(h, RopeMode::Normal)
    }
}
