//! What a model is made of, as data: an [`Architecture`](super::Architecture) gives it, and [`net`](super::net) builds the graph of it.

use crate::hparams::{Hparams, Window};
use outboard_core::op::{GluKind, Rope, RopeMode};

/// What is before and behind the layers.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Frame {
    /// Factor of embeddings; 1: as they are.
    pub embedding_scale: f32,
    /// Factor of logits; 1: as they are.
    pub logit_scale: f32,
    /// If not 0: logits become `softcap * tanh(logit / softcap)`, after the factor.
    pub logit_softcap: f32,
    /// Most tokens of context for which the graph is right; 0: any.
    pub max_ctx: usize,
}

impl Frame {
    /// Embeddings and logits as they are.
    pub const PLAIN: Frame = Frame { embedding_scale: 1.0, logit_scale: 1.0, logit_softcap: 0.0, max_ctx: 0 };
}

/// A layer: attention, then a feed-forward block, each added to the residual stream.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Layer {
    /// Around attention.
    pub attention_norms: Norms,
    /// Causal self-attention.
    pub attention: Attention,
    /// Around the feed-forward block.
    pub feed_forward_norms: Norms,
    /// The block behind attention.
    pub feed_forward: FeedForward,
    /// Factor of what either block adds to the stream; 1: as it is.
    pub residual_scale: f32,
}

impl Layer {
    /// The layer that most decoders share: a norm before each block, attention to all tokens, SwiGLU. A model that has experts has them here.
    pub fn pre_norm(h: &Hparams, mode: RopeMode) -> Layer {
        Layer {
            attention_norms: Norms::before("attn_norm"),
            attention: Attention::new(h, mode),
            feed_forward_norms: Norms::before("ffn_norm"),
            feed_forward: match h.n_expert {
                0 => FeedForward::Dense(Dense::SWIGLU),
                _ => FeedForward::Experts(Experts::swiglu(h)),
            },
            residual_scale: 1.0,
        }
    }

    /// The same, with [`Scales::Ignored`].
    pub fn without_scales(self) -> Layer {
        let scales = Scales::Ignored;
        let feed_forward = match self.feed_forward {
            FeedForward::Dense(dense) => FeedForward::Dense(Dense { scales, ..dense }),
            FeedForward::Experts(experts) => FeedForward::Experts(Experts { scales, ..experts }),
        };
        Layer { feed_forward, ..self }
    }
}

/// RMS norms around a block, by the names of their tensors behind `blk.N.`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Norms {
    /// Of what goes into it.
    pub before: Option<&'static str>,
    /// Of what comes out of it, before it is added to the stream.
    pub after: Option<&'static str>,
}

impl Norms {
    /// Before the block only.
    pub const fn before(name: &'static str) -> Norms {
        Norms { before: Some(name), after: None }
    }

    /// After the block only.
    pub const fn after(name: &'static str) -> Norms {
        Norms { before: None, after: Some(name) }
    }

    /// Before and after it.
    pub const fn around(before: &'static str, after: &'static str) -> Norms {
        Norms { before: Some(before), after: Some(after) }
    }
}

/// Causal self-attention: `attn_q`, `attn_k` and `attn_v`, or `attn_qkv` with the rows of all three, then `attn_output`. Biases are used where
/// the file has them, and so are factors of frequencies (`rope_freqs`, or `rope_factors_short` and `rope_factors_long`).
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Attention {
    /// The rotary embedding of queries and keys, if they have one.
    pub rope: Option<Rope>,
    /// Tokens that a token sees back, itself included; 0: all.
    pub window: usize,
    /// Factor of the products of queries and keys.
    pub scale: f32,
    /// If not 0: the products become `softcap * tanh(product / softcap)`, after the factor.
    pub softcap: f32,
    /// Norms of queries and keys before they are rotated.
    pub head_norms: HeadNorms,
    /// Name behind `blk.N.` of a tensor with a logit for each head that takes part in the softmax and has no value, if there is one.
    pub sinks: Option<&'static str>,
}

impl Attention {
    /// To all tokens before, rotated as the file says, the products scaled by the root of a head's width.
    pub fn new(h: &Hparams, mode: RopeMode) -> Attention {
        Attention {
            rope: Some(h.rope(mode)),
            window: 0,
            scale: 1.0 / (h.head_dim_k as f32).sqrt(),
            softcap: 0.0,
            head_norms: HeadNorms::None,
            sinks: None,
        }
    }

    /// The same, with the window that layer `il` has.
    pub fn with_window(self, h: &Hparams, il: usize) -> Attention {
        Attention { window: h.window_of(il).map_or(0, |window| window.size), ..self }
    }

    /// The same, with the window that layer `il` has. A layer with one rotates by the window's base, and positions are not scaled: contexts are
    /// not stretched for tokens so near.
    pub fn with_own_rope_in_window(self, h: &Hparams, il: usize) -> Attention {
        let own = |rope: Rope, window: &Window| Rope::plain(rope.mode, rope.n_dims, window.freq_base);
        let rope = match (self.rope, h.window_of(il)) {
            (Some(rope), Some(window)) => Some(own(rope, window)),
            (rope, _) => rope,
        };
        Attention { rope, ..self.with_window(h, il) }
    }
}

/// RMS norms `attn_q_norm` and `attn_k_norm`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum HeadNorms {
    /// There are none.
    None,
    /// Each head has its own mean, all have the same weights.
    Each,
    /// One over all heads together.
    Together,
}

/// What is behind attention.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum FeedForward {
    /// `ffn_down(glu(ffn_gate(x), ffn_up(x)))`.
    Dense(Dense),
    /// A sum of some of many such, chosen token by token.
    Experts(Experts),
}

/// A feed-forward block that all tokens use.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Dense {
    /// The gated unit.
    pub glu: GluKind,
    /// Where the gate's weights are.
    pub gate: Gate,
    /// What becomes of `scale` tensors beside the weights.
    pub scales: Scales,
}

impl Dense {
    /// SwiGLU of `ffn_gate` and `ffn_up`.
    pub const SWIGLU: Dense = Dense { glu: GluKind::Swiglu, gate: Gate::Own, scales: Scales::Used };
}

/// Where the weights of a gate are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Gate {
    /// In `ffn_gate`.
    Own,
    /// In the first half of the rows of `ffn_up`.
    InUp,
}

/// What becomes of the `scale` tensors that a file may have beside the weights of a feed-forward block: llama.cpp writes them for all
/// architectures, and its models of most do not use them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Scales {
    /// Products are multiplied by them.
    Used,
    /// They are left alone.
    Ignored,
}

/// A mixture of experts (`ffn_gate_exps`, `ffn_up_exps`, `ffn_down_exps`), of which the router `ffn_gate_inp` chooses some for each token.
/// Biases are used where the file has them.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Experts {
    /// The gated unit of an expert.
    pub glu: GluKind,
    /// What the results of the chosen ones are multiplied by.
    pub weights: ExpertWeights,
    /// Factor of these weights; 1: as they are.
    pub weights_scale: f32,
    /// What becomes of `scale` tensors beside the weights.
    pub scales: Scales,
    /// The expert that all tokens use.
    pub shared: SharedExpert,
}

impl Experts {
    /// SwiGLU, no shared expert, shares as weights, times the file's factor.
    pub fn swiglu(h: &Hparams) -> Experts {
        Experts {
            glu: GluKind::Swiglu,
            weights: ExpertWeights::Shares,
            weights_scale: h.factors.expert_weights.unwrap_or(1.0),
            scales: Scales::Used,
            shared: SharedExpert::None,
        }
    }
}

/// How the logits of a router become weights of the experts that are chosen, those with the largest.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ExpertWeights {
    /// The softmax over all experts.
    Probabilities,
    /// The same, divided by its sum over the chosen ones.
    Shares,
    /// The softmax over the logits of the chosen ones.
    SoftMaxOfChosen,
}

/// An expert beside those that are chosen from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SharedExpert {
    /// There is none.
    None,
    /// `ffn_gate_shexp`, `ffn_up_shexp`, `ffn_down_shexp`, times the sigmoid of `ffn_gate_inp_shexp`.
    Gated,
}
