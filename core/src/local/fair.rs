//! How clients share room that one of them could take from the others.

/// How much of `most` a client may have while others have `others`: no more than it leaves to them, half if it is alone, a third if
/// another one has a third, and so on (dynamic thresholds: Choudhury and Hahne, 1998).
pub fn fair_limit(most: u64, others: u64) -> u64 {
    most.saturating_sub(others) / 2
}
