//! What each part of a model weighs, and how much of it a token reads: what a split divides, and what predictions are made of.

use crate::arch::net::{self, Feed, GraphShape, Outputs};
use crate::engine::GREEDY;
use crate::error::Result;
use crate::model::Model;
use crate::split::Sizes;
use net::Sampling;
use outboard_core::{Graph, LeafKind};

/// A part of a model: a layer, or what lies before or behind all layers.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Part {
    /// Bytes of weights.
    pub weight_bytes: u64,
    /// Bytes of the KV cache and of other state.
    pub cache_bytes: u64,
    /// Bytes of weights that one token reads: of an embedding a row, which counts as nothing; of a mixture of experts those that
    /// are used.
    pub read_bytes: u64,
}

/// A model, part by part.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Parts {
    /// The layers.
    pub layers: Vec<Part>,
    /// What goes with the first layer: the embedding.
    pub first: Part,
    /// What goes with the last layer: output norm and matrix.
    pub last: Part,
    /// Tokens of context that the cache has room for.
    pub n_ctx: usize,
}

impl Parts {
    /// The parts of a model with a context of `n_ctx` tokens.
    pub fn new(model: &Model, n_ctx: usize) -> Result<Parts> {
        let outputs = Outputs::Sample(Sampling { sample: GREEDY, penalty: None, log_prob: false });
        let shape = GraphShape { n_tokens: 1, n_ctx, feed: Feed::Input, history: true, outputs };
        Ok(Parts::of_graph(model, &model.graph(shape)?.graph, n_ctx))
    }

    /// The parts of which a graph is made.
    pub(crate) fn of_graph(model: &Model, graph: &Graph, n_ctx: usize) -> Parts {
        let hparams = model.hparams();
        let mut parts = Parts {
            layers: vec![Part::default(); hparams.n_layer],
            first: Part::default(),
            last: Part::default(),
            n_ctx,
        };
        for (id, kind) in graph.leaves().filter(|(_, kind)| *kind != LeafKind::Input) {
            let (name, bytes) = (graph.tensor(id).name(), graph.tensor(id).layout().span() as u64);
            let is_embedding = name == "token_embd.weight";
            let part = match net::layer_of(name).and_then(|il| parts.layers.get_mut(il)) {
                Some(layer) => layer,
                None if is_embedding => &mut parts.first,
                None => &mut parts.last,
            };
            if kind == LeafKind::Weight {
                part.weight_bytes += bytes;
                part.read_bytes +=
                    if is_embedding { 0 } else { read_bytes(hparams.n_expert, hparams.n_expert_used, name, bytes) };
            } else {
                part.cache_bytes += bytes;
            }
        }
        parts
    }

    /// What a split has to weigh.
    pub fn sizes(&self) -> Sizes {
        let bytes = |part: &Part| part.weight_bytes + part.cache_bytes;
        Sizes { layers: self.layers.iter().map(bytes).collect(), first: bytes(&self.first), last: bytes(&self.last) }
    }

    /// The same with another context, whose cache grows in proportion.
    pub fn with_context(&self, n_ctx: usize) -> Parts {
        let scaled = |bytes: u64| {
            let scaled = u128::from(bytes) * n_ctx as u128 / self.n_ctx.max(1) as u128;
            u64::try_from(scaled).unwrap_or(u64::MAX)
        };
        let part = |part: &Part| Part { cache_bytes: scaled(part.cache_bytes), ..*part };
        let layers = self.layers.iter().map(part).collect();
        Parts { layers, first: part(&self.first), last: part(&self.last), n_ctx }
    }

    /// Bytes of cache that one more token of context takes, of all layers together.
    pub fn bytes_per_token(&self) -> u64 {
        let all = self.layers.iter().chain([&self.first, &self.last]).map(|p| p.cache_bytes).sum::<u64>();
        all / self.n_ctx.max(1) as u64
    }
}

/// Of a weight's bytes: all of them, unless it is that of `n` experts of which a token uses some.
fn read_bytes(n: usize, used: usize, name: &str, bytes: u64) -> u64 {
    if n > 0 && name.contains("_exps.") { bytes / n as u64 * used as u64 } else { bytes }
}

#[cfg(test)]
mod tests {
    use super::read_bytes;

    #[test]
    fn experts_that_are_not_used_are_not_read() {
        assert_eq!(read_bytes(8, 2, "blk.3.ffn_up_exps.weight", 800), 200);
        assert_eq!(read_bytes(8, 2, "blk.3.ffn_gate_inp.weight", 800), 800);
        assert_eq!(read_bytes(0, 0, "blk.3.ffn_up.weight", 800), 800);
    }
}
