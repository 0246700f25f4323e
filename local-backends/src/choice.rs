//! Which devices there are, and which of them somebody means.

use crate::list::{Argument, BACKENDS, Backend, Class, Found, Known, LookedFor};
use outboard_core::DeviceKind;
use std::collections::HashSet;

/// A device to open.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DeviceSpec {
    /// Place of the backend in the list.
    pub(crate) backend: usize,
    pub(crate) found: Found,
    /// The number behind the colon.
    pub(crate) argument: Option<usize>,
}

impl DeviceSpec {
    /// The devices of a list such as `cpu:1,cpu:1` or `vulkan0,cpu`.
    pub fn parse_list(text: &str) -> Result<Vec<DeviceSpec>, String> {
        parse_list(BACKENDS, text)
    }

    /// The devices that a name such as `vulkan0` or `ggml:CPU` stands for; `None` if it does not begin as a backend's.
    pub fn named(name: &str) -> Option<Result<Vec<DeviceSpec>, String>> {
        backend_of(BACKENDS, name).map(|_| parse(BACKENDS, name))
    }

    /// Adds devices to a list unless they are there. Gives their places. A CPU device with a number of threads takes the place of one
    /// without.
    pub fn add(list: &mut Vec<DeviceSpec>, devices: Vec<DeviceSpec>) -> Vec<usize> {
        let place = |spec: DeviceSpec| {
            let plain = DeviceSpec { argument: None, ..spec.clone() };
            let same = list.iter().position(|s| *s == spec);
            match same.or_else(|| list.iter().position(|s| *s == plain)) {
                Some(place) => {
                    list[place] = spec;
                    place
                }
                None => {
                    list.push(spec);
                    list.len() - 1
                }
            }
        };
        devices.into_iter().map(place).collect()
    }

    /// What is used when nothing is said: all GPUs, else the CPU. Beside GPUs that leave ops to others, both.
    pub fn defaults() -> Vec<DeviceSpec> {
        defaults(usable(BACKENDS), |spec| spec.known().unsupported.is_empty())
    }

    /// Every device to run models on: each hardware once, integrated GPUs only where there is no discrete one.
    pub fn usable() -> Vec<DeviceSpec> {
        usable(BACKENDS)
    }

    /// What can be named on this host, for messages.
    pub fn names() -> String {
        names(BACKENDS)
    }

    /// Names of hardware that nothing uses unless it is named, if there is some.
    pub fn used_when_named() -> Option<String> {
        used_when_named(BACKENDS)
    }

    /// Whether it runs on this host's processors, with threads of its own.
    pub fn has_threads(&self) -> bool {
        match BACKENDS.get(self.backend).map(|backend| backend.argument) {
            Some(Argument::Number(..)) => true,
            Some(Argument::Label) => self.found.kind == DeviceKind::Cpu,
            Some(Argument::None) | None => false,
        }
    }

    /// The backend's name, as it stands in front of numbers.
    pub fn backend(&self) -> &'static str {
        BACKENDS.get(self.backend).map_or("", |backend| backend.name)
    }

    /// What such a device does not support, or computes otherwise than the reference.
    pub fn known(&self) -> Known {
        BACKENDS
            .get(self.backend)
            .map_or_else(Known::default, |backend| (backend.known)(self.found.kind, &self.found.label))
    }

    /// Every device that can be named here, one of each, software ones too.
    pub fn all() -> Vec<DeviceSpec> {
        all(BACKENDS)
    }
}

fn all(backends: &[Backend]) -> Vec<DeviceSpec> {
    devices(backends, |_| true)
}

/// The devices of those backends that are wanted. The others are not asked.
fn devices(backends: &[Backend], wanted: fn(&Backend) -> bool) -> Vec<DeviceSpec> {
    let of = |(backend, b): (usize, &Backend)| {
        let spec = move |found| DeviceSpec { backend, found, argument: None };
        (b.find)().into_iter().map(spec).collect::<Vec<_>>()
    };
    backends.iter().enumerate().filter(|(_, b)| wanted(b)).flat_map(of).collect()
}

fn usable(backends: &[Backend]) -> Vec<DeviceSpec> {
    let mut specs = devices(backends, |backend| backend.looked_for == LookedFor::Always);
    retain_usable(&mut specs, |spec| &spec.found);
    specs
}

fn used_when_named(backends: &[Backend]) -> Option<String> {
    let specs = devices(backends, |backend| backend.looked_for == LookedFor::WhenNamed);
    let hardware = specs.iter().filter(|spec| spec.found.class == Class::Hardware);
    let names: Vec<_> = hardware.map(|spec| name_of(&backends[spec.backend], &spec.found)).collect();
    (!names.is_empty()).then(|| names.join(", "))
}

/// Keeps hardware, each once, and integrated GPUs only where there is no discrete one.
fn retain_usable<D>(devices: &mut Vec<D>, found: impl Fn(&D) -> &Found) {
    let mut seen = HashSet::new();
    devices.retain(|device| {
        let Found { device_id, class, .. } = found(device);
        *class == Class::Hardware && (device_id.is_empty() || seen.insert(device_id.clone()))
    });
    if devices.iter().any(|device| found(device).kind == DeviceKind::Gpu) {
        devices.retain(|device| found(device).kind != DeviceKind::IntegratedGpu);
    }
}

/// The same; an error if that leaves nothing of something.
fn retain_hardware(devices: &mut Vec<Found>) -> Result<(), ()> {
    let had = !devices.is_empty();
    retain_usable(devices, |found| found);
    if had && devices.is_empty() { Err(()) } else { Ok(()) }
}

fn defaults(usable: Vec<DeviceSpec>, computes_all: impl Fn(&DeviceSpec) -> bool) -> Vec<DeviceSpec> {
    let (cpus, others): (Vec<_>, Vec<_>) = usable.into_iter().partition(|spec| spec.found.kind == DeviceKind::Cpu);
    let alone = !others.is_empty() && others.iter().all(computes_all);
    if alone { others } else { [others, cpus].concat() }
}

fn parse_list(backends: &[Backend], text: &str) -> Result<Vec<DeviceSpec>, String> {
    let mut specs: Vec<DeviceSpec> = Vec::new();
    for name in text.split(',').map(str::trim) {
        for spec in parse(backends, name)? {
            if spec.found.number.is_some()
                && specs.iter().any(|s| s.backend == spec.backend && s.found.number == spec.found.number)
            {
                return Err(format!("device {name} is named twice"));
            }
            specs.push(spec);
        }
    }
    if specs.len() > crate::MAX_DEVICES {
        return Err(format!("{} devices, at most {} are possible", specs.len(), crate::MAX_DEVICES));
    }
    Ok(specs)
}

/// The backend of a name, and its place.
fn backend_of<'b>(backends: &'b [Backend], text: &str) -> Option<(usize, &'b Backend)> {
    let name = text.split(':').next()?.trim_end_matches(|c: char| c.is_ascii_digit());
    backends.iter().enumerate().find(|(_, b)| b.name.eq_ignore_ascii_case(name))
}

/// The devices that one name stands for.
fn parse(backends: &[Backend], text: &str) -> Result<Vec<DeviceSpec>, String> {
    let (name, argument) = match text.split_once(':') {
        Some((name, argument)) => (name, Some(argument)),
        None => (text, None),
    };
    let name = name.to_ascii_lowercase();
    let word = name.trim_end_matches(|c: char| c.is_ascii_digit());
    let digits = &name[word.len()..];
    let none = || format!("there is no device \"{text}\"; this host has: {}", names(backends));
    let (place, backend) = backend_of(backends, text).ok_or_else(none)?;
    let mut devices = (backend.find)();
    if devices.is_empty() {
        return Err(none() + &(backend.without)());
    }
    let software = || {
        let names: Vec<_> = (backend.find)().iter().map(|found| name_of(backend, found)).collect();
        format!(
            "\"{text}\" means hardware, of which there is none; name a software device to use it: {}{}",
            names.join(", "),
            (backend.without)()
        )
    };
    if !digits.is_empty() {
        devices.retain(|found| found.number.is_some_and(|number| digits.parse() == Ok(number)));
    }
    let argument = match (argument, backend.argument) {
        (None, Argument::Label) => {
            devices.retain(|_| digits.is_empty());
            retain_hardware(&mut devices).map_err(|()| software())?;
            None
        }
        (Some(label), Argument::Label) => {
            devices.retain(|found| found.label.eq_ignore_ascii_case(label) && digits.is_empty());
            None
        }
        (None, _) => {
            // Without a number, hardware is meant where the devices are numbered.
            if digits.is_empty() && devices.iter().any(|found| found.number.is_some()) {
                retain_hardware(&mut devices).map_err(|()| software())?;
            }
            None
        }
        (Some(_), Argument::None) => {
            return Err(format!(
                "\"{text}\": devices of {0} have no colon; there are: {1}",
                backend.name,
                names(backends)
            ));
        }
        (Some(given), Argument::Number(what, most)) => match given.parse() {
            Ok(n) if (1..=most).contains(&n) => Some(n),
            _ => return Err(format!("\"{text}\": {what} must be 1 to {most}")),
        },
    };
    if devices.is_empty() {
        return Err(none());
    }
    Ok(devices.into_iter().map(|found| DeviceSpec { backend: place, found, argument }).collect())
}

/// What can be named, for messages.
fn names(backends: &[Backend]) -> String {
    let mut names = Vec::new();
    for backend in backends.iter().filter(|backend| backend.looked_for != LookedFor::ByTests) {
        names.extend((backend.find)().iter().map(|found| name_of(backend, found)));
        if let Argument::Number(what, _) = backend.argument {
            names.push(format!("{}:{what}", backend.name));
        }
    }
    names.join(", ")
}

/// How a device is named.
fn name_of(backend: &Backend, found: &Found) -> String {
    match found.number {
        _ if backend.argument == Argument::Label => format!("{}:{}", backend.name, found.label),
        Some(number) => format!("{}{number}", backend.name),
        None => backend.name.to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use outboard_core::Error;

    fn gpu(number: usize, kind: DeviceKind, id: &str, class: Class) -> Found {
        let label = format!("Card{number}");
        Found { number: Some(number), label, kind, device_id: id.to_owned(), class }
    }

    fn backend(name: &'static str, find: fn() -> Vec<Found>) -> Backend {
        let open = |_: &crate::list::Setup, _: &Found, _: &str, _: Option<usize>| Err(Error::Cancelled);
        let known = |_: DeviceKind, _: &str| Known::default();
        Backend {
            name,
            prefix: name,
            argument: Argument::None,
            looked_for: LookedFor::Always,
            known,
            without: || "; plug one in".into(),
            find,
            open,
        }
    }

    const DISCRETE: DeviceKind = DeviceKind::Gpu;
    const INTEGRATED: DeviceKind = DeviceKind::IntegratedGpu;

    /// Two cards, one of them behind both backends, an integrated GPU and a software driver.
    fn machine() -> Vec<Backend> {
        let cpu = || vec![Found { number: None, ..gpu(0, DeviceKind::Cpu, "", Class::Hardware) }];
        vec![
            backend("cuda", || vec![gpu(0, DISCRETE, "01:00", Class::Hardware)]),
            backend("vulkan", || {
                vec![
                    gpu(0, INTEGRATED, "00:02", Class::Hardware),
                    gpu(1, DISCRETE, "01:00", Class::Hardware),
                    gpu(2, DISCRETE, "02:00", Class::Hardware),
                    gpu(3, DeviceKind::Cpu, "", Class::Software),
                ]
            }),
            backend("cpu", cpu),
        ]
    }

    fn shown(backends: &[Backend], specs: &[DeviceSpec]) -> Vec<String> {
        specs.iter().map(|s| format!("{}{}", backends[s.backend].name, s.found.number.unwrap_or(0))).collect()
    }

    #[test]
    fn hardware_is_one_device_and_the_discrete_one() {
        let machine = machine();
        let usable = usable(&machine);
        assert_eq!(shown(&machine, &usable), ["cuda0", "vulkan2", "cpu0"]);
        assert_eq!(shown(&machine, &defaults(usable.clone(), |_| true)), ["cuda0", "vulkan2"]);
        // One that leaves ops to others needs one of them.
        let but_vulkan = |spec: &DeviceSpec| machine[spec.backend].name != "vulkan";
        assert_eq!(shown(&machine, &defaults(usable, but_vulkan)), ["cuda0", "vulkan2", "cpu0"]);
        // An integrated one where there is no other, and the CPU where there is none.
        let small = [backend("vulkan", || vec![gpu(0, INTEGRATED, "00:02", Class::Hardware)])];
        assert_eq!(shown(&small, &defaults(super::usable(&small), |_| true)), ["vulkan0"]);
        assert_eq!(shown(&machine[2..], &defaults(super::usable(&machine[2..]), |_| true)), ["cpu0"]);
    }

    #[test]
    fn named_devices_are_those_that_are_meant() {
        let machine = machine();
        let list = |text: &str| parse_list(&machine, text).map(|specs| shown(&machine, &specs));
        assert_eq!(list("Vulkan3, cpu,cpu").unwrap(), ["vulkan3", "cpu0", "cpu0"]);
        assert_eq!(list("vulkan").unwrap(), ["vulkan1", "vulkan2"]);
        let none = [backend("cuda", Vec::new), backend("cpu", || vec![gpu(0, DeviceKind::Cpu, "", Class::Hardware)])];
        let error = parse_list(&none, "cuda").unwrap_err();
        assert_eq!(error, "there is no device \"cuda\"; this host has: cpu0; plug one in");
        assert!(list("vulkan,vulkan1").unwrap_err().contains("is named twice"));
        let error = list("vulkan:0").unwrap_err();
        assert!(
            error.starts_with("\"vulkan:0\": devices of vulkan have no colon; there are: cuda0, vulkan0"),
            "{error}"
        );
        let named = [Backend { looked_for: LookedFor::WhenNamed, ..backend("vulkan", machine[1].find) }];
        assert_eq!(used_when_named(&named).as_deref(), Some("vulkan0, vulkan1, vulkan2"));
        assert_eq!(list("vulkan,vulkan3").unwrap(), ["vulkan1", "vulkan2", "vulkan3"]);
        assert!(list("vulkan4").unwrap_err().contains("cuda0, vulkan0, vulkan1, vulkan2, vulkan3, cpu"));
        for wrong in ["", "gpu", "cpu0", "vulkan0:1", "vulkan01x", "cpu,"] {
            assert!(list(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn devices_of_a_library_are_named_by_it() {
        let found = || {
            vec![
                gpu(0, DISCRETE, "01:00", Class::Hardware),
                gpu(1, DeviceKind::Cpu, "", Class::Software),
                gpu(2, INTEGRATED, "00:02", Class::Hardware),
                // The first one by another driver, and another card.
                gpu(3, DISCRETE, "01:00", Class::Hardware),
                gpu(4, DISCRETE, "02:00", Class::Hardware),
            ]
        };
        let machine = [Backend { argument: Argument::Label, ..backend("ggml", found) }];
        let list = |text: &str| parse_list(&machine, text).map(|specs| shown(&machine, &specs));
        assert_eq!(list("ggml").unwrap(), ["ggml0", "ggml4"]);
        assert_eq!(list("ggml:card1,GGML:Card0").unwrap(), ["ggml1", "ggml0"]);
        assert!(list("ggml,ggml:Card4").unwrap_err().contains("is named twice"));
        for wrong in ["ggml:Card5", "ggml:", "ggml0", "ggml0:Card0"] {
            let error = list(wrong).unwrap_err();
            assert!(
                error.ends_with("this host has: ggml:Card0, ggml:Card1, ggml:Card2, ggml:Card3, ggml:Card4"),
                "{error}"
            );
        }
    }

    #[test]
    fn software_is_only_meant_by_its_own_name() {
        let found = || vec![gpu(0, DeviceKind::Cpu, "", Class::Software), gpu(1, DeviceKind::Cpu, "", Class::Software)];
        let labels = Backend { argument: Argument::Label, ..backend("ggml", found) };
        let machine = [backend("vulkan", found), labels];
        let error = |text: &str| parse_list(&machine, text).unwrap_err();
        let rest = "means hardware, of which there is none; name a software device to use it:";
        assert_eq!(error("vulkan"), format!("\"vulkan\" {rest} vulkan0, vulkan1; plug one in"));
        assert_eq!(error("ggml"), format!("\"ggml\" {rest} ggml:Card0, ggml:Card1; plug one in"));
        let asked = [Backend { looked_for: LookedFor::WhenNamed, ..backend("vulkan", found) }];
        assert_eq!(used_when_named(&asked), None);
        assert!(error("vulkan2").starts_with("there is no device \"vulkan2\"; this host has: vulkan0, "));
        assert_eq!(shown(&machine, &parse_list(&machine, "vulkan1").unwrap()), ["vulkan1"]);
    }

    #[test]
    fn what_is_named_is_added_once() {
        let mut list = DeviceSpec::usable();
        let cpu = list.iter().position(|spec| BACKENDS[spec.backend].name == "cpu").unwrap();
        let (usable, before) = (list.clone(), list.len());
        let mut add = |name: &str| DeviceSpec::add(&mut list, DeviceSpec::named(name).unwrap().unwrap());
        assert_eq!([add("cpu"), add("reference"), add("REFERENCE")], [[cpu], [before], [before]]);
        assert_eq!([add("cpu:3"), add("cpu:3"), add("cpu:2")], [[cpu], [cpu], [before + 1]]);
        assert_eq!(list[cpu].argument, Some(3));
        assert_eq!(list.len(), before + 2);
        assert!(usable.iter().enumerate().all(|(i, spec)| i == cpu || list[i] == *spec));
        assert!(DeviceSpec::named("host:50052/CPU0").is_none() && DeviceSpec::named("").is_none());
        assert!(DeviceSpec::named("cpu7").unwrap().is_err());
    }

    #[test]
    fn lists_of_this_host() {
        let list = |text: &str| DeviceSpec::parse_list(text).unwrap();
        let threads = |specs: Vec<DeviceSpec>| specs.iter().map(|s| s.argument).collect::<Vec<_>>();
        assert_eq!(threads(list("cpu:1,CPU:3,cpu")), [Some(1), Some(3), None]);
        assert_eq!(shown(BACKENDS, &list("cpu,reference,detached")), ["cpu0", "reference0", "detached0"]);
        let told = names(BACKENDS);
        assert!(
            told.starts_with("cpu, cpu:THREADS") && !told.contains("reference") && !told.contains("detached"),
            "{told}"
        );
        for wrong in
            ["", "gpu", "cpu:0", "cpu:x", "cpu:1,", "reference:1", "cpu:99999999999", "cpu,".repeat(99).as_str()]
        {
            assert!(DeviceSpec::parse_list(wrong).is_err(), "{wrong}");
        }
        assert!(DeviceSpec::usable().iter().all(|spec| spec.found.class == Class::Hardware));
        assert!(DeviceSpec::all().len() > DeviceSpec::usable().len());
    }
}
