//! Devices, their usage and slices on the wire.

use crate::error::shown;
use crate::limits::MAX_NAME;
use crate::v1;
use outboard_core::{Costs, DeviceInfo, DeviceKind, Error, MemoryInfo, Result, Slice, Speed, Usage, WeightTail};

/// Most devices that a client takes from one endpoint.
pub const MAX_DEVICES: usize = 256;
/// Most capabilities of a device that a client remembers: each is a word, and backends have some ten.
pub const MAX_CAPABILITIES: usize = 64;
/// Largest alignment in bytes that a client takes from a server: a huge page.
pub const MAX_ALIGNMENT: u64 = 2 << 20;
/// Largest micro-batch that a server may wish for.
pub const MAX_BATCH_ROWS: u32 = 1 << 16;
/// Most rows that a run may be worth beside its own.
pub const MAX_RUN_ROWS: f32 = 65536.0;
/// Most rows that a server may say its results depend on.
pub const MAX_UNIFORM_ROWS: u32 = 64;
/// Most that attention may cost.
pub const MAX_ATTENTION: f32 = 1000.0;

/// The wire's form of a device of this host.
pub fn to_wire(info: &DeviceInfo, memory: MemoryInfo, reaches: Vec<String>, speed: Option<Speed>) -> v1::Device {
    v1::Device {
        name: info.name.clone(),
        kind: info.kind.name().to_owned(),
        description: info.description.clone(),
        device_id: info.device_id.clone(),
        backend: info.backend.clone(),
        memory_total: memory.total,
        memory_free: memory.free,
        capabilities: info.capabilities.clone(),
        alignment: info.alignment as u64,
        weight_tail: info.weight_tail.0,
        reaches,
        memory_pool: info.memory_pool.clone(),
        max_alloc: if info.max_alloc == u64::MAX { 0 } else { info.max_alloc },
        unified: info.unified,
        batch_rows: info.costs.batch_rows,
        run_rows: info.costs.run_rows,
        uniform_rows: info.costs.uniform_rows,
        attention: info.costs.attention,
        bandwidth: speed.map_or(0.0, |speed| speed.bandwidth),
        flops: speed.map_or(0.0, |speed| speed.flops),
    }
}

/// A device of `endpoint`, with its id made of both names; what is for people loses control characters. A kind that this release does not know counts as an accelerator.
pub fn from_wire(device: &v1::Device, endpoint: &str) -> Result<DeviceInfo> {
    let wrong =
        |what: String| Err(Error::Peer { endpoint: endpoint.to_owned(), detail: format!("sent a device {what}") });
    if device.name.is_empty() || device.name.len() > MAX_NAME || device.name.chars().any(char::is_control) {
        return wrong("without a usable name".into());
    }
    if !device.alignment.is_power_of_two() || device.alignment > MAX_ALIGNMENT {
        return wrong(format!("{} with an alignment of {}", device.name, device.alignment));
    }
    if device.weight_tail > WeightTail::MOST {
        let (name, tail, most) = (&device.name, device.weight_tail, WeightTail::MOST);
        return wrong(format!("{name} that wants {tail} bytes behind each weight; {most} are the most"));
    }
    Ok(DeviceInfo {
        id: format!("{endpoint}/{}", device.name),
        name: device.name.clone(),
        kind: DeviceKind::from_name(&device.kind).unwrap_or(DeviceKind::Accelerator),
        description: shown(&device.description, MAX_NAME),
        device_id: shown(&device.device_id, MAX_NAME),
        backend: shown(&device.backend, MAX_NAME),
        memory_total: device.memory_total,
        capabilities: device.capabilities.iter().take(MAX_CAPABILITIES).map(|c| shown(c, MAX_NAME)).collect(),
        alignment: device.alignment as usize,
        weight_tail: WeightTail(device.weight_tail),
        memory_pool: shown(&device.memory_pool, MAX_NAME),
        max_alloc: if device.max_alloc == 0 { u64::MAX } else { device.max_alloc },
        unified: device.unified,
        costs: costs(device),
    })
}

/// A speed that a server has sent, if it is one.
pub fn speed(bandwidth: f64, flops: f64) -> Option<Speed> {
    let is_speed = |value: f64| value.is_finite() && value > 0.0;
    (is_speed(bandwidth) && is_speed(flops)).then_some(Speed { bandwidth, flops })
}

/// What a device says of its costs, if that is possible at all.
fn costs(device: &v1::Device) -> Costs {
    let possible = |value: f32, most: f32| (0.0..=most).contains(&value);
    if device.batch_rows == 0 || !possible(device.run_rows, MAX_RUN_ROWS) || !possible(device.attention, MAX_ATTENTION)
    {
        return Costs::default();
    }
    Costs {
        batch_rows: device.batch_rows.min(MAX_BATCH_ROWS),
        run_rows: device.run_rows,
        uniform_rows: device.uniform_rows.clamp(1, MAX_UNIFORM_ROWS),
        attention: device.attention,
    }
}

/// Name of a usage.
pub fn usage_name(usage: Usage) -> &'static str {
    match usage {
        Usage::Any => "ANY",
        Usage::Weights => "WEIGHTS",
        Usage::Compute => "COMPUTE",
    }
}

/// The usage of that name; one that this release does not know counts as any.
pub fn usage_from_name(name: &str) -> Usage {
    match name {
        "WEIGHTS" => Usage::Weights,
        "COMPUTE" => Usage::Compute,
        _ => Usage::Any,
    }
}

/// A slice of the buffer with this handle.
pub fn slice(handle: u64, slice: &Slice) -> v1::Slice {
    v1::Slice { buffer: handle, offset: slice.offset(), len: slice.len() }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn device() -> v1::Device {
        v1::Device {
            name: "CPU0".into(),
            kind: "CPU".into(),
            alignment: 64,
            weight_tail: 510,
            memory_total: 7,
            memory_pool: "host".into(),
            max_alloc: 5,
            unified: true,
            batch_rows: 256,
            run_rows: 3.5,
            uniform_rows: 2,
            attention: 2.5,
            bandwidth: 2.0,
            flops: 3.0,
            ..Default::default()
        }
    }

    #[test]
    fn ids_have_the_endpoint() {
        let info = from_wire(&device(), "h:1").unwrap();
        assert_eq!((info.id.as_str(), info.kind, info.memory_total), ("h:1/CPU0", DeviceKind::Cpu, 7));
        let back = to_wire(&info, MemoryInfo { total: 7, free: 0 }, vec![], speed(2.0, 3.0));
        assert_eq!(back, device());
    }

    #[test]
    fn what_a_device_does_not_say_or_cannot_mean_is_the_plainest() {
        let old = v1::Device { memory_pool: String::new(), max_alloc: 0, batch_rows: 0, weight_tail: 0, ..device() };
        let info = from_wire(&old, "h:1").unwrap();
        assert_eq!((info.memory_pool.as_str(), info.max_alloc, info.costs), ("", u64::MAX, Costs::default()));
        assert_eq!(info.weight_tail, WeightTail::NONE);
        for wrong in [f32::NAN, -1.0, f32::INFINITY] {
            let device = v1::Device { run_rows: wrong, ..device() };
            assert_eq!(from_wire(&device, "h:1").unwrap().costs, Costs::default());
        }
        let large = v1::Device { batch_rows: u32::MAX, ..device() };
        assert_eq!(from_wire(&large, "h:1").unwrap().costs.batch_rows, MAX_BATCH_ROWS);
    }

    #[test]
    fn speeds_are_numbers_above_zero() {
        assert_eq!(speed(1.0, 2.0), Some(Speed { bandwidth: 1.0, flops: 2.0 }));
        for wrong in [0.0, -1.0, f64::NAN, f64::INFINITY] {
            assert_eq!((speed(wrong, 1.0), speed(1.0, wrong)), (None, None));
        }
    }

    #[test]
    fn bad_devices_are_refused() {
        assert!(from_wire(&v1::Device { alignment: 3, ..device() }, "h:1").is_err());
        assert!(from_wire(&v1::Device { alignment: 1 << 40, ..device() }, "h:1").is_err());
        let most = v1::Device { weight_tail: WeightTail::MOST, ..device() };
        assert_eq!(from_wire(&most, "h:1").unwrap().weight_tail, WeightTail(WeightTail::MOST));
        let more = v1::Device { weight_tail: WeightTail::MOST + 1, ..device() };
        let error = from_wire(&more, "h:1").unwrap_err().to_string();
        assert!(error.contains("CPU0 that wants 65537 bytes behind each weight; 65536 are the most"), "{error}");
        assert!(from_wire(&v1::Device { name: "a\nb".into(), ..device() }, "h:1").is_err());
        assert!(from_wire(&v1::Device { name: String::new(), ..device() }, "h:1").is_err());
        assert_eq!(
            from_wire(&v1::Device { kind: "NPU".into(), ..device() }, "h:1").unwrap().kind,
            DeviceKind::Accelerator
        );
    }

    #[test]
    fn usages_round_trip() {
        for usage in [Usage::Any, Usage::Weights, Usage::Compute] {
            assert_eq!(usage_from_name(usage_name(usage)), usage);
        }
    }
}
