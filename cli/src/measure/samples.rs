//! What was measured, and the figures made of it.

use crate::devices::Net;
use std::time::{Duration, Instant};

/// From when to when.
pub(crate) type Range = (Instant, Instant);

/// One repetition of a test.
#[derive(Clone, Debug)]
pub(crate) struct Sample {
    /// Tokens that the time is for.
    pub(crate) tokens: usize,
    /// When they came.
    pub(crate) range: Range,
    /// Bytes over the network, of all servers together.
    pub(crate) net: Net,
    /// Between pieces of text; empty for prompts.
    pub(crate) gaps: Vec<Duration>,
}

impl Sample {
    /// Tokens per second.
    pub(crate) fn tps(&self) -> f64 {
        1e3 / self.ms_per_token()
    }

    /// Milliseconds for a token.
    pub(crate) fn ms_per_token(&self) -> f64 {
        // A clock that did not move is no reason for a division by zero.
        (self.range.1 - self.range.0).as_secs_f64().max(1e-9) * 1e3 / self.tokens.max(1) as f64
    }
}

pub(crate) fn mean(values: &[f64]) -> f64 {
    values.iter().sum::<f64>() / values.len().max(1) as f64
}

/// Standard deviation of a sample; 0 for fewer than two values.
pub(crate) fn stddev(values: &[f64]) -> f64 {
    if values.len() < 2 {
        return 0.0;
    }
    let mean = mean(values);
    let squares: f64 = values.iter().map(|v| (v - mean).powi(2)).sum();
    (squares / (values.len() - 1) as f64).sqrt()
}

/// The value below which a part `q` (0 to 1) of the values lies, interpolated between neighbours; 0 without values.
pub(crate) fn quantile(values: &[f64], q: f64) -> f64 {
    let mut sorted = values.to_vec();
    sorted.sort_by(f64::total_cmp);
    let at = q.clamp(0.0, 1.0) * sorted.len().saturating_sub(1) as f64;
    let (below, above) = (at.floor() as usize, at.ceil() as usize);
    match (sorted.get(below), sorted.get(above)) {
        (Some(a), Some(b)) => a + (b - a) * at.fract(),
        _ => 0.0,
    }
}

pub(crate) fn median(values: &[f64]) -> f64 {
    quantile(values, 0.5)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn figures() {
        assert_eq!((mean(&[1.0, 2.0, 6.0]), median(&[6.0, 1.0, 2.0])), (3.0, 2.0));
        assert_eq!(median(&[1.0, 2.0, 4.0, 9.0]), 3.0);
        assert_eq!((stddev(&[5.0]), stddev(&[2.0, 4.0])), (0.0, 2f64.sqrt()));
        assert_eq!((quantile(&[0.0, 10.0], 0.95), quantile(&[], 0.5), quantile(&[7.0], 1.0)), (9.5, 0.0, 7.0));
    }

    #[test]
    fn speed_of_a_sample() {
        let start = Instant::now();
        let range = (start, start + Duration::from_millis(20));
        let sample = Sample { tokens: 4, range, net: Net::default(), gaps: Vec::new() };
        assert!((sample.ms_per_token() - 5.0).abs() < 1e-9 && (sample.tps() - 200.0).abs() < 1e-6);
    }
}
