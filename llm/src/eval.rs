//! One sequence at a time: tokens through the model, and what comes of the last ones.

use crate::arch::net::{self, LogProbs, Sampling};
use crate::batch::Request;
use crate::error::{Error, Result};
use crate::placed_model::PlacedModel;
use crate::runs::{Runs, Turn};
use crate::sequence::Sequence;
use outboard_core::op::Sampler;

impl PlacedModel {
    /// Reads tokens behind those of a sequence and samples one. Gives its id and its log-probability. It does not become a part of the sequence:
    /// who wants that passes it to the next call.
    pub fn eval(&mut self, sequence: Sequence, tokens: &[u32], sampler: Sampler) -> Result<(u32, f32)> {
        self.begin(sequence, tokens, Sampling { sampler, penalties: None, log_probs: LogProbs::Chosen }, 1)?;
        let found = self.next_token_of(sequence)?.ok_or_else(|| Error::Internal("no token has come".into()))?;
        let len = self.len(sequence)?;
        self.truncate(sequence, len.saturating_sub(1))?;
        Ok((found.id, found.log_prob.unwrap_or(f32::NAN)))
    }

    /// Runs tokens as [`PlacedModel::eval`] does, and gives the logits of each, `n_vocab` apart.
    pub fn logits(&mut self, sequence: Sequence, tokens: &[u32]) -> Result<Vec<f32>> {
        self.check_vocabulary(tokens)?;
        self.whole(sequence, |model| model.logits_behind(sequence, tokens))
    }

    fn logits_behind(&mut self, sequence: Sequence, tokens: &[u32]) -> Result<Vec<f32>> {
        self.add_prompt(sequence, tokens)?;
        let len = self.len(sequence)?;
        let mut all = Vec::new();
        loop {
            let state = self.state(sequence)?;
            let range = state.text.batch(state.n_past);
            if range.is_empty() {
                return Ok(all);
            }
            let wanted = range.end.saturating_sub(range.start.max(len - tokens.len()));
            let request = if wanted > 0 { Request::Logits(range.len()) } else { Request::Part };
            let skip = range.len() - wanted;
            let batch = self.batch_of(sequence, range, request)?;
            let (program, inputs) = self.program_of(&batch)?;
            self.scheduler().run(&program, &inputs)?;
            if wanted > 0 {
                let logits = self.wait(self.read(&program, net::LOGITS)?)?;
                let n_vocab = self.model.hparams().n_vocab;
                all.extend(logits.as_chunks().0.iter().skip(skip * n_vocab).map(|b| f32::from_le_bytes(*b)));
            }
        }
    }

    /// Runs tokens through the layers behind those of a sequence, and returns when the cache has them. Nothing is sampled: what a
    /// step takes longer than one token is the time of the head.
    pub fn fill_cache(&mut self, sequence: Sequence, tokens: &[u32]) -> Result<()> {
        if tokens.is_empty() {
            return Err(Error::Request("the prompt is empty".into()));
        }
        self.check_vocabulary(tokens)?;
        self.whole(sequence, |model| {
            model.add_prompt(sequence, tokens)?;
            let turn = Turn { group: 0, lead: model.prompt_lead() };
            let mut runs = Runs::default();
            let done = model.enqueue_layers(sequence, turn, &mut runs);
            runs.abandon(model);
            done?;
            Ok(model.scheduler().finish()?)
        })
    }

    fn enqueue_layers(&mut self, sequence: Sequence, turn: Turn, runs: &mut Runs<()>) -> Result<()> {
        loop {
            let state = self.state(sequence)?;
            let range = state.text.batch(state.n_past);
            if range.is_empty() {
                return runs.finish(self, &mut |_, _, ()| Ok(()));
            }
            let request = if range.end == state.text.len() { Request::Layers } else { Request::Part };
            let batch = self.batch_of(sequence, range, request)?;
            runs.push(self, &batch, (), turn, &mut |_, _, ()| Ok(()))?;
        }
    }

    /// Does something with a sequence of which no steps are under way. After an error it has the tokens that it had.
    fn whole<T>(&mut self, sequence: Sequence, act: impl FnOnce(&mut PlacedModel) -> Result<T>) -> Result<T> {
        self.return_to_devices()?;
        let len = self.len(sequence)?;
        self.truncate(sequence, len)?;
        let n_past = self.state(sequence)?.n_past;
        let done = act(self);
        if let Err(error) = &done {
            self.fail_if_of_device(error);
            let (state, blocks) = self.state_and_blocks(sequence)?;
            // What was enqueued may not have been run.
            state.rewind(n_past.min(state.n_past));
            state.truncate(blocks, len);
        }
        done
    }
}
