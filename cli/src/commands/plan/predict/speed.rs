//! How fast devices are, by what they have to read and to compute of a model.

use outboard_llm::parts::Parts;
use outboard_llm::route::Route;

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
    /// The speed of a device with its sections; `None` if it has none.
    pub(in crate::commands::plan) fn measured(
        parts: &Parts,
        route: &Route,
        device: usize,
        times: Computed,
    ) -> Option<Speed> {
        let bytes = route.read_bytes(parts, device);
        let work = route.work(parts, device).cost(0, times.prompt_tokens);
        let prompt = (work > 0.0).then(|| times.prompt_ms / work);
        (bytes > 0).then(|| Speed { decode: times.token_ms / bytes as f64, prompt })
    }

    /// Milliseconds of a layer for a token that is decoded; layers count as alike.
    pub(in crate::commands::plan) fn layer_ms(self, parts: &Parts) -> f64 {
        let bytes: u64 = parts.sections.iter().map(|section| section.read_bytes).sum();
        self.decode * bytes as f64 / (parts.last.layer + 1) as f64
    }
}

/// The parts with a head that weighs what it takes: as many bytes as a token could read of layers in that time. `token_ms` is what the
/// device with the last section computes for a token, `layers_ms` that without the head.
pub(in crate::commands::plan) fn with_head(parts: &Parts, route: &Route, token_ms: f64, layers_ms: f64) -> Parts {
    let bytes: u64 = route.sections_on(parts, route.last()).map(|section| section.read_bytes).sum();
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
        let route = Route::new(vec![0, 0, 0, 0, 0, 0, 1, 1]);
        let times = Computed { token_ms: 8.0, prompt_ms: 64.0, prompt_tokens: 32 };
        // Two layers and the head are 400 bytes; 32 tokens in two layers are 64 units of work.
        let speed = Speed::measured(&parts(8), &route, 1, times).unwrap();
        assert_eq!(speed, Speed { decode: 0.02, prompt: Some(1.0) });
        assert_eq!(speed.layer_ms(&parts(8)), 2.0);
        assert_eq!(Speed::measured(&parts(8), &route, 2, times), None, "it has no layers");
    }

    #[test]
    fn the_head_weighs_what_it_takes() {
        // Half as long as two layers of 100 bytes.
        let parts = with_head(&parts(8), &Route::new(vec![0, 0, 0, 0, 0, 0, 1, 1]), 6.0, 4.0);
        assert_eq!(parts.last.read_bytes, 100);
        assert_eq!(with_head(&parts, &Route::new(vec![0; 8]), 3.0, 4.0).last.read_bytes, 0, "noise");
        assert_eq!(with_head(&parts, &Route::new(vec![0; 8]), 3.0, 0.0), parts);
    }
}
