//! What devices hold of a model from run to run.

use crate::gguf::WeightRef;
use std::fmt;

/// What a leaf of a model's graph stands for, unless it is an input. Leaves that stand for the same have the same memory where they are on one
/// device, such as embedding and output of a tied model.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Stored {
    /// Weights.
    Weight(WeightRef),
    /// What runs write.
    State(State),
}

/// What runs write and later ones read.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum State {
    /// The id sampled last in each slot, I32 `[1, slots]`, where the embedding is.
    NextToken,
    /// The token of each row of the cache, I32 `[1, rows]`, where the logits are.
    History,
    /// The blocks of each slot's sequence in the order of its positions, I32 `[n_blocks, slots]`: the same on every device.
    BlockTable,
    /// The cache of keys of a layer.
    Keys(usize),
    /// The cache of values of a layer.
    Values(usize),
}

impl fmt::Display for State {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            State::NextToken => f.write_str("next_token"),
            State::History => f.write_str("history"),
            State::BlockTable => f.write_str("block_table"),
            State::Keys(layer) => write!(f, "cache_k.{layer}"),
            State::Values(layer) => write!(f, "cache_v.{layer}"),
        }
    }
}
