//! Tokens that a run samples, and how probable tokens are, from the numbers that it gives.

use crate::arch::net::{self, LogProbs};
use crate::error::{Error, Result};
use crate::sequence::Sequence;
use bytes::Bytes;

/// A token that was sampled.
#[derive(Clone, Debug, PartialEq)]
pub struct Token {
    /// The sequence that it goes on.
    pub sequence: Sequence,
    /// The token.
    pub id: u32,
    /// Its log-probability before penalties, if that was asked for.
    pub log_prob: Option<f32>,
    /// The most probable tokens in its place, most probable first, with their log-probabilities, if they were asked for.
    pub top_log_probs: Vec<(u32, f32)>,
}

/// A token that a run samples.
#[derive(Clone, Copy, Debug)]
pub(super) struct Expected {
    pub(super) sequence: Sequence,
    /// Of the sequence when it was enqueued.
    pub(super) epoch: u64,
    /// Its position.
    pub(super) at: usize,
    /// Its number among those that the run samples.
    pub(super) number: usize,
    pub(super) log_probs: LogProbs,
}

/// The ids that a run samples, and how probable they are.
pub(super) struct Sampled<T> {
    pub(super) ids: T,
    pub(super) probabilities: Probabilities<T>,
}

/// How probable the tokens are that the rows of a run were asked for, as far as that is wanted.
pub(crate) struct Probabilities<T> {
    /// Their log-probabilities.
    pub(super) own: Option<T>,
    /// Ids of the most probable ones, and their log-probabilities.
    pub(super) top: Option<[T; 2]>,
}

/// How probable a token is, and which are the most probable ones in its place, as far as that is wanted.
pub(crate) struct Probable {
    pub(crate) log_prob: Option<f32>,
    pub(crate) top: Vec<(u32, f32)>,
}

impl Sampled<Bytes> {
    /// One of the tokens, each number of which has four bytes.
    pub(super) fn token(&self, expected: &Expected, n_vocab: usize) -> Result<Token> {
        let &Expected { sequence, number, log_probs, .. } = expected;
        let id = known(i32::from_le_bytes(one(&self.ids, number)?), n_vocab)?;
        let Probable { log_prob, top } = self.probabilities.of(id, number, log_probs, n_vocab)?;
        Ok(Token { sequence, id, log_prob, top_log_probs: top })
    }
}

impl Probabilities<Bytes> {
    /// The log-probability of the token that a row was asked for, and those of the most probable ones, as far as they are wanted of it.
    pub(crate) fn of(&self, id: u32, number: usize, wanted: LogProbs, n_vocab: usize) -> Result<Probable> {
        let given = self.own.as_ref().filter(|_| wanted >= LogProbs::Chosen);
        let log_prob = given.map(|given| one(given, number)).transpose()?.map(f32::from_le_bytes);
        let mut most_probable = Vec::new();
        if let (Some([ids, given]), LogProbs::Top) = (&self.top, wanted) {
            let k = net::N_TOP.min(n_vocab);
            for (top, given) in some(ids, number, k)?.iter().zip(some(given, number, k)?) {
                let top = known(i32::from_le_bytes(*top), n_vocab)?;
                // A token has one number, not two that are rounded in two ways.
                let own = log_prob.filter(|_| top == id);
                most_probable.push((top, own.unwrap_or(f32::from_le_bytes(*given))));
            }
        }
        Ok(Probable { log_prob, top: most_probable })
    }
}

/// Four bytes, by their number.
fn one(bytes: &Bytes, number: usize) -> Result<[u8; 4]> {
    bytes.as_chunks().0.get(number).copied().ok_or_else(too_few)
}

/// `count` times four bytes, by their number among as many.
fn some(bytes: &Bytes, number: usize, count: usize) -> Result<&[[u8; 4]]> {
    bytes.as_chunks().0.get(number * count..(number + 1) * count).ok_or_else(too_few)
}

fn too_few() -> Error {
    Error::Internal("a device gave fewer numbers than it was asked for".into())
}

/// A token that a device gave, if the vocabulary has it.
fn known(id: i32, n_vocab: usize) -> Result<u32> {
    let known = u32::try_from(id).ok().filter(|&id| (id as usize) < n_vocab);
    known.ok_or_else(|| {
        Error::Internal(format!("a device gave token {id}, which is outside the model's vocabulary of {n_vocab}"))
    })
}
