//! Wrong tokens, by the address that they came from: answers there wait a little, longer after each. No I/O; time is an argument.
//!
//! A right token waits as well, so that nobody learns from the time of an answer, and is always let in: what one client of an
//! address guesses makes another wait for [`LONGEST_TOKEN_DELAY`] at most.

use crate::accounts::network;
use crate::limits::{GUESSING_ADDRESSES, LONGEST_TOKEN_DELAY, TOKEN_DELAY_HALVES, WRONG_TOKEN_DELAY};
use crate::lock;
use std::collections::HashMap;
use std::net::IpAddr;
use std::sync::Mutex;
use std::time::{Duration, Instant};

/// The addresses that have shown wrong tokens.
#[derive(Debug, Default)]
pub(crate) struct Guesses(Mutex<HashMap<IpAddr, Wrong>>);

/// The wait of an address.
#[derive(Clone, Copy, Debug)]
struct Wrong {
    delay: Duration,
    at: Instant,
}

impl Wrong {
    /// What the wait has become.
    fn now(&self, now: Instant) -> Duration {
        let halvings = now.saturating_duration_since(self.at).as_secs() / TOKEN_DELAY_HALVES.as_secs();
        let delay = u32::try_from(halvings).ok().and_then(|n| 1u32.checked_shl(n)).map(|part| self.delay / part);
        delay.filter(|&delay| delay >= WRONG_TOKEN_DELAY).unwrap_or_default()
    }
}

impl Guesses {
    /// How long the answer to a token from this address waits.
    pub(crate) fn delay(&self, now: Instant, address: IpAddr) -> Duration {
        lock(&self.0).get(&network(address)).map_or(Duration::ZERO, |wrong| wrong.now(now))
    }

    /// A wrong token came from this address. Gives how long its answer waits.
    pub(crate) fn wrong(&self, now: Instant, address: IpAddr) -> Duration {
        let mut all = lock(&self.0);
        let address = network(address);
        if all.len() >= GUESSING_ADDRESSES && !all.contains_key(&address) {
            all.retain(|_, wrong| !wrong.now(now).is_zero());
            if all.len() >= GUESSING_ADDRESSES
                && let Some(oldest) = all.iter().min_by_key(|(_, wrong)| wrong.at).map(|(address, _)| *address)
            {
                all.remove(&oldest);
            }
        }
        let wrong = all.entry(address).or_insert(Wrong { delay: Duration::ZERO, at: now });
        let delay = (wrong.now(now) * 2).clamp(WRONG_TOKEN_DELAY, LONGEST_TOKEN_DELAY);
        *wrong = Wrong { delay, at: now };
        delay
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ip(text: &str) -> IpAddr {
        text.parse().unwrap()
    }

    #[test]
    fn waits_double_up_to_a_limit_and_halve_with_time() {
        let (guesses, start) = (Guesses::default(), Instant::now());
        let delays: Vec<_> = (0..8).map(|_| guesses.wrong(start, ip("10.0.0.1")).as_millis()).collect();
        assert_eq!(delays, [100, 200, 400, 800, 1600, 2000, 2000, 2000]);
        assert_eq!(guesses.delay(start, ip("10.0.0.2")), Duration::ZERO);
        let later = |seconds| guesses.delay(start + Duration::from_secs(seconds), ip("10.0.0.1")).as_millis();
        assert_eq!([0, 9, 10, 20, 30, 40, 50, 1 << 40].map(later), [2000, 2000, 1000, 500, 250, 125, 0, 0]);
        // From where it has come down to.
        assert_eq!(guesses.wrong(start + Duration::from_secs(30), ip("10.0.0.1")).as_millis(), 500);
    }

    #[test]
    fn a_network_of_ipv6_is_one_address_and_few_are_remembered() {
        let (guesses, start) = (Guesses::default(), Instant::now());
        guesses.wrong(start, ip("2001:db8::1"));
        assert!(!guesses.delay(start, ip("2001:db8::2")).is_zero());
        assert!(guesses.delay(start, ip("2001:db8:0:1::1")).is_zero());
        for n in 0..3 * GUESSING_ADDRESSES as u32 {
            guesses.wrong(start + Duration::from_millis(u64::from(n)), IpAddr::V4(n.into()));
        }
        assert!(lock(&guesses.0).len() <= GUESSING_ADDRESSES);
    }
}
