//! The rows of a run, of any number of sequences, and the inputs that say what they are.

use crate::arch::net::{self, Cache, Feed, GraphShape, Outputs, Sampling};
use crate::embed::Hidden;
use bytes::Bytes;
use outboard_core::op::Penalties;
use outboard_core::{Graph, TensorId};
use std::sync::Arc;

/// A row: a token of a sequence.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Row {
    /// `None`: the one that was sampled last in its slot.
    pub(crate) token: Option<u32>,
    pub(crate) position: usize,
    pub(crate) cache_row: usize,
    pub(crate) slot: usize,
}

/// A token to be sampled behind a row of a run.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Draw {
    /// The row, by its number.
    pub(crate) row: usize,
    pub(crate) slot: usize,
    /// Of the row.
    pub(crate) position: usize,
    /// `None`: nobody wants it, it makes up a number.
    pub(crate) sampling: Option<Sampling>,
    /// Added to its logits.
    pub(crate) bias: Option<Arc<[f32]>>,
}

/// What a run is to give back.
#[derive(Clone, Debug)]
pub(crate) enum Request {
    /// Nothing: parts of prompts that are not their ends.
    Part,
    /// What the head would read, for nobody.
    Layers,
    /// Logits of the last so many rows.
    Logits(usize),
    /// What the head would read of some rows.
    Hidden(Hidden),
    /// How probable these tokens are, each behind one of the last rows.
    Scores(Vec<u32>),
    /// Next tokens, in the order of their rows.
    Sample(Vec<Draw>),
}

/// What goes through the graph in one run.
#[derive(Clone, Debug)]
pub(crate) struct Batch {
    pub(crate) rows: Vec<Row>,
    pub(crate) request: Request,
    /// Whether tokens are noted, for penalties.
    pub(crate) history: bool,
}

/// What a run is given.
pub(crate) type Inputs = Vec<(TensorId, Bytes)>;

impl Batch {
    /// Pads rows and draws to at least `least`, then to the next [usual number](padded_rows), at most `most` unless there are more already: each
    /// number of rows is a graph to compile. Padding is of `spare`, which has enough.
    pub(crate) fn pad(&mut self, least: usize, most: usize, spare: impl Iterator<Item = Row> + Clone) {
        let wanted = |n: usize| padded_rows(n.max(least)).min(most.max(n)).max(least);
        let missing = wanted(self.rows.len()) - self.rows.len();
        let token = self.rows.iter().find_map(|row| row.token).map(|_| 0);
        let all = self.rows.len();
        self.rows.extend(spare.clone().take(missing).map(|row| Row { token, ..row }));
        if let Request::Hidden(hidden) = &mut self.request {
            return pad_hidden(&mut hidden.rows, all, self.rows.len());
        }
        let Request::Sample(draws) = &mut self.request else { return };
        let missing = wanted(draws.len()).min(self.rows.len()).saturating_sub(draws.len());
        let unused = |row: &usize| draws.iter().all(|draw| draw.row != *row);
        let rows: Vec<usize> = (0..self.rows.len()).rev().filter(unused).take(missing).collect();
        let fill = |(row, spare): (usize, Row)| Draw {
            row,
            slot: spare.slot,
            position: spare.position,
            sampling: None,
            bias: None,
        };
        draws.extend(rows.into_iter().zip(spare).map(fill));
        draws.sort_by_key(|draw| draw.row);
    }

    /// Where its tokens come from.
    pub(crate) fn feed(&self) -> Feed {
        match self.rows.iter().filter(|row| row.token.is_none()).count() {
            0 => Feed::Input,
            sampled if sampled == self.rows.len() => Feed::Sampled,
            _ => Feed::Mixed,
        }
    }

    /// The shape of its graph.
    pub(crate) fn shape(&self, cache: Cache) -> GraphShape {
        let outputs = match &self.request {
            Request::Part => Outputs::None,
            Request::Layers => Outputs::Layers,
            Request::Logits(rows) => Outputs::Logits(*rows),
            Request::Hidden(hidden) => Outputs::Hidden(hidden.rows.len()),
            Request::Scores(targets) => Outputs::Scores(targets.len()),
            Request::Sample(draws) => {
                let wanted = || draws.iter().filter_map(|draw| draw.sampling);
                let penalties = wanted().any(|sampling| sampling.penalties.is_some());
                let bias = draws.iter().any(|draw| draw.bias.is_some());
                Outputs::Sample { rows: draws.len(), penalties, bias, log_prob: wanted().any(|s| s.log_prob) }
            }
        };
        GraphShape { n_tokens: self.rows.len(), cache, feed: self.feed(), history: self.history, outputs }
    }

    /// The inputs that its graph takes.
    pub(crate) fn inputs(&self, graph: &Graph, cache: Cache) -> Inputs {
        let mut inputs = InputBytes { graph, inputs: Vec::with_capacity(6) };
        let ints = |value: fn(&Row) -> usize| self.rows.iter().map(move |row| value(row) as i32);
        let columns = ints(|row| row.position).chain(ints(|row| row.cache_row)).chain(ints(|row| row.slot));
        inputs.ints(net::ROWS, columns);
        inputs.ints(net::TOKENS, self.rows.iter().map(|row| row.token.unwrap_or(0) as i32));
        let pick = |(i, row): (usize, &Row)| row.token.map_or(row.slot, |_| cache.slots + i) as i32;
        inputs.ints(net::PICKS, self.rows.iter().enumerate().map(pick));
        match &self.request {
            Request::Part | Request::Layers => {}
            Request::Logits(rows) => inputs.last_rows(self.rows.len(), *rows),
            Request::Hidden(hidden) => inputs.ints(net::OUTPUT_ROWS, hidden.rows.iter().map(|&row| row as i32)),
            Request::Scores(targets) => {
                inputs.last_rows(self.rows.len(), targets.len());
                inputs.ints(net::TARGETS, targets.iter().map(|&t| t as i32));
            }
            Request::Sample(draws) => inputs.draws(draws),
        }
        inputs.inputs
    }
}

/// Pads rows that are asked for, of a run that had `before` rows and has `now`: all stay all, which needs no input that says which, and few become one
/// of the usual numbers, but not all.
fn pad_hidden(rows: &mut Vec<usize>, before: usize, now: usize) {
    if rows.len() == before {
        rows.extend(before..now);
        return;
    }
    let wanted = padded_rows(rows.len());
    if wanted < now {
        let unused: Vec<usize> = (0..now).rev().filter(|row| !rows.contains(row)).take(wanted - rows.len()).collect();
        rows.extend(unused);
    }
}

/// Rounds a number of rows up to one of a few: to a multiple of 1 up to 8 rows, 2 up to 16, 4 up to 32, 8 up to 64, and 16 above.
pub(crate) fn padded_rows(n: usize) -> usize {
    let step = match n {
        ..=8 => 1,
        9..=16 => 2,
        17..=32 => 4,
        33..=64 => 8,
        _ => MAX_PADDING + 1,
    };
    n.next_multiple_of(step)
}

/// The most rows that are padding.
pub(crate) const MAX_PADDING: usize = 15;

struct InputBytes<'g> {
    graph: &'g Graph,
    inputs: Inputs,
}

impl InputBytes<'_> {
    fn ints(&mut self, name: &str, values: impl Iterator<Item = i32>) {
        self.add(name, values.map(i32::to_le_bytes));
    }

    fn floats(&mut self, name: &str, values: impl Iterator<Item = f32>) {
        self.add(name, values.map(f32::to_le_bytes));
    }

    fn add(&mut self, name: &str, values: impl Iterator<Item = [u8; 4]>) {
        if let Some(id) = self.graph.find(name) {
            self.inputs.push((id, values.flatten().collect::<Vec<u8>>().into()));
        }
    }

    fn last_rows(&mut self, n: usize, wanted: usize) {
        self.ints(net::OUTPUT_ROWS, (n - wanted.min(n)..n).map(|row| row as i32));
    }

    fn draws(&mut self, draws: &[Draw]) {
        let samplers =
            || draws.iter().map(|draw| (draw, draw.sampling.map_or(outboard_core::op::Sampler::GREEDY, |s| s.sampler)));
        let penalties = draws.iter().map(|draw| draw.sampling.and_then(|s| s.penalties).unwrap_or(Penalties::NONE));
        self.ints(net::OUTPUT_ROWS, draws.iter().map(|draw| draw.row as i32));
        self.ints(net::OUTPUT_SLOTS, draws.iter().map(|draw| draw.slot as i32));
        self.floats(net::SAMPLE_PARAMS, samplers().flat_map(|(_, sampler)| sampler.params()));
        self.ints(net::SAMPLE_DRAWS, samplers().flat_map(|(draw, sampler)| sampler.draw_of(draw.position as i32)));
        self.floats(net::PENALTY_PARAMS, penalties.flat_map(|penalties| penalties.params()));
        if let Some(n_vocab) = draws.iter().find_map(|draw| Some(draw.bias.as_ref()?.len())) {
            let none: Arc<[f32]> = vec![0.0; n_vocab].into();
            let rows = draws.iter().map(|draw| draw.bias.as_ref().unwrap_or(&none));
            self.floats(net::VOCAB_BIAS, rows.flat_map(|row| row.iter().copied()));
        }
        let (last, slots) = (draws.iter().map(|draw| draw.position), draws.iter().map(|draw| draw.slot));
        self.ints(net::PENALTY_STEPS, last.chain(slots).map(|v| v as i32));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use outboard_core::op::Sampler;

    const SAMPLING: Sampling = Sampling { sampler: Sampler::GREEDY, penalties: None, log_prob: false };

    fn row(token: Option<u32>, position: usize, slot: usize) -> Row {
        Row { token, position, cache_row: 100 * slot + position, slot }
    }

    fn spare() -> impl Iterator<Item = Row> + Clone {
        (0..2).map(|i| row(Some(0), 0, 8 + i))
    }

    #[test]
    fn few_rows_are_made_up_to_as_many_as_are_rounded_alike() {
        let draw = Draw { row: 0, slot: 1, position: 7, sampling: Some(SAMPLING), bias: None };
        let mut step = Batch { rows: vec![row(None, 7, 1)], request: Request::Sample(vec![draw]), history: false };
        step.pad(3, 64, spare());
        let Request::Sample(draws) = &step.request else { panic!() };
        assert_eq!(draws.iter().map(|d| (d.row, d.slot)).collect::<Vec<_>>(), [(0, 1), (1, 9), (2, 8)]);
        assert_eq!(step.rows.iter().map(|r| r.slot).collect::<Vec<_>>(), [1, 8, 9]);
        let shape = step.shape(Cache::of_one(64));
        assert_eq!((shape.n_tokens, shape.outputs.rows(), shape.feed), (3, 3, Feed::Sampled));
    }

    #[test]
    fn rows_that_are_asked_for_stay_all_of_them_or_become_a_usual_number() {
        let padded = |rows: &[usize], n: usize| {
            let rows = Hidden { rows: rows.to_vec(), ..Hidden::default() };
            let all: Vec<Row> = (0..n).map(|i| row(Some(9), i, 0)).collect();
            let mut batch = Batch { rows: all, request: Request::Hidden(rows), history: false };
            batch.pad(3, 64, (0..2).map(|i| row(Some(0), 0, 8 + i)));
            let Request::Hidden(hidden) = &batch.request else { panic!() };
            (hidden.rows.clone(), batch.rows.len())
        };
        assert_eq!(padded(&[0, 1], 2), (vec![0, 1, 2], 3));
        assert_eq!(padded(&[1], 2), (vec![1], 3));
        let nine: Vec<usize> = (0..9).collect();
        assert_eq!(padded(&nine, 20), ([nine.as_slice(), &[19]].concat(), 20));
        assert_eq!(padded(&nine, 10), (nine.clone(), 10));
    }

    #[test]
    fn the_end_of_a_prompt_is_not_alone_in_the_head() {
        let rows: Vec<Row> = (0..5).map(|i| row(Some(9), i, 0)).collect();
        let draw = Draw { row: 4, slot: 0, position: 4, sampling: Some(SAMPLING), bias: None };
        let mut prompt = Batch { rows, request: Request::Sample(vec![draw]), history: false };
        prompt.pad(3, 64, spare());
        let Request::Sample(draws) = &prompt.request else { panic!() };
        assert_eq!(
            draws.iter().map(|d| (d.row, d.sampling.is_some())).collect::<Vec<_>>(),
            [(2, false), (3, false), (4, true)]
        );
        assert_eq!(prompt.rows.len(), 5);
    }
}
