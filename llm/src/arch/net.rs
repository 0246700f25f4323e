//! The blocks that architectures are made of, and the graph around them.
//!
//! Shapes are ggml's: `ne[0]` is the fastest. A row of a graph is a token of any sequence: inputs say which token, of which sequence, at which
//! position, and which row of the cache takes its key and value. So a graph depends on how many rows there are, and stays the same while
//! contexts grow, begin and end.

mod attention;
mod feed_forward;
mod head;
mod shape;
mod stored;

use super::Architecture;
use super::layer::{Frame, Norms};
use crate::error::{Error, Result};
use crate::hparams::{Hparams, ModelFile};
use outboard_core::op::{self, BinaryKind, NormKind, UnaryKind};
use outboard_core::{DType, Graph, GraphBuilder, TensorId};
pub use shape::*;
use std::collections::{HashMap, HashSet};
use std::sync::Arc;
pub use stored::{State, Stored};

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
}
