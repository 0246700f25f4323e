//! `gemma3` (Gemma Team, "Gemma 3 Technical Report", 2025): embeddings are scaled up, every block is normalized before and behind, as are the
//! heads of queries and keys; five layers of six see a window of tokens and rotate by a base of their own, the sixth sees all.

use super::*;

pub(super) struct Gemma3;

/// One layer of so many sees all tokens, where the file does not say which do.
const GLOBAL_EVERY: u64 = 6;
/// Base of the rotary embedding of layers with a window, where the file does not say.
const WINDOW_FREQ_BASE: f32 = 10000.0;
/// Layers of the 27B model, whose attention is scaled by the width that a head would have if all heads had the stream's together.
const LAYERS_27B: usize = 62;

impl Architecture for Gemma3 {
    fn name(&self) -> &'static str {
        "gemma3"
    }

    fn read(&self, file: &dyn ModelFile, h: &mut Hparams) -> Result<()> {
        // Files of other programs have other names for these.
        need_floats(file, h, &["rope.freq_base", "attention.layer_norm_rms_epsilon"])?;
        h.window = window::read(file, h, Pattern::LastOf(GLOBAL_EVERY), WINDOW_FREQ_BASE)?;
        only_dense(h)
    }

    fn frame(&self, h: &Hparams) -> Frame {
        Frame {
            embedding_scale: (h.n_embd as f32).sqrt(),
            logit_softcap: h.factors.logit_softcap.unwrap_or(0.0),
            ..Frame::PLAIN
        }
    }

    fn layer(&self, h: &Hparams, il: usize) -> Layer {
        let layer = layer(h, LAYERS_27B);
        let attention = Attention { head_norms: HeadNorms::Each, ..layer.attention };
        Layer { attention: attention.with_own_rope_in_window(h, il), ..layer }
    }
}

/// What Gemma 2 and 3 have in common. A model of so many layers is the 27B one.
pub(super) fn layer(h: &Hparams, layers_27b: usize) -> Layer {
    let layer = Layer::pre_norm(h, RopeMode::Neox);
    let width = if h.n_layer == layers_27b { h.n_embd as f32 / h.n_head as f32 } else { h.head_dim_k as f32 };
    Layer {
        attention_norms: Norms::around("attn_norm", "post_attention_norm"),
        attention: Attention { scale: 1.0 / width.sqrt(), ..layer.attention },
        feed_forward_norms: Norms::around("ffn_norm", "post_ffw_norm"),
        feed_forward: FeedForward::Dense(Dense { glu: GluKind::Geglu, gate: Gate::Own, scales: Scales::Ignored }),
        ..layer
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::arch::net::{Cache, Feed, GraphShape, Outputs};
    use crate::gguf::{Gguf, GgufWriter};
    use crate::model::Model;
    use outboard_core::op::Op;

    /// Of the 4B model, in which positions of layers that see all are divided by 8.
    fn read(n_layer: u32, more: impl Fn(&mut GgufWriter)) -> Result<Hparams> {
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
        file.f32("gemma3.attention.layer_norm_rms_epsilon", 1e-6);
        file.f32("gemma3.rope.freq_base", 1e6).f32("gemma3.rope.scaling.factor", 8.0);
        more(&mut file);
        file.tensor("token_embd.weight", outboard_core::DType::F32, &[4, 2], &[0; 32]).unwrap();
        let file = Gguf::parse(file.finish().unwrap().into()).unwrap();
        let mut hparams = Hparams::read(&file, "gemma3")?;
        Gemma3.read(&file, &mut hparams)?;
        Ok(hparams)
    }

    const WINDOW: &str = "gemma3.attention.sliding_window";
    const PATTERN: &str = "gemma3.attention.sliding_window_pattern";

    fn windows(h: &Hparams) -> Vec<usize> {
        (0..h.n_layer).map(|il| Gemma3.layer(h, il).attention.window).collect()
    }

    #[test]
    fn every_sixth_layer_sees_all() {
        let h = read(34, |file| done(file.u32(WINDOW, 1024))).unwrap();
        for il in 0..34 {
            let (window, base, freq_scale) = if il % 6 == 5 { (0, 1e6, 0.125) } else { (1024, 1e4, 1.0) };
            let attention = Gemma3.layer(&h, il).attention;
            let rope = attention.rope.unwrap();
            assert_eq!((attention.window, rope.freq_base, rope.freq_scale), (window, base, freq_scale), "{il}");
            assert_eq!(attention.scale, 1.0 / 16.0);
        }
        assert_eq!(Gemma3.frame(&h).embedding_scale, 2560f32.sqrt());
        // Without a window all layers see all, and rotate alike.
        assert_eq!(windows(&read(7, |_| ()).unwrap()), [0; 7]);
    }

    #[test]
    fn the_file_may_say_which_layers_have_a_window_and_how_they_rotate() {
        let h = read(3, |file| {
            done(file.u32(WINDOW, 64).i32s(PATTERN, &[1, 0, 1]).f32("gemma3.rope.freq_base_swa", 5000.0))
        });
        let h = h.unwrap();
        assert_eq!(windows(&h), [64, 0, 64]);
        let base = |il| Gemma3.layer(&h, il).attention.rope.unwrap().freq_base;
        assert_eq!([0, 1, 2].map(base), [5000.0, 1e6, 5000.0]);
        for (every, want) in [(0, [64; 4]), (1, [0; 4]), (2, [64, 0, 64, 0])] {
            assert_eq!(windows(&read(4, |file| done(file.u32(WINDOW, 64).u32(PATTERN, every))).unwrap()), want);
        }
    }

    #[test]
    fn what_would_give_another_text_is_an_error() {
        let fails = |n_layer: u32, more: &dyn Fn(&mut GgufWriter), wanted: &str| {
            let failed = read(n_layer, more).unwrap_err().to_string();
            assert!(failed.contains(wanted), "{failed}");
        };
        fails(3, &|file| done(file.u32(WINDOW, 64).i32s(PATTERN, &[1, 0])), "is of 2 layers, there are 3");
        fails(3, &|file| done(file.u32(WINDOW, 64).i32s(PATTERN, &[1, -1, 0])), "not an array of up to");
        fails(3, &|file| done(file.u32(WINDOW, u32::MAX)), "too large");
        fails(
            3,
            &|file| done(file.u32(WINDOW, 64).u32("gemma3.attention.key_length_swa", 128)),
            "not 256 as in other layers",
        );
        let without = Gguf::parse(GgufWriter::new().finish().unwrap().into()).unwrap();
        let mut h = read(3, |_| ()).unwrap();
        assert!(Gemma3.read(&without, &mut h).unwrap_err().to_string().contains("rope.freq_base is missing"));
    }

    #[test]
    fn the_largest_model_scales_by_another_width_and_logits_may_be_bent() {
        assert_eq!(Gemma3.layer(&read(62, |_| ()).unwrap(), 0).attention.scale, 1.0 / 320f32.sqrt());
        let h = read(3, |file| done(file.f32("gemma3.final_logit_softcapping", 30.0))).unwrap();
        assert_eq!(Gemma3.frame(&h).logit_softcap, 30.0);
    }

    /// The small model has a window of 32 in the first of its two layers.
    #[test]
    fn the_graph_has_the_windows() {
        let file = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/data/arch/gemma3-dense.gguf");
        let model = Model::new(Gguf::parse(std::fs::read(file).unwrap().into()).unwrap()).unwrap();
        let outputs = Outputs::Logits(1);
        let shape = GraphShape { n_tokens: 4, cache: Cache::of_one(64), feed: Feed::Input, history: false, outputs };
        let graph = model.graph(shape).unwrap().graph;
        let window = |id| match graph.tensor(id).op() {
            Some(Op::FlashAttn(attn)) => Some(attn.window),
            _ => None,
        };
        assert_eq!(graph.nodes().filter_map(window).collect::<Vec<_>>(), [32, 0]);
    }

    /// For closures that give nothing.
    fn done(_: &mut GgufWriter) {}
}
