//! Blocks of the cache: which are free, which sequences share, and which hold a beginning that may come again.
//!
//! A block that is full is known by the tokens in it and before it. Another sequence that begins with the same tokens uses the same block, and nobody
//! writes to it any more. Generated tokens are rounded otherwise than those of a prompt, so that blocks that have some are for those who say so. What
//! nobody uses stays until its place is needed: the least recently used one is given up first.

use crate::error::{Error, Result};
use crate::generate::Reuse;
use crate::text::DecodedMask;
use outboard_core::op::BLOCK_ROWS;
use std::collections::hash_map::Entry;
use std::collections::{BTreeMap, HashMap};
use std::ops::Range;

/// The tokens of a block and of all before it, as a digest: BLAKE3 of the one before and of the tokens.
pub(crate) type PrefixHash = [u8; 32];

/// The beginning that ends with a block of these tokens.
pub(crate) fn prefix_hash(before: Option<&PrefixHash>, tokens: &[u32]) -> PrefixHash {
    let mut hasher = blake3::Hasher::new();
    hasher.update(before.map_or(&[][..], |before| before));
    for token in tokens {
        hasher.update(&token.to_le_bytes());
    }
    hasher.finalize().into()
}

/// What comes before the beginnings of texts with this salt: those of others begin otherwise.
pub(crate) fn salt_hash(salt: &str) -> PrefixHash {
    blake3::derive_key("outboard cache salt", salt.as_bytes())
}

/// The same beginning with how its last block was computed.
pub(crate) fn computed_hash(prefix_hash: PrefixHash, decoded: DecodedMask) -> PrefixHash {
    if decoded.is_empty() {
        return prefix_hash;
    }
    *blake3::Hasher::new().update(&prefix_hash).update(&decoded.to_bytes()).finalize().as_bytes()
}

/// Blocks that `tokens` tokens need.
pub(crate) fn blocks_of(tokens: usize) -> usize {
    tokens.div_ceil(BLOCK_ROWS)
}

#[derive(Clone, Debug, Default)]
struct Block {
    /// Sequences that use it.
    users: usize,
    prefix_hash: Option<PrefixHash>,
    decoded: DecodedMask,
    /// When it was given back last.
    idle_since: u64,
}

/// All blocks of a cache.
#[derive(Debug)]
pub(crate) struct Blocks {
    blocks: Vec<Block>,
    /// Blocks without users whose content nobody knows; the next one is at the end.
    free: Vec<usize>,
    /// Blocks without users whose content is known, by when they were given back.
    idle: BTreeMap<u64, usize>,
    /// Blocks whose tokens were all read with others, by the beginning that they end.
    prompt_blocks: HashMap<PrefixHash, usize>,
    /// The same of blocks with tokens that were generated, or computed alone as these are.
    decoded_blocks: HashMap<PrefixHash, usize>,
    /// How many there are.
    count: usize,
    /// Blocks that sequences have been promised and have not taken.
    promised: usize,
    clock: u64,
}

impl Blocks {
    /// Those with these numbers.
    pub(crate) fn new(numbers: Range<usize>) -> Blocks {
        Blocks {
            blocks: vec![Block::default(); numbers.end],
            count: numbers.len(),
            free: numbers.rev().collect(),
            idle: BTreeMap::new(),
            prompt_blocks: HashMap::new(),
            decoded_blocks: HashMap::new(),
            promised: 0,
            clock: 0,
        }
    }

    /// Blocks in all.
    pub(crate) fn len(&self) -> usize {
        self.count
    }

    /// Blocks that can still be promised.
    pub(crate) fn available(&self) -> usize {
        (self.free.len() + self.idle.len()).saturating_sub(self.promised)
    }

    /// Promises `n` blocks to a sequence. Fails, and says how many there are, if there are not as many.
    pub(crate) fn promise(&mut self, n: usize) -> Result<()> {
        let available = self.available();
        if n > available {
            let tokens = |blocks: usize| blocks * BLOCK_ROWS;
            return Err(Error::CacheFull { needed: tokens(n), free: tokens(available), total: tokens(self.count) });
        }
        self.promised += n;
        Ok(())
    }

    /// Takes a promise back.
    pub(crate) fn release_promise(&mut self, n: usize) {
        self.promised = self.promised.saturating_sub(n);
    }

    /// One of the blocks that were promised, with one user, of any content.
    pub(crate) fn take(&mut self) -> Result<usize> {
        let block = match self.free.pop() {
            Some(block) => block,
            None => {
                let (_, block) =
                    self.idle.pop_first().ok_or_else(|| Error::Internal("the cache has no block left".into()))?;
                self.forget(block);
                block
            }
        };
        self.promised = self.promised.saturating_sub(1);
        self.blocks[block].users = 1;
        Ok(block)
    }

    /// The block that ends this beginning, if there is one, and how it was computed: it has one user more.
    pub(crate) fn share(&mut self, prefix_hash: &PrefixHash, reuse: Reuse) -> Option<(usize, DecodedMask)> {
        let (prompts, generated) = (self.prompt_blocks.get(prefix_hash), self.decoded_blocks.get(prefix_hash));
        let block = match reuse {
            Reuse::Nothing => None,
            Reuse::Prompts => prompts,
            Reuse::All => prompts.or(generated),
        };
        let block = *block?;
        let Block { users, idle_since, decoded, .. } = &mut self.blocks[block];
        if *users == 0 {
            // What was promised to others must stay there.
            if self.free.len() + self.idle.len() <= self.promised {
                return None;
            }
            self.idle.remove(idle_since);
        }
        *users += 1;
        Some((block, *decoded))
    }

    /// Whether others use this block or may come to use it, so that nobody may write something else to it.
    pub(crate) fn is_shared(&self, block: usize) -> bool {
        self.blocks[block].users > 1 || self.blocks[block].prefix_hash.is_some()
    }

    /// A block is full: it ends this beginning. The first block that does so is the one that is shared.
    pub(crate) fn publish(&mut self, block: usize, prefix_hash: PrefixHash, decoded: DecodedMask) {
        if self.blocks[block].prefix_hash.is_some() {
            return;
        }
        if let Entry::Vacant(place) = self.index_for(decoded).entry(prefix_hash) {
            place.insert(block);
            let state = &mut self.blocks[block];
            (state.prefix_hash, state.decoded) = (Some(prefix_hash), decoded);
        }
    }

    fn index_for(&mut self, decoded: DecodedMask) -> &mut HashMap<PrefixHash, usize> {
        if decoded.is_empty() { &mut self.prompt_blocks } else { &mut self.decoded_blocks }
    }

    /// A sequence does not use a block any more.
    pub(crate) fn give_back(&mut self, block: usize) {
        let state = &mut self.blocks[block];
        state.users = state.users.saturating_sub(1);
        if state.users > 0 {
            return;
        }
        if state.prefix_hash.is_some() {
            self.clock += 1;
            state.idle_since = self.clock;
            self.idle.insert(self.clock, block);
        } else {
            self.free.push(block);
        }
    }

    /// Nothing is known of what any block holds: the cache may have lost it.
    pub(crate) fn forget_all(&mut self) {
        while let Some((_, block)) = self.idle.pop_first() {
            self.free.push(block);
        }
        self.prompt_blocks.clear();
        self.decoded_blocks.clear();
        self.blocks.iter_mut().for_each(|block| block.prefix_hash = None);
    }

    fn forget(&mut self, block: usize) {
        if let Some(prefix_hash) = self.blocks[block].prefix_hash.take() {
            let decoded = self.blocks[block].decoded;
            self.index_for(decoded).remove(&prefix_hash);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shared(blocks: &mut Blocks, prefix_hash: &PrefixHash) -> Option<usize> {
        blocks.share(prefix_hash, Reuse::Prompts).map(|(block, _)| block)
    }

    fn key(n: u32) -> PrefixHash {
        prefix_hash(None, &[n])
    }

    #[test]
    fn promises_are_kept_and_refusals_have_numbers() {
        let mut blocks = Blocks::new(0..3);
        blocks.promise(2).unwrap();
        let error = blocks.promise(2).unwrap_err();
        assert!(matches!(error, Error::CacheFull { needed: 256, free: 128, total: 384 }), "{error}");
        assert_eq!((blocks.take().unwrap(), blocks.take().unwrap()), (0, 1));
        assert_eq!(blocks.available(), 1);
        blocks.promise(1).unwrap();
        blocks.release_promise(1);
        blocks.give_back(0);
        assert_eq!(blocks.available(), 2);
    }

    #[test]
    fn the_same_beginning_is_one_block_until_its_place_is_needed() {
        let mut blocks = Blocks::new(0..2);
        blocks.promise(2).unwrap();
        let (a, b) = (blocks.take().unwrap(), blocks.take().unwrap());
        blocks.publish(a, key(1), DecodedMask::default());
        blocks.publish(b, key(2), DecodedMask::default());
        assert_eq!(shared(&mut blocks, &key(1)), Some(a));
        blocks.give_back(a);
        assert_eq!(blocks.available(), 0, "the other one still uses it");
        blocks.give_back(b);
        blocks.give_back(a);
        assert_eq!((blocks.available(), shared(&mut blocks, &key(3))), (2, None));
        // The one that was given back first goes first.
        blocks.promise(1).unwrap();
        assert_eq!(blocks.take().unwrap(), b);
        assert_eq!((shared(&mut blocks, &key(2)), shared(&mut blocks, &key(1))), (None, Some(a)));
        assert!(blocks.is_shared(a) && !blocks.is_shared(b));
    }

    #[test]
    fn what_was_promised_is_not_shared_away() {
        let mut blocks = Blocks::new(0..1);
        blocks.promise(1).unwrap();
        let a = blocks.take().unwrap();
        blocks.publish(a, key(1), DecodedMask::default());
        blocks.give_back(a);
        blocks.promise(1).unwrap();
        assert_eq!(shared(&mut blocks, &key(1)), None);
        assert_eq!(blocks.take().unwrap(), a);
    }

    #[test]
    fn a_beginning_is_all_tokens_before_it() {
        let first = prefix_hash(None, &[1, 2]);
        assert_ne!(prefix_hash(Some(&first), &[3]), prefix_hash(None, &[3]));
        assert_ne!(prefix_hash(Some(&first), &[3]), prefix_hash(Some(&key(1)), &[3]));
        let mut blocks = Blocks::new(0..1);
        blocks.promise(1).unwrap();
        let a = blocks.take().unwrap();
        blocks.publish(a, first, DecodedMask::default());
        blocks.forget_all();
        assert_eq!((shared(&mut blocks, &first), blocks.is_shared(a)), (None, false));
    }
}
