//! The driver of this host, and the cards behind it.

use cudarc::driver::result::{self, DriverError};
use cudarc::driver::sys;
use outboard_core::DeviceKind;
use std::sync::OnceLock;

/// Environment variable that says into how many devices each card is divided: for tests of several devices with one card.
pub const VIRTUAL: &str = "OUTBOARD_CUDA_VIRTUAL";
/// Devices of a card at most.
const MOST_VIRTUAL: u64 = 16;
/// The CUDA of the driver, as it counts them: the kernels are PTX 8.2, which is of CUDA 12.2.
const VERSION: i32 = 12_020;
/// Floating-point operations of a multiprocessor in a clock: 128 multiply-adds.
const FLOPS: u64 = 256;
/// Compute capability that the kernels need at least: 6.1 has products of signed bytes.
const CAPABILITY: u32 = 61;

/// What the launches of a node depend on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Card {
    /// Compute capability, 89 for 8.9.
    pub(crate) capability: u32,
    /// How many multiprocessors it has.
    pub(crate) processors: usize,
}

/// A device of this host.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Found {
    /// Its number: `CUDA0`.
    pub number: usize,
    /// For people: the card, its compute capability, and the CUDA of its driver.
    pub description: String,
    /// Kind of hardware.
    pub kind: DeviceKind,
    /// The PCI address. Behind it, where a card was divided and this is not its first part, the number of the part.
    pub device_id: String,
    /// Compute capability, 89 for 8.9.
    pub capability: u32,
    /// What launches depend on.
    pub(crate) card: Card,
    /// Bytes of memory.
    pub memory: u64,
    /// Floating-point operations that its cores do in a millisecond, at most.
    pub(crate) flops_of_ms: u64,
    /// The driver's number of the card.
    pub(crate) ordinal: i32,
}

/// The devices of this host; without a driver, none.
pub fn find() -> &'static [Found] {
    static FOUND: OnceLock<Vec<Found>> = OnceLock::new();
    FOUND.get_or_init(|| {
        let parts = std::env::var(VIRTUAL).ok().and_then(|n| n.parse().ok()).unwrap_or(1);
        look(parts).inspect_err(|why| tracing::debug!("no CUDA devices: {why}")).unwrap_or_default()
    })
}

/// Names a driver's error.
pub(crate) fn words(error: DriverError) -> String {
    let name = error.error_name().map(|name| name.to_string_lossy().into_owned());
    let text = error.error_string().map(|text| text.to_string_lossy().into_owned());
    match (name, text) {
        (Ok(name), Ok(text)) => format!("{text} ({name})"),
        _ => format!("error {} of the driver", error.0 as u32),
    }
}

fn cannot(what: &'static str) -> impl Fn(DriverError) -> String {
    move |error| format!("{what}: {}", words(error))
}

/// The devices, each card divided into so many.
fn look(parts: u64) -> Result<Vec<Found>, String> {
    // SAFETY: it looks for the driver's library, which has no requirements of its own.
    if !unsafe { sys::is_culib_present() } {
        return Err("there is no driver (libcuda)".into());
    }
    result::init().map_err(cannot("the driver does not start"))?;
    let mut version = 0;
    // SAFETY: a place for a number.
    unsafe { sys::cuDriverGetVersion(&mut version) }.result().map_err(cannot("the driver's version"))?;
    if version < VERSION {
        let [has, needs] = [version, VERSION].map(|v| format!("{}.{}", v / 1000, v % 1000 / 10));
        tracing::warn!("CUDA devices are left out: their driver has CUDA {has}, and {needs} is needed (release 535)");
        return Ok(Vec::new());
    }
    let count = result::device::get_count().map_err(cannot("the number of its cards"))?;
    let mut found = Vec::new();
    for ordinal in 0..count {
        match describe(ordinal, version) {
            Ok(card) => found.extend(divide(&card, parts)),
            Err(why) => tracing::debug!("CUDA's card {ordinal} is left out: {why}"),
        }
    }
    found.iter_mut().enumerate().for_each(|(number, found)| found.number = number);
    Ok(found)
}

/// What a card is, or what it lacks.
fn describe(ordinal: i32, version: i32) -> Result<Found, String> {
    use sys::CUdevice_attribute as Attribute;
    let device = result::device::get(ordinal).map_err(words)?;
    let name = result::device::get_name(device).map_err(words)?;
    // SAFETY: a device of the driver's.
    let attribute = |of| unsafe { result::device::get_attribute(device, of) }.map_err(words);
    let major = attribute(Attribute::CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR)?;
    let minor = attribute(Attribute::CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR)?;
    let capability = u32::try_from(10 * major + minor).unwrap_or(0);
    if capability < CAPABILITY {
        return Err(format!("{name} has compute capability {major}.{minor}, and 6.1 is needed"));
    }
    let processors = attribute(Attribute::CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT)?;
    let khz = attribute(Attribute::CU_DEVICE_ATTRIBUTE_CLOCK_RATE)?;
    let integrated = attribute(Attribute::CU_DEVICE_ATTRIBUTE_INTEGRATED)? != 0;
    // SAFETY: a device of the driver's.
    let memory = unsafe { result::device::total_mem(device) }.map_err(words)?;
    let cuda = format!("{}.{}", version / 1000, version % 1000 / 10);
    Ok(Found {
        number: 0,
        description: format!("{name} (compute capability {major}.{minor}, CUDA {cuda})"),
        kind: if integrated { DeviceKind::IntegratedGpu } else { DeviceKind::Gpu },
        device_id: pci_address(device)?,
        capability,
        card: Card { capability, processors: usize::try_from(processors).unwrap_or(1) },
        memory: memory as u64,
        flops_of_ms: FLOPS * u64::try_from(processors).unwrap_or(0) * u64::try_from(khz).unwrap_or(0),
        ordinal,
    })
}

fn pci_address(device: sys::CUdevice) -> Result<String, String> {
    let mut text = [0u8; 32];
    // SAFETY: a device of the driver's, and room for so many bytes of text.
    let call = unsafe { sys::cuDeviceGetPCIBusId(text.as_mut_ptr().cast(), text.len() as i32, device) };
    call.result().map_err(words)?;
    let end = text.iter().position(|&byte| byte == 0).unwrap_or(text.len());
    Ok(String::from_utf8_lossy(&text[..end]).to_ascii_lowercase())
}

/// A card as so many devices, each with its part of the memory.
fn divide(card: &Found, parts: u64) -> Vec<Found> {
    let parts = parts.clamp(1, MOST_VIRTUAL);
    let part = |i: u64| {
        let device_id = if i == 0 { card.device_id.clone() } else { format!("{}/{i}", card.device_id) };
        Found { device_id, memory: card.memory / parts, ..card.clone() }
    };
    (0..parts).map(part).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_card_is_divided() {
        let card = Found {
            number: 0,
            description: "card".into(),
            kind: DeviceKind::Gpu,
            device_id: "0000:01:00.0".into(),
            capability: 80,
            card: Card { capability: 80, processors: 1 },
            memory: 3000,
            flops_of_ms: 1,
            ordinal: 1,
        };
        assert!(divide(&card, 0).iter().eq([&card]));
        let parts = divide(&card, 3);
        let ids: Vec<_> = parts.iter().map(|part| part.device_id.as_str()).collect();
        assert_eq!(ids, ["0000:01:00.0", "0000:01:00.0/1", "0000:01:00.0/2"]);
        assert!(parts.iter().all(|part| part.memory == 1000 && part.ordinal == 1));
        assert_eq!(divide(&card, u64::MAX).len() as u64, MOST_VIRTUAL);
    }
}
