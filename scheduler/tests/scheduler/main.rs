//! Tests of the scheduler: small graphs with plans that are known, and random graphs on random devices.
#![allow(clippy::unwrap_used, clippy::expect_used)]

mod devices;
mod graphs;
mod known;
mod patience;
mod random;
mod shadow;
