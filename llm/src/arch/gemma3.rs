//! `gemma3` (Gemma Team, "Gemma 3 Technical Report", 2025): embeddings are scaled up, every block is normalized before and behind, as are the
//! heads of queries and keys; five layers of six see a window of tokens and rotate by a base of their own, the sixth sees all.

use super::*;
use outboard_core::op::RopeMode;

pub(super) struct Gemma3;

/// One layer of so many sees all tokens, where the file does not say which do.
const GLOBAL_EVERY: usize = 6;
/// Base of the rotary embedding of layers with a window, where the file does not say.
const WINDOW_FREQ_BASE: f32 = 10000.0;
/// Layers of the 27B model, whose attention is scaled by the width that a head would have if all heads had the stream's together.
const LAYERS_27B: usize = 62;

impl Architecture for Gemma3 {
    fn name(&self) -> &'static str {
        "gemma3"
    }

    fn rope_mode(&self) -> RopeMode {
        RopeMode::Neox
    }

    fn attention(&self, h: &Hparams, il: usize) -> Attention {
        let width = if h.n_layer == LAYERS_27B { h.n_embd / h.n_head } else { h.head_dim_k };
        let scale = 1.0 / (width as f32).sqrt();
        let global = Attention { rope: h.rope(self.rope_mode()), window: 0, scale };
        let has_window = h.window_layers.get(il).copied().unwrap_or(il % GLOBAL_EVERY + 1 != GLOBAL_EVERY);
        match h.window > 0 && has_window {
            true => {
                // Contexts are not stretched for tokens so near.
                let base = h.window_freq_base.unwrap_or(WINDOW_FREQ_BASE);
                Attention { rope: Rope::plain(self.rope_mode(), h.n_rot, base), window: h.window, scale }
            }
            false => global,
        }
    }

    fn embedding_scale(&self, h: &Hparams) -> Option<f32> {
        Some((h.n_embd as f32).sqrt())
    }

    fn ffn_scales(&self) -> bool {
        false
    }

    fn layer(&self, net: &mut Net<'_>, il: usize, x: TensorId) -> Result<TensorId> {
        let normed = net.rms_norm(x, &format!("blk.{il}.attn_norm"))?;
        let attended = net.attention(il, normed)?;
        let attended = net.rms_norm(attended, &format!("blk.{il}.post_attention_norm"))?;
        let x = net.add(x, attended)?;
        net.section(il);
        let normed = net.rms_norm(x, &format!("blk.{il}.ffn_norm"))?;
        let fed = net.gated(&format!("blk.{il}"), normed, GluKind::Geglu)?;
        let fed = net.rms_norm(fed, &format!("blk.{il}.post_ffw_norm"))?;
        net.add(x, fed)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::gguf::{Gguf, GgufWriter};

    /// Of the 4B model, in which positions of layers that see all are divided by 8.
    fn hparams(n_layer: u32, more: impl Fn(&mut GgufWriter)) -> Hparams {
        let mut file = GgufWriter::new();
        let ints = [
            ("block_count", n_layer),
            ("context_length", 131_072),
            ("embedding_length", 2560),
            ("attention.head_count", 8),
            ("attention.head_count_kv", 4),
            ("attention.key_length", 256),
            ("attention.value_length", 256),
        ];
        for (key, value) in ints {
            file.u32(&format!("gemma3.{key}"), value);
        }
        file.f32("gemma3.rope.freq_base", 1e6).f32("gemma3.rope.scaling.factor", 8.0);
        more(&mut file);
        file.tensor("token_embd.weight", outboard_core::DType::F32, &[4, 2], &[0; 32]).unwrap();
        Hparams::read(&Gguf::parse(file.finish().into()).unwrap(), "gemma3").unwrap()
    }

    #[test]
    fn every_sixth_layer_sees_all() {
        let h = hparams(34, |file| {
            file.u32("gemma3.attention.sliding_window", 1024);
        });
        let layers: Vec<Attention> = (0..34).map(|il| Gemma3.attention(&h, il)).collect();
        for (il, layer) in layers.iter().enumerate() {
            let (window, base, freq_scale) = if il % 6 == 5 { (0, 1e6, 0.125) } else { (1024, 1e4, 1.0) };
            assert_eq!((layer.window, layer.rope.freq_base, layer.rope.freq_scale), (window, base, freq_scale), "{il}");
            assert_eq!(layer.scale, 1.0 / 16.0);
        }
        assert_eq!(Gemma3.embedding_scale(&h), Some(2560f32.sqrt()));
    }

    #[test]
    fn the_file_may_say_which_layers_have_a_window_and_how_they_rotate() {
        let h = hparams(3, |file| {
            file.u32("gemma3.attention.sliding_window", 64).i32s("gemma3.attention.sliding_window_pattern", &[1, 0, 1]);
            file.f32("gemma3.rope.freq_base_swa", 5000.0);
        });
        let layers = [0, 1, 2].map(|il| Gemma3.attention(&h, il));
        assert_eq!(layers.map(|l| l.window), [64, 0, 64]);
        assert_eq!(layers.map(|l| l.rope.freq_base), [5000.0, 1e6, 5000.0]);
        // Without a window there is none, and all layers rotate alike.
        let h = hparams(3, |_| ());
        assert!([0, 1, 2].iter().all(|&il| Gemma3.attention(&h, il).window == 0));
    }

    #[test]
    fn the_largest_model_scales_by_another_width() {
        assert_eq!(Gemma3.attention(&hparams(62, |_| ()), 0).scale, 1.0 / 320f32.sqrt());
    }
}
