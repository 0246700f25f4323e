//! What llama.cpp generates, and when another program's text counts as the same.

use serde::Deserialize;
use std::collections::HashMap;

// How far from llama.cpp's figures a right program may be. The right sides of quantized products are rounded to 8 bits, and the
// last bit of any sum before decides how; after a few layers two programs that add in another order have independent rounding
// errors. Measured over these texts, of smollm2: the same llama.cpp, compiled for AVX-512 in place of AVX2, differs from its own
// figures by 0.054 (rms) and 0.25 at most (`bench`, program agreement); exact arithmetic, which does not round to 8 bits, by 0.055
// and 0.29, and prefers another token where llama.cpp's has a lead of up to 0.36 (`examples/log_probs.rs`). Of the larger
// qwen2.5-coder: 0.030 and 0.16, 0.025 and 0.13. These limits are just above what is noise.

/// A token whose lead over the second best is larger must be the same.
const LEAD: f32 = 0.4;
/// Largest difference of one log-probability.
const WORST: f32 = 0.5;
/// Root of the mean square of all differences.
const RMS: f32 = 0.09;

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

/// The differences of several continuations.
#[derive(Debug, Default)]
pub struct Comparison {
    differences: Vec<f32>,
    steps: usize,
}

impl Comparison {
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
                return match best - second <= LEAD {
                    true => Ok(()),
                    false => Err(format!("step {i}: token {got} instead of {id}, whose lead is {}", best - second)),
                };
            }
            let difference = (log_prob - best).abs();
            if difference.is_nan() || difference > WORST {
                return Err(format!("step {i}: log-probability {log_prob} instead of {best}"));
            }
            self.differences.push(difference);
        }
        Ok(())
    }

    /// The verdict over all: steps compared, steps there were, root of the mean square of the differences.
    pub fn finish(&self) -> Result<(usize, usize, f32), String> {
        let n = self.differences.len();
        let rms = (self.differences.iter().map(|d| d * d).sum::<f32>() / n.max(1) as f32).sqrt();
        if rms > RMS {
            return Err(format!("log-probabilities differ by {rms} (rms), more than {RMS}"));
        }
        // The rule lets a comparison end early; it must not end most of them.
        if n * 2 < self.steps {
            return Err(format!("only {n} of {} steps could be compared", self.steps));
        }
        Ok((n, self.steps, rms))
    }
}
