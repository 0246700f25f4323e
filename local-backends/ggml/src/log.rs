//! What the library says while it works: its last words are told with the errors that they explain.

use crate::lock;
use std::cell::Cell;
use std::collections::VecDeque;
use std::ffi::{c_char, c_int, c_void};
use std::io::Write;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};

/// Lines that are kept, and bytes of a line.
const LINES: usize = 8;
const LINE: usize = 400;
/// `GGML_LOG_LEVEL_WARN` and `GGML_LOG_LEVEL_ERROR`: such lines are kept.
const WARN: c_int = 3;
const ERROR: c_int = 4;

/// Whether they are printed, too: this process is a helper, and whoever has started it keeps its last lines.
static PRINT: AtomicBool = AtomicBool::new(false);
/// The same of all other lines.
static PRINT_ALL: AtomicBool = AtomicBool::new(false);

/// From now on warnings and errors are printed to standard error, and everything if the program that has started this one is to tell what it does.
pub(crate) fn print() {
    PRINT.store(true, Ordering::Relaxed);
    let told = std::env::var("RUST_LOG").unwrap_or_default();
    let is_asked = |of: &str| matches!(of.trim_start_matches("outboard_helper="), "debug" | "trace");
    PRINT_ALL.store(told.split(',').map(str::trim).any(is_asked), Ordering::Relaxed);
}

/// Prints a line.
pub(crate) fn line(line: &str) {
    let _ = writeln!(std::io::stderr(), "{line}");
}

thread_local! {
    /// Errors that were told on this thread.
    static ERRORS: Cell<u64> = const { Cell::new(0) };
}

/// How many errors the library has told on this thread.
pub(crate) fn errors() -> u64 {
    ERRORS.get()
}

static LAST: Mutex<VecDeque<String>> = Mutex::new(VecDeque::new());

/// Takes a line of the library, from any of its threads.
pub(crate) unsafe extern "C" fn keep(level: c_int, line: *const c_char, _: *mut c_void) {
    // SAFETY: ggml gives texts that end with 0.
    let line = unsafe { crate::library::text(line) };
    let line: String = line.trim().chars().take(LINE).collect();
    if line.is_empty() {
        return;
    }
    let is_wrong = level == WARN || level == ERROR;
    if !PRINT.load(Ordering::Relaxed) {
        tracing::debug!("ggml: {line}");
    } else if is_wrong || PRINT_ALL.load(Ordering::Relaxed) {
        self::line(&line);
    }
    if level == ERROR {
        ERRORS.set(ERRORS.get() + 1);
    }
    if is_wrong {
        push(line);
    }
}

fn push(line: String) {
    let mut last = lock(&LAST);
    if last.len() == LINES {
        last.pop_front();
    }
    last.push_back(line);
}

/// The last warnings and errors, which are then forgotten; in front of them a colon if there are any.
pub(crate) fn last_words() -> String {
    let lines: Vec<String> = lock(&LAST).drain(..).collect();
    if lines.is_empty() { String::new() } else { format!(": {}", lines.join("; ")) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_lines_are_told_once() {
        last_words();
        (0..20).for_each(|i| push(format!("line {i}")));
        assert_eq!(last_words(), ": line 12; line 13; line 14; line 15; line 16; line 17; line 18; line 19");
        assert_eq!(last_words(), "");
    }
}
