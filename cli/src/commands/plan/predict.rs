//! What other hosts would change, predicted from what was measured: functions of numbers, without I/O.
//!
//! * A token passes the devices one after another, so its time is the sum of what each computes and of the ways between them, the way
//!   of the sampled id back to the first one included. What a device computes grows with the bytes of weights that a token
//!   reads there, where the head (output matrix and sampling) counts as many bytes as layers have that take as long; each kind
//!   of way takes as long as it took on average.
//! * A prompt passes the devices as micro-batches, side by side, cut as the engine would cut them. What a device computes grows
//!   with the work of its sections; in the end the slowest device decides. What the end of a prompt takes beside that (the last layer's
//!   feed-forward block, the head) counts as if it were work of the device that has it.
//! * What these sums give for the devices as they are differs a little from what was measured (another mix of block formats, smaller
//!   micro-batches, bandwidth): predictions are corrected by the same factor.
//!
//! Models are divided as a load divides them, and nothing is said of the times where the user has placed weights by name.

use outboard_core::Costs;
use outboard_llm::batches::{Route, micro_batches};
use outboard_llm::parts::{Part, Parts};
use outboard_llm::split::{Share, split};
use outboard_llm::work::Work;
use std::collections::{BTreeMap, BTreeSet, VecDeque};

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
    fn as_share(&self) -> Share {
        Share { id: self.id.clone(), pool: self.pool.clone(), capacity: self.capacity, weight: self.share }
    }
}

/// How fast a device is.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Speed {
    /// Decoding: milliseconds for each byte of weights that a token reads.
    decode: f64,
    /// Prompts: milliseconds for each unit of work; `None` if it had none.
    prompt: Option<f64>,
}

/// Times of a device: of a token that is decoded, and of a prompt.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Computed {
    pub(super) token_ms: f64,
    pub(super) prompt_ms: f64,
    pub(super) prompt_tokens: usize,
}

impl Speed {
    /// The speed of a device that has its sections of `homes` (a device for each section); `None` if it has none.
    pub(super) fn measured(parts: &Parts, homes: &[usize], device: usize, times: Computed) -> Option<Speed> {
        let (bytes, work) = (read_bytes(parts, homes, device), work(parts, homes, device).cost(0, times.prompt_tokens));
        let prompt = (work > 0.0).then(|| times.prompt_ms / work);
        (bytes > 0).then(|| Speed { decode: times.token_ms / bytes as f64, prompt })
    }

    /// Milliseconds of a layer for a token that is decoded; layers count as alike.
    pub(super) fn layer_ms(self, parts: &Parts) -> f64 {
        let bytes: u64 = parts.sections.iter().map(|section| section.read_bytes).sum();
        self.decode * bytes as f64 / (parts.last.layer + 1) as f64
    }
}

/// The sections of a device.
fn sections<'p>(parts: &'p Parts, homes: &'p [usize], device: usize) -> impl Iterator<Item = &'p Part> {
    homes.iter().zip(&parts.sections).filter(move |(home, _)| **home == device).map(|(_, section)| section)
}

/// Bytes of weights that a token reads on a device.
fn read_bytes(parts: &Parts, homes: &[usize], device: usize) -> u64 {
    let first = if homes.first() == Some(&device) { parts.first.read_bytes } else { 0 };
    let last = if homes.last() == Some(&device) { parts.last.read_bytes } else { 0 };
    first + sections(parts, homes, device).map(|section| section.read_bytes).sum::<u64>() + last
}

/// What a token of a prompt takes on a device.
fn work(parts: &Parts, homes: &[usize], device: usize) -> Work {
    sections(parts, homes, device).map(|section| section.work).sum()
}

/// The parts with a head that weighs what it takes: as many bytes as a token could read of layers in that time. `token_ms` is what the
/// device with the last section computes for a token, `layers_ms` that without the head.
pub(super) fn with_head(parts: &Parts, homes: &[usize], token_ms: f64, layers_ms: f64) -> Parts {
    let last = homes.last().copied().unwrap_or(0);
    let bytes: u64 = sections(parts, homes, last).map(|section| section.read_bytes).sum();
    let mut parts = parts.clone();
    if layers_ms > 0.0 {
        parts.last.read_bytes = ((token_ms - layers_ms).max(0.0) / layers_ms * bytes as f64) as u64;
    }
    parts
}

/// What a token crosses on its way through the devices: pairs of them, the last one back to the first.
fn crossings(homes: &[usize]) -> Vec<(usize, usize)> {
    let mut ring: Vec<(usize, usize)> =
        homes.windows(2).filter_map(|w| Some((*w.first()?, *w.last()?))).filter(|(a, b)| a != b).collect();
    if let (Some(&first), Some(&last)) = (homes.first(), homes.last())
        && first != last
    {
        ring.push((last, first));
    }
    ring
}

/// How long the ways between devices take.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Ways {
    /// Within a host, in milliseconds.
    within: Option<f64>,
    /// From host to host.
    between: Option<f64>,
    /// [`Ways::between`] was not measured: it is half of a round trip.
    assumed: bool,
}

impl Ways {
    /// From the gaps between the work of two devices (by their ids) for each token, and the time from here to a server, if there is one,
    /// for want of anything better.
    pub(super) fn measured(
        members: &[Member],
        homes: &[usize],
        gaps: &BTreeMap<(String, String), f64>,
        one_way_ms: Option<f64>,
    ) -> Ways {
        let host = |id: &String| members.iter().find(|m| m.id == *id).map(|m| m.host.as_str());
        let ring = crossings(homes);
        let mean = |same_host: bool| {
            let is = |a: Option<&str>, b: Option<&str>| (a == b) == same_host;
            let of = |d: usize| members.get(d).map(|m| m.host.as_str());
            let crossed = ring.iter().filter(|(a, b)| is(of(*a), of(*b))).count();
            let gaps = gaps.iter().filter(|((a, b), _)| a != b && is(host(a), host(b)));
            (crossed > 0).then(|| gaps.map(|(_, ms)| ms).sum::<f64>() / crossed as f64)
        };
        let between = mean(false);
        Ways { within: mean(true), between: between.or(one_way_ms), assumed: between.is_none() && one_way_ms.is_some() }
    }

    /// Milliseconds from one device to another; `None` if that is not known.
    fn ms(&self, a: &Member, b: &Member) -> Option<f64> {
        if a.host == b.host { self.within.or(self.between) } else { self.between }
    }
}

/// A part of a model on the way of a prompt.
#[derive(Clone, Copy, Debug)]
struct Stage {
    device: usize,
    /// Milliseconds for each unit of its work.
    ms: f64,
    work: Work,
    /// Milliseconds from it to the next one.
    way: f64,
}

/// Milliseconds until a prompt has passed all stages. A device works on one micro-batch of so many tokens at a time, and on the first
/// stage of `lead` micro-batches before it goes on with the oldest of them.
fn pipeline_ms(stages: &[Stage], batches: &[usize], lead: usize) -> f64 {
    let mut free: BTreeMap<usize, f64> = BTreeMap::new();
    let mut pass = |there: f64, stage: &Stage, (past, tokens): (usize, usize)| {
        let free = free.entry(stage.device).or_default();
        *free = there.max(*free) + stage.ms * stage.work.cost(past, tokens);
        *free + stage.way
    };
    let Some((first, rest)) = stages.split_first() else { return 0.0 };
    let mut begun = VecDeque::new();
    let mut past = 0;
    let mut coming = batches.iter().map(|&tokens| ((past, tokens), past += tokens).0).collect::<VecDeque<_>>();
    let mut done = 0.0;
    loop {
        let next = coming.pop_front();
        begun.extend(next.map(|batch| (pass(0.0, first, batch), batch)));
        if next.is_some() && begun.len() <= lead {
            continue;
        }
        let Some((there, batch)) = begun.pop_front() else { return done };
        done = rest.iter().fold(there, |there, stage| pass(there, stage, batch));
    }
}

/// The bytes that one more device would have to hold so that the model fits; `None` if it does fit.
pub(super) fn missing(parts: &Parts, members: &[Member]) -> Option<u64> {
    let sizes = parts.sizes();
    let with = |more: Option<u64>| {
        let another = |capacity| Share { id: String::new(), pool: String::new(), capacity, weight: f64::MIN_POSITIVE };
        split(&sizes, &members.iter().map(Member::as_share).chain(more.map(another)).collect::<Vec<_>>()).is_ok()
    };
    if with(None) {
        return None;
    }
    // With all of the model's bytes it fits, and with more it fits as well.
    let (mut too_few, mut enough) = (0, sizes.bytes());
    while enough - too_few > 1 {
        let middle = too_few + (enough - too_few) / 2;
        if with(Some(middle)) { enough = middle } else { too_few = middle }
    }
    Some(enough)
}

/// The longest context, up to that of `parts`, with which the model fits, in steps of `step` tokens.
pub(super) fn longest_context(parts: &Parts, members: &[Member], step: usize) -> Option<usize> {
    let fits = |steps: usize| missing(&parts.with_context(steps * step), members).is_none();
    let (mut fitting, mut too_long) = (0, parts.n_ctx / step.max(1) + 1);
    while too_long - fitting > 1 {
        let middle = fitting + (too_long - fitting) / 2;
        if fits(middle) { fitting = middle } else { too_long = middle }
    }
    (fitting > 0).then_some(fitting * step)
}

/// The devices as they are, and what was measured on them.
#[derive(Clone, Debug)]
pub(super) struct Present {
    pub(super) parts: Parts,
    pub(super) members: Vec<Member>,
    /// The device of each section.
    pub(super) homes: Vec<usize>,
    pub(super) ways: Ways,
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
        let shares: Vec<Share> = members.iter().map(Member::as_share).collect();
        let Ok(homes) = split(&self.parts.sizes(), &shares) else {
            return Outlook { missing: missing(&self.parts, members), ..Outlook::default() };
        };
        let layers = |d: usize| self.parts.layers_on(&homes, d);
        let devices = members.iter().enumerate().map(|(d, m)| (m.id.clone(), layers(d))).collect();
        let mut outlook = Outlook { devices, ..Outlook::default() };
        if self.scattered {
            outlook.notes.push("no speeds, because -ot has placed weights apart from their layers".into());
            return outlook;
        }
        let new = self.times(members, &homes, &mut outlook.notes);
        let mut notes = Vec::new();
        let now = self.times(&self.members, &self.homes, &mut notes);
        if now.token_ms.is_none() || now.prompt_ms.is_none() {
            outlook.notes.extend(notes);
        }
        let corrected = |new: Option<f64>, now: Option<f64>, measured: f64| {
            new.zip(now).filter(|(_, now)| *now > 0.0).map(|(new, now)| new * measured / now)
        };
        outlook.token_ms = corrected(new.token_ms, now.token_ms, self.token_ms);
        outlook.prompt_ms = corrected(new.prompt_ms, now.prompt_ms, self.prompt_ms);
        outlook
    }

    /// What the sums give.
    fn times(&self, members: &[Member], homes: &[usize], notes: &mut Vec<String>) -> Sums {
        let mut note = |text: String| {
            if !notes.contains(&text) {
                notes.push(text);
            }
        };
        let ring = crossings(homes);
        let mut ways = Vec::with_capacity(ring.len());
        for &(a, b) in &ring {
            let (a, b) = (&members[a], &members[b]);
            let ms = self.ways.ms(a, b);
            if ms.is_none() {
                note("without the time on the network, which is not known from here".into());
            } else if a.host != b.host && self.ways.assumed {
                note("a way between hosts taken as half of a round trip".into());
            }
            ways.push(ms.unwrap_or(0.0));
        }
        let mut unknown = |what: &str, d: usize| {
            note(format!("{what} of {} is not known: it has nothing of the kind to compute now", members[d].id));
        };
        let mut token_ms = Some(ways.iter().sum::<f64>());
        for d in homes.iter().copied().collect::<BTreeSet<_>>() {
            let ms = members[d].speed.map(|speed| speed.decode * read_bytes(&self.parts, homes, d) as f64);
            if ms.is_none() {
                unknown("the speed", d);
            }
            token_ms = token_ms.zip(ms).map(|(sum, ms)| sum + ms);
        }
        let (used, round) = self.parts.way(homes);
        let mut speeds = BTreeMap::new();
        for (d, speed) in used.iter().filter_map(|&d| Some((d, members[d].speed?))) {
            match speed.prompt {
                Some(ms) => drop(speeds.insert(d, ms)),
                None => unknown("the speed with prompts", d),
            }
        }
        let prompt_ms = (speeds.len() == used.len()).then(|| {
            let costs: Vec<Costs> = used.iter().map(|&d| members[d].costs).collect();
            let route = Route { devices: &costs, round };
            let sizes = micro_batches(0, self.prompt_tokens, self.n_ubatch, route, self.parts.work());
            pipeline_ms(&self.stages(homes, &speeds, &ways), &sizes, route.lead(0))
        });
        Sums { token_ms, prompt_ms }
    }

    /// What a prompt passes on its way, with the speeds of devices and the ways from one to the next.
    fn stages(&self, homes: &[usize], speeds: &BTreeMap<usize, f64>, ways: &[f64]) -> Vec<Stage> {
        let mut stages: Vec<Stage> = Vec::new();
        for (&device, section) in homes.iter().zip(&self.parts.sections) {
            // What has nothing to do with prompts may have no speed.
            let Some(&ms) = speeds.get(&device) else { continue };
            match stages.last_mut().filter(|stage| stage.device == device) {
                Some(stage) => stage.work += section.work,
                None => stages.push(Stage { device, ms, work: section.work, way: 0.0 }),
            }
        }
        let between = stages.len().saturating_sub(1);
        for (stage, &way) in stages.iter_mut().take(between).zip(ways) {
            stage.way = way;
        }
        stages
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const UNIT: Work = Work { token: 1.0, context: 0.0 };

    /// Layers of one section of 100 bytes of weights and 20 of cache; the head reads as much as two layers.
    fn parts(layers: usize) -> Parts {
        let part = |layer| Part { weight_bytes: 100, cache_bytes: 20, read_bytes: 100, work: UNIT, layer };
        let none = Part { weight_bytes: 200, ..Part::default() };
        let last = Part { read_bytes: 200, layer: layers - 1, ..none };
        Parts { sections: (0..layers).map(part).collect(), first: none, last, tied_bytes: 0, n_ctx: 10 }
    }

    fn member(id: &str, host: &str, capacity: u64) -> Member {
        let speed = Some(Speed { decode: 0.01, prompt: Some(0.1) });
        let pool = format!("{host} host memory");
        Member { id: id.into(), host: host.into(), pool, capacity, costs: Costs::default(), share: 1.0, speed }
    }

    /// Eight layers on two hosts, a millisecond between them.
    fn two_hosts() -> Present {
        let members = vec![member("a/0", "a", 2000), member("b/0", "b", 2000)];
        let ways = Ways { within: None, between: Some(1.0), assumed: false };
        let homes = vec![1, 1, 0, 0, 0, 0, 1, 1];
        // 4 layers, 4 layers and the head, two ways; four micro-batches of 16 on the first host, one before and behind it on the other.
        let (token_ms, prompt_ms) = (4.0 + 6.0 + 2.0, 3.2 + 1.0 + 4.0 * 6.4 + 1.0 + 3.2);
        let (n_ubatch, prompt_tokens) = (16, 64);
        let (single, scattered) = (false, false);
        Present {
            parts: parts(8),
            members,
            homes,
            ways,
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
    fn speed_of_what_was_measured() {
        let homes = [0, 0, 0, 0, 0, 0, 1, 1];
        let times = Computed { token_ms: 8.0, prompt_ms: 64.0, prompt_tokens: 32 };
        // Two layers and the head are 400 bytes; 32 tokens in two layers are 64 units of work.
        let speed = Speed::measured(&parts(8), &homes, 1, times).unwrap();
        assert_eq!(speed, Speed { decode: 0.02, prompt: Some(1.0) });
        assert_eq!(speed.layer_ms(&parts(8)), 2.0);
        assert_eq!(Speed::measured(&parts(8), &homes, 2, times), None, "it has no layers");
    }

    #[test]
    fn the_head_weighs_what_it_takes() {
        // Half as long as two layers of 100 bytes.
        let parts = with_head(&parts(8), &[0, 0, 0, 0, 0, 0, 1, 1], 6.0, 4.0);
        assert_eq!(parts.last.read_bytes, 100);
        assert_eq!(with_head(&parts, &[0; 8], 3.0, 4.0).last.read_bytes, 0, "noise");
        assert_eq!(with_head(&parts, &[0; 8], 3.0, 0.0), parts);
    }

    #[test]
    fn a_token_goes_round() {
        assert_eq!(crossings(&[0, 0, 1, 2, 2]), [(0, 1), (1, 2), (2, 0)]);
        assert_eq!(crossings(&[3, 3]), []);
        assert_eq!(crossings(&[]), []);
    }

    #[test]
    fn ways_are_means_of_their_kind() {
        let members = [member("a/0", "a", 1), member("a/1", "a", 1), member("b/0", "b", 1)];
        let gap = |a: &str, b: &str, ms| ((a.to_owned(), b.to_owned()), ms);
        let gaps = [gap("a/0", "a/1", 0.1), gap("a/1", "b/0", 2.0), gap("b/0", "a/0", 3.0), gap("a/0", "a/0", 9.0)];
        let ways = Ways::measured(&members, &[0, 1, 2], &gaps.into(), Some(7.0));
        assert_eq!(ways, Ways { within: Some(0.1), between: Some(2.5), assumed: false });
        assert_eq!((ways.ms(&members[0], &members[1]), ways.ms(&members[1], &members[2])), (Some(0.1), Some(2.5)));
        let alone = Ways::measured(&members[..1], &[0, 0], &BTreeMap::new(), Some(7.0));
        assert_eq!(alone, Ways { within: None, between: Some(7.0), assumed: true });
        let local = Ways::measured(&members[..1], &[0, 0], &BTreeMap::new(), None);
        assert_eq!(local, Ways { within: None, between: None, assumed: false });
    }

    #[test]
    fn the_slowest_stage_bounds_a_prompt() {
        let stage = |device, ms, way| Stage { device, ms, work: UNIT, way };
        assert_eq!(pipeline_ms(&[stage(0, 1.0, 0.0)], &[4, 4], 0), 8.0);
        // The second stage is the slow one: it begins when the first micro-batch has come, and then never waits.
        assert_eq!(pipeline_ms(&[stage(0, 1.0, 0.5), stage(1, 2.0, 0.0)], &[4, 4, 4], 0), 4.0 + 0.5 + 24.0);
        // The first one is: the second waits for each, and ends its last one behind it.
        assert_eq!(pipeline_ms(&[stage(0, 2.0, 0.5), stage(1, 1.0, 0.0)], &[4, 4, 4], 0), 24.0 + 0.5 + 4.0);
        assert_eq!((pipeline_ms(&[], &[4], 0), pipeline_ms(&[stage(0, 1.0, 0.0)], &[], 3)), (0.0, 0.0));
        // Tokens behind others take longer.
        let growing = Work { token: 1.0, context: 0.5 };
        assert_eq!(pipeline_ms(&[Stage { work: growing, ..stage(0, 1.0, 0.0) }], &[2, 2], 0), growing.cost(0, 4));
    }

    #[test]
    fn a_device_begins_others_while_it_would_wait() {
        let stage = |device, ms| Stage { device, ms, work: UNIT, way: 0.0 };
        let round = [stage(1, 1.0), stage(0, 2.0), stage(1, 1.0)];
        // It waits for each to come back.
        assert_eq!(pipeline_ms(&round, &[4; 5], 0), 5.0 * 16.0);
        // Both have always something to do, but for the first way in and the last way out.
        for lead in [2, 3, 9] {
            assert_eq!(pipeline_ms(&round, &[4; 5], lead), 4.0 + 5.0 * 8.0 + 4.0, "{lead}");
        }
        assert_eq!(pipeline_ms(&round, &[1, 2, 4, 4, 4, 2, 1], 4), 1.0 + 18.0 * 2.0 + 1.0);
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
        (single.single, single.members[1].share, single.homes) = (true, 0.0, vec![0; 8]);
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
        present.homes = vec![0, 0, 0, 0, 0, 0, 0, 1];
        let times = Computed { token_ms: 6.0, prompt_ms: 1.0, prompt_tokens: 64 };
        let speed = Speed::measured(&present.parts, &present.homes, 1, times);
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
        (one.members, one.homes) = (vec![member("a/0", "a", 5000)], vec![0; 8]);
        one.ways = Ways { within: None, between: None, assumed: false };
        assert!(one.with_another("a").notes[0].contains("without the time on the network"));
        one.ways = Ways { within: None, between: Some(4.0), assumed: true };
        let two = one.with_another("a");
        assert!(two.notes[0].contains("half of a round trip"), "{two:?}");
        one.scattered = true;
        let two = one.with_another("a");
        assert!(two.token_ms.is_none() && two.prompt_ms.is_none() && two.notes[0].contains("-ot"), "{two:?}");
    }

    #[test]
    fn room_and_context() {
        let mut present = two_hosts();
        present.members.push(member("b/1", "b", 1500));
        assert_eq!((present.hosts(), present.room("b")), (vec!["a".into(), "b".into()], 2000));
        present.members[2].pool = "b/1".into();
        assert_eq!(present.room("b"), 3500);
        // 400 bytes and eight layers of 100 and 2 for each token of context.
        assert_eq!(longest_context(&parts(8), &[member("a", "a", 1300)], 1), Some(6));
        assert_eq!(longest_context(&parts(8), &[member("a", "a", 9000)], 5), Some(10));
        assert_eq!(longest_context(&parts(8), &[member("a", "a", 1200)], 1), None);
    }
}
