//! `llama`: Llama, Mistral, SmolLM and others (Touvron et al., 2023), dense or with experts (Mixtral). Llama 3.1 and later have factors of
//! frequencies in their files.

use super::*;

pub(super) struct Llama;

impl Architecture for Llama {
    fn name(&self) -> &'static str {
        "llama"
    }

    fn layer(&self, h: &Hparams, _: usize) -> Layer {
        Layer::pre_norm(h, RopeMode::Normal)
    }
}
