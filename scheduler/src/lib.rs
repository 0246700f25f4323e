//! Splits one graph over many devices and runs it.
//!
//! [`assign`] gives every node a device, [`split`] cuts the graph into runs of nodes on one device with the copies between
//! them, [`memory`] places what they need; these are functions of graphs and plain data. [`Scheduler`] compiles the result and
//! drives the devices' queues. It does not know whether a device is in this process or behind a network.
#![forbid(unsafe_code)]
#![cfg_attr(test, allow(clippy::unwrap_used, clippy::expect_used))]
#![cfg_attr(not(test), warn(clippy::print_stdout, clippy::print_stderr))]

pub mod assign;
pub mod memory;
pub mod plan;
pub mod program;
pub mod run;
pub mod split;
mod transfers;

pub use assign::{Assignment, DeviceView, Hints};
pub use plan::{Plan, PlanError};
pub use program::Program;
pub use run::{Begun, Observer, OnWait, Scheduler, SchedulerOptions, Verdict, resume_all};
