//! What a graph is asked for: its shape, and the names of its inputs and outputs.

use outboard_core::{DType, op};
use std::ops::Range;

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
    /// How probable given tokens are, each behind one of the last tokens. The logits stay where they are.
    Scores {
        /// How many.
        rows: usize,
        /// Which log-probabilities are given.
        log_probs: LogProbs,
    },
    /// A sampled token for each of so many rows.
    Sample {
        /// How many, the rows that an input says.
        rows: usize,
        /// Whether penalties are applied, over [`State::History`](super::State::History).
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
            Outputs::Logits(rows)
            | Outputs::Hidden(rows)
            | Outputs::Scores { rows, .. }
            | Outputs::Sample { rows, .. } => rows,
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
    /// Whether the tokens are noted in [`State::History`](super::State::History).
    pub history: bool,
    /// What comes out.
    pub outputs: Outputs,
}

/// Element type of the cache where nothing is said.
pub const CACHE_DTYPE: DType = DType::F16;
