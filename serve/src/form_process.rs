//! Forms are compiled and followed in processes of their own.
//!
//! A form comes from strangers, and llguidance makes of it what it says. What that costs is counted before (`outboard_llm`), but not everything that a form may do to a
//! program is known, neither when it is compiled nor behind each token of a text. So each text that has one has a process beside it: a form that crashes, or takes too
//! much time or memory, ends that process and its own text.

mod places;
mod pool;
mod process;
mod wire;
mod worker;

pub(crate) use pool::Pool;
pub use worker::{FormLimits, follow_forms};

use crate::blocking::FORMS;
use std::ffi::OsString;
use std::path::PathBuf;

/// How many there are at most, for so many texts of a model at a time: one for each, those that still compile forms of texts that have ended, and those for
/// forms that come in.
pub fn form_processes_of(texts: usize) -> usize {
    texts + 2 * FORMS
}

/// How processes that follow forms are started: a program that calls [`follow_forms`], with these arguments and the model's file behind them.
#[derive(Clone, Debug)]
pub struct FormProcesses {
    /// The program.
    pub program: PathBuf,
    /// Its arguments, before the model's file.
    pub args: Vec<OsString>,
}
