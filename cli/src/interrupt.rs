//! Ctrl-C.

use anyhow::{Context, Result};
use outboard_llm::PlacedModel;
use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

/// A flag that Ctrl-C sets. The second Ctrl-C ends the process at once; servers free what it had.
pub(crate) fn watch(engine: &PlacedModel) -> Result<Arc<AtomicBool>> {
    let flag = Arc::new(AtomicBool::new(false));
    let (set, cancel) = (flag.clone(), engine.cancel_token());
    ctrlc::set_handler(move || {
        if set.swap(true, Ordering::Relaxed) {
            std::process::exit(130);
        }
        cancel.store(true, Ordering::Relaxed);
    })
    .context("cannot watch for Ctrl-C")?;
    Ok(flag)
}

/// The exit status of a command that Ctrl-C may have ended.
pub(crate) fn status(interrupted: &AtomicBool) -> ExitCode {
    if interrupted.load(Ordering::Relaxed) { ExitCode::from(130) } else { ExitCode::SUCCESS }
}
