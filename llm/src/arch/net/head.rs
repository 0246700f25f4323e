//! The head: from the last layer to logits, probabilities and tokens.

use super::*;

impl Net<'_> {
    /// The final norm, the output matrix and what the shape asks for after it.
    pub(super) fn head(&mut self, x: TensorId) -> Result<()> {
        match self.shape.outputs {
            // Nothing but the caches is wanted, and those are state.
            Outputs::None => {}
            Outputs::Layers => {
                self.g.output(x);
            }
            Outputs::Logits(rows) => {
                let logits = self.logits(x, rows)?;
                self.g.output(logits);
            }
            Outputs::Hidden(rows) => {
                let normed = self.normed(x, rows)?;
                self.g.output(normed);
            }
            Outputs::Scores { rows, log_probs } => {
                let logits = self.logits(x, rows)?;
                let targets = self.g.input(TARGETS, DType::I32, &[rows])?;
                let log_prob = self.log_probs(logits, targets)?;
                if log_probs == LogProbs::Top {
                    self.top(logits, targets, log_prob)?;
                }
            }
            Outputs::Sample { .. } => self.sample(x)?,
        }
        Ok(())
    }

    /// The final norm of all rows of x if it has as many, else of those that the input says.
    fn normed(&mut self, mut x: TensorId, rows: usize) -> Result<TensorId> {
        if rows != self.shape.n_tokens {
            let ids = self.g.input(OUTPUT_ROWS, DType::I32, &[rows])?;
            x = self.g.push(op::GetRows, &[x, ids])?;
        }
        self.rms_norm(x, HIDDEN)
    }

    /// The final norm and the output matrix, of these rows.
    fn logits(&mut self, x: TensorId, rows: usize) -> Result<TensorId> {
        let x = self.normed(x, rows)?;
        let logits = match self.weights.layout("output.weight") {
            Some(_) => self.linear(x, "output")?,
            // Models without an output matrix use the embedding: the same bytes, where the last layer is.
            None => {
                let w = self.weight_for("output", "token_embd.weight")?;
                self.g.push(op::MulMat, &[w, x])?
            }
        };
        let logits = self.scale(logits, self.frame.logit_scale)?;
        let logits = self.softcap(logits, self.frame.logit_softcap)?;
        Ok(self.g.name(logits, LOGITS))
    }

    /// The output of the log-probabilities of these ids, one for each row of logits.
    fn log_probs(&mut self, logits: TensorId, ids: TensorId) -> Result<TensorId> {
        let log_probs = self.g.push(op::LogProb, &[logits, ids])?;
        self.g.name(log_probs, LOG_PROBS);
        self.g.output(log_probs);
        Ok(log_probs)
    }

    /// The outputs of the most probable tokens of each row of logits, given one id of each row and how probable it is: a logit and its
    /// log-probability differ by the same number in all of the row.
    fn top(&mut self, logits: TensorId, id: TensorId, log_prob: TensorId) -> Result<()> {
        let [n_vocab, rows, ..] = self.g.ne(logits);
        let ids = self.g.push(op::TopK { k: N_TOP.min(n_vocab) }, &[logits])?;
        self.g.name(ids, TOP_IDS);
        self.g.output(ids);
        let each = self.reshape(logits, [1, n_vocab, rows, 1])?;
        let id = self.reshape(id, [1, rows, 1, 1])?;
        let of_id = self.g.push(op::GetRows, &[each, id])?;
        let log_prob = self.reshape(log_prob, [1, 1, rows, 1])?;
        let difference = self.g.push(op::Binary { kind: BinaryKind::Sub }, &[of_id, log_prob])?;
        let of_top = self.g.push(op::GetRows, &[each, ids])?;
        let log_probs = self.g.push(op::Binary { kind: BinaryKind::Sub }, &[of_top, difference])?;
        self.g.name(log_probs, TOP_LOG_PROBS);
        self.g.output(log_probs);
        Ok(())
    }

    /// Tokens from the logits of some rows of x, and what the next steps need of them.
    fn sample(&mut self, x: TensorId) -> Result<()> {
        let Outputs::Sample { rows, penalties, added, log_probs } = self.shape.outputs else { return Ok(()) };
        let logits = self.logits(x, rows)?;
        let mut weighed = match self.history {
            Some(history) if penalties => self.weigh(logits, history, rows)?,
            None if penalties => return Err(Error::Internal("a penalty needs the history of tokens".into())),
            _ => logits,
        };
        if let Some(added) = self.added(added, self.g.ne(logits)[0], rows)? {
            weighed = self.add(weighed, added)?;
        }
        let params = self.g.input(SAMPLE_PARAMS, DType::F32, &[4, rows])?;
        let draws = self.g.input(SAMPLE_DRAWS, DType::I32, &[3, rows])?;
        let ids = self.g.push(op::Sample, &[weighed, params, draws])?;
        self.g.name(ids, SAMPLED);
        self.g.output(ids);
        if log_probs != LogProbs::None {
            let log_prob = self.log_probs(logits, ids)?;
            if log_probs == LogProbs::Top {
                self.top(logits, ids, log_prob)?;
            }
        }
        let next = self.next_token()?;
        // Steps sample for every row, in their order.
        let slots = if self.shape.feed == Feed::Sampled && rows == self.shape.n_tokens {
            self.slots
        } else {
            self.g.input(OUTPUT_SLOTS, DType::I32, &[rows])?
        };
        let ids = self.reshape(ids, [1, rows, 1, 1])?;
        let fed = self.g.push(op::SetRows, &[next, ids, slots])?;
        self.g.name(fed, "next_token.written");
        Ok(())
    }

    /// What is added to some rows of logits of so many tokens.
    fn added(&mut self, added: Added, n_vocab: usize, rows: usize) -> Result<Option<TensorId>> {
        let choices = match added {
            Added::Nothing => return Ok(None),
            Added::Numbers(biases) => self.g.input(VOCAB_BIAS, DType::F32, &[n_vocab, biases])?,
            Added::Masks(masks) => self.g.input(MASKS, DType::Q4_0, &[n_vocab, masks])?,
        };
        let which = self.g.input(ADDED_ROWS, DType::I32, &[rows])?;
        let chosen = self.g.push(op::GetRows, &[choices, which])?;
        Ok(Some(match added {
            // What is not 0 is beyond what a float can be.
            Added::Masks(_) => self.g.push(op::Scale { scale: f32::MAX, bias: 0.0 }, &[chosen])?,
            _ => chosen,
        }))
    }

    /// Logits, of which those are smaller whose tokens were used a short while ago.
    fn weigh(&mut self, logits: TensorId, history: TensorId, rows: usize) -> Result<TensorId> {
        let steps = self.g.input(PENALTY_STEPS, DType::I32, &[rows, 2])?;
        let (last, slots) = (column(&mut self.g, steps, 0)?, column(&mut self.g, steps, 1)?);
        let params = self.g.input(PENALTY_PARAMS, DType::F32, &[4, rows])?;
        let history = self.reshape(history, [self.shape.cache.rows(), 1, 1, 1])?;
        let table = self.block_table("head")?;
        let srcs = [logits, history, last, params, table, slots];
        Ok(self.g.push(op::Penalty { block: op::BLOCK_ROWS }, &srcs)?)
    }
}
