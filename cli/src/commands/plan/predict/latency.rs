//! How long a token is on its way between devices.

use super::Member;
use outboard_llm::route::Route;
use std::collections::BTreeMap;

/// What a token crosses between two devices.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Hop {
    WithinHost,
    BetweenHosts,
}

impl Hop {
    fn of(from: Option<&str>, to: Option<&str>) -> Hop {
        if from == to { Hop::WithinHost } else { Hop::BetweenHosts }
    }
}

/// How long it takes from one device to another.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(in crate::commands::plan) struct Latencies {
    /// Within a host, in milliseconds.
    pub(super) within: Option<f64>,
    /// From host to host.
    pub(super) between: Option<f64>,
    /// [`Latencies::between`] was not measured: it is half of a round trip.
    pub(super) assumed: bool,
}

impl Latencies {
    /// From the gaps between the work of two devices (by their ids) for each token, and the time from here to a server, if there is one,
    /// for want of anything better.
    pub(in crate::commands::plan) fn measured(
        members: &[Member],
        route: &Route,
        gaps: &BTreeMap<(String, String), f64>,
        one_way_ms: Option<f64>,
    ) -> Latencies {
        let host = |id: &String| members.iter().find(|m| m.id == *id).map(|m| m.host.as_str());
        let hops = route.hops();
        let mean = |hop: Hop| {
            let of = |d: usize| members.get(d).map(|m| m.host.as_str());
            let crossed = hops.iter().filter(|(a, b)| Hop::of(of(*a), of(*b)) == hop).count();
            let gaps = gaps.iter().filter(|((a, b), _)| a != b && Hop::of(host(a), host(b)) == hop);
            (crossed > 0).then(|| gaps.map(|(_, ms)| ms).sum::<f64>() / crossed as f64)
        };
        let between = mean(Hop::BetweenHosts);
        Latencies {
            within: mean(Hop::WithinHost),
            between: between.or(one_way_ms),
            assumed: between.is_none() && one_way_ms.is_some(),
        }
    }

    /// Milliseconds from one device to another; `None` if that is not known.
    pub(super) fn ms(&self, a: &Member, b: &Member) -> Option<f64> {
        if a.host == b.host { self.within.or(self.between) } else { self.between }
    }
}

#[cfg(test)]
mod tests {
    use super::super::tests::member;
    use super::*;

    #[test]
    fn latencies_are_means_of_their_kind() {
        let members = [member("a/0", "a", 1), member("a/1", "a", 1), member("b/0", "b", 1)];
        let gap = |a: &str, b: &str, ms| ((a.to_owned(), b.to_owned()), ms);
        let gaps = [gap("a/0", "a/1", 0.1), gap("a/1", "b/0", 2.0), gap("b/0", "a/0", 3.0), gap("a/0", "a/0", 9.0)];
        let latencies = Latencies::measured(&members, &Route::new(vec![0, 1, 2]), &gaps.into(), Some(7.0));
        assert_eq!(latencies, Latencies { within: Some(0.1), between: Some(2.5), assumed: false });
        assert_eq!(
            (latencies.ms(&members[0], &members[1]), latencies.ms(&members[1], &members[2])),
            (Some(0.1), Some(2.5))
        );
        let alone = Latencies::measured(&members[..1], &Route::new(vec![0, 0]), &BTreeMap::new(), Some(7.0));
        assert_eq!(alone, Latencies { within: None, between: Some(7.0), assumed: true });
        let local = Latencies::measured(&members[..1], &Route::new(vec![0, 0]), &BTreeMap::new(), None);
        assert_eq!(local, Latencies { within: None, between: None, assumed: false });
    }
}
