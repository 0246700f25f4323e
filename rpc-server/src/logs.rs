//! Lines that a peer can cause are limited in their rate.

use std::sync::Mutex;
use std::time::{Duration, Instant};

/// Lines of one place in one [`WINDOW`].
const LINES: u32 = 20;
const WINDOW: Duration = Duration::from_secs(1);

/// Lets a few lines through in each second and counts the others.
#[derive(Debug)]
pub(crate) struct Gate(Mutex<State>);

#[derive(Debug)]
struct State {
    since: Option<Instant>,
    lines: u32,
    dropped: u64,
}

impl Gate {
    pub(crate) const fn new() -> Gate {
        Gate(Mutex::new(State { since: None, lines: 0, dropped: 0 }))
    }

    /// Whether a line may be written now; how many were left out before it, if any were.
    pub(crate) fn pass(&self) -> Option<u64> {
        let mut state = crate::lock(&self.0);
        let mut dropped = 0;
        if state.since.is_none_or(|since| since.elapsed() >= WINDOW) {
            dropped = state.dropped;
            *state = State { since: Some(Instant::now()), lines: 0, dropped: 0 };
        }
        state.lines += 1;
        if state.lines > LINES {
            state.dropped += 1;
            return None;
        }
        Some(dropped)
    }
}

/// Writes a line as `tracing`'s macro of that level does, unless this place has written too many in this second: for all that a
/// peer can cause. Each place has a gate of its own, so that a flood at one hides nothing at another.
macro_rules! limited {
    ($level:ident, $($line:tt)+) => {{
        static GATE: $crate::logs::Gate = $crate::logs::Gate::new();
        if let Some(dropped) = GATE.pass() {
            if dropped > 0 {
                tracing::warn!(dropped, "lines like the next one were left out");
            }
            tracing::$level!($($line)+);
        }
    }};
}
pub(crate) use limited;

#[cfg(test)]
mod tests {
    use super::*;
    use std::path::Path;

    #[test]
    fn a_flood_is_cut_and_counted() {
        let gate = Gate::new();
        assert_eq!((0..1000).filter(|_| gate.pass().is_some()).count(), LINES as usize);
        crate::lock(&gate.0).since = Instant::now().checked_sub(WINDOW);
        assert_eq!((gate.pass(), gate.pass()), (Some(1000 - u64::from(LINES)), Some(0)));
    }

    /// Files whose lines no peer can cause: start, stop, the user's own files.
    const OWN: [&str; 3] = ["args.rs", "logs.rs", "blobs/models.rs"];
    /// Lines elsewhere that are written once in a server's life.
    const ONCE: [&str; 4] = [
        "the accepting thread panicked",
        "cannot accept connections: {e}",
        "cannot accept connections for metrics",
        "clients are not told that the server stops",
    ];

    #[test]
    fn every_line_that_a_peer_can_cause_is_limited() {
        fn look(dir: &Path, root: &Path, found: &mut Vec<String>) {
            for entry in std::fs::read_dir(dir).unwrap() {
                let path = entry.unwrap().path();
                if path.is_dir() {
                    look(&path, root, found);
                    continue;
                }
                let name = path.strip_prefix(root).unwrap().to_string_lossy().replace('\\', "/");
                if OWN.contains(&name.as_str()) {
                    continue;
                }
                let text = std::fs::read_to_string(&path).unwrap();
                let unlimited = text.lines().filter(|l| l.contains("tracing::") && !l.trim_start().starts_with("//"));
                let unlimited = unlimited.filter(|l| !ONCE.iter().any(|once| l.contains(once)));
                found.extend(unlimited.map(|l| format!("{name}: {}", l.trim())));
            }
        }
        let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("src");
        let mut found = Vec::new();
        look(&root, &root, &mut found);
        assert!(found.is_empty(), "use limited! instead:\n{}", found.join("\n"));
    }
}
