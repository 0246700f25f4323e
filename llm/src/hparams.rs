//! Hyperparameters of a model, read from its file's metadata and checked.

use crate::embed::Pooling;
use crate::error::{Error, Result};
use crate::gguf::{Gguf, Value, WeightRef};
use outboard_core::Layout;
use outboard_core::op::{Rope, RopeMode};

/// What architectures ask of a model's file.
pub trait ModelFile {
    /// The tensor of that name, with its type and layout.
    fn weight(&self, tensor: &str) -> Option<(WeightRef, Layout)>;
    /// Type and layout of the tensor of that name.
    fn layout(&self, tensor: &str) -> Option<Layout> {
        Some(self.weight(tensor)?.1)
    }
    /// A whole number that is not negative; for an array that has one value throughout, that value.
    fn int(&self, key: &str) -> Option<u64>;
    /// An array of at most `most` whole numbers that are not negative, or truth values as 0 and 1; `None` if there is no array of that
    /// name, an error if it has something else in it.
    fn ints(&self, key: &str, most: usize) -> Result<Option<Vec<u64>>>;
    /// A number.
    fn float(&self, key: &str) -> Option<f32>;
    /// A text.
    fn text(&self, key: &str) -> Option<&str>;
}

impl ModelFile for Gguf {
    fn weight(&self, tensor: &str) -> Option<(WeightRef, Layout)> {
        Some((Gguf::weight(self, tensor)?, self.tensor(tensor)?.layout))
    }

    fn int(&self, key: &str) -> Option<u64> {
        match self.get(key)? {
            Value::Array(array) => {
                // Some converters write one number per layer; models whose layers differ are not supported yet.
                let mut values = array.values()?.map(|v| v.as_u64());
                let first = values.next()??;
                values.all(|v| v == Some(first)).then_some(first)
            }
            value => value.as_u64(),
        }
    }

    fn ints(&self, key: &str, most: usize) -> Result<Option<Vec<u64>>> {
        let Some(Value::Array(array)) = self.get(key) else { return Ok(None) };
        let wrong = || Error::Model(format!("{key} is not an array of up to {most} whole numbers"));
        let values = array.values().filter(|_| array.len() <= most).ok_or_else(wrong)?;
        values.map(|v| v.as_u64().ok_or_else(wrong)).collect::<Result<_>>().map(Some)
    }

    fn float(&self, key: &str) -> Option<f32> {
        Some(self.get(key)?.as_f64()? as f32)
    }

    fn text(&self, key: &str) -> Option<&str> {
        self.str(key)
    }
}

/// Limits that no real model comes near, so that sizes made from hyperparameters cannot overflow.
pub(crate) const MAX_LAYERS: usize = 4096;
const MAX_WIDTH: usize = 1 << 20;
pub(crate) const MAX_CTX: usize = 1 << 26;

/// The numbers that shape a decoder.
#[derive(Clone, Debug, PartialEq)]
pub struct Hparams {
    /// `general.architecture`.
    pub arch: String,
    /// Layers.
    pub n_layer: usize,
    /// Context length that the model was trained with.
    pub n_ctx_train: usize,
    /// Width of the residual stream.
    pub n_embd: usize,
    /// Attention heads.
    pub n_head: usize,
    /// Heads of keys and values.
    pub n_head_kv: usize,
    /// Elements of a key's head.
    pub head_dim_k: usize,
    /// Elements of a value's head.
    pub head_dim_v: usize,
    /// Tokens of the vocabulary.
    pub n_vocab: usize,
    /// Keeps RMS norms from dividing by zero.
    pub norm_eps: f32,
    /// Elements of a head that rotate.
    pub n_rot: usize,
    /// Base of the rotary embedding.
    pub rope_freq_base: f32,
    /// Scaling of the rotary embedding.
    pub rope_scaling: RopeScaling,
    /// Factor of the amplitude of the rotary embedding.
    pub rope_attn_factor: f32,
    /// Context length before scaling.
    pub n_ctx_orig: usize,
    /// Layers with a window, if the architecture has some.
    pub window: Option<Window>,
    /// Factors and bounds that the file gives. An architecture uses those that it knows.
    pub factors: Factors,
    /// Experts, 0 for dense models.
    pub n_expert: usize,
    /// Experts that each token uses.
    pub n_expert_used: usize,
    /// How rows become an embedding, if the model is for that and not for text.
    pub pooling: Option<Pooling>,
}

/// Factors and bounds, where the file gives them; programs write 0 for those that there are not.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Factors {
    /// `attention.scale`, of the products of queries and keys.
    pub attention: Option<f32>,
    /// `attn_logit_softcapping`: logits of attention become `softcap * tanh(logit / softcap)`.
    pub attention_softcap: Option<f32>,
    /// `attention.temperature_scale`: how queries grow with the logarithm of their position.
    pub attention_temperature: Option<f32>,
    /// `embedding_scale`, of embeddings.
    pub embedding: Option<f32>,
    /// `residual_scale`, of what a block adds to the residual stream.
    pub residual: Option<f32>,
    /// `expert_weights_scale`, of the weights of experts.
    pub expert_weights: Option<f32>,
    /// `logit_scale`, of logits, or what they are divided by: architectures differ.
    pub logits: Option<f32>,
    /// `final_logit_softcapping`, as `attention_softcap` of logits.
    pub logit_softcap: Option<f32>,
}

impl Factors {
    fn read(file: &dyn ModelFile, arch: &str) -> Factors {
        let read = |key: &str| file.float(&format!("{arch}.{key}")).filter(|v| v.is_finite() && *v != 0.0);
        let bound = |key: &str| read(key).filter(|v| *v > 0.0);
        Factors {
            attention: read("attention.scale"),
            attention_softcap: bound("attn_logit_softcapping"),
            attention_temperature: read("attention.temperature_scale"),
            embedding: read("embedding_scale"),
            residual: read("residual_scale"),
            expert_weights: read("expert_weights_scale"),
            logits: read("logit_scale"),
            logit_softcap: bound("final_logit_softcapping"),
        }
    }
}

/// Layers that see no more than some tokens back.
#[derive(Clone, Debug, PartialEq)]
pub struct Window {
    /// Tokens that such a layer sees, the newest included.
    pub size: usize,
    /// Whether each layer is one.
    pub layers: Vec<bool>,
    /// Base of their rotary embedding.
    pub freq_base: f32,
}

/// How positions beyond the trained context are brought into it.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum RopeScaling {
    /// Not at all.
    None,
    /// Positions are divided by the factor.
    Linear {
        /// The factor.
        factor: f32,
    },
    /// YaRN (Peng et al., 2023).
    Yarn {
        /// The factor.
        factor: f32,
        /// Ramp.
        beta_fast: f32,
        /// Ramp.
        beta_slow: f32,
        /// If not 0: the amplitude is divided by `1 + log_multiplier * 0.1 * ln(factor)` (`mscale_all_dim` of models' own files).
        log_multiplier: f32,
    },
}

impl Hparams {
    /// Reads the hyperparameters of a model of architecture `arch`.
    pub fn read(file: &dyn ModelFile, arch: &str) -> Result<Hparams> {
        let int = |key: &str, max: usize| -> Result<Option<usize>> {
            let key = format!("{arch}.{key}");
            match file.int(&key) {
                None => Ok(None),
                Some(v) => match usize::try_from(v) {
                    Ok(v) if v <= max => Ok(Some(v)),
                    _ => Err(Error::Model(format!("{key} is {v}, at most {max} is possible"))),
                },
            }
        };
        let need = |key: &str, max: usize| -> Result<usize> {
            match int(key, max)? {
                Some(0) | None => Err(Error::Model(format!("{arch}.{key} is missing or 0"))),
                Some(v) => Ok(v),
            }
        };
        let float = |key: &str| file.float(&format!("{arch}.{key}")).filter(|v| v.is_finite());
        // 0 is none, 2 takes the first row, which in a decoder has seen nothing, and 4 ranks.
        let pooling = match int("pooling_type", usize::MAX)? {
            Some(1) => Some(Pooling::Mean),
            Some(3) => Some(Pooling::Last),
            Some(2 | 4) => {
                return Err(Error::Model(
                    "it gives embeddings of the first token or ranks, which is not supported".into(),
                ));
            }
            _ => None,
        };
        if int("attention.causal", usize::MAX)? == Some(0) {
            return Err(Error::Model(
                "it gives embeddings of texts that are read in both directions, which is not supported".into(),
            ));
        }
        let n_embd = need("embedding_length", MAX_WIDTH)?;
        let n_head = need("attention.head_count", MAX_WIDTH)?;
        let head_dim = n_embd / n_head;
        let head_dim_k = int("attention.key_length", MAX_WIDTH)?.filter(|&v| v > 0).unwrap_or(head_dim);
        let table = file.layout("token_embd.weight");
        let n_vocab = table.map(|t| t.ne()[1]).ok_or_else(|| Error::Model("token_embd.weight is missing".into()))?;
        let n_ctx_train = need("context_length", MAX_CTX)?;
        let n_ctx_orig = int("rope.scaling.original_context_length", MAX_CTX)?.filter(|&n| n > 0);
        let hparams = Hparams {
            arch: arch.to_owned(),
            n_layer: need("block_count", MAX_LAYERS)?,
            n_ctx_train,
            n_embd,
            n_head,
            n_head_kv: int("attention.head_count_kv", MAX_WIDTH)?.unwrap_or(n_head),
            head_dim_k,
            head_dim_v: int("attention.value_length", MAX_WIDTH)?.filter(|&v| v > 0).unwrap_or(head_dim),
            n_vocab,
            norm_eps: float("attention.layer_norm_rms_epsilon").filter(|&e| e > 0.0).unwrap_or(1e-5),
            n_rot: int("rope.dimension_count", MAX_WIDTH)?.filter(|&v| v > 0).unwrap_or(head_dim_k),
            rope_freq_base: float("rope.freq_base").filter(|&b| b > 0.0).unwrap_or(10000.0),
            rope_scaling: rope_scaling(file, arch)?,
            rope_attn_factor: float("rope.scaling.attn_factor").filter(|&f| f > 0.0).unwrap_or(1.0),
            n_ctx_orig: n_ctx_orig.unwrap_or(n_ctx_train),
            window: None,
            factors: Factors::read(file, arch),
            n_expert: int("expert_count", MAX_WIDTH)?.unwrap_or(0),
            n_expert_used: int("expert_used_count", MAX_WIDTH)?.unwrap_or(0),
            pooling,
        };
        hparams.check()?;
        Ok(hparams)
    }

    fn check(&self) -> Result<()> {
        let wrong = |what: String| Err(Error::Model(what));
        if self.n_head_kv == 0 || self.n_head % self.n_head_kv != 0 {
            return wrong(format!("{} key/value heads do not divide {} heads", self.n_head_kv, self.n_head));
        }
        if self.n_rot > self.head_dim_k || self.n_rot % 2 != 0 {
            return wrong(format!("rotary embedding over {} of {} elements", self.n_rot, self.head_dim_k));
        }
        if self.n_expert > 0 && !(1..=self.n_expert).contains(&self.n_expert_used) {
            return wrong(format!("{} of {} experts are used", self.n_expert_used, self.n_expert));
        }
        Ok(())
    }

    /// The rotary embedding's parameters.
    pub fn rope(&self, mode: RopeMode) -> Rope {
        let attn_factor = self.rope_attn_factor;
        let plain = Rope { attn_factor, ..Rope::plain(mode, self.n_rot, self.rope_freq_base) };
        match self.rope_scaling {
            RopeScaling::None => plain,
            RopeScaling::Linear { factor } => Rope { freq_scale: 1.0 / factor, ..plain },
            RopeScaling::Yarn { factor, beta_fast, beta_slow, log_multiplier } => Rope {
                freq_scale: 1.0 / factor,
                n_ctx_orig: self.n_ctx_orig,
                ext_factor: 1.0,
                attn_factor: attn_factor / (1.0 + log_multiplier * 0.1 * factor.max(1.0).ln()),
                beta_fast,
                beta_slow,
                ..plain
            },
        }
    }

    /// The window of layer `il`, if it has one.
    pub fn window_of(&self, il: usize) -> Option<&Window> {
        self.window.as_ref().filter(|window| window.layers.get(il) == Some(&true))
    }

    /// Bytes of one layer's cache for `n_ctx` tokens.
    pub fn cache_bytes(&self, n_ctx: usize) -> u64 {
        let row = (self.head_dim_k + self.head_dim_v) * self.n_head_kv;
        let element = crate::arch::net::CACHE_DTYPE.block_bytes();
        (row as u64).saturating_mul(element as u64).saturating_mul(n_ctx as u64)
    }
}

fn rope_scaling(file: &dyn ModelFile, arch: &str) -> Result<RopeScaling> {
    let float = |key: &str| file.float(&format!("{arch}.rope.scaling.{key}")).filter(|v| v.is_finite());
    // A factor of 0 is what converters write for "none"; files from before the section was introduced say scale_linear.
    let factor = float("factor").or_else(|| file.float(&format!("{arch}.rope.scale_linear")));
    let factor = factor.filter(|&f| f > 0.0).unwrap_or(1.0);
    match file.text(&format!("{arch}.rope.scaling.type")).unwrap_or("linear") {
        "none" => Ok(RopeScaling::None),
        "linear" if factor == 1.0 => Ok(RopeScaling::None),
        "linear" => Ok(RopeScaling::Linear { factor }),
        "yarn" => Ok(RopeScaling::Yarn {
            factor,
            beta_fast: float("yarn_beta_fast").unwrap_or(32.0),
            beta_slow: float("yarn_beta_slow").unwrap_or(1.0),
            log_multiplier: float("yarn_log_multiplier").filter(|&m| m >= 0.0).unwrap_or(0.0),
        }),
        // Its factors are tensors, and differ from pair to pair.
        "longrope" => Ok(RopeScaling::None),
        other => {
            let other: String = other.chars().take(32).collect();
            Err(Error::Model(format!(
                "{arch}.rope.scaling.type \"{other}\" is not supported (none, linear, yarn, longrope)"
            )))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::gguf::GgufWriter;
    use outboard_core::DType;

    #[test]
    fn an_array_counts_as_a_number_if_it_has_one_value() {
        let mut w = GgufWriter::new();
        w.i32s("per_layer", &[4, 4]).i32s("mixed", &[4, 5]).i32s("none", &[]).f32("eps", 1e-5);
        let g = Gguf::parse(w.finish().unwrap().into()).unwrap();
        assert_eq!((g.int("per_layer"), g.int("mixed"), g.int("none"), g.int("missing")), (Some(4), None, None, None));
        assert_eq!(g.float("eps"), Some(1e-5));
        assert_eq!(g.ints("mixed", 2).unwrap(), Some(vec![4, 5]));
        assert_eq!((g.ints("eps", 2).unwrap(), g.ints("missing", 2).unwrap()), (None, None));
        assert!(g.ints("mixed", 1).is_err(), "more than there may be");
    }

    #[test]
    fn rotary_embeddings_are_scaled_as_the_file_says() {
        let rope = |more: &dyn Fn(&mut GgufWriter)| {
            let mut w = GgufWriter::new();
            for (key, value) in [("embedding_length", 64), ("block_count", 1), ("context_length", 4096)] {
                w.u32(&format!("llama.{key}"), value);
            }
            w.u32("llama.attention.head_count", 2)
                .tensor("token_embd.weight", DType::F32, &[64, 1], &[0; 256])
                .unwrap();
            more(&mut w);
            let h = Hparams::read(&Gguf::parse(w.finish().unwrap().into()).unwrap(), "llama").unwrap();
            h.rope(RopeMode::Neox)
        };
        let plain = Rope::plain(RopeMode::Neox, 32, 10000.0);
        assert_eq!(rope(&|_| ()), plain);
        let scaling = |w: &mut GgufWriter, kind: &str| {
            w.text("llama.rope.scaling.type", kind).f32("llama.rope.scaling.factor", 32.0);
        };
        let float = |w: &mut GgufWriter, key: &str, value: f32| {
            w.f32(&format!("llama.rope.scaling.{key}"), value);
        };
        assert_eq!(rope(&|w| scaling(w, "linear")), Rope { freq_scale: 1.0 / 32.0, ..plain });
        // The frequencies are divided by tensors, and by nothing else.
        let long = rope(&|w| {
            scaling(w, "longrope");
            float(w, "attn_factor", 1.5);
        });
        assert_eq!(long, Rope { attn_factor: 1.5, ..plain });
        let yarn = Rope { freq_scale: 1.0 / 32.0, ext_factor: 1.0, n_ctx_orig: 4096, ..plain };
        assert_eq!(rope(&|w| scaling(w, "yarn")), yarn);
        let trained = rope(&|w| {
            scaling(w, "yarn");
            w.u32("llama.rope.scaling.original_context_length", 1024);
        });
        assert_eq!(trained, Rope { n_ctx_orig: 1024, ..yarn });
        // What ROPE multiplies by for YaRN is taken back.
        let multiplied = rope(&|w| {
            scaling(w, "yarn");
            float(w, "yarn_log_multiplier", 1.0);
        });
        assert!((multiplied.attn_factor * (1.0 + 0.1 * 32f32.ln()) - 1.0).abs() < 1e-6, "{multiplied:?}");
    }

    #[test]
    fn models_that_pool_in_ways_that_there_are_not_are_refused() {
        let read = |key: &str, value: u32| {
            let mut w = GgufWriter::new();
            w.u32(key, value);
            Hparams::read(&Gguf::parse(w.finish().unwrap().into()).unwrap(), "qwen3").unwrap_err().to_string()
        };
        for (key, value) in [("qwen3.pooling_type", 2), ("qwen3.pooling_type", 4), ("qwen3.attention.causal", 0)] {
            assert!(read(key, value).contains("gives embeddings"), "{key}");
        }
        // Others lack the rest.
        let others = [0, 1, 3, u32::MAX].map(|value| ("qwen3.pooling_type", value));
        for (key, value) in others.into_iter().chain([("qwen3.attention.causal", 1)]) {
            assert!(read(key, value).contains("embedding_length is missing"), "{key}");
        }
    }
}
