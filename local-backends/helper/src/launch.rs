//! How a helper is started, and what it says first.

use crate::message::{Hello, Offered, given};
use crate::process::Process;
use outboard_core::{DeviceInfo, Result};
use outboard_proto::device;
use outboard_proto::error::shown;
use outboard_proto::limits::MAX_ERROR_TEXT;
use std::ffi::OsString;
use std::path::PathBuf;
use std::time::Duration;

/// For a driver to find its cards. What takes longer is a fault.
const START: Duration = Duration::from_secs(120);
/// Longest silence of a helper that was asked for something: drivers compile kernels when they first need them, for minutes.
const HANG: Duration = Duration::from_secs(600);

/// More than a few clients need that meet one fault after another, and less than what keeps a host busy with starting.
const LIMIT: StartLimit = StartLimit { starts: 32, within: Duration::from_secs(60) };

/// How a helper is started: a program that calls [`serve`](crate::serve) with what it has as standard input.
#[derive(Clone, Debug)]
pub struct Launch {
    /// The program.
    pub program: PathBuf,
    /// Its arguments.
    pub args: Vec<OsString>,
    /// Variables beside those of this process.
    pub env: Vec<(OsString, OsString)>,
    /// How long it may take to say what it has.
    pub start: Duration,
    /// How long it may say nothing while something was asked of it. Then it is ended.
    pub hang: Duration,
    /// How often it is started.
    pub limit: StartLimit,
}

/// How often a helper is started that ends again and again: then it is left alone until the first of so many starts is longer ago.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StartLimit {
    /// Most starts.
    pub starts: usize,
    /// In a time of this length.
    pub within: Duration,
}

/// What a helper has.
#[derive(Clone, Debug, Default)]
pub struct Offers {
    /// Its devices.
    pub devices: Vec<Offer>,
    /// What its user should know: why there are not more of them.
    pub notes: Vec<String>,
}

/// A device that a helper has.
#[derive(Clone, Debug)]
pub struct Offer {
    /// What it is. Its id is its name.
    pub info: DeviceInfo,
    /// Whether it is a driver that runs on processors: only for who names it.
    pub is_software: bool,
}

impl Launch {
    /// This program once more, with these arguments.
    pub fn this_program(args: impl IntoIterator<Item = OsString>) -> Launch {
        Launch {
            program: this_program(),
            args: args.into_iter().collect(),
            env: Vec::new(),
            start: START,
            hang: HANG,
            limit: LIMIT,
        }
    }

    /// What a helper has, which is started for that and ended again.
    pub fn offers(&self, name: &str) -> Result<Offers> {
        let (_process, Hello { devices, notes, .. }) = Process::start(self, name)?;
        let notes = notes.iter().map(|note| shown(note, MAX_ERROR_TEXT)).collect();
        Ok(Offers { devices: devices.into_iter().map(offer).collect::<Result<_>>()?, notes })
    }
}

/// What starts this program once more.
pub fn this_program() -> PathBuf {
    if cfg!(target_os = "linux") {
        // Also when its file was replaced meanwhile.
        "/proc/self/exe".into()
    } else {
        std::env::current_exe().unwrap_or_default()
    }
}

/// What a helper has said of a device.
fn offer(offered: Offered) -> Result<Offer> {
    let mut info = device::from_wire(&given(offered.device)?, "")?;
    info.id = info.name.clone();
    Ok(Offer { info, is_software: offered.software })
}
