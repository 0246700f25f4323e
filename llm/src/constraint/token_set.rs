//! A set of tokens: those with which a text can go on.

use std::fmt;
use std::sync::Arc;

/// Tokens, as bits: bit `id % 32` of number `id / 32` is that of token `id`.
#[derive(Clone, PartialEq, Eq)]
pub struct TokenSet(pub(super) Arc<[u32]>);

impl fmt::Debug for TokenSet {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "TokenSet({})", self.count())
    }
}

impl TokenSet {
    /// These, of a vocabulary of so many.
    pub fn new(n_vocab: usize, ids: impl IntoIterator<Item = u32>) -> TokenSet {
        let mut words = vec![0; n_vocab.div_ceil(32)];
        for id in ids.into_iter().filter(|id| (*id as usize) < n_vocab) {
            words[id as usize / 32] |= 1 << (id % 32);
        }
        TokenSet(words.into())
    }

    /// Those of [`TokenSet::words`], of a vocabulary of so many; `None` if they are of another one, as far as their number shows.
    pub fn of_words(n_vocab: usize, words: Vec<u32>) -> Option<TokenSet> {
        let rest = n_vocab % 32;
        let is_beyond = |last: &u32| rest > 0 && last >> rest != 0;
        let fits = words.len() == n_vocab.div_ceil(32) && !words.last().is_some_and(is_beyond);
        fits.then(|| TokenSet(words.into()))
    }

    /// The first `n_vocab` of a larger vocabulary's.
    pub(super) fn of_more_words(n_vocab: usize, mut words: Vec<u32>) -> TokenSet {
        words.resize(n_vocab.div_ceil(32), 0);
        let rest = n_vocab % 32;
        if let Some(last) = words.last_mut().filter(|_| rest > 0) {
            *last &= (1 << rest) - 1;
        }
        TokenSet(words.into())
    }

    /// They as bits: bit `id % 32` of number `id / 32` is that of token `id`.
    pub fn words(&self) -> &[u32] {
        &self.0
    }

    /// Whether a token is one of them.
    pub fn has(&self, id: u32) -> bool {
        self.0.get(id as usize / 32).is_some_and(|word| word >> (id % 32) & 1 == 1)
    }

    /// How many they are.
    pub fn count(&self) -> usize {
        self.0.iter().map(|word| word.count_ones() as usize).sum()
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.0.iter().all(|word| *word == 0)
    }

    /// The same of a vocabulary of `n_vocab`.
    pub(crate) fn resized(&self, n_vocab: usize) -> TokenSet {
        let words = n_vocab.div_ceil(32);
        if words == self.0.len() {
            return self.clone();
        }
        TokenSet((0..words).map(|i| self.0.get(i).copied().unwrap_or(0)).collect())
    }

    /// Whether there is one of them below `n_vocab` that the numbers do not exclude.
    pub(crate) fn has_any(&self, n_vocab: usize, bias: Option<&[f32]>) -> bool {
        let excluded = |id: usize| bias.and_then(|bias| bias.get(id)) == Some(&f32::NEG_INFINITY);
        (0..n_vocab).any(|id| self.has(id as u32) && !excluded(id))
    }

    /// As a tensor of Q4_0 that is added to the logits: 0 for these tokens and -65536 for all others, which are never drawn. It is sent for each token of a
    /// text, and has 9 bytes for 16 tokens, where numbers would have 64.
    pub(crate) fn blocks(&self) -> impl Iterator<Item = [u8; 18]> {
        self.0.iter().map(|word| {
            // The scale of the block, 8192 as an F16. A value is scale times its four bits minus 8: 0000 is -65536, 1000 is 0.
            let mut block = [0; 18];
            block[1] = 0x70;
            for (i, byte) in block[2..].iter_mut().enumerate() {
                *byte = ((word >> i & 1) << 3 | (word >> (i + 16) & 1) << 7) as u8;
            }
            block
        })
    }

    /// What is added to the logits of a vocabulary of `n_vocab`: minus infinity for all others, and for these what `bias` says, or nothing.
    pub(crate) fn bias(&self, n_vocab: usize, bias: Option<&[f32]>) -> Arc<[f32]> {
        let added = |id: usize| bias.and_then(|bias| bias.get(id)).copied().unwrap_or(0.0);
        (0..n_vocab).map(|id| if self.has(id as u32) { added(id) } else { f32::NEG_INFINITY }).collect()
    }
}
