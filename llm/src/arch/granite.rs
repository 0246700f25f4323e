//! `granite`: Granite 3 and later, dense (IBM, "Granite 3.0 Language Models", 2024): embeddings, what blocks add to the stream, products of
//! attention and logits have factors of their own.

use super::*;

pub(super) struct Granite;

impl Architecture for Granite {
    fn name(&self) -> &'static str {
        "granite"
    }

    fn read(&self, file: &dyn ModelFile, h: &mut Hparams) -> Result<()> {
        // Files say by this key whether there is a rotary embedding.
        if file.int("granite.rope.scaling.finetuned") == Some(0) {
            return refuse("granite.rope.scaling.finetuned is false, a model without positions: not supported".into());
        }
        only_dense(h)
    }

    fn frame(&self, h: &Hparams) -> Frame {
        Frame {
            embedding_scale: h.factors.embedding.unwrap_or(1.0),
            logit_scale: 1.0 / h.factors.logits.unwrap_or(1.0),
            ..Frame::PLAIN
        }
    }

    fn layer(&self, h: &Hparams, _: usize) -> Layer {
        let layer = Layer::pre_norm(h, RopeMode::Normal).without_scales();
        let scale = h.factors.attention.unwrap_or(layer.attention.scale);
        let attention = Attention { scale, ..layer.attention };
        Layer { attention, residual_scale: h.factors.residual.unwrap_or(1.0), ..layer }
    }
}
