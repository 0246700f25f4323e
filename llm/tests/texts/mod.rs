//! Texts of many sequences, alone and side by side: what tests of one process and of servers have in common.
#![allow(clippy::unwrap_used, clippy::expect_used, dead_code)]

use outboard_llm::{LogProbs, PlacedModel, Sampling, Sequence, Token};
use std::collections::HashMap;

/// A text to be generated.
#[derive(Clone, Debug)]
pub(crate) struct Request {
    pub(crate) prompt: Vec<u32>,
    pub(crate) sampling: Sampling,
    pub(crate) most: usize,
}

impl Request {
    /// Has a sequence begin the text.
    pub(crate) fn begin(&self, model: &mut PlacedModel, sequence: Sequence) {
        model.begin(sequence, &self.prompt, self.sampling, self.most).unwrap();
    }
}

/// Tokens with their log-probabilities, bit by bit; 0 where none was asked for.
pub(crate) type Text = Vec<(u32, u32)>;

/// A token of a text.
pub(crate) fn bits(token: &Token) -> (u32, u32) {
    (token.id, token.log_prob.map_or(0, f32::to_bits))
}

/// SplitMix64 (Steele, Lea and Flood, 2014).
pub(crate) struct Random(pub(crate) u64);

impl Random {
    pub(crate) fn below(&mut self, n: usize) -> usize {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let z = (self.0 ^ self.0 >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let z = (z ^ z >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
        ((z ^ z >> 31) % n as u64) as usize
    }
}

/// All tokens that come, of one sequence.
pub(crate) fn rest(model: &mut PlacedModel, sequence: Sequence, sampling: Sampling) -> Text {
    let mut text = Vec::new();
    while let Some(token) = model.next_token().unwrap() {
        assert_eq!((token.sequence, token.log_prob.is_some()), (sequence, sampling.log_probs != LogProbs::None));
        text.push(bits(&token));
    }
    text
}

/// A text with no other one beside it.
pub(crate) fn alone(model: &mut PlacedModel, request: &Request) -> Text {
    let sequence = model.open().unwrap();
    request.begin(model, sequence);
    let text = rest(model, sequence, request.sampling);
    model.close(sequence).unwrap();
    text
}

/// All texts, which begin at random moments, as many of them at a time as the model has room for. Those in `cut` end after so many tokens, before
/// they wanted to. `came` is told how many tokens there are by now.
pub(crate) fn together(
    model: &mut PlacedModel,
    requests: &[Request],
    cut: &HashMap<usize, usize>,
    random: &mut Random,
    came: &mut dyn FnMut(usize),
) -> Vec<Text> {
    let mut texts: Vec<Text> = vec![Vec::new(); requests.len()];
    let mut open: HashMap<Sequence, usize> = HashMap::new();
    let (mut next, mut n) = (0, 0);
    loop {
        while next < requests.len() && open.len() < model.n_seqs() && (open.is_empty() || random.below(4) == 0) {
            let sequence = model.open().unwrap();
            requests[next].begin(model, sequence);
            open.insert(sequence, next);
            next += 1;
        }
        let Some(token) = model.next_token().unwrap() else { break };
        let i = open[&token.sequence];
        assert_eq!(token.log_prob.is_some(), requests[i].sampling.log_probs != LogProbs::None);
        texts[i].push(bits(&token));
        if texts[i].len() == requests[i].most || cut.get(&i) == Some(&texts[i].len()) {
            model.close(token.sequence).unwrap();
            open.remove(&token.sequence);
        }
        n += 1;
        came(n);
    }
    assert!(open.is_empty() && next == requests.len());
    texts
}
