//! A device in a process of its own, as a device of this one.
//!
//! A driver that aborts, runs into a segmentation fault or never comes back takes its process with it. So a backend that nobody here
//! can vouch for runs in a helper: the same program, started again, with one end of a socket pair ([`Launch`]). [`helper_device`] is such a device
//! for the rest of this process; [`serve`] is the other end. When the helper ends, what its device held is lost, with an
//! [`Error::Peer`](outboard_core::Error::Peer) that has its last words, and whoever comes next gets a new helper. To clients that waited for an answer of one
//! that was ended for its silence, [`Device::resume`](outboard_core::Device::resume) says [`Error::Timeout`](outboard_core::Error::Timeout): what they ask for
//! would hang again. A helper that ends again and again is left alone for a while ([`StartLimit`]).
//!
//! What passes between the two is in `message`: calls with answers, in the order of the queues, and bytes in pieces, long ones in memory that both
//! have (`shared`). Memory of the device is paid for on this side, before the helper takes it.
#![cfg(unix)]
#![deny(unsafe_code)]
#![cfg_attr(test, allow(clippy::unwrap_used, clippy::expect_used))]
#![cfg_attr(not(test), warn(clippy::print_stdout, clippy::print_stderr))]

mod calls;
mod device;
mod launch;
mod memory;
mod message;
mod process;
mod serve;
mod shared;
mod stream;

pub use device::helper_device;
pub use launch::{Launch, Offer, Offers, StartLimit, this_program};
pub use serve::{end_with_the_other_side, serve};

pub(crate) use outboard_core::lock;
