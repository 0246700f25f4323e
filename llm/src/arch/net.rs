//! The blocks that architectures are made of, and the graph around them.
//!
//! Shapes are ggml's: `ne[0]` is the fastest. A row of a graph is a token of any sequence: inputs say which token, of which sequence, at which
//! position, and which row of the cache takes its key and value. So a graph depends on how many rows there are, and stays the same while
//! contexts grow, begin and end.

mod attention;
mod feed_forward;
mod stored;

use super::Architecture;
use super::layer::{Frame, Norms};
use crate::error::{Error, Result};
use crate::hparams::{Hparams, ModelFile};
use outboard_core::op::{self, BinaryKind, NormKind, UnaryKind};
use outboard_core::{DType, Graph, GraphBuilder, TensorId};
use std::collections::{HashMap, HashSet};
use std::ops::Range;
use std::sync::Arc;
pub use stored::{State, Stored};

/// Name of the input of token ids, I32 `[n_tokens]`.
pub const TOKENS: &str = "tokens";
/// Name of the input that says of each row its position, the row of the cache that it is written to, and its [slot](Cache::slots): I32
/// `[n_tokens, 3]`.
pub const ROWS: &str = "rows";
/// Name of the input that says which token each row is: I32 `[n_tokens]`, a slot for the one sampled last there, and behind the last slot the
/// number of a token of [`TOKENS`].
pub const PICKS: &str = "picks";
/// Name of the input that says which rows go through the head, I32 `[n_outputs]`.
pub const OUTPUT_ROWS: &str = "output_rows";
/// Name of the input of the slots of the rows that go through the head, I32 `[n_outputs]`.
pub const OUTPUT_SLOTS: &str = "output_slots";
/// Name of the input of the samplers' parameters, F32 `[4, n_outputs]` ([`Sampler::params`](op::Sampler::params)).
pub const SAMPLE_PARAMS: &str = "sample_params";
/// Name of the input of the samplers' seeds and counters, I32 `[3, n_outputs]` ([`Sampler::draw_of`](op::Sampler::draw_of)).
pub const SAMPLE_DRAWS: &str = "sample_draws";
/// Name of the input of the penalties' parameters, F32 `[4, n_outputs]` ([`Penalties::params`](op::Penalties::params)).
pub const PENALTY_PARAMS: &str = "penalty_params";
/// Name of the input that says of each row of logits the last position that penalties count, and its slot: I32 `[n_outputs, 2]`.
pub const PENALTY_STEPS: &str = "penalty_steps";
/// Name of the input of numbers that are added to logits before a token is drawn: F32 `[n_vocab, n_biases]`.
pub const VOCAB_BIAS: &str = "vocab_bias";
/// Name of the input of sets of tokens, Q4_0 `[n_vocab, n_masks]`: 0 for those that may be drawn, [`EXCLUDED`] for the others.
pub const MASKS: &str = "masks";
/// Name of the input that says which row of [`VOCAB_BIAS`] or [`MASKS`] each row of logits has, I32 `[n_outputs]`.
pub const ADDED_ROWS: &str = "added_rows";
/// What a mask has for a token that may not be drawn. It becomes minus infinity, which blocks of numbers cannot say.
pub const EXCLUDED: f32 = -65536.0;
/// Name of the input of the tokens that [`Outputs::Scores`] asks for, I32 `[n_outputs]`.
pub const TARGETS: &str = "targets";
/// Name of the output of logits, F32 `[n_vocab, n_outputs]`.
pub const LOGITS: &str = "logits";
/// Name of the output of what the head would read, F32 `[n_embd, n_outputs]`.
pub const HIDDEN: &str = "output_norm";
/// Name of the output of sampled ids, I32 `[n_outputs]`.
pub const SAMPLED: &str = "sampled";
/// Name of the output of log-probabilities, of the sampled ids or of [`TARGETS`], F32 `[n_outputs]`.
pub const LOG_PROBS: &str = "log_probs";
/// Name of the output of the most probable ids, most probable first: I32 `[k, n_outputs]`, of [`N_TOP`] or the whole vocabulary.
pub const TOP_IDS: &str = "top_ids";
/// Name of the output of their log-probabilities, F32 `[1, k, n_outputs]`.
pub const TOP_LOG_PROBS: &str = "top_log_probs";

/// What a graph gives back.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Outputs {
    /// Nothing: a part of a prompt that is not its end. What only the head would read is left out.
    None,
    /// What the head would read, for nobody: how long the layers take.
    Layers,
    /// Logits of the last so many rows.
    Logits(usize),
    /// What the output matrix would read of so many rows, those that an input says or all: behind the final norm ([`HIDDEN`]).
    Hidden(usize),
    /// How probable the given tokens are, each behind one of the last so many tokens. The logits stay where they are.
    Scores(usize),
    /// A sampled token for each of so many rows.
    Sample {
        /// How many, the rows that an input says.
        rows: usize,
        /// Whether penalties are applied, over [`State::History`].
        penalties: bool,
        /// What is added to the logits.
        added: Added,
        /// Which log-probabilities come with them.
        log_probs: LogProbs,
    },
}

/// What is added to logits before a token is drawn.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Added {
    /// Nothing.
    Nothing,
    /// Numbers, as one of so many rows of [`VOCAB_BIAS`] says.
    Numbers(usize),
    /// Nothing or minus infinity, as one of so many [`MASKS`] says.
    Masks(usize),
}

impl Outputs {
    /// How many tokens the head is for.
    pub fn rows(self) -> usize {
        match self {
            Outputs::None | Outputs::Layers => 0,
            Outputs::Logits(rows) | Outputs::Hidden(rows) | Outputs::Scores(rows) | Outputs::Sample { rows, .. } => {
                rows
            }
        }
    }
}

/// Which log-probabilities come with a sampled token: those of the model, before penalties and what is added to logits.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub enum LogProbs {
    /// None.
    #[default]
    None,
    /// The token's own.
    Chosen,
    /// Its own, and those of the [most probable tokens](N_TOP).
    Top,
}

/// Tokens that [`LogProbs::Top`] gives, fewer if the vocabulary has fewer: as many as OpenAI's API gives at most.
pub const N_TOP: usize = 20;

/// How a token is chosen. The numbers are inputs of a run; only whether there are penalties, and log-probabilities, changes its graph.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Sampling {
    /// The draw.
    pub sampler: op::Sampler,
    /// What makes tokens less probable before it.
    pub penalties: Option<op::Penalties>,
    /// Which log-probabilities come with the token.
    pub log_probs: LogProbs,
}

/// Where token ids come from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Feed {
    /// From the input [`TOKENS`].
    Input,
    /// Those that graphs before have sampled: they never leave the devices, so nobody has to wait for them.
    Sampled,
    /// Some from the input, some that were sampled ([`PICKS`]).
    Mixed,
}

/// The shape of the KV cache, which all sequences share: blocks of [`BLOCK_ROWS`](op::BLOCK_ROWS) rows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Cache {
    /// Most tokens of a sequence.
    pub n_ctx: usize,
    /// Blocks in all.
    pub blocks: usize,
    /// Places for sequences, the spare ones included.
    pub slots: usize,
    /// Slots, the last ones, for padding rows. They share a block, the first one: what is used ends with the last row of a sequence.
    pub spare: usize,
    /// Element types of keys and of values.
    pub dtypes: [DType; 2],
}

impl Cache {
    /// For one sequence of up to `n_ctx` tokens.
    pub fn of_one(n_ctx: usize) -> Cache {
        Cache { n_ctx, blocks: n_ctx.div_ceil(op::BLOCK_ROWS), slots: 1, spare: 0, dtypes: [CACHE_DTYPE; 2] }
    }

    /// The same with slots for padding rows.
    pub fn with_spare(self, spare: usize) -> Cache {
        Cache { blocks: self.blocks + usize::from(spare > 0), slots: self.slots + spare, spare, ..self }
    }

    /// Blocks that sequences may have: all but the spare one.
    pub fn blocks_of_sequences(&self) -> usize {
        self.blocks - usize::from(self.spare > 0)
    }

    /// The blocks that sequences may have: all but the one of padding rows.
    pub(crate) fn numbers(&self) -> Range<usize> {
        self.blocks - self.blocks_of_sequences()..self.blocks
    }

    /// The block of padding rows, where there are spare slots.
    pub(crate) fn spare_block(&self) -> usize {
        0
    }

    /// Rows in all.
    pub fn rows(&self) -> usize {
        self.blocks.saturating_mul(op::BLOCK_ROWS)
    }

    /// Most blocks of a sequence.
    pub fn blocks_each(&self) -> usize {
        self.n_ctx.div_ceil(op::BLOCK_ROWS).max(1)
    }
}

/// The shape of a graph: two runs of the same shape use the same graph.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct GraphShape {
    /// Tokens that go in.
    pub n_tokens: usize,
    /// What they are written to.
    pub cache: Cache,
    /// Where they come from.
    pub feed: Feed,
    /// Whether the tokens are noted in [`State::History`].
    pub history: bool,
    /// What comes out.
    pub outputs: Outputs,
}

/// A graph under construction.
pub struct Net<'a> {
    g: GraphBuilder,
    hparams: &'a Hparams,
    weights: &'a dyn ModelFile,
    frame: Frame,
    shape: GraphShape,
    rows: TensorId,
    /// The slot of each row, for the device with the embedding.
    slots: TensorId,
    /// The history, after this graph's tokens were noted.
    history: Option<TensorId>,
    sections: Vec<Section>,
    leaves: Leaves,
}

/// What is known of the leaves of a graph beside their tensors.
#[derive(Clone, Debug, Default)]
struct Leaves {
    /// What they stand for, but for inputs.
    stored: HashMap<TensorId, Stored>,
    /// Those that have a part for each expert.
    of_experts: HashSet<TensorId>,
}

/// Element type of the cache where nothing is said.
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
    leaves: Leaves,
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
        match self.stored(id) {
            Some(Stored::State(State::NextToken)) => ModelPart::Embedding,
            Some(Stored::State(State::History)) => ModelPart::Head,
            _ if at >= self.head => ModelPart::Head,
            _ => match self.sections.partition_point(|section| section.start <= at) {
                0 => ModelPart::Embedding,
                begun => ModelPart::Section(begun - 1),
            },
        }
    }

    /// What a leaf stands for; `None` for an input, and what is no leaf.
    pub fn stored(&self, id: TensorId) -> Option<Stored> {
        self.leaves.stored.get(&id).copied()
    }

    /// Everything that devices hold, leaf by leaf.
    pub fn all_stored(&self) -> impl Iterator<Item = (TensorId, Stored)> {
        self.graph.leaves().filter_map(|(id, _)| Some((id, self.stored(id)?)))
    }

    /// Whether a weight has a part for each expert, of which a token reads those that it uses.
    pub fn is_of_experts(&self, id: TensorId) -> bool {
        self.leaves.of_experts.contains(&id)
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
    let frame = arch.frame(hparams);
    if frame.max_ctx != 0 && shape.cache.n_ctx > frame.max_ctx {
        return Err(Error::ContextTooLarge { arch: hparams.arch.clone(), most: frame.max_ctx });
    }
    let mut g = GraphBuilder::new();
    let rows = g.input(ROWS, DType::I32, &[shape.n_tokens, 3])?;
    let slots = Column::Slot.of(&mut g, rows)?;
    let (history, sections, leaves) = (None, Vec::new(), Leaves::default());
    let mut net = Net { g, hparams, weights, frame, shape, rows, slots, history, sections, leaves };
    let tokens = net.tokens()?;
    if shape.history {
        net.note(tokens)?;
    }
    let table = net.weight("token_embd.weight")?;
    let embedding = net.g.push(op::GetRows, &[table, tokens])?;
    let mut x = net.scale(embedding, frame.embedding_scale)?;
    net.g.name(x, "embedding");
    for il in 0..hparams.n_layer {
        net.section(il);
        let layer = arch.layer(hparams, il);
        let (scale, norms) = (layer.residual_scale, layer.attention_norms);
        x = net.residual(il, x, norms, scale, &|net, x| net.attention(il, &layer.attention, x))?;
        net.section(il);
        let norms = layer.feed_forward_norms;
        x = net.residual(il, x, norms, scale, &|net, x| net.feed_forward(il, &layer.feed_forward, x))?;
        net.g.name(x, &format!("blk.{il}.out"));
    }
    let head = net.g.len();
    net.head(x)?;
    let Net { g, mut sections, leaves, .. } = net;
    // Without the head nobody reads what the last layer makes beside its part of the cache.
    let (graph, kept) = g.finish()?.prune();
    let pruned = |start: usize| kept.partition_point(|id| id.index() < start);
    sections.iter_mut().for_each(|section| section.start = pruned(section.start));
    let leaves = leaves.pruned(&graph, &kept);
    Ok(ModelGraph { graph: Arc::new(graph), sections, head: pruned(head), leaves })
}

impl Leaves {
    /// What is left of them in a graph whose tensors had these ids before.
    fn pruned(&self, graph: &Graph, before: &[TensorId]) -> Leaves {
        let left = graph.leaves().filter_map(|(id, _)| Some((id, before.get(id.index())?)));
        let mut leaves = Leaves::default();
        for (id, before) in left {
            leaves.stored.extend(self.stored.get(before).map(|&stored| (id, stored)));
            leaves.of_experts.extend(self.of_experts.contains(before).then_some(id));
        }
        leaves
    }
}

/// What [`ROWS`] says of a row.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Column {
    Position,
    CacheRow,
    Slot,
}

impl Column {
    /// This column, of all rows, I32 `[n_tokens]`. Each device has a view of its own, so that none asks another one for it.
    fn of(self, g: &mut GraphBuilder, rows: TensorId) -> Result<TensorId> {
        column(g, rows, self as usize)
    }
}

/// Column `i` of an input I32 `[n, columns]`, as `[n]`.
fn column(g: &mut GraphBuilder, input: TensorId, i: usize) -> Result<TensorId> {
    let n = g.ne(input)[0];
    Ok(g.push(op::View { ne: [n, 1, 1, 1], nb: [4, 4 * n, 4 * n, 4 * n], offset: 4 * n * i }, &[input])?)
}

/// The name of a leaf that is for one of several users: for people, who see it in messages.
fn for_user(name: &str, user: &str) -> String {
    format!("{name} ({user})")
}

fn missing(tensor: &str) -> Error {
    Error::Model(format!("tensor {tensor} is missing"))
}

impl Net<'_> {
    /// The token of each row, I32 `[n_tokens]`.
    fn tokens(&mut self) -> Result<TensorId> {
        let GraphShape { n_tokens, feed, .. } = self.shape;
        if feed == Feed::Input {
            return Ok(self.g.input(TOKENS, DType::I32, &[n_tokens])?);
        }
        let sampled = self.next_token()?;
        let (from, picks) = match feed {
            Feed::Mixed => {
                let given = self.g.input(TOKENS, DType::I32, &[1, n_tokens])?;
                let both = self.g.push(op::Concat { dim: 1 }, &[sampled, given])?;
                (both, self.g.input(PICKS, DType::I32, &[n_tokens])?)
            }
            _ => (sampled, self.slots),
        };
        let picked = self.g.push(op::GetRows, &[from, picks])?;
        self.reshape(picked, [n_tokens, 1, 1, 1])
    }

    /// Notes the token of each row in the history.
    fn note(&mut self, tokens: TensorId) -> Result<()> {
        let history = self.state(State::History, None, DType::I32, &[1, self.shape.cache.rows()])?;
        let noted = self.reshape(tokens, [1, self.shape.n_tokens, 1, 1])?;
        let cache_rows = self.column(Column::CacheRow)?;
        self.history = Some(self.g.push(op::SetRows, &[history, noted, cache_rows])?);
        Ok(())
    }

    /// The ids sampled last.
    fn next_token(&mut self) -> Result<TensorId> {
        self.state(State::NextToken, None, DType::I32, &[1, self.shape.cache.slots])
    }

    /// Begins a section of layer `il`: of what the layer has computed up to here, nothing but the residual stream goes on to later nodes. A
    /// layer begins with one of its own.
    fn section(&mut self, il: usize) {
        self.sections.push(Section { layer: il, start: self.g.len() });
    }

    /// A weight that must be there.
    fn weight(&mut self, tensor: &str) -> Result<TensorId> {
        self.opt_weight(tensor)?.ok_or_else(|| missing(tensor))
    }

    /// A weight that may be there. Asking twice gives the same leaf.
    fn opt_weight(&mut self, tensor: &str) -> Result<Option<TensorId>> {
        self.weight_leaf(tensor, tensor)
    }

    /// A weight that several devices may need: a leaf for this user.
    fn weight_for(&mut self, user: &str, tensor: &str) -> Result<TensorId> {
        self.weight_leaf(&for_user(tensor, user), tensor)?.ok_or_else(|| missing(tensor))
    }

    fn weight_leaf(&mut self, leaf: &str, tensor: &str) -> Result<Option<TensorId>> {
        let Some((weight, layout)) = self.weights.weight(tensor) else { return Ok(None) };
        if let Some(id) = self.g.find(leaf) {
            return Ok(Some(id));
        }
        let id = self.g.weight(leaf, layout.dtype(), &layout.ne())?;
        self.leaves.stored.insert(id, Stored::Weight(weight));
        Ok(Some(id))
    }

    /// A state, as a leaf for this user if several devices may need it. Asking twice gives the same leaf.
    fn state(&mut self, state: State, user: Option<&str>, dtype: DType, ne: &[usize]) -> Result<TensorId> {
        let leaf = user.map_or_else(|| state.to_string(), |user| for_user(&state.to_string(), user));
        if let Some(id) = self.g.find(&leaf) {
            return Ok(id);
        }
        let id = self.g.state(&leaf, dtype, ne)?;
        self.leaves.stored.insert(id, Stored::State(state));
        Ok(id)
    }

    /// x plus what a block makes of it, with norms around the block and a factor of its result.
    fn residual(
        &mut self,
        il: usize,
        x: TensorId,
        norms: Norms,
        scale: f32,
        block: &dyn Fn(&mut Self, TensorId) -> Result<TensorId>,
    ) -> Result<TensorId> {
        let normed = self.opt_norm(il, x, norms.before)?;
        let y = block(self, normed)?;
        let y = self.opt_norm(il, y, norms.after)?;
        let y = self.scale(y, scale)?;
        self.add(x, y)
    }

    fn opt_norm(&mut self, il: usize, x: TensorId, name: Option<&str>) -> Result<TensorId> {
        name.map_or(Ok(x), |name| self.rms_norm(x, &format!("blk.{il}.{name}")))
    }

    fn add(&mut self, a: TensorId, b: TensorId) -> Result<TensorId> {
        Ok(self.g.push(op::Binary { kind: BinaryKind::Add }, &[a, b])?)
    }

    fn mul(&mut self, a: TensorId, b: TensorId) -> Result<TensorId> {
        Ok(self.g.push(op::Binary { kind: BinaryKind::Mul }, &[a, b])?)
    }

    /// x times a factor; x itself if that is 1.
    fn scale(&mut self, x: TensorId, scale: f32) -> Result<TensorId> {
        if scale == 1.0 {
            return Ok(x);
        }
        Ok(self.g.push(op::Scale { scale, bias: 0.0 }, &[x])?)
    }

    /// `softcap * tanh(x / softcap)`; x itself if softcap is 0.
    fn softcap(&mut self, x: TensorId, softcap: f32) -> Result<TensorId> {
        if softcap == 0.0 {
            return Ok(x);
        }
        let small = self.scale(x, 1.0 / softcap)?;
        let bent = self.g.push(op::Unary { kind: UnaryKind::Tanh }, &[small])?;
        self.scale(bent, softcap)
    }

    /// Elements `first..first + len` of each row of x `[n, rows]`.
    fn part(&mut self, x: TensorId, first: usize, len: usize) -> Result<TensorId> {
        let [n, rows, ..] = self.g.ne(x);
        let row = 4 * n;
        Ok(self
            .g
            .push(op::View { ne: [len, rows, 1, 1], nb: [4, row, row * rows, row * rows], offset: 4 * first }, &[x])?)
    }

    fn reshape(&mut self, x: TensorId, shape: [usize; 4]) -> Result<TensorId> {
        Ok(self.g.push(op::Reshape { ne: shape }, &[x])?)
    }

    /// `name.weight * x`, times `name.scale` and plus `name.bias` where the file has them. x `[k, n]`, result `[m, n]`.
    fn linear(&mut self, x: TensorId, name: &str) -> Result<TensorId> {
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
    fn rms_norm(&mut self, x: TensorId, name: &str) -> Result<TensorId> {
        let normed = self.g.push(op::Norm { kind: NormKind::RmsNorm, eps: self.hparams.norm_eps }, &[x])?;
        let w = self.weight(&format!("{name}.weight"))?;
        let (width, given) = (self.g.ne(x)[0], self.g.ne(w));
        if given != [width, 1, 1, 1] {
            return Err(Error::Model(format!("tensor {name}.weight is {given:?}, and normalizes {width} elements")));
        }
        let y = self.mul(normed, w)?;
        Ok(self.g.name(y, name))
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
            Outputs::Hidden(rows) => {
                let normed = self.normed(x, rows)?;
                self.g.output(normed);
            }
            Outputs::Scores(rows) => {
                let logits = self.logits(x, rows)?;
                let targets = self.g.input(TARGETS, DType::I32, &[rows])?;
                self.log_probs(logits, targets)?;
            }
            Outputs::Sample { .. } => self.sample(x)?,
        }
        Ok(())
    }

    /// Positions, rows of the cache or slots of all rows.
    fn column(&mut self, column: Column) -> Result<TensorId> {
        column.of(&mut self.g, self.rows)
    }

    /// The blocks of sequences, for who uses them so.
    fn block_table(&mut self, user: &str) -> Result<TensorId> {
        let Cache { slots, .. } = self.shape.cache;
        let ne = [self.shape.cache.blocks_each(), slots];
        self.state(State::BlockTable, Some(user), DType::I32, &ne)
    }

    /// The final norm of all rows of x if it has as many, else of those that the input says.
    fn normed(&mut self, mut x: TensorId, rows: usize) -> Result<TensorId> {
        if rows != self.shape.n_tokens {
            let ids = self.g.input(OUTPUT_ROWS, DType::I32, &[rows])?;
            x = self.g.push(op::GetRows, &[x, ids])?;
        }
        self.rms_norm(x, HIDDEN)
    }

    /// The final norm and the output matrix, of these rows.
    fn logits(&mut self, x: TensorId, rows: usize) -> Result<TensorId> {
        let x = self.normed(x, rows)?;
        let logits = match self.weights.layout("output.weight") {
            Some(_) => self.linear(x, "output")?,
            // Models without an output matrix use the embedding: the same bytes, where the last layer is.
            None => {
                let w = self.weight_for("output", "token_embd.weight")?;
                self.g.push(op::MulMat, &[w, x])?
            }
        };
        let logits = self.scale(logits, self.frame.logit_scale)?;
        let logits = self.softcap(logits, self.frame.logit_softcap)?;
        Ok(self.g.name(logits, LOGITS))
    }

    /// The output of the log-probabilities of these ids, one for each row of logits.
    fn log_probs(&mut self, logits: TensorId, ids: TensorId) -> Result<TensorId> {
        let log_probs = self.g.push(op::LogProb, &[logits, ids])?;
        self.g.name(log_probs, LOG_PROBS);
        self.g.output(log_probs);
        Ok(log_probs)
    }

    /// The outputs of the most probable tokens of each row of logits, given one id of each row and how probable it is: a logit and its
    /// log-probability differ by the same number in all of the row.
    fn top(&mut self, logits: TensorId, id: TensorId, log_prob: TensorId) -> Result<()> {
        let [n_vocab, rows, ..] = self.g.ne(logits);
        let ids = self.g.push(op::TopK { k: N_TOP.min(n_vocab) }, &[logits])?;
        self.g.name(ids, TOP_IDS);
        self.g.output(ids);
        let each = self.reshape(logits, [1, n_vocab, rows, 1])?;
        let id = self.reshape(id, [1, rows, 1, 1])?;
        let of_id = self.g.push(op::GetRows, &[each, id])?;
        let log_prob = self.reshape(log_prob, [1, 1, rows, 1])?;
        let difference = self.g.push(op::Binary { kind: BinaryKind::Sub }, &[of_id, log_prob])?;
        let of_top = self.g.push(op::GetRows, &[each, ids])?;
        let log_probs = self.g.push(op::Binary { kind: BinaryKind::Sub }, &[of_top, difference])?;
        self.g.name(log_probs, TOP_LOG_PROBS);
        self.g.output(log_probs);
        Ok(())
    }

    /// Tokens from the logits of some rows of x, and what the next steps need of them.
    fn sample(&mut self, x: TensorId) -> Result<()> {
        let Outputs::Sample { rows, penalties, added, log_probs } = self.shape.outputs else { return Ok(()) };
        let logits = self.logits(x, rows)?;
        let mut weighed = match self.history {
            Some(history) if penalties => self.weigh(logits, history, rows)?,
            None if penalties => return Err(Error::Internal("a penalty needs the history of tokens".into())),
            _ => logits,
        };
        if let Some(added) = self.added(added, self.g.ne(logits)[0], rows)? {
            weighed = self.add(weighed, added)?;
        }
        let params = self.g.input(SAMPLE_PARAMS, DType::F32, &[4, rows])?;
        let draws = self.g.input(SAMPLE_DRAWS, DType::I32, &[3, rows])?;
        let ids = self.g.push(op::Sample, &[weighed, params, draws])?;
        self.g.name(ids, SAMPLED);
        self.g.output(ids);
        if log_probs != LogProbs::None {
            let log_prob = self.log_probs(logits, ids)?;
            if log_probs == LogProbs::Top {
                self.top(logits, ids, log_prob)?;
            }
        }
        let next = self.next_token()?;
        // Steps sample for every row, in their order.
        let slots = if self.shape.feed == Feed::Sampled && rows == self.shape.n_tokens {
            self.slots
        } else {
            self.g.input(OUTPUT_SLOTS, DType::I32, &[rows])?
        };
        let ids = self.reshape(ids, [1, rows, 1, 1])?;
        let fed = self.g.push(op::SetRows, &[next, ids, slots])?;
        self.g.name(fed, "next_token.written");
        Ok(())
    }

    /// What is added to some rows of logits of so many tokens.
    fn added(&mut self, added: Added, n_vocab: usize, rows: usize) -> Result<Option<TensorId>> {
        let choices = match added {
            Added::Nothing => return Ok(None),
            Added::Numbers(biases) => self.g.input(VOCAB_BIAS, DType::F32, &[n_vocab, biases])?,
            Added::Masks(masks) => self.g.input(MASKS, DType::Q4_0, &[n_vocab, masks])?,
        };
        let which = self.g.input(ADDED_ROWS, DType::I32, &[rows])?;
        let chosen = self.g.push(op::GetRows, &[choices, which])?;
        Ok(Some(match added {
            // What is not 0 is beyond what a float can be.
            Added::Masks(_) => self.g.push(op::Scale { scale: f32::MAX, bias: 0.0 }, &[chosen])?,
            _ => chosen,
        }))
    }

    /// Logits, of which those are smaller whose tokens were used a short while ago.
    fn weigh(&mut self, logits: TensorId, history: TensorId, rows: usize) -> Result<TensorId> {
        let steps = self.g.input(PENALTY_STEPS, DType::I32, &[rows, 2])?;
        let (last, slots) = (column(&mut self.g, steps, 0)?, column(&mut self.g, steps, 1)?);
        let params = self.g.input(PENALTY_PARAMS, DType::F32, &[4, rows])?;
        let history = self.reshape(history, [self.shape.cache.rows(), 1, 1, 1])?;
        let table = self.block_table("head")?;
        let srcs = [logits, history, last, params, table, slots];
        Ok(self.g.push(op::Penalty { block: op::BLOCK_ROWS }, &srcs)?)
    }
}
