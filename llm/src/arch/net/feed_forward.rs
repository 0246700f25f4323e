//! Feed-forward blocks: gated units, and mixtures of experts.

use super::*;
use crate::arch::layer::{Dense, ExpertWeights, Experts, FeedForward, Gate, Scales, SharedExpert};

impl Net<'_> {
    /// The feed-forward block of layer `il` over x `[n_embd, n_tokens]`.
    pub(super) fn feed_forward(&mut self, il: usize, block: &FeedForward, x: TensorId) -> Result<TensorId> {
        match block {
            FeedForward::Dense(dense) => self.gated(dense, x, |part| format!("blk.{il}.ffn_{part}")),
            FeedForward::Experts(experts) => self.experts(il, experts, x),
        }
    }

    /// `down(act(gate(x)) * up(x))`, of weights that have these names.
    fn gated(&mut self, block: &Dense, x: TensorId, name: impl Fn(&str) -> String) -> Result<TensorId> {
        let (gate, up) = match block.gate {
            Gate::Own => {
                let gate = self.ffn_linear(x, &name("gate"), block.scales)?;
                (gate, self.ffn_linear(x, &name("up"), block.scales)?)
            }
            Gate::InUp => {
                let both = self.ffn_linear(x, &name("up"), block.scales)?;
                let rows = self.g.ne(both)[0];
                if rows % 2 != 0 {
                    let name = name("up");
                    return Err(Error::Model(format!("tensor {name}.weight has {rows} rows, which have no halves")));
                }
                (self.part(both, 0, rows / 2)?, self.part(both, rows / 2, rows / 2)?)
            }
        };
        let y = self.g.push(op::Glu { kind: block.glu }, &[gate, up])?;
        self.ffn_linear(y, &name("down"), block.scales)
    }

    /// [`Net::linear`] of a dense feed-forward block, where the bias comes first and the scale covers it.
    fn ffn_linear(&mut self, x: TensorId, name: &str, scales: Scales) -> Result<TensorId> {
        let w = self.weight(&format!("{name}.weight"))?;
        let mut y = self.g.push(op::MulMat, &[w, x])?;
        self.g.name(y, name);
        if let Some(bias) = self.opt_weight(&format!("{name}.bias"))? {
            y = self.add(y, bias)?;
        }
        if scales == Scales::Used
            && let Some(scale) = self.opt_weight(&format!("{name}.scale"))?
        {
            y = self.mul(y, scale)?;
        }
        Ok(y)
    }

    /// Mixture of experts: the sum of those that are chosen, times their weights, and of the shared one.
    fn experts(&mut self, il: usize, experts: &Experts, x: TensorId) -> Result<TensorId> {
        let (h, n) = (self.hparams, self.shape.n_tokens);
        let prefix = format!("blk.{il}");
        let (ids, weights) = self.routing(&prefix, experts, x)?;
        let rows = self.reshape(x, [h.n_embd, 1, n, 1])?;
        let gate = self.linear_id(rows, ids, &format!("{prefix}.ffn_gate_exps"), experts.scales)?;
        let up = self.linear_id(rows, ids, &format!("{prefix}.ffn_up_exps"), experts.scales)?;
        let y = self.g.push(op::Glu { kind: experts.glu }, &[gate, up])?;
        let y = self.linear_id(y, ids, &format!("{prefix}.ffn_down_exps"), experts.scales)?;
        let y = self.mul(y, weights)?;
        let sum = self.sum_of_experts(y)?;
        match experts.shared {
            SharedExpert::None => Ok(sum),
            SharedExpert::Gated => {
                let shared = self.shared_expert(&prefix, experts, x)?;
                self.add(sum, shared)
            }
        }
    }

    /// Which experts each token uses, I32 `[n_used, n_tokens]`, and what their results are multiplied by, F32 `[1, n_used, n_tokens]`.
    fn routing(&mut self, prefix: &str, experts: &Experts, x: TensorId) -> Result<(TensorId, TensorId)> {
        let (h, n) = (self.hparams, self.shape.n_tokens);
        let logits = self.linear(x, &format!("{prefix}.ffn_gate_inp"))?;
        let scores = match experts.weights {
            ExpertWeights::SoftMaxOfChosen => logits,
            ExpertWeights::Probabilities | ExpertWeights::Shares => {
                self.g.push(op::SoftMax { scale: 1.0 }, &[logits])?
            }
        };
        let ids = self.g.push(op::TopK { k: h.n_expert_used }, &[scores])?;
        self.g.name(ids, &format!("{prefix}.experts"));
        let scores = self.reshape(scores, [1, h.n_expert, n, 1])?;
        let chosen = self.g.push(op::GetRows, &[scores, ids])?;
        let chosen = self.reshape(chosen, [h.n_expert_used, n, 1, 1])?;
        let weights = match experts.weights {
            ExpertWeights::Probabilities => chosen,
            ExpertWeights::Shares => {
                let sum = self.g.push(op::Reduce { kind: op::ReduceKind::SumRows }, &[chosen])?;
                self.g.push(op::Binary { kind: BinaryKind::Div }, &[chosen, sum])?
            }
            ExpertWeights::SoftMaxOfChosen => self.g.push(op::SoftMax { scale: 1.0 }, &[chosen])?,
        };
        let weights = self.scale(weights, experts.weights_scale)?;
        Ok((ids, self.reshape(weights, [1, h.n_expert_used, n, 1])?))
    }

    /// `name.weight[expert] * x` for the chosen experts, times `name.scale[expert]` and plus `name.bias[expert]` where the file has them:
    /// x `[k, 1 or n_used, n_tokens]`, ids `[n_used, n_tokens]`.
    fn linear_id(&mut self, x: TensorId, ids: TensorId, name: &str, scales: Scales) -> Result<TensorId> {
        let n_expert = self.hparams.n_expert;
        let w = self.weight(&format!("{name}.weight"))?;
        self.leaves.of_experts.insert(w);
        let mut y = self.g.push(op::MulMatId, &[w, x, ids])?;
        self.g.name(y, name);
        if scales == Scales::Used
            && let Some(scale) = self.opt_weight(&format!("{name}.scale"))?
        {
            self.leaves.of_experts.insert(scale);
            let scale = self.reshape(scale, [1, n_expert, 1, 1])?;
            let scale = self.g.push(op::Repeat { ne: [1, n_expert, self.shape.n_tokens, 1] }, &[scale])?;
            let scale = self.g.push(op::GetRows, &[scale, ids])?;
            y = self.mul(y, scale)?;
        }
        if let Some(bias) = self.opt_weight(&format!("{name}.bias"))? {
            self.leaves.of_experts.insert(bias);
            y = self.g.push(op::AddId, &[y, bias, ids])?;
        }
        Ok(y)
    }

    /// The sum over the chosen experts of y `[n_embd, n_used, n_tokens]`.
    fn sum_of_experts(&mut self, y: TensorId) -> Result<TensorId> {
        let (h, n) = (self.hparams, self.shape.n_tokens);
        let mut sum: Option<TensorId> = None;
        for used in 0..h.n_expert_used {
            let row = 4 * h.n_embd;
            let nb = [4, row * h.n_expert_used, row * h.n_expert_used * n, row * h.n_expert_used * n];
            let one = self.g.push(op::View { ne: [h.n_embd, n, 1, 1], nb, offset: used * row }, &[y])?;
            sum = Some(match sum {
                Some(sum) => self.add(sum, one)?,
                None => self.g.push(op::Cont, &[one])?,
            });
        }
        sum.ok_or_else(|| Error::Model("no expert is used".into()))
    }

    /// The expert that all tokens use, as much as each of them lets through.
    fn shared_expert(&mut self, prefix: &str, experts: &Experts, x: TensorId) -> Result<TensorId> {
        let gate = self.linear(x, &format!("{prefix}.ffn_gate_inp_shexp"))?;
        let gate = self.g.push(op::Unary { kind: UnaryKind::Sigmoid }, &[gate])?;
        let block = Dense { glu: experts.glu, gate: Gate::Own, scales: experts.scales };
        let y = self.gated(&block, x, |part| format!("{prefix}.ffn_{part}_shexp"))?;
        self.mul(y, gate)
    }
}
