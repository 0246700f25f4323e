//! Gives up a server that answers pings and gets no further.
//!
//! While nobody waits for long, nothing is asked. Once a wait has lasted a few seconds, the server is asked every few seconds how far
//! the session's queues are. One that computes something long says so by numbers that change. If nothing has changed for
//! [`ClientOptions::stall_after`](crate::ClientOptions::stall_after), the server is lost: everything that waits for it fails, and its
//! session is not taken up again. Whose tensors a queue waits for is watched as well, so that the right server is given up.

use crate::command::client;
use crate::connection::Connection;
use crate::transport::Conn;
use outboard_proto::v1::{self, Activity};
use std::collections::HashMap;
use std::sync::Arc;
use std::time::{Duration, Instant};
use tonic::Code;

/// Looks until a server is given up, if nothing changes: the last one is late by one part of the limit at most.
const LOOKS: u32 = 12;
/// Longest time between two looks.
const LONGEST_TICK: Duration = Duration::from_secs(5);
/// Shortest time between two looks, for limits of tests.
const SHORTEST_TICK: Duration = Duration::from_millis(20);
/// A device that cannot say how far it is with a graph has this many times the limit for one: ten minutes, as most graphs take
/// seconds, and few take minutes.
const BLIND: u32 = 10;

/// Stands for the control stream among the queues, whose numbers begin at 1.
pub(crate) const CONTROL: u64 = 0;

/// What can be seen here of the waits for a queue; a wait that gets further changes it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Mark {
    /// The oldest request that was not answered.
    pub(crate) oldest: Option<u64>,
    /// Bytes of large answers that were received.
    pub(crate) received: u64,
    /// Bytes of commands and of bulk data that the connections have taken.
    pub(crate) taken: [u64; 2],
}

/// How far a queue is, as far as this process knows.
#[derive(Debug, Default)]
struct Seen {
    /// What waits for it here, if anything does.
    mark: Option<Mark>,
    /// What the server says of it.
    steps: Option<u64>,
    activity: Activity,
    blind: bool,
    device: String,
    /// How long nothing has changed.
    still: Duration,
}

/// What to do about a server.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Verdict {
    /// Nothing.
    Fine,
    /// It waits for other servers: they are to be looked at.
    WaitsForOthers,
    /// Give it up, because of this.
    Stalled(String),
}

/// What waits for a server.
#[derive(Clone, Copy)]
struct Waits<'m> {
    /// Here, by queue.
    marks: &'m [(u64, Mark)],
    /// Another server does.
    wanted: bool,
}

/// What a look at the waits has shown.
struct Look {
    /// A wait has lasted since the last look, so that the server is to be asked.
    ask: bool,
    /// Anything has changed.
    changed: bool,
}

/// What is known of the waits for one server. No I/O; time is an argument.
#[derive(Debug)]
struct Watch {
    limit: Duration,
    queues: HashMap<u64, Seen>,
    /// Another server waits for this one.
    wanted: bool,
    /// How long it has not answered questions.
    silent: Duration,
    /// It does not know the question.
    cannot_say: bool,
}

impl Watch {
    fn new(limit: Duration) -> Watch {
        Watch { limit, queues: HashMap::new(), wanted: false, silent: Duration::ZERO, cannot_say: false }
    }

    /// Takes note of what is waited for, `passed` after the last look.
    fn look(&mut self, passed: Duration, Waits { marks, wanted }: Waits<'_>) -> Look {
        self.wanted = wanted;
        if marks.is_empty() && !wanted {
            let waited = !self.queues.is_empty();
            self.queues.clear();
            self.silent = Duration::ZERO;
            return Look { ask: false, changed: waited };
        }
        for seen in self.queues.values_mut() {
            seen.still += passed;
        }
        let mut changed = false;
        for (queue, seen) in &mut self.queues {
            if !marks.iter().any(|(marked, _)| marked == queue) && seen.mark.take().is_some() {
                changed = true;
            }
        }
        for (queue, mark) in marks {
            let seen = self.queues.entry(*queue).or_default();
            if seen.mark != Some(*mark) {
                (seen.mark, seen.still, changed) = (Some(*mark), Duration::ZERO, true);
            }
        }
        let long = |seen: &Seen| seen.mark.is_some() && !seen.still.is_zero();
        Look { ask: wanted || self.queues.values().any(long), changed }
    }

    /// Takes note of an answer. Gives whether anything has changed.
    fn answered(&mut self, answer: v1::ProgressResponse) -> bool {
        self.silent = Duration::ZERO;
        self.queues.retain(|queue, seen| seen.mark.is_some() || answer.queues.iter().any(|q| q.queue == *queue));
        let mut changed = false;
        for queue in answer.queues {
            let activity = queue.activity();
            let seen = self.queues.entry(queue.queue).or_default();
            if seen.steps != Some(queue.steps) || seen.activity != activity {
                (seen.steps, seen.still, changed) = (Some(queue.steps), Duration::ZERO, true);
            }
            (seen.activity, seen.blind) = (activity, queue.blind);
            if seen.device != queue.device {
                seen.device = queue.device.chars().filter(|c| !c.is_control()).collect();
            }
        }
        changed
    }

    /// The question was not answered before the next look.
    fn unanswered(&mut self, passed: Duration) {
        self.silent += passed;
    }

    /// Whether a queue has stood still for too long.
    fn is_over(&self, seen: &Seen) -> bool {
        seen.still >= if seen.blind || self.cannot_say { self.limit * BLIND } else { self.limit }
    }

    fn verdict(&self) -> Verdict {
        if self.silent >= self.limit && !self.cannot_say {
            return stalled(self.silent, "it answers pings, but no requests");
        }
        let elsewhere = self.queues.values().any(|seen| seen.activity == Activity::Server);
        let all_over = self.queues.values().all(|seen| self.is_over(seen));
        if self.queues.get(&CONTROL).is_some_and(|seen| self.is_over(seen)) {
            return stalled(self.limit, "it takes no requests");
        }
        for seen in self.queues.values().filter(|seen| (seen.mark.is_some() || self.wanted) && self.is_over(seen)) {
            let device = &seen.device;
            match seen.activity {
                Activity::Graph => return stalled(seen.still, &format!("{device} has got no further with a graph")),
                Activity::Turn => {
                    return stalled(
                        seen.still,
                        &format!("{device} has got no further with the graph of another client"),
                    );
                }
                Activity::Copy => return stalled(seen.still, &format!("{device} has got no further with a copy")),
                Activity::None | Activity::Queue if seen.mark.is_some() && all_over && !elsewhere => {
                    let who = if device.is_empty() { "it" } else { device };
                    return stalled(seen.still, &format!("{who} has done nothing of what it was asked"));
                }
                Activity::None | Activity::Queue | Activity::Server => {}
            }
        }
        if elsewhere { Verdict::WaitsForOthers } else { Verdict::Fine }
    }
}

fn stalled(still: Duration, what: &str) -> Verdict {
    Verdict::Stalled(format!(
        "{what} for {:.0} s, though the connection is alive; restart that server, or leave it out of the list (--stall-timeout allows \
         more time)",
        still.as_secs_f64()
    ))
}

/// Watches the waits for a server for as long as there is a connection to it.
pub(crate) async fn watch(connection: Arc<Connection>, conn: Conn) {
    let limit = connection.options.stall_after;
    let tick = (limit / LOOKS).clamp(SHORTEST_TICK, LONGEST_TICK);
    let mut watch = Watch::new(limit);
    let mut last = Instant::now();
    loop {
        tokio::time::sleep(tick).await;
        // Of time that this process was stopped nothing is known.
        let passed = last.elapsed().min(2 * tick);
        last = Instant::now();
        let marks = connection.marks();
        let waits = Waits { marks: &marks, wanted: connection.is_wanted(3 * tick) };
        let Look { ask, mut changed } = watch.look(passed, waits);
        if ask {
            let request = v1::ProgressRequest { session: Some(connection.session.clone()) };
            match tokio::time::timeout(tick, client(&conn).progress(request)).await {
                Ok(Ok(answer)) => changed |= watch.answered(answer.into_inner()),
                Ok(Err(status)) if status.code() == Code::Unimplemented => watch.cannot_say = true,
                Ok(Err(_)) | Err(_) => watch.unanswered(passed),
            }
        }
        if changed {
            connection.moved();
        }
        match watch.verdict() {
            Verdict::Fine => {}
            Verdict::WaitsForOthers => connection.want_senders(),
            Verdict::Stalled(why) => return connection.give_up(why),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const TICK: Duration = Duration::from_secs(5);
    const LIMIT: Duration = Duration::from_secs(60);

    fn mark(oldest: u64) -> Mark {
        Mark { oldest: Some(oldest), ..Mark::default() }
    }

    fn queue(queue: u64, steps: u64, activity: Activity) -> v1::QueueProgress {
        v1::QueueProgress { queue, device: "CPU0".into(), steps, activity: activity.into(), blind: false }
    }

    fn answer(queues: &[v1::QueueProgress]) -> v1::ProgressResponse {
        v1::ProgressResponse { queues: queues.to_vec() }
    }

    /// Looks at the same marks, and gets the answers of `say`, for as long as the verdict is fine; after how many looks it was not.
    fn looks(
        watch: &mut Watch,
        marks: &[(u64, Mark)],
        say: impl Fn(u64) -> Option<v1::ProgressResponse>,
    ) -> (u64, Verdict) {
        for look in 0..1000 {
            if watch.look(TICK, Waits { marks, wanted: false }).ask {
                match say(look) {
                    Some(answer) => drop(watch.answered(answer)),
                    None => watch.unanswered(TICK),
                }
            }
            let verdict = watch.verdict();
            if verdict != Verdict::Fine {
                return (look, verdict);
            }
        }
        (1000, Verdict::Fine)
    }

    fn says(verdict: &Verdict, what: &str) -> bool {
        matches!(verdict, Verdict::Stalled(why) if why.contains(what) && why.contains(" s, though"))
    }

    #[test]
    fn nobody_waits_nothing_is_asked() {
        let mut watch = Watch::new(LIMIT);
        for look in 0..100 {
            assert!(!watch.look(TICK, Waits { marks: &[], wanted: false }).ask);
            // A wait that is another one at each look.
            assert!(!watch.look(TICK, Waits { marks: &[(1, mark(look))], wanted: false }).ask);
            assert_eq!(watch.verdict(), Verdict::Fine);
        }
        assert!(watch.look(TICK, Waits { marks: &[(1, mark(99))], wanted: false }).ask);
    }

    #[test]
    fn a_queue_that_stands_still_is_given_up_and_one_that_moves_is_not() {
        for (activity, what) in [
            (Activity::Graph, "CPU0 has got no further with a graph"),
            (Activity::Copy, "copy"),
            (Activity::Turn, "another client"),
        ] {
            let (look, verdict) =
                looks(&mut Watch::new(LIMIT), &[(1, mark(7))], |_| Some(answer(&[queue(1, 5, activity)])));
            assert!((12..=14).contains(&look) && says(&verdict, what), "{look} {verdict:?}");
        }
        let moving = |look| Some(answer(&[queue(1, look, Activity::Graph)]));
        assert_eq!(looks(&mut Watch::new(LIMIT), &[(1, mark(7))], moving).1, Verdict::Fine);
        // Another queue that moves does not help the one that is waited for.
        let beside = |look| Some(answer(&[queue(1, 5, Activity::Graph), queue(2, look, Activity::Copy)]));
        assert!(says(&looks(&mut Watch::new(LIMIT), &[(1, mark(7))], beside).1, "graph"));
    }

    #[test]
    fn whoever_waits_for_others_is_not_to_blame() {
        let server = |_| Some(answer(&[queue(1, 5, Activity::Server), queue(2, 5, Activity::Queue)]));
        let mut watch = Watch::new(LIMIT);
        for _ in 0..100 {
            assert_eq!(looks(&mut watch, &[(1, mark(7)), (2, mark(8))], server).1, Verdict::WaitsForOthers);
        }
        // The other one has nobody who waits for it here, but is looked at.
        let mut other = Watch::new(LIMIT);
        for look in 0..12 {
            assert!(other.look(TICK, Waits { marks: &[], wanted: true }).ask);
            other.answered(answer(&[queue(1, 5, Activity::Graph), queue(2, 9, Activity::None)]));
            assert_eq!(other.verdict(), Verdict::Fine, "{look}");
        }
        other.look(TICK, Waits { marks: &[], wanted: true });
        assert!(says(&other.verdict(), "graph"));
        // Nobody waits any more.
        other.look(TICK, Waits { marks: &[], wanted: false });
        assert_eq!(other.verdict(), Verdict::Fine);
        // One that has nothing to do has not hung.
        let mut idle = Watch::new(LIMIT);
        for _ in 0..100 {
            idle.look(TICK, Waits { marks: &[], wanted: true });
            idle.answered(answer(&[queue(1, 5, Activity::None)]));
            assert_eq!(idle.verdict(), Verdict::Fine);
        }
    }

    #[test]
    fn a_server_that_forgets_what_it_was_asked() {
        for activity in [Activity::None, Activity::Queue] {
            let (look, verdict) =
                looks(&mut Watch::new(LIMIT), &[(1, mark(7))], |_| Some(answer(&[queue(1, 5, activity)])));
            assert!((12..=14).contains(&look) && says(&verdict, "done nothing"), "{look} {verdict:?}");
            // It may wait for what another queue does.
            let beside = |look| Some(answer(&[queue(1, 5, activity), queue(2, look, Activity::Graph)]));
            assert_eq!(looks(&mut Watch::new(LIMIT), &[(1, mark(7))], beside).1, Verdict::Fine);
        }
        // It does not know the queue, or says nothing at all.
        let (_, verdict) = looks(&mut Watch::new(LIMIT), &[(1, mark(7))], |_| Some(answer(&[])));
        assert!(says(&verdict, "done nothing"), "{verdict:?}");
        let (look, verdict) = looks(&mut Watch::new(LIMIT), &[(1, mark(7))], |_| None);
        assert!((12..=14).contains(&look) && says(&verdict, "no requests"), "{look} {verdict:?}");
        // What it said last does not excuse it for ever.
        let last = |look| (look < 3).then(|| answer(&[queue(1, 5, Activity::Server)]));
        let mut watch = Watch::new(LIMIT);
        let mut verdict = Verdict::Fine;
        for look in 0..30 {
            watch.look(TICK, Waits { marks: &[(1, mark(7))], wanted: false });
            match last(look) {
                Some(answer) => drop(watch.answered(answer)),
                None => watch.unanswered(TICK),
            }
            verdict = watch.verdict();
        }
        assert!(says(&verdict, "no requests"), "{verdict:?}");
    }

    #[test]
    fn devices_and_servers_that_cannot_say_have_longer() {
        let blind = |_| Some(answer(&[v1::QueueProgress { blind: true, ..queue(1, 5, Activity::Graph) }]));
        let (look, verdict) = looks(&mut Watch::new(LIMIT), &[(1, mark(7))], blind);
        assert!((120..=124).contains(&look) && says(&verdict, "graph"), "{look} {verdict:?}");
        let mut old = Watch { cannot_say: true, ..Watch::new(LIMIT) };
        let (look, verdict) = looks(&mut old, &[(1, mark(7))], |_| None);
        assert!((120..=124).contains(&look) && says(&verdict, "done nothing"), "{look} {verdict:?}");
    }

    #[test]
    fn a_control_stream_that_takes_nothing() {
        let moving = |look| Some(answer(&[queue(1, look, Activity::Server)]));
        let mut watch = Watch::new(LIMIT);
        for look in 0..12 {
            watch.look(TICK, Waits { marks: &[(CONTROL, Mark::default())], wanted: false });
            watch.answered(moving(look).unwrap());
            assert_eq!(watch.verdict(), Verdict::WaitsForOthers, "{look}");
        }
        watch.look(TICK, Waits { marks: &[(CONTROL, Mark::default())], wanted: false });
        assert!(says(&watch.verdict(), "takes no requests"));
    }

    #[test]
    fn bytes_that_come_and_go_count() {
        for field in 0..3 {
            let mut watch = Watch::new(LIMIT);
            for n in 0..100 {
                let mut now = mark(7);
                match field {
                    0 => now.received = n,
                    1 => now.taken[0] = n,
                    _ => now.taken[1] = n,
                }
                watch.look(TICK, Waits { marks: &[(1, now)], wanted: false });
                assert_eq!(watch.verdict(), Verdict::Fine);
            }
        }
    }
}
