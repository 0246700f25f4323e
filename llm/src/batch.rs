//! The rows of a run, of any number of sequences, and the inputs that say what they are.

use crate::arch::net::{self, Added, Cache, Feed, GraphShape, Outputs, Sampling};
use crate::constraint::TokenSet;
use crate::reading::{Hidden, Targets};
use bytes::Bytes;
use outboard_core::op::Penalties;
use outboard_core::{DType, Graph, TensorId};
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
    pub(crate) bias: Option<Bias>,
}

/// What is added to the logits of a token.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Bias {
    /// Numbers, one for each token of the vocabulary.
    Numbers(Arc<[f32]>),
    /// Nothing for these, minus infinity for the others. The vocabulary is one of whole blocks.
    Mask(TokenSet),
}

impl Bias {
    /// These tokens alone, of `n_vocab`, and what else is added.
    pub(crate) fn of(allowed: &TokenSet, n_vocab: usize, numbers: Option<&[f32]>) -> Bias {
        // Rows of two blocks begin at whole words.
        if numbers.is_none() && n_vocab.is_multiple_of(2 * DType::Q4_0.block_len()) {
            Bias::Mask(allowed.resized(n_vocab))
        } else {
            Bias::Numbers(allowed.bias(n_vocab, numbers))
        }
    }

    /// Whether they are the same numbers in memory.
    fn is_same(&self, other: &Bias) -> bool {
        matches!((self, other), (Bias::Numbers(a), Bias::Numbers(b)) if Arc::ptr_eq(a, b))
    }
}

/// What is added to the logits of some draws: at least one row, and for each draw which one it has. A row that several draws share is sent once.
struct Rows<'d> {
    rows: Vec<&'d Bias>,
    /// Behind the rows is one that changes nothing.
    which: Vec<usize>,
}

impl<'d> Rows<'d> {
    /// `None` if no draw has any.
    fn of(draws: &'d [Draw]) -> Option<Rows<'d>> {
        let (mut rows, mut which): (Vec<&Bias>, _) = (Vec::new(), Vec::new());
        for draw in draws {
            match &draw.bias {
                Some(bias) => {
                    let known = rows.iter().position(|row| row.is_same(bias));
                    which.push(known.unwrap_or(rows.len()));
                    if known.is_none() {
                        rows.push(bias);
                    }
                }
                // Of a token that nobody wants it does not matter.
                None if draw.sampling.is_none() => which.push(0),
                None => which.push(usize::MAX),
            }
        }
        let free = rows.len();
        which.iter_mut().for_each(|which| *which = (*which).min(free));
        (free > 0).then_some(Rows { rows, which })
    }

    /// Rows of the input: each number of them is a graph to compile.
    fn count(&self) -> usize {
        let used = self.which.iter().max().map_or(0, |most| most + 1);
        used.max(self.rows.len()).next_power_of_two()
    }

    /// The tokens of the vocabulary, if there are numbers.
    fn numbers(&self) -> Option<usize> {
        self.rows.iter().find_map(|row| match row {
            Bias::Numbers(numbers) => Some(numbers.len()),
            Bias::Mask(_) => None,
        })
    }

    /// What they are to the graph: masks, unless there are numbers among them.
    fn added(&self) -> Added {
        match self.numbers() {
            Some(_) => Added::Numbers(self.count()),
            None => Added::Masks(self.count()),
        }
    }

    /// The rows as they are in memory: zeros change nothing.
    fn bytes(&self) -> Vec<u8> {
        let (numbers, mut bytes) = (self.numbers(), Vec::new());
        for row in &self.rows {
            match (row, numbers) {
                (Bias::Mask(allowed), None) => bytes.extend(allowed.blocks().flatten()),
                (Bias::Mask(allowed), Some(n_vocab)) => bytes.extend(in_memory(&allowed.bias(n_vocab, None))),
                (Bias::Numbers(numbers), _) => bytes.extend(in_memory(numbers)),
            }
        }
        bytes.resize(bytes.len() / self.rows.len() * self.count(), 0);
        bytes
    }
}

fn in_memory(values: &[f32]) -> impl Iterator<Item = u8> {
    values.iter().flat_map(|value| value.to_le_bytes())
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
    Scores(Targets),
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
        if let Request::Scores(targets) = &mut self.request {
            // They are behind the last rows.
            return targets.tokens.resize(targets.tokens.len() + self.rows.len() - all, 0);
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
            Request::Scores(targets) => Outputs::Scores { rows: targets.tokens.len(), log_probs: targets.log_probs },
            Request::Sample(draws) => {
                let wanted = || draws.iter().filter_map(|draw| draw.sampling);
                let penalties = wanted().any(|sampling| sampling.penalties.is_some());
                let added = Rows::of(draws).map_or(Added::Nothing, |rows| rows.added());
                let log_probs = wanted().map(|s| s.log_probs).max().unwrap_or_default();
                Outputs::Sample { rows: draws.len(), penalties, added, log_probs }
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
                inputs.last_rows(self.rows.len(), targets.tokens.len());
                inputs.ints(net::TARGETS, targets.tokens.iter().map(|&t| t as i32));
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
        self.added(draws);
        let (last, slots) = (draws.iter().map(|draw| draw.position), draws.iter().map(|draw| draw.slot));
        self.ints(net::PENALTY_STEPS, last.chain(slots).map(|v| v as i32));
    }

    fn added(&mut self, draws: &[Draw]) {
        let Some(rows) = Rows::of(draws) else { return };
        let name = if rows.numbers().is_some() { net::VOCAB_BIAS } else { net::MASKS };
        self.ints(net::ADDED_ROWS, rows.which.iter().map(|which| *which as i32));
        if let Some(id) = self.graph.find(name) {
            self.inputs.push((id, rows.bytes().into()));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::arch::net::LogProbs;
    use outboard_core::op::Sampler;

    const SAMPLING: Sampling = Sampling { sampler: Sampler::GREEDY, penalties: None, log_probs: LogProbs::None };

    fn row(token: Option<u32>, position: usize, slot: usize) -> Row {
        Row { token, position, cache_row: 100 * slot + position, slot }
    }

    fn spare() -> impl Iterator<Item = Row> + Clone {
        (0..2).map(|i| row(Some(0), 0, 8 + i))
    }

    #[test]
    fn what_is_added_is_sent_once_and_sets_of_tokens_as_blocks() {
        let draw = |bias: Option<Bias>, sampling| Draw { row: 0, slot: 0, position: 0, sampling, bias };
        let mask = |ids: &[u32]| Some(Bias::of(&TokenSet::new(64, ids.iter().copied()), 64, None));
        let wanted = Some(SAMPLING);
        let draws = [draw(None, wanted), draw(mask(&[0, 33]), wanted), draw(None, None), draw(mask(&[63]), wanted)];
        let rows = Rows::of(&draws).unwrap();
        assert_eq!((rows.which.as_slice(), rows.added()), (&[2, 0, 0, 1][..], Added::Masks(4)));
        let bytes = rows.bytes();
        assert_eq!(bytes.len(), 4 * 2 * 18);
        let mut values = vec![0.0; 4 * 64];
        outboard_core::quant::dequantize_row(DType::Q4_0, &bytes, &mut values).unwrap();
        for (row, allowed) in values.chunks(64).zip([&[0, 33][..], &[63]]) {
            for (id, value) in row.iter().enumerate() {
                assert_eq!(*value, if allowed.contains(&id) { 0.0 } else { net::EXCLUDED });
                assert_eq!(value * f32::MAX, if allowed.contains(&id) { 0.0 } else { f32::NEG_INFINITY });
            }
        }
        assert!(values[2 * 64..].iter().all(|value| *value == 0.0));
        // Alone it is one row.
        assert_eq!(Rows::of(&draws[1..3]).unwrap().added(), Added::Masks(1));
        assert!(Rows::of(&draws[..1]).is_none());
        // Beside numbers, numbers; those of several texts are there once.
        let numbers = Bias::Numbers(vec![0.5; 64].into());
        let [a, b] = [(); 2].map(|()| draw(Some(numbers.clone()), wanted));
        let draws = [a, draws[0].clone(), b, draws[3].clone()];
        let rows = Rows::of(&draws).unwrap();
        assert_eq!((rows.which.as_slice(), rows.added()), (&[0, 2, 0, 1][..], Added::Numbers(4)));
        let values: Vec<f32> = rows.bytes().chunks(4).map(|b| f32::from_le_bytes([b[0], b[1], b[2], b[3]])).collect();
        assert_eq!((values.len(), &values[..64]), (4 * 64, &[0.5; 64][..]));
        assert!(values[64..127].iter().all(|value| *value == f32::NEG_INFINITY) && values[127] == 0.0);
        assert!(values[128..].iter().all(|value| *value == 0.0));
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
    fn targets_stay_behind_the_rows_that_they_are_of() {
        let targets = Targets { tokens: vec![5, 6], ..Targets::default() };
        let rows = (0..2).map(|i| row(Some(9), i, 0)).collect();
        let mut batch = Batch { rows, request: Request::Scores(targets), history: false };
        batch.pad(3, 64, spare());
        let Request::Scores(targets) = &batch.request else { panic!() };
        assert_eq!((targets.tokens.as_slice(), batch.rows.len()), (&[5, 6, 0][..], 3));
        assert_eq!(batch.shape(Cache::of_one(64)).outputs.rows(), 3);
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
