//! What each part of a model weighs, and how much of it a token reads: what a split divides, and what predictions are made of.

use crate::arch::net::{Added, Cache, Feed, GraphShape, LogProbs, ModelGraph, ModelPart, Outputs, State, Stored};
use crate::blocks::blocks_of;
use crate::error::Result;
use crate::hparams::Hparams;
use crate::model::Model;
use crate::split::Sizes;
use crate::work::Work;
use outboard_core::Costs;
use outboard_core::op::BLOCK_ROWS;
use std::collections::HashSet;

/// A part of a model: a section, or what lies before or behind all sections.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Part {
    /// Bytes of weights.
    pub weight_bytes: u64,
    /// Bytes of the KV cache and of other state.
    pub cache_bytes: u64,
    /// Bytes of weights that one token reads: of an embedding a row, which counts as nothing; of a mixture of experts those that
    /// are used.
    pub read_bytes: u64,
    /// What a token of a prompt takes that is not its last.
    pub work: Work,
    /// What a token takes behind which another one is sampled.
    pub step: Work,
    /// The layer that it is a part of.
    pub layer: usize,
}

/// A model, part by part.
#[derive(Clone, Debug, PartialEq)]
pub struct Parts {
    /// The sections ([`ModelGraph`]).
    pub sections: Vec<Part>,
    /// What goes with the first section: the embedding.
    pub first: Part,
    /// What goes with the last section: output norm and matrix.
    pub last: Part,
    /// Bytes of weights that count to both `first` and `last`, and take memory once where these are on one device.
    pub tied_bytes: u64,
    /// How long a run takes besides its rows, in rows ([`Costs::run_rows`]).
    pub run_rows: f64,
    /// Most sequences side by side.
    pub sequences: usize,
    /// Tokens of context of a sequence.
    pub n_ctx: usize,
    /// Rows of the cache, of all sequences.
    pub rows: usize,
}

impl Parts {
    /// The parts of a model with such a cache, on devices of which attention and runs cost so much.
    pub fn new(model: &Model, cache: Cache, costs: &Costs) -> Result<Parts> {
        let outputs = Outputs::Sample { rows: 1, penalties: false, added: Added::Nothing, log_probs: LogProbs::None };
        let (n_ctx, rows) = (cache.n_ctx, cache.rows());
        let shape = GraphShape { n_tokens: 1, cache, feed: Feed::Input, history: true, outputs };
        let (step, prompt) = (model.graph(shape)?, model.graph(GraphShape { outputs: Outputs::None, ..shape })?);
        let sections: Vec<Part> = step.layers().map(|layer| Part { layer, ..Part::default() }).collect();
        let last = Part { layer: sections.last().map_or(0, |section| section.layer), ..Part::default() };
        let mut parts = Parts {
            sections,
            first: Part::default(),
            last,
            tied_bytes: 0,
            run_rows: costs.run_rows.into(),
            sequences: cache.slots,
            n_ctx,
            rows,
        };
        parts.weigh_leaves(model.hparams(), &step);
        let work = |model: &ModelGraph, node| {
            Work::of_node(&model.graph, node, shape.n_tokens, rows, f64::from(costs.attention))
        };
        prompt.graph.nodes().for_each(|node| parts.at(prompt.part(node)).work += work(&prompt, node));
        step.graph.nodes().for_each(|node| parts.at(step.part(node)).step += work(&step, node));
        Ok(parts)
    }

    fn weigh_leaves(&mut self, hparams: &Hparams, model: &ModelGraph) {
        let graph = &model.graph;
        let mut embedding = HashSet::new();
        // The table of blocks is next to nothing.
        for (id, stored) in model.all_stored().filter(|(_, stored)| *stored != Stored::State(State::BlockTable)) {
            let bytes = graph.tensor(id).layout().span() as u64;
            let home = model.part(id);
            match home {
                ModelPart::Embedding => drop(embedding.insert(stored)),
                ModelPart::Head if embedding.contains(&stored) => self.tied_bytes += bytes,
                _ => {}
            }
            let part = self.at(home);
            let Stored::Weight(_) = stored else {
                part.cache_bytes += bytes;
                continue;
            };
            part.weight_bytes += bytes;
            part.read_bytes += match home {
                // Of an embedding a token reads a row.
                ModelPart::Embedding => 0,
                _ if model.is_of_experts(id) => bytes / hparams.n_expert.max(1) as u64 * hparams.n_expert_used as u64,
                _ => bytes,
            };
        }
    }

    fn at(&mut self, part: ModelPart) -> &mut Part {
        match part {
            ModelPart::Embedding => &mut self.first,
            ModelPart::Section(i) => self.sections.get_mut(i).unwrap_or(&mut self.last),
            ModelPart::Head => &mut self.last,
        }
    }

    /// All parts.
    pub fn all(&self) -> impl Iterator<Item = &Part> {
        self.sections.iter().chain([&self.first, &self.last])
    }

    /// What a token of a prompt takes in all of them.
    pub fn work(&self) -> Work {
        self.all().map(|part| part.work).sum()
    }

    /// Bytes of weights and cache, on one device.
    pub fn bytes(&self) -> u64 {
        self.all().map(|part| part.weight_bytes + part.cache_bytes).sum::<u64>() - self.tied_bytes
    }

    /// What a split among so many devices has to weigh.
    pub fn sizes(&self, devices: usize) -> Sizes {
        let bytes = |part: &Part| part.weight_bytes + part.cache_bytes;
        Sizes {
            sections: self.sections.iter().map(bytes).collect(),
            work: if self.sequences > 1 { self.step_times(devices) } else { self.prompt_times() },
            first: bytes(&self.first),
            last: bytes(&self.last),
            tied: self.tied_bytes,
        }
    }

    /// What devices do at the same time for one sequence: prompts.
    fn prompt_times(&self) -> Vec<f64> {
        self.sections.iter().map(|part| part.work.cost(0, self.n_ctx)).collect()
    }

    /// And for several sequences: steps, in as many groups as there are devices. Each run of a group reads all weights, which takes as long as some rows.
    fn step_times(&self, devices: usize) -> Vec<f64> {
        let (mut row, mut read) = (Work::default(), 0);
        self.all().for_each(|part| (row += part.step, read += part.read_bytes).1);
        let rows = self.sequences.div_ceil(devices.max(1));
        let reading = row.token * self.run_rows / (rows as f64 * read.max(1) as f64) * self.n_ctx as f64;
        let time = |part: &Part| part.step.cost(0, self.n_ctx) + reading * part.read_bytes as f64;
        let mut times: Vec<f64> = self.sections.iter().map(time).collect();
        if let Some(last) = times.last_mut() {
            *last += time(&self.last);
        }
        times
    }

    /// The same with another context, whose cache grows in proportion.
    pub fn with_context(&self, n_ctx: usize) -> Parts {
        let sequences = (self.rows / BLOCK_ROWS) as f64 / blocks_of(self.n_ctx).max(1) as f64;
        let rows = (blocks_of(n_ctx) as f64 * sequences) as usize * BLOCK_ROWS;
        let scaled = |bytes: u64| {
            let scaled = u128::from(bytes) * rows as u128 / self.rows.max(1) as u128;
            u64::try_from(scaled).unwrap_or(u64::MAX)
        };
        let part = |part: &Part| Part { cache_bytes: scaled(part.cache_bytes), ..*part };
        let sections = self.sections.iter().map(part).collect();
        Parts { sections, first: part(&self.first), last: part(&self.last), n_ctx, rows, ..*self }
    }

    /// Bytes of cache that one more token of context takes, of all layers together.
    pub fn bytes_per_token(&self) -> u64 {
        self.all().map(|p| p.cache_bytes).sum::<u64>() / self.rows.max(1) as u64
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::gguf::Gguf;

    #[test]
    fn steps_read_weights_and_prompts_compute() {
        let work = Work { token: 1.0, context: 0.0 };
        let section = Part { read_bytes: 10, work, step: work, ..Part::default() };
        let mut parts = Parts {
            sections: vec![section; 4],
            first: Part::default(),
            last: Part { read_bytes: 40, step: work, ..Part::default() },
            tied_bytes: 0,
            run_rows: 8.0,
            sequences: 1,
            n_ctx: 2,
            rows: 128,
        };
        assert_eq!(parts.sizes(2).work, [2.0; 4], "a prompt needs no head");
        // Two groups of four: all bytes take as long as eight of their rows, that is twice what one row computes in all parts.
        parts.sequences = 8;
        let (computed, byte) = (2.0, 2.0 * (2.0 * 5.0) / 80.0);
        let each = computed + 10.0 * byte;
        assert_eq!(parts.sizes(2).work, [each, each, each, each + computed + 40.0 * byte]);
    }

    #[test]
    fn experts_that_are_not_used_are_not_read() {
        let path = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/data/arch/llama-moe.gguf");
        let mut file = std::fs::read(path).unwrap();
        // A token uses one of two, in place of both: behind the key come four bytes of the type, and the number.
        let key = b"expert_used_count";
        let at = file.windows(key.len()).position(|bytes| bytes == key).unwrap() + key.len() + 4;
        file[at] = 1;
        let model = Model::new(Gguf::parse(file.into()).unwrap()).unwrap();
        let (n, used) = (model.hparams().n_expert as u64, model.hparams().n_expert_used as u64);
        assert_eq!((n, used), (2, 1));
        let parts = Parts::new(&model, Cache::of_one(128), &Costs::default()).unwrap();
        // The files have other scales as well, of inputs, which nobody reads.
        let is_read = |name: &str| ["weight", "scale"].iter().any(|what| name.ends_with(&format!("_exps.{what}")));
        let experts = model.gguf().tensors().iter().filter(|t| is_read(&t.name));
        let of_experts: u64 = experts.map(|t| t.layout.span() as u64).sum();
        let not_read = |part: &Part| part.weight_bytes - part.read_bytes;
        assert!(of_experts > 0);
        assert_eq!(parts.sections.iter().map(not_read).sum::<u64>(), of_experts / n);
    }
}
