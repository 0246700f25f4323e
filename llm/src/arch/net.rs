//! The blocks that architectures are made of, and the graph around them.
//!
//! Shapes are ggml's: `ne[0]` is the fastest. A graph of one sequence takes `tokens` and `positions` (I32 `[n_tokens]`); the
//! position is also the row of the cache that a token's key and value are written to, so that the graph stays the same
//! while the context grows.

use super::{Architecture, Attention};
use crate::error::{Error, Result};
use crate::hparams::{Hparams, ModelFile};
use outboard_core::op::{self, BinaryKind, GluKind, NormKind, UnaryKind};
use outboard_core::{DType, Graph, GraphBuilder, TensorId};
use std::sync::Arc;

/// Name of the input of token ids, I32 `[n_tokens]`.
pub const TOKENS: &str = "tokens";
/// Name of the input of positions, I32 `[n_tokens]`.
pub const POSITIONS: &str = "positions";
/// Name of the input that says which rows go through the head, I32 `[n_outputs]`.
pub const OUTPUT_ROWS: &str = "output_rows";
/// Name of the input of the samplers' parameters, F32 `[4, n_outputs]` ([`Sampler::params`](op::Sampler::params)).
pub const SAMPLE_PARAMS: &str = "sample_params";
/// Name of the input of the samplers' seeds and counters, I32 `[3, n_outputs]` ([`Sampler::draw_of`](op::Sampler::draw_of)).
pub const SAMPLE_DRAWS: &str = "sample_draws";
/// Name of the input of the penalties' parameters, F32 `[4, n_outputs]` ([`Penalties::params`](op::Penalties::params)).
pub const PENALTY_PARAMS: &str = "penalty_params";
/// Name of the input of the last positions that penalties count, I32 `[n_outputs]`.
pub const PENALTY_STEPS: &str = "penalty_steps";
/// Name of the state that holds the last sampled id, I32 `[1]`, where the embedding is.
pub const NEXT_TOKEN: &str = "next_token";
/// Name of the state that holds the token at each position, I32 `[1, n_ctx]`, where the logits are.
pub const HISTORY: &str = "history";
/// Name of the input of the tokens that [`Outputs::Scores`] asks for, I32 `[n_outputs]`.
pub const TARGETS: &str = "targets";
/// Name of the output of logits, F32 `[n_vocab, n_outputs]`.
pub const LOGITS: &str = "logits";
/// Name of the output of sampled ids, I32 `[n_outputs]`.
pub const SAMPLED: &str = "sampled";
/// Name of the output of log-probabilities, of the sampled ids or of [`TARGETS`], F32 `[n_outputs]`.
pub const LOG_PROBS: &str = "log_probs";
/// A leaf is called after its tensor in the file; one tensor that several devices need has a leaf for each use, with the use
/// in brackets: `token_embd.weight (output)`, `rope_freqs.weight (blk.3)`.
pub fn file_name(leaf: &str) -> &str {
    leaf.split_once(" (").map_or(leaf, |(name, _)| name)
}

/// What a graph gives back.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Outputs {
    /// Nothing: a part of a prompt that is not its end. What only the head would read is left out.
    None,
    /// What the head would read, for nobody: how long the layers take.
    Layers,
    /// Logits of the last so many rows.
    Logits(usize),
    /// How probable the given tokens are, each behind one of the last so many tokens. The logits stay where they are.
    Scores(usize),
    /// One sampled token, for which tokens may count that were used a short while ago.
    Sample {
        /// Whether they do.
        penalties: bool,
        /// The token's log-probability (before penalties) as well.
        log_prob: bool,
    },
}

impl Outputs {
    /// How many tokens, the last ones, the head is for.
    pub fn rows(self) -> usize {
        match self {
            Outputs::None | Outputs::Layers => 0,
            Outputs::Logits(rows) | Outputs::Scores(rows) => rows,
            Outputs::Sample { .. } => 1,
        }
    }
}

/// How a token is chosen: inputs of a run, on which its graph does not depend.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Sampling {
    /// The draw.
    pub sampler: op::Sampler,
    /// What makes tokens less probable before it.
    pub penalties: Option<op::Penalties>,
    /// Gives the token's log-probability (before penalties) as well.
    pub log_prob: bool,
}

impl Sampling {
    /// What its graph gives back.
    pub fn outputs(&self) -> Outputs {
        Outputs::Sample { penalties: self.penalties.is_some(), log_prob: self.log_prob }
    }
}

/// Where token ids come from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Feed {
    /// From the input [`TOKENS`].
    Input,
    /// The one that the graph before sampled: it never leaves the devices, so nobody has to wait for it.
    Sampled,
}

/// The shape of a graph: two runs of the same shape use the same graph.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct GraphShape {
    /// Tokens that go in.
    pub n_tokens: usize,
    /// Rows of the cache.
    pub n_ctx: usize,
    /// Where they come from; [`Feed::Sampled`] is one token.
    pub feed: Feed,
    /// Whether the tokens are noted in [`HISTORY`].
    pub history: bool,
    /// What comes out.
    pub outputs: Outputs,
}

/// A graph under construction.
pub struct Net<'a> {
    g: GraphBuilder,
    hparams: &'a Hparams,
    weights: &'a dyn ModelFile,
    arch: &'a dyn Architecture,
    shape: GraphShape,
    positions: TensorId,
    /// The history, after this graph's tokens were noted.
    history: Option<TensorId>,
    sections: Vec<Section>,
}

/// Names of layer `il`'s cache of keys and of values.
pub fn cache_names(il: usize) -> [String; 2] {
    [format!("cache_k.{il}"), format!("cache_v.{il}")]
}

/// Element type of the cache.
pub const CACHE_DTYPE: DType = DType::F16;

/// The graph of a model, and which part of it is which section.
///
/// A section is what lies between two places where, of what is computed, nothing but the residual stream goes on to later nodes: the
/// attention of a layer, or its feed-forward block. A model is split over devices at such places.
#[derive(Clone, Debug)]
pub struct ModelGraph {
    /// The graph.
    pub graph: Arc<Graph>,
    sections: Vec<Section>,
    /// Where the head begins among the tensors.
    head: usize,
}

#[derive(Clone, Copy, Debug)]
struct Section {
    layer: usize,
    /// Where it begins among the tensors.
    start: usize,
}

/// The part of a model that a tensor belongs to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ModelPart {
    /// What is before the first section.
    Embedding,
    /// The section of that index.
    Section(usize),
    /// What is behind the last section.
    Head,
}

impl ModelGraph {
    /// Where a tensor belongs: leaves to what first uses them, states of the sampler to where they are written or read.
    pub fn part(&self, id: TensorId) -> ModelPart {
        let at = id.index();
        match self.graph.tensor(id).name() {
            NEXT_TOKEN => ModelPart::Embedding,
            HISTORY => ModelPart::Head,
            _ if at >= self.head => ModelPart::Head,
            _ => match self.sections.partition_point(|section| section.start <= at) {
                0 => ModelPart::Embedding,
                begun => ModelPart::Section(begun - 1),
            },
        }
    }

    /// The layer of each section.
    pub fn layers(&self) -> impl Iterator<Item = usize> {
        self.sections.iter().map(|section| section.layer)
    }
}

/// Builds the graph of a model for one shape.
pub fn build(
    arch: &dyn Architecture,
    hparams: &Hparams,
    weights: &dyn ModelFile,
    shape: GraphShape,
) -> Result<ModelGraph> {
    let mut g = GraphBuilder::new();
    let tokens = match shape.feed {
        Feed::Input => g.input(TOKENS, DType::I32, &[shape.n_tokens])?,
        Feed::Sampled => g.state(NEXT_TOKEN, DType::I32, &[1])?,
    };
    let positions = g.input(POSITIONS, DType::I32, &[shape.n_tokens])?;
    let history = if shape.history {
        let history = g.state(HISTORY, DType::I32, &[1, shape.n_ctx])?;
        let rows = g.push(op::Reshape { ne: [1, shape.n_tokens, 1, 1] }, &[tokens])?;
        Some(g.push(op::SetRows, &[history, rows, positions])?)
    } else {
        None
    };
    let mut net = Net { g, hparams, weights, arch, shape, positions, history, sections: Vec::new() };
    let table = net.weight("token_embd.weight")?;
    let mut x = net.g.push(op::GetRows, &[table, tokens])?;
    if let Some(scale) = arch.embedding_scale(hparams) {
        x = net.g.push(op::Scale { scale, bias: 0.0 }, &[x])?;
    }
    net.g.name(x, "embedding");
    for il in 0..hparams.n_layer {
        net.section(il);
        x = arch.layer(&mut net, il, x)?;
        net.g.name(x, &format!("blk.{il}.out"));
    }
    let head = net.g.len();
    net.head(x)?;
    let Net { g, mut sections, .. } = net;
    // Without the head nobody reads what the last layer makes beside its part of the cache.
    let (graph, kept) = g.finish()?.prune();
    let pruned = |start: usize| kept.partition_point(|id| id.index() < start);
    sections.iter_mut().for_each(|section| section.start = pruned(section.start));
    Ok(ModelGraph { graph: Arc::new(graph), sections, head: pruned(head) })
}

impl Net<'_> {
    /// The model's hyperparameters.
    pub fn hparams(&self) -> &Hparams {
        self.hparams
    }

    /// Begins a section of layer `il`: of what the layer has computed up to here, nothing but the residual stream goes on to later nodes. A
    /// layer begins with one of its own.
    pub fn section(&mut self, il: usize) {
        self.sections.push(Section { layer: il, start: self.g.len() });
    }

    /// A weight that must be there.
    fn weight(&mut self, name: &str) -> Result<TensorId> {
        self.opt_weight(name)?.ok_or_else(|| Error::Model(format!("tensor {name} is missing")))
    }

    /// A weight that may be there. Asking twice gives the same leaf.
    fn opt_weight(&mut self, name: &str) -> Result<Option<TensorId>> {
        let Some(layout) = self.weights.layout(file_name(name)) else { return Ok(None) };
        if let Some(id) = self.g.find(name) {
            return Ok(Some(id));
        }
        Ok(Some(self.g.weight(name, layout.dtype(), &layout.ne())?))
    }

    /// a + b.
    pub fn add(&mut self, a: TensorId, b: TensorId) -> Result<TensorId> {
        Ok(self.g.push(op::Binary { kind: BinaryKind::Add }, &[a, b])?)
    }

    fn mul(&mut self, a: TensorId, b: TensorId) -> Result<TensorId> {
        Ok(self.g.push(op::Binary { kind: BinaryKind::Mul }, &[a, b])?)
    }

    fn reshape(&mut self, x: TensorId, shape: [usize; 4]) -> Result<TensorId> {
        Ok(self.g.push(op::Reshape { ne: shape }, &[x])?)
    }

    /// `name.weight * x`, times `name.scale` and plus `name.bias` where the file has them. x `[k, n]`, result `[m, n]`.
    pub fn linear(&mut self, x: TensorId, name: &str) -> Result<TensorId> {
        let w = self.weight(&format!("{name}.weight"))?;
        let mut y = self.g.push(op::MulMat, &[w, x])?;
        self.g.name(y, name);
        if let Some(scale) = self.opt_weight(&format!("{name}.scale"))? {
            y = self.mul(y, scale)?;
        }
        if let Some(bias) = self.opt_weight(&format!("{name}.bias"))? {
            y = self.add(y, bias)?;
        }
        Ok(y)
    }

    /// RMS norm of the rows of x, times `name.weight`.
    pub fn rms_norm(&mut self, x: TensorId, name: &str) -> Result<TensorId> {
        let normed = self.g.push(op::Norm { kind: NormKind::RmsNorm, eps: self.hparams.norm_eps }, &[x])?;
        let w = self.weight(&format!("{name}.weight"))?;
        let y = self.mul(normed, w)?;
        Ok(self.g.name(y, name))
    }

    /// Rotary embedding of layer `il`'s heads, `[head_dim, n_head, n_tokens]`.
    pub fn rope(&mut self, il: usize, x: TensorId) -> Result<TensorId> {
        let factors =
            if self.arch.rope_factors() { self.opt_weight(&format!("rope_freqs.weight (blk.{il})"))? } else { None };
        let rope = self.arch.attention(self.hparams, il).rope;
        Ok(self.g.push_opt(rope, &[Some(x), Some(self.positions), factors][..if factors.is_some() { 3 } else { 2 }])?)
    }

    /// [`Net::rms_norm`] of each head of x, `[head_dim, n_head, n_tokens]`, if the architecture has that.
    fn head_norm(&mut self, x: TensorId, name: &str) -> Result<TensorId> {
        if !self.arch.head_norms() {
            return Ok(x);
        }
        let (weight, head_dim) = (format!("{name}.weight"), self.g.ne(x)[0]);
        match self.weights.layout(&weight) {
            Some(layout) if layout.ne() != [head_dim, 1, 1, 1] => {
                Err(Error::Model(format!("tensor {weight} is {layout}, heads have {head_dim} elements")))
            }
            _ => self.rms_norm(x, name),
        }
    }

    /// Causal self-attention of layer `il` over x `[n_embd, n_tokens]`: q, k, v, norms of their heads where the architecture has some,
    /// rotary embedding, the cache, the output.
    pub fn attention(&mut self, il: usize, x: TensorId) -> Result<TensorId> {
        let h = self.hparams;
        let n = self.shape.n_tokens;
        let prefix = format!("blk.{il}");
        let q = self.linear(x, &format!("{prefix}.attn_q"))?;
        let k = self.linear(x, &format!("{prefix}.attn_k"))?;
        let v = self.linear(x, &format!("{prefix}.attn_v"))?;
        let q = self.reshape(q, [h.head_dim_k, h.n_head, n, 1])?;
        let k = self.reshape(k, [h.head_dim_k, h.n_head_kv, n, 1])?;
        let q = self.head_norm(q, &format!("{prefix}.attn_q_norm"))?;
        let k = self.head_norm(k, &format!("{prefix}.attn_k_norm"))?;
        let q = self.rope(il, q)?;
        let k = self.rope(il, k)?;
        let v = self.reshape(v, [h.head_dim_v, h.n_head_kv, n, 1])?;
        let [name_k, name_v] = cache_names(il);
        let keys = self.cached(&name_k, k)?;
        let values = self.cached(&name_v, v)?;
        let q = self.g.push(op::Permute { axes: [0, 2, 1, 3] }, &[q])?;
        let Attention { window, scale, .. } = self.arch.attention(h, il);
        let attn = op::FlashAttn { scale, window, softcap: 0.0, block: 0 };
        let y = self.g.push_opt(attn, &[Some(q), Some(keys), Some(values), None, Some(self.positions)])?;
        self.g.name(y, &format!("{prefix}.attn"));
        let y = self.reshape(y, [h.head_dim_v * h.n_head, n, 1, 1])?;
        self.linear(y, &format!("{prefix}.attn_output"))
    }

    /// Writes x `[head_dim, n_head_kv, n_tokens]` into a cache and gives all of it, `[head_dim, n_ctx, n_head_kv]`: the rows of a head
    /// lie behind one another, because attention reads one head after the other.
    fn cached(&mut self, name: &str, x: TensorId) -> Result<TensorId> {
        let [head_dim, heads, ..] = self.g.ne(x);
        let cache = self.g.state(name, CACHE_DTYPE, &[head_dim, self.shape.n_ctx, heads])?;
        let rows = self.g.push(op::Permute { axes: [0, 2, 1, 3] }, &[x])?;
        let written = self.g.push(op::SetRows, &[cache, rows, self.positions])?;
        Ok(self.g.name(written, &format!("{name}.written")))
    }

    /// [`Net::linear`] of a dense feed-forward block, where the bias comes first and the scale covers it.
    fn ffn_linear(&mut self, x: TensorId, name: &str) -> Result<TensorId> {
        let w = self.weight(&format!("{name}.weight"))?;
        let mut y = self.g.push(op::MulMat, &[w, x])?;
        self.g.name(y, name);
        if let Some(bias) = self.opt_weight(&format!("{name}.bias"))? {
            y = self.add(y, bias)?;
        }
        if self.arch.ffn_scales()
            && let Some(scale) = self.opt_weight(&format!("{name}.scale"))?
        {
            y = self.mul(y, scale)?;
        }
        Ok(y)
    }

    /// Gated feed-forward: `down(act(gate(x)) * up(x))`.
    pub fn gated(&mut self, prefix: &str, x: TensorId, kind: GluKind) -> Result<TensorId> {
        let gate = self.ffn_linear(x, &format!("{prefix}.ffn_gate"))?;
        let up = self.ffn_linear(x, &format!("{prefix}.ffn_up"))?;
        let y = self.g.push(op::Glu { kind }, &[gate, up])?;
        self.ffn_linear(y, &format!("{prefix}.ffn_down"))
    }

    /// `name.weight[expert] * x` for the chosen experts: x `[k, 1 or n_used, n_tokens]`, ids `[n_used, n_tokens]`.
    fn linear_id(&mut self, x: TensorId, ids: TensorId, name: &str) -> Result<TensorId> {
        let n_expert = self.hparams.n_expert;
        let w = self.weight(&format!("{name}.weight"))?;
        let mut y = self.g.push(op::MulMatId, &[w, x, ids])?;
        self.g.name(y, name);
        if let Some(scale) = self.opt_weight(&format!("{name}.scale"))? {
            let scale = self.reshape(scale, [1, n_expert, 1, 1])?;
            let scale = self.g.push(op::Repeat { ne: [1, n_expert, self.shape.n_tokens, 1] }, &[scale])?;
            let scale = self.g.push(op::GetRows, &[scale, ids])?;
            y = self.mul(y, scale)?;
        }
        Ok(y)
    }

    /// Mixture of experts: the `n_expert_used` most probable ones per token, weighted by their probabilities' shares.
    pub fn experts(&mut self, il: usize, x: TensorId) -> Result<TensorId> {
        let h = self.hparams;
        let n = self.shape.n_tokens;
        let prefix = format!("blk.{il}");
        let logits = self.linear(x, &format!("{prefix}.ffn_gate_inp"))?;
        let probs = self.g.push(op::SoftMax { scale: 1.0 }, &[logits])?;
        let ids = self.g.push(op::TopK { k: h.n_expert_used }, &[probs])?;
        self.g.name(ids, &format!("{prefix}.experts"));
        let probs = self.reshape(probs, [1, h.n_expert, n, 1])?;
        let weights = self.g.push(op::GetRows, &[probs, ids])?;
        let weights = self.reshape(weights, [h.n_expert_used, n, 1, 1])?;
        let sum = self.g.push(op::Reduce { kind: op::ReduceKind::SumRows }, &[weights])?;
        let weights = self.g.push(op::Binary { kind: BinaryKind::Div }, &[weights, sum])?;
        let weights = self.reshape(weights, [1, h.n_expert_used, n, 1])?;
        let x = self.reshape(x, [h.n_embd, 1, n, 1])?;
        let gate = self.linear_id(x, ids, &format!("{prefix}.ffn_gate_exps"))?;
        let up = self.linear_id(x, ids, &format!("{prefix}.ffn_up_exps"))?;
        let y = self.g.push(op::Glu { kind: GluKind::Swiglu }, &[gate, up])?;
        let y = self.linear_id(y, ids, &format!("{prefix}.ffn_down_exps"))?;
        let y = self.mul(y, weights)?;
        let mut sum: Option<TensorId> = None;
        for used in 0..h.n_expert_used {
            let row = 4 * h.n_embd;
            let nb = [4, row * h.n_expert_used, row * h.n_expert_used * n, row * h.n_expert_used * n];
            let one = self.g.push(op::View { ne: [h.n_embd, n, 1, 1], nb, offset: used * row }, &[y])?;
            sum = Some(match sum {
                Some(sum) => self.add(sum, one)?,
                None => self.g.push(op::Cont, &[one])?,
            });
        }
        sum.ok_or_else(|| Error::Model("no expert is used".into()))
    }

    /// The final norm, the output matrix and what the shape asks for after it.
    fn head(&mut self, x: TensorId) -> Result<()> {
        match self.shape.outputs {
            // Nothing but the caches is wanted, and those are state.
            Outputs::None => {}
            Outputs::Layers => {
                self.g.output(x);
            }
            Outputs::Logits(rows) => {
                let logits = self.logits(x, rows)?;
                self.g.output(logits);
            }
            Outputs::Scores(rows) => {
                let logits = self.logits(x, rows)?;
                let targets = self.g.input(TARGETS, DType::I32, &[rows])?;
                self.log_probs(logits, targets)?;
            }
            Outputs::Sample { penalties, log_prob } => self.sample(x, penalties, log_prob)?,
        }
        Ok(())
    }

    /// The final norm and the output matrix: of all rows of x if it has as many, else of those that the input says.
    fn logits(&mut self, mut x: TensorId, rows: usize) -> Result<TensorId> {
        if rows != self.shape.n_tokens {
            let ids = self.g.input(OUTPUT_ROWS, DType::I32, &[rows])?;
            x = self.g.push(op::GetRows, &[x, ids])?;
        }
        let x = self.rms_norm(x, "output_norm")?;
        let logits = match self.weights.layout("output.weight") {
            Some(_) => self.linear(x, "output")?,
            // Models without an output matrix use the embedding: the same bytes, where the last layer is.
            None => {
                let w = self.weight("token_embd.weight (output)")?;
                self.g.push(op::MulMat, &[w, x])?
            }
        };
        let logits = match self.hparams.logit_softcap {
            0.0 => logits,
            cap => {
                let small = self.g.push(op::Scale { scale: 1.0 / cap, bias: 0.0 }, &[logits])?;
                let bent = self.g.push(op::Unary { kind: UnaryKind::Tanh }, &[small])?;
                self.g.push(op::Scale { scale: cap, bias: 0.0 }, &[bent])?
            }
        };
        Ok(self.g.name(logits, LOGITS))
    }

    /// The output of the log-probabilities of these ids, one for each row of logits.
    fn log_probs(&mut self, logits: TensorId, ids: TensorId) -> Result<()> {
        let log_probs = self.g.push(op::LogProb, &[logits, ids])?;
        self.g.name(log_probs, LOG_PROBS);
        self.g.output(log_probs);
        Ok(())
    }

    /// One token from the logits of one row of x, and what the next step needs of it.
    fn sample(&mut self, x: TensorId, penalties: bool, log_prob: bool) -> Result<()> {
        let logits = self.logits(x, 1)?;
        let weighed = match self.history {
            Some(history) if penalties => {
                let steps = self.g.input(PENALTY_STEPS, DType::I32, &[1])?;
                let params = self.g.input(PENALTY_PARAMS, DType::F32, &[4, 1])?;
                let history = self.reshape(history, [self.shape.n_ctx, 1, 1, 1])?;
                self.g.push(op::Penalty { block: 0 }, &[logits, history, steps, params])?
            }
            None if penalties => return Err(Error::Plan("a penalty needs the history of tokens".into())),
            _ => logits,
        };
        let params = self.g.input(SAMPLE_PARAMS, DType::F32, &[4, 1])?;
        let draws = self.g.input(SAMPLE_DRAWS, DType::I32, &[3, 1])?;
        let ids = self.g.push(op::Sample, &[weighed, params, draws])?;
        self.g.name(ids, SAMPLED);
        self.g.output(ids);
        if log_prob {
            self.log_probs(logits, ids)?;
        }
        let next = match self.g.find(NEXT_TOKEN) {
            Some(state) => state,
            None => self.g.state(NEXT_TOKEN, DType::I32, &[1])?,
        };
        let fed = self.g.push(op::Cpy, &[ids, next])?;
        self.g.name(fed, "next_token.written");
        Ok(())
    }
}
