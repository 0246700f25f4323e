//! What llama.cpp generates, and when another program's text counts as the same.

use outboard_llm::Error;
use outboard_llm::PlacedModel;
use serde::Deserialize;
use std::collections::HashMap;

// How far from llama.cpp's figures a right program may be. The right sides of quantized products are rounded to 8 bits, and the
// last bit of any sum before decides how; after a few layers two programs that add in another order have independent rounding
// errors. Measured over these texts, of smollm2: the same llama.cpp, compiled for AVX-512 in place of AVX2, differs from its own
// figures by 0.054 (rms) and 0.25 at most (`bench`, program agreement); exact arithmetic, which does not round to 8 bits, by 0.055
// and 0.29, and prefers another token where llama.cpp's has a lead of up to 0.36 (`examples/log_probs.rs`). Of the larger
// qwen2.5-coder: 0.030 and 0.16, 0.025 and 0.13. Of gemma3: 0.068 and 0.30, 0.068 and 0.54. These limits are just above what is noise.

/// A token whose lead over the second best is larger must be the same.
const LEAD: f32 = 0.4;
/// But for one in so many steps. Kernels for AVX2 without VNNI sum up in another order, and prefer another token in the 20th step of `def fibonacci`, where
/// the lead is 1.54: its log-probability is off by 0.01 to 0.50, by where the prompt ends (2026-11-25). So do ggml's for AVX-512, over two servers.
const UNSTEADY: usize = 200;
/// The largest lead of such a step.
const UNSTEADY_LEAD: f32 = 1.6;
/// Largest difference of one log-probability.
const WORST: f32 = 0.5;
/// Of gemma3, of which exact arithmetic exceeds the other one.
const WORST_GEMMA3: f32 = 0.7;
/// Root of the mean square of all differences.
const RMS: f32 = 0.09;
/// One in so many steps may prefer another token. Exact arithmetic does in 8 of 221.
const OTHERS: usize = 20;

/// One greedy continuation.
#[derive(Deserialize)]
pub struct Case {
    /// The prompt.
    pub prompt: String,
    /// Its tokens.
    pub tokens: Vec<u32>,
    /// The steps of the continuation.
    pub steps: Vec<Step>,
}

/// A token, its log-probability, and that of the second best.
#[derive(Clone, Copy, Debug, Deserialize)]
pub struct Step(pub u32, pub f32, pub f32);

/// The cases of a model.
pub fn cases(model: &str) -> Vec<Case> {
    #[derive(Deserialize)]
    #[serde(untagged)]
    enum Entry {
        Cases(Vec<Case>),
        #[allow(dead_code, reason = "the comment at the head of the file")]
        Comment(String),
    }
    let mut all: HashMap<String, Entry> =
        serde_json::from_str(include_str!("../tests/data/greedy.json")).expect("greedy.json");
    match all.remove(model) {
        Some(Entry::Cases(cases)) => cases,
        _ => panic!("no reference for {model}"),
    }
}

/// What a model says of llama.cpp's texts when it is fed with their tokens: every step counts, whatever it would have chosen.
#[derive(Debug, Default)]
pub struct Forced {
    /// Log-probability of the token less llama.cpp's, step by step.
    pub differences: Vec<f32>,
    /// Where another token is the best: the lead of llama.cpp's over its second.
    pub others: Vec<f32>,
}

impl Forced {
    /// Adds a continuation. The prompt is read `at_once` tokens at a time, the rest one by one, as in a generation.
    pub fn add(&mut self, engine: &mut PlacedModel, case: &Case, at_once: usize) -> Result<(), Error> {
        let open = engine.sequences().next();
        let seq = match open {
            Some(open) => open,
            None => engine.open()?,
        };
        engine.truncate(seq, 0)?;
        let mut last = Vec::new();
        for batch in case.tokens.chunks(at_once) {
            let mut logits = engine.logits(seq, batch)?;
            last = logits.split_off(logits.len() - logits.len() / batch.len());
        }
        for (i, &Step(id, want, second)) in case.steps.iter().enumerate() {
            let max = last.iter().copied().fold(f32::NEG_INFINITY, f32::max);
            let sum: f64 = last.iter().map(|l| f64::from(l - max).exp()).sum();
            let got = last.get(id as usize).copied().unwrap_or(f32::NAN);
            if got < max {
                self.others.push(want - second);
            }
            self.differences.push(got - max - sum.ln() as f32 - want);
            if i + 1 < case.steps.len() {
                last = engine.logits(seq, &[id])?;
            }
        }
        Ok(())
    }

    /// Root of the mean square of the differences.
    pub fn rms(&self) -> f32 {
        rms(&self.differences)
    }

    /// The largest difference.
    pub fn worst(&self) -> f32 {
        self.differences.iter().fold(0.0, |max, d| if d.is_nan() { f32::NAN } else { d.abs().max(max) })
    }

    /// The largest lead that another token has overcome.
    pub fn lead(&self) -> f32 {
        self.others.iter().copied().fold(0.0, f32::max)
    }

    /// The same without one in [`UNSTEADY`] steps.
    fn steady_lead(&self) -> f32 {
        let mut leads = self.others.clone();
        leads.sort_by(|a, b| b.total_cmp(a));
        leads.get(self.differences.len() / UNSTEADY).copied().unwrap_or(0.0)
    }

    /// Whether this is as near as a right program is, with this model.
    pub fn check(&self, model: &str) -> Result<(), String> {
        let (rms, worst, lead, n) = (self.rms(), self.worst(), self.steady_lead(), self.differences.len());
        let most = worst_of(model);
        if rms <= RMS && worst <= most && lead <= LEAD && self.others.len() * OTHERS <= n {
            Ok(())
        } else {
            Err(format!(
                "log-probabilities differ by {rms} (rms) and {worst}; another token in {} of {n} steps, where the lead was {lead}",
                self.others.len()
            ))
        }
    }
}

fn rms(values: &[f32]) -> f32 {
    (values.iter().map(|d| d * d).sum::<f32>() / values.len().max(1) as f32).sqrt()
}

/// The differences of several continuations.
#[derive(Debug)]
pub struct Comparison {
    differences: Vec<f32>,
    steps: usize,
    /// Largest difference of one log-probability.
    worst: f32,
    /// A token whose lead over the second best is larger must be the same.
    lead: f32,
    /// Steps where it was not: as few as [`UNSTEADY`] has it are noise.
    unsteady: usize,
}

/// The largest difference of one log-probability of a model that is noise.
fn worst_of(model: &str) -> f32 {
    if model == "gemma3" { WORST_GEMMA3 } else { WORST }
}

impl Comparison {
    /// Of a model's continuations, none yet.
    pub fn of(model: &str) -> Comparison {
        // Where log-probabilities differ by more, so do leads: on AVX2 without VNNI by 0.63 and 0.51 of gemma3 (2026-11-25).
        let lead = if model == "gemma3" { WORST_GEMMA3 } else { LEAD };
        Comparison { differences: Vec::new(), steps: 0, worst: worst_of(model), lead, unsteady: 0 }
    }

    /// Compares a continuation step by step, up to a place where another token could be chosen as well.
    pub fn add(&mut self, case: &Case, tokens: &[u32], log_probs: &[f32]) -> Result<(), String> {
        if tokens.len() < case.steps.len() || log_probs.len() < case.steps.len() {
            return Err(format!("{} tokens instead of {}", tokens.len(), case.steps.len()));
        }
        self.steps += case.steps.len();
        for (i, (Step(id, best, second), (&got, &log_prob))) in
            case.steps.iter().zip(tokens.iter().zip(log_probs)).enumerate()
        {
            if got != *id {
                let lead = best - second;
                if lead > UNSTEADY_LEAD {
                    return Err(format!("step {i}: token {got} instead of {id}, whose lead is {lead}"));
                }
                self.unsteady += usize::from(lead > self.lead);
                return Ok(());
            }
            let difference = (log_prob - best).abs();
            if difference.is_nan() || difference > self.worst {
                return Err(format!("step {i}: log-probability {log_prob} instead of {best}"));
            }
            self.differences.push(difference);
        }
        Ok(())
    }

    /// The verdict over all: steps compared, steps there were, root of the mean square of the differences.
    pub fn finish(&self) -> Result<(usize, usize, f32), String> {
        let n = self.differences.len();
        let rms = rms(&self.differences);
        if rms > RMS {
            return Err(format!("log-probabilities differ by {rms} (rms), more than {RMS}"));
        }
        let (unsteady, lead) = (self.unsteady, self.lead);
        if unsteady * UNSTEADY > self.steps {
            return Err(format!("{unsteady} of {} steps have another token whose lead is above {lead}", self.steps));
        }
        // A comparison ends where another token could be chosen as well, at some step of a hundred: that may be an early one, and
        // [`Forced`] has all of them. It must not end all of them at once.
        if n * 4 < self.steps {
            return Err(format!("only {n} of {} steps could be compared", self.steps));
        }
        Ok((n, self.steps, rms))
    }
}
