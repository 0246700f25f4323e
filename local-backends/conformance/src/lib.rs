//! What every device has to compute, as data: cases of every op over types, shapes, strides and parameters, run on a device and
//! on an oracle (the reference) and compared. Works through the `Device` trait alone, so for remote devices too.
//!
//! ```no_run
//! # fn f(device: &dyn outboard_core::Device, oracle: &dyn outboard_core::Device) -> outboard_core::Result<()> {
//! let report = outboard_conformance::run(device, oracle, &outboard_conformance::Filter::quick())?;
//! print!("{report}");
//! # Ok(()) }
//! ```
#![forbid(unsafe_code)]
#![cfg_attr(test, allow(clippy::unwrap_used, clippy::expect_used))]
#![cfg_attr(not(test), warn(clippy::print_stdout, clippy::print_stderr))]

mod arena;
mod case;
mod cases;
mod compare;
mod fill;
mod hazards;
mod report;
mod run;

pub use case::{Case, Check, Expect, Filter};
pub use cases::cases;
pub use hazards::hazards;
pub use report::{Failure, OpReport, Report};
pub use run::{run, run_cases};
