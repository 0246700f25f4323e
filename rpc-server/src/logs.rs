//! Lines that a peer can cause are limited in their rate.

use std::sync::Mutex;
use std::time::{Duration, Instant};

/// Lines in one [`WINDOW`].
const LINES: u32 = 20;
const WINDOW: Duration = Duration::from_secs(1);

/// Lets a few lines through in each second and counts the others.
#[derive(Debug, Default)]
pub(crate) struct Gate(Mutex<State>);

#[derive(Debug, Default)]
struct State {
    since: Option<Instant>,
    lines: u32,
    dropped: u64,
}

impl Gate {
    /// Whether a line may be written now.
    pub(crate) fn pass(&self) -> bool {
        let mut state = crate::lock(&self.0);
        if state.since.is_none_or(|since| since.elapsed() >= WINDOW) {
            let dropped = std::mem::take(&mut state.dropped);
            if dropped > 0 {
                tracing::warn!(dropped, "lines about clients were left out");
            }
            *state = State { since: Some(Instant::now()), ..State::default() };
        }
        state.lines += 1;
        if state.lines > LINES {
            state.dropped += 1;
        }
        state.lines <= LINES
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_flood_is_cut() {
        let gate = Gate::default();
        assert_eq!((0..1000).filter(|_| gate.pass()).count(), LINES as usize);
    }
}
