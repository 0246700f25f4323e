//! The devices of this process: what the contract of [`crate::device`] asks of them, written once.
//!
//! A backend says what its hardware does: [`Backend`] is a device, [`Context`] what one client has of it, [`Stream`] what one queue gives to
//! it. [`LocalDevice`] makes a [`Device`](crate::Device) of that: queues with their threads, errors that poison them, events, turns among
//! clients, times, memory accounts, and tensors handed over between any two devices of a [`Host`].

pub mod card;
mod completions;
mod device;
mod exchange;
mod fair;
mod health;
mod host;
mod memory;
pub mod order;
mod queue;
mod speed;
mod stream;
mod timeline;
mod turns;
mod worker;

pub use device::{Backend, Context, LocalDevice};
pub use exchange::OFFERED_BYTES;
pub use fair::fair_limit;
pub use health::CardHealth;
pub use host::Host;
pub use memory::{CardPool, FixedPool, Funds, MemoryPool, Payment};
pub use stream::{COPY_ENDS, Later, Outcome, Span, Stream};
