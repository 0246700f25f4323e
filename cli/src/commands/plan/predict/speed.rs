//! How fast devices are, by what they have to read and to compute of a model.

use outboard_llm::parts::{Part, Parts};
use outboard_llm::work::Work;

/// How fast a device is.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(in crate::commands::plan) struct Speed {
    /// Decoding: milliseconds for each byte of weights that a token reads.
    pub(super) decode: f64,
    /// Prompts: milliseconds for each unit of work; `None` if it had none.
    pub(super) prompt: Option<f64>,
}

/// Times of a device: of a token that is decoded, and of a prompt.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(in crate::commands::plan) struct Computed {
    pub(in crate::commands::plan) token_ms: f64,
    pub(in crate::commands::plan) prompt_ms: f64,
    pub(in crate::commands::plan) prompt_tokens: usize,
}

impl Speed {
    /// The speed of a device that has its sections of `homes` (a device for each section); `None` if it has none.
    pub(in crate::commands::plan) fn measured(
        parts: &Parts,
        homes: &[usize],
        device: usize,
        times: Computed,
    ) -> Option<Speed> {
        let (bytes, work) = (read_bytes(parts, homes, device), work(parts, homes, device).cost(0, times.prompt_tokens));
        let prompt = (work > 0.0).then(|| times.prompt_ms / work);
        (bytes > 0).then(|| Speed { decode: times.token_ms / bytes as f64, prompt })
    }

    /// Milliseconds of a layer for a token that is decoded; layers count as alike.
    pub(in crate::commands::plan) fn layer_ms(self, parts: &Parts) -> f64 {
        let bytes: u64 = parts.sections.iter().map(|section| section.read_bytes).sum();
        self.decode * bytes as f64 / (parts.last.layer + 1) as f64
    }
}

/// The sections of a device.
fn sections<'p>(parts: &'p Parts, homes: &'p [usize], device: usize) -> impl Iterator<Item = &'p Part> {
    homes.iter().zip(&parts.sections).filter(move |(home, _)| **home == device).map(|(_, section)| section)
}

/// Bytes of weights that a token reads on a device.
pub(super) fn read_bytes(parts: &Parts, homes: &[usize], device: usize) -> u64 {
    let first = if homes.first() == Some(&device) { parts.first.read_bytes } else { 0 };
    let last = if homes.last() == Some(&device) { parts.last.read_bytes } else { 0 };
    first + sections(parts, homes, device).map(|section| section.read_bytes).sum::<u64>() + last
}

/// What a token of a prompt takes on a device.
fn work(parts: &Parts, homes: &[usize], device: usize) -> Work {
    sections(parts, homes, device).map(|section| section.work).sum()
}

/// The parts with a head that weighs what it takes: as many bytes as a token could read of layers in that time. `token_ms` is what the
/// device with the last section computes for a token, `layers_ms` that without the head.
pub(in crate::commands::plan) fn with_head(parts: &Parts, homes: &[usize], token_ms: f64, layers_ms: f64) -> Parts {
    let last = homes.last().copied().unwrap_or(0);
    let bytes: u64 = sections(parts, homes, last).map(|section| section.read_bytes).sum();
    let mut parts = parts.clone();
    if layers_ms > 0.0 {
        parts.last.read_bytes = ((token_ms - layers_ms).max(0.0) / layers_ms * bytes as f64) as u64;
    }
    parts
}

#[cfg(test)]
mod tests {
    use super::super::tests::parts;
    use super::*;

    #[test]
    fn speed_of_what_was_measured() {
        let homes = [0, 0, 0, 0, 0, 0, 1, 1];
        let times = Computed { token_ms: 8.0, prompt_ms: 64.0, prompt_tokens: 32 };
        // Two layers and the head are 400 bytes; 32 tokens in two layers are 64 units of work.
        let speed = Speed::measured(&parts(8), &homes, 1, times).unwrap();
        assert_eq!(speed, Speed { decode: 0.02, prompt: Some(1.0) });
        assert_eq!(speed.layer_ms(&parts(8)), 2.0);
        assert_eq!(Speed::measured(&parts(8), &homes, 2, times), None, "it has no layers");
    }

    #[test]
    fn the_head_weighs_what_it_takes() {
        // Half as long as two layers of 100 bytes.
        let parts = with_head(&parts(8), &[0, 0, 0, 0, 0, 0, 1, 1], 6.0, 4.0);
        assert_eq!(parts.last.read_bytes, 100);
        assert_eq!(with_head(&parts, &[0; 8], 3.0, 4.0).last.read_bytes, 0, "noise");
        assert_eq!(with_head(&parts, &[0; 8], 3.0, 0.0), parts);
    }
}
