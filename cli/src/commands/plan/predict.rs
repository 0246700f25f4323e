//! What other hosts would change, predicted from what was measured: functions of numbers, without I/O.
//!
//! * A token passes the devices one after another, so its time is the sum of what each computes and of the latencies between them, that
//!   of the sampled id back to the first one included. What a device computes grows with the bytes of weights that a token
//!   reads there, where the head (output matrix and sampling) counts as many bytes as layers have that take as long; each kind
//!   of hop takes as long as it took on average.
//! * A prompt passes the devices as micro-batches, side by side, cut as the engine would cut them. What a device computes grows
//!   with the work of its sections; in the end the slowest device decides. What the end of a prompt takes beside that (the last layer's
//!   feed-forward block, the head) counts as if it were work of the device that has it.
//! * What these sums give for the devices as they are differs a little from what was measured (another mix of block formats, smaller
//!   micro-batches, bandwidth): predictions are corrected by the same factor.
//!
//! Models are divided as a load divides them, and nothing is said of the times where the user has placed weights by name.

mod fit;
mod latency;
mod pipeline;
mod speed;

pub(super) use fit::{longest_context, missing};
pub(super) use latency::Latencies;
pub(super) use speed::{Computed, Speed, with_head};

use outboard_core::Costs;
use outboard_llm::parts::Parts;
use outboard_llm::pipeline::micro_batches;
use outboard_llm::route::Route;
use outboard_llm::split::{SplitDevice, split};
use pipeline::{Stage, pipeline_ms};
use std::collections::BTreeMap;

/// A device, as far as predictions know it.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Member {
    pub(super) id: String,
    /// Its server, or itself if it is local.
    pub(super) host: String,
    /// Names its memory: those with the same name here share their capacity.
    pub(super) pool: String,
    /// Bytes that it has for weights and cache.
    pub(super) capacity: u64,
    /// What the time of its graphs depends on.
    pub(super) costs: Costs,
    /// Its part of the model relative to the others; 0 leaves it out.
    pub(super) share: f64,
    /// `None` if it had nothing to compute.
    pub(super) speed: Option<Speed>,
}

impl Member {
    fn to_split(&self) -> SplitDevice {
        SplitDevice { id: self.id.clone(), pool: self.pool.clone(), capacity: self.capacity, weight: self.share }
    }
}

/// The devices as they are, and what was measured on them.
#[derive(Clone, Debug)]
pub(super) struct Present {
    pub(super) parts: Parts,
    pub(super) members: Vec<Member>,
    pub(super) route: Route,
    pub(super) latencies: Latencies,
    /// Everything is meant to be on one device.
    pub(super) single: bool,
    /// Some weights are not with their layers, so that times of layers say nothing.
    pub(super) scattered: bool,
    /// Most tokens of a micro-batch.
    pub(super) n_ubatch: usize,
    pub(super) prompt_tokens: usize,
    /// Milliseconds of a token and of the prompt.
    pub(super) token_ms: f64,
    pub(super) prompt_ms: f64,
}

/// What times rest on, each said once.
#[derive(Default)]
struct Notes(Vec<String>);

impl Notes {
    fn add(&mut self, text: impl Into<String>) {
        let text = text.into();
        if !self.0.contains(&text) {
            self.0.push(text);
        }
    }

    fn unknown(&mut self, what: &str, member: &Member) {
        self.add(format!("{what} of {} is not known: it has nothing of the kind to compute now", member.id));
    }
}

/// Milliseconds of a token and of the prompt, as far as the speeds of their devices are known.
struct Sums {
    token_ms: Option<f64>,
    prompt_ms: Option<f64>,
}

/// What would be.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct Outlook {
    /// The devices, and the layers of each.
    pub(super) devices: Vec<(String, Vec<(usize, usize)>)>,
    /// Bytes that are missing, if it would not fit.
    pub(super) missing: Option<u64>,
    /// `None` if it would not fit, or the speed of a device is not known.
    pub(super) token_ms: Option<f64>,
    pub(super) prompt_ms: Option<f64>,
    /// What the times rest on, and what they leave out.
    pub(super) notes: Vec<String>,
}

impl Present {
    /// Hosts, in their order.
    pub(super) fn hosts(&self) -> Vec<String> {
        let mut hosts: Vec<String> = Vec::new();
        for member in &self.members {
            if !hosts.contains(&member.host) {
                hosts.push(member.host.clone());
            }
        }
        hosts
    }

    /// Bytes for weights and cache that a host has.
    pub(super) fn room(&self, host: &str) -> u64 {
        let mine = self.members.iter().filter(|m| m.host == host);
        let mut pools: BTreeMap<&str, u64> = BTreeMap::new();
        for member in mine {
            let room = pools.entry(&member.pool).or_default();
            *room = member.capacity.max(*room);
        }
        pools.values().sum()
    }

    /// Without one of the hosts.
    pub(super) fn without(&self, host: &str) -> Outlook {
        let mut members: Vec<Member> = self.members.iter().filter(|m| m.host != host).cloned().collect();
        if members.iter().all(|m| m.share <= 0.0)
            && let Some(first) = members.first_mut()
        {
            first.share = 1.0;
        }
        self.outlook(&members)
    }

    /// With another host like one of them, behind all others.
    pub(super) fn with_another(&self, host: &str) -> Outlook {
        let another = |m: &Member| Member {
            id: format!("another {}", m.id),
            host: format!("another {}", m.host),
            pool: format!("another {}", m.pool),
            share: if self.single { 0.0 } else { m.share },
            ..m.clone()
        };
        let more = self.members.iter().filter(|m| m.host == host).map(another);
        self.outlook(&self.members.iter().cloned().chain(more).collect::<Vec<_>>())
    }

    fn outlook(&self, members: &[Member]) -> Outlook {
        let devices: Vec<SplitDevice> = members.iter().map(Member::to_split).collect();
        let used = devices.iter().filter(|device| device.weight > 0.0).count();
        let Ok(route) = split(&self.parts.sizes(used), &devices) else {
            return Outlook { missing: missing(&self.parts, members), ..Outlook::default() };
        };
        let layers = |d: usize| route.layers_on(&self.parts, d);
        let devices = members.iter().enumerate().map(|(d, m)| (m.id.clone(), layers(d))).collect();
        if self.scattered {
            let notes = vec!["no speeds, because -ot has placed weights apart from their layers".into()];
            return Outlook { devices, notes, ..Outlook::default() };
        }
        let mut notes = Notes::default();
        let new = self.times(members, &route, &mut notes);
        let mut notes_now = Notes::default();
        let now = self.times(&self.members, &self.route, &mut notes_now);
        let mut notes = notes.0;
        if now.token_ms.is_none() || now.prompt_ms.is_none() {
            notes.extend(notes_now.0);
        }
        let corrected = |new: Option<f64>, now: Option<f64>, measured: f64| {
            new.zip(now).filter(|(_, now)| *now > 0.0).map(|(new, now)| new * measured / now)
        };
        let token_ms = corrected(new.token_ms, now.token_ms, self.token_ms);
        let prompt_ms = corrected(new.prompt_ms, now.prompt_ms, self.prompt_ms);
        Outlook { devices, missing: None, token_ms, prompt_ms, notes }
    }

    /// What the sums give.
    fn times(&self, members: &[Member], route: &Route, notes: &mut Notes) -> Sums {
        let latencies = self.latencies(members, route, notes);
        let token_ms = self.token_time(members, route, &latencies, notes);
        Sums { token_ms, prompt_ms: self.prompt_time(members, route, &latencies, notes) }
    }

    /// Milliseconds of everything that a token crosses, in its order; 0 where that is not known.
    fn latencies(&self, members: &[Member], route: &Route, notes: &mut Notes) -> Vec<f64> {
        let of = |(a, b): (usize, usize)| {
            let (a, b) = (&members[a], &members[b]);
            let ms = self.latencies.ms(a, b);
            if ms.is_none() {
                notes.add("without the time on the network, which is not known from here");
            } else if a.host != b.host && self.latencies.assumed {
                notes.add("a way between hosts taken as half of a round trip");
            }
            ms.unwrap_or(0.0)
        };
        route.hops().into_iter().map(of).collect()
    }

    /// Milliseconds of a token; `None` if the speed of a device is not known.
    fn token_time(&self, members: &[Member], route: &Route, latencies: &[f64], notes: &mut Notes) -> Option<f64> {
        let mut token_ms = Some(latencies.iter().sum::<f64>());
        for d in route.devices() {
            let ms = members[d].speed.map(|speed| speed.decode * route.read_bytes(&self.parts, d) as f64);
            if ms.is_none() {
                notes.unknown("the speed", &members[d]);
            }
            token_ms = token_ms.zip(ms).map(|(sum, ms)| sum + ms);
        }
        token_ms
    }

    /// Milliseconds of the prompt; `None` if the speed of a device is not known.
    fn prompt_time(&self, members: &[Member], route: &Route, latencies: &[f64], notes: &mut Notes) -> Option<f64> {
        let pipeline = route.pipeline(&self.parts, |d| Some(members.get(d)?.costs));
        let mut speeds = BTreeMap::new();
        for (d, speed) in pipeline.devices.iter().filter_map(|&d| Some((d, members[d].speed?))) {
            match speed.prompt {
                Some(ms) => drop(speeds.insert(d, ms)),
                None => notes.unknown("the speed with prompts", &members[d]),
            }
        }
        if speeds.len() != pipeline.devices.len() {
            return None;
        }
        let sizes = micro_batches(0, self.prompt_tokens, self.n_ubatch, &pipeline, self.parts.work());
        Some(pipeline_ms(&self.stages(route, &speeds, latencies), &sizes, pipeline.lead(0)))
    }

    /// What a prompt passes on its way, with the speeds of devices and the latencies from one to the next.
    fn stages(&self, route: &Route, speeds: &BTreeMap<usize, f64>, latencies: &[f64]) -> Vec<Stage> {
        let mut stages: Vec<Stage> = Vec::new();
        for (&device, section) in route.homes().iter().zip(&self.parts.sections) {
            // What has nothing to do with prompts may have no speed.
            let Some(&ms) = speeds.get(&device) else { continue };
            match stages.last_mut().filter(|stage| stage.device == device) {
                Some(stage) => stage.work += section.work,
                None => stages.push(Stage { device, ms, work: section.work, latency: 0.0 }),
            }
        }
        let between = stages.len().saturating_sub(1);
        for (stage, &latency) in stages.iter_mut().take(between).zip(latencies) {
            stage.latency = latency;
        }
        stages
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use outboard_llm::parts::Part;
    use outboard_llm::work::Work;

    pub(super) const UNIT: Work = Work { token: 1.0, context: 0.0 };

    /// Layers of one section of 100 bytes of weights and 20 of cache; the head reads as much as two layers.
    pub(super) fn parts(layers: usize) -> Parts {
        let part = |layer| Part { weight_bytes: 100, cache_bytes: 20, read_bytes: 100, work: UNIT, step: UNIT, layer };
        let none = Part { weight_bytes: 200, ..Part::default() };
        let last = Part { read_bytes: 200, layer: layers - 1, ..none };
        Parts {
            sections: (0..layers).map(part).collect(),
            first: none,
            last,
            tied_bytes: 0,
            run_rows: 7.0,
            sequences: 1,
            n_ctx: 1280,
            rows: 1280,
        }
    }

    pub(super) fn member(id: &str, host: &str, capacity: u64) -> Member {
        let speed = Some(Speed { decode: 0.01, prompt: Some(0.1) });
        let pool = format!("{host} host memory");
        Member { id: id.into(), host: host.into(), pool, capacity, costs: Costs::default(), share: 1.0, speed }
    }

    /// Eight layers on two hosts, a millisecond between them.
    fn two_hosts() -> Present {
        let members = vec![member("a/0", "a", 2000), member("b/0", "b", 2000)];
        let latencies = Latencies { within: None, between: Some(1.0), assumed: false };
        let route = Route::new(vec![1, 1, 0, 0, 0, 0, 1, 1]);
        // 4 layers, 4 layers and the head, two ways; four micro-batches of 16 on the first host, one before and behind it on the other.
        let (token_ms, prompt_ms) = (4.0 + 6.0 + 2.0, 3.2 + 1.0 + 4.0 * 6.4 + 1.0 + 3.2);
        let (n_ubatch, prompt_tokens) = (16, 64);
        let (single, scattered) = (false, false);
        Present {
            parts: parts(8),
            members,
            route,
            latencies,
            single,
            scattered,
            n_ubatch,
            prompt_tokens,
            token_ms,
            prompt_ms,
        }
    }

    fn close(a: Option<f64>, b: f64) -> bool {
        a.is_some_and(|a| (a - b).abs() < 1e-9)
    }

    #[test]
    fn without_a_host_its_layers_move() {
        let alone = two_hosts().without("b");
        assert_eq!(alone.devices, [("a/0".to_owned(), vec![(0, 7)])]);
        // All layers and the head, no way; the prompt as a whole.
        assert!(close(alone.token_ms, 10.0) && close(alone.prompt_ms, 8.0 * 0.1 * 64.0), "{alone:?}");
        assert!(alone.notes.is_empty() && alone.missing.is_none(), "{alone:?}");
        let mut small = two_hosts();
        small.members[0].capacity = 700;
        // 200 for the embedding and four layers of 120 fit; four more and the head do not.
        assert_eq!(small.without("b"), Outlook { missing: Some(4 * 120 + 200), ..Outlook::default() });
        assert_eq!(missing(&small.parts, &small.members), None);
        assert_eq!(missing(&small.parts, &[]), Some(8 * 120 + 400));
    }

    #[test]
    fn another_host_takes_its_part() {
        let three = two_hosts().with_another("a");
        let layers: Vec<_> = three.devices.iter().map(|(_, layers)| layers.clone()).collect();
        assert_eq!(layers, [vec![(1, 3)], vec![(4, 5)], vec![(0, 0), (6, 7)]]);
        assert_eq!(three.devices[2].0, "another a/0");
        assert!(close(three.token_ms, 10.0 + 3.0), "{three:?}");
        let prompt = three.prompt_ms.unwrap();
        assert!(prompt < two_hosts().prompt_ms && prompt > 3.0 * 0.1 * 64.0, "{prompt}");
        // Everything on one device stays there.
        let mut single = two_hosts();
        (single.single, single.members[1].share, single.route) = (true, 0.0, Route::new(vec![0; 8]));
        let three = single.with_another("a");
        assert_eq!(three.devices.iter().filter(|(_, layers)| !layers.is_empty()).count(), 1);
        // Without the device that has everything, the next one has it.
        single.members[1].speed = None;
        let other = single.without("a");
        assert_eq!((&other.devices[0].1[..], other.token_ms, other.prompt_ms), (&[(0, 7)][..], None, None));
        assert!(other.notes[0].contains("the speed of b/0 is not known"), "{other:?}");
    }

    #[test]
    fn a_device_that_prompts_pass_by() {
        // The last device has nothing but the end of the model, which a prompt does not reach before its own end.
        let mut present = two_hosts();
        present.parts.sections[7].work = Work::default();
        present.route = Route::new(vec![0, 0, 0, 0, 0, 0, 0, 1]);
        let times = Computed { token_ms: 6.0, prompt_ms: 1.0, prompt_tokens: 64 };
        let speed = Speed::measured(&present.parts, &present.route, 1, times);
        assert_eq!(speed, Some(Speed { decode: 0.02, prompt: None }));
        present.members[1].speed = speed;
        let alone = present.without("b");
        assert!(alone.token_ms.is_some() && alone.prompt_ms.is_some() && alone.notes.is_empty(), "{alone:?}");
        // As a device with half of the layers it would not be known.
        let other = present.without("a");
        assert!(other.token_ms.is_some() && other.prompt_ms.is_none(), "{other:?}");
        assert!(other.notes[0].contains("the speed with prompts of b/0 is not known"), "{other:?}");
    }

    #[test]
    fn predictions_are_corrected_by_what_was_measured() {
        let mut slow = two_hosts();
        (slow.token_ms, slow.prompt_ms) = (2.0 * slow.token_ms, 3.0 * slow.prompt_ms);
        let alone = slow.without("b");
        assert!(close(alone.token_ms, 20.0) && close(alone.prompt_ms, 3.0 * 8.0 * 0.1 * 64.0), "{alone:?}");
    }

    #[test]
    fn what_is_assumed_is_said() {
        let mut one = two_hosts();
        (one.members, one.route) = (vec![member("a/0", "a", 5000)], Route::new(vec![0; 8]));
        one.latencies = Latencies { within: None, between: None, assumed: false };
        assert!(one.with_another("a").notes[0].contains("without the time on the network"));
        one.latencies = Latencies { within: None, between: Some(4.0), assumed: true };
        let two = one.with_another("a");
        assert!(two.notes[0].contains("half of a round trip"), "{two:?}");
        one.scattered = true;
        let two = one.with_another("a");
        assert!(two.token_ms.is_none() && two.prompt_ms.is_none() && two.notes[0].contains("-ot"), "{two:?}");
    }

    #[test]
    fn room_of_a_host() {
        let mut present = two_hosts();
        present.members.push(member("b/1", "b", 1500));
        assert_eq!((present.hosts(), present.room("b")), (vec!["a".into(), "b".into()], 2000));
        present.members[2].pool = "b/1".into();
        assert_eq!(present.room("b"), 3500);
    }
}
