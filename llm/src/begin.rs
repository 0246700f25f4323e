//! What a sequence is to generate: a prompt, how tokens are drawn behind it, which of them are allowed, and what of others it may use.

use crate::arch::net::Sampling;
use crate::batch::Bias;
use crate::constraint::TokenSet;
use crate::error::{Error, Result};
use crate::generate::Reuse;
use crate::placed_model::PlacedModel;
use crate::sequence::{Held, Job, Sequence};
use outboard_core::op::BLOCK_ROWS;
use std::sync::Arc;

impl PlacedModel {
    /// Has tokens read behind those of a sequence ([`PlacedModel::len`]), and up to `most` tokens sampled behind them: fewer if the context is full before.
    /// Gives how many; [`PlacedModel::next_token`] gives them, with those of other sequences.
    ///
    /// Fails if the context has no room for the tokens, with [`Error::CacheFull`] if the cache has none now, and if the sequence has nothing
    /// to go on from. With failover, a fault of a device is recovered from on the way.
    pub fn begin(&mut self, sequence: Sequence, tokens: &[u32], sampling: Sampling, most: usize) -> Result<usize> {
        self.check_vocabulary(tokens)?;
        let before = self.len(sequence)?;
        self.check_room(sequence, tokens.len())?;
        self.prompts += 1;
        let begun = self.prompts;
        let end = before + tokens.len();
        if end == 0 {
            return Err(Error::Request("the sequence is empty and no tokens were given".into()));
        }
        if most == 0 {
            return Err(Error::Request("no token was asked for: ask for one at least".into()));
        }
        self.return_to_devices()?;
        // What is sampled last needs no room.
        let most = most.min(self.n_ctx() + 1 - end);
        self.truncate(sequence, before)?;
        self.add_prompt(sequence, tokens)?;
        self.state_and_blocks(sequence)?.0.shared = 0;
        let shared = self.share_prefix(sequence.slot).or_else(|e| self.recover_or_fail(e));
        let (state, blocks) = self.state_and_blocks(sequence)?;
        if let Err(e) = shared {
            state.truncate(blocks, before);
            return Err(e);
        }
        if sampling.penalties.is_some() {
            state.read_unnoted();
        }
        if state.n_past == end {
            // The last token is run again to sample from.
            state.go_back_before(blocks, end - 1);
        }
        state.shared = state.shared.min(state.n_past.saturating_sub(before));
        if let Err(full) = state.reserve(blocks, end + most - 1) {
            state.truncate(blocks, before);
            return Err(full);
        }
        state.job = Some(Job { sampling, left: most });
        state.held = None;
        state.begun = begun;
        state.answered = 0;
        Ok(most)
    }

    /// Uses blocks of others that begin as a sequence's text, if that is wanted, and reads the rest of the prompt in micro-batches of its own.
    pub(crate) fn share_prefix(&mut self, slot: usize) -> Result<()> {
        if !self.options.prefixes.are_shared() {
            return Ok(());
        }
        // What is left is to be rounded as the whole would be.
        let rest = self.smallest_part();
        let (state, blocks) = self.slot_and_blocks(slot)?;
        let shared = state.share(blocks, rest);
        if shared.new.is_empty() {
            return Ok(());
        }
        let (begin, past, end) = (shared.new.start * BLOCK_ROWS, state.n_past, state.text.end_of_batched(state.n_past));
        let behind = state.text.sizes(end);
        // As they were read, should they have to be read again.
        let (mut sizes, mut at) = (Vec::new(), begin);
        for decoded in shared.decoded {
            sizes.extend(self.micro_batches(at, decoded - at));
            sizes.push(1);
            at = decoded + 1;
        }
        sizes.extend(self.micro_batches(at, past - at));
        sizes.extend(self.micro_batches(past, end - past));
        sizes.extend(behind);
        self.slot_and_blocks(slot)?.0.text.read_anew(begin, &sizes);
        self.write_table(slot, shared.new)
    }

    /// Says which blocks of others a sequence's next prompt may use, where beginnings are shared; until then those of prompts.
    pub fn set_reuse(&mut self, sequence: Sequence, reuse: Reuse) -> Result<()> {
        self.state_and_blocks(sequence)?.0.reuse = reuse;
        Ok(())
    }

    /// Has a sequence share beginnings only with those of the same salt: nobody else can tell by them what it has. Only for a sequence without tokens.
    pub fn set_cache_salt(&mut self, sequence: Sequence, salt: Option<&str>) -> Result<()> {
        let (state, _) = self.state_and_blocks(sequence)?;
        if state.text.len() > 0 {
            return Err(Error::Request("a sequence that has tokens cannot get another cache salt".into()));
        }
        state.set_salt(salt);
        Ok(())
    }

    /// Adds numbers to a sequence's logits, one for each token of the vocabulary, from its next token on that is not under way. Minus infinity
    /// excludes a token. `None` adds nothing.
    ///
    /// What depends on the token before (a grammar) is said token by token: [`PlacedModel::allow`]. The numbers go to the device with the logits for
    /// every token.
    pub fn set_bias(&mut self, sequence: Sequence, bias: Option<Arc<[f32]>>) -> Result<()> {
        let n_vocab = self.model.hparams().n_vocab;
        if let Some(given) = bias.as_ref().map(|bias| bias.len()).filter(|given| *given != n_vocab) {
            return Err(Error::Request(format!("a bias of {given} tokens, the vocabulary has {n_vocab}")));
        }
        let (state, _) = self.state_and_blocks(sequence)?;
        state.bias = bias;
        Ok(())
    }

    /// Says which tokens may come next in a sequence, behind those that [`PlacedModel::next_token`] has given.
    ///
    /// From then on the sequence waits after each of its tokens until this has been said for the next one; others run ahead as before. It is said first
    /// behind [`PlacedModel::begin`], and lasts until the next `begin`. What [`PlacedModel::set_bias`] has added is added as well.
    ///
    /// Fails if the sequence has tokens that were not given to anybody, or that are under way, and if no token is allowed.
    pub fn allow(&mut self, sequence: Sequence, allowed: &TokenSet) -> Result<()> {
        let n_vocab = self.model.hparams().n_vocab;
        let ready = self.ahead.ready_of(sequence);
        let (state, _) = self.state_and_blocks(sequence)?;
        if state.under_way() + ready > 0 {
            return Err(Error::Request("the sequence has tokens behind which nobody can know what may follow".into()));
        }
        if !allowed.has_any(n_vocab, state.bias.as_deref()) {
            return Err(Error::Request("no token is allowed: the form and the bias exclude all".into()));
        }
        let bias = Bias::of(allowed, n_vocab, state.bias.as_deref());
        state.held = Some(Held { at: state.text.len(), bias });
        Ok(())
    }
}
