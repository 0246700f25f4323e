//! Matrix units (VK_KHR_cooperative_matrix): what a device has of them, and which drivers are not believed.

use ash::vk;

/// Environment variable: if it says something, matrix units are used where a driver has them. On the one card that ran them (H100), prompts were slower than
/// with plain tiles.
pub const UNITS: &str = "OUTBOARD_VULKAN_UNITS";

/// What a device's matrix units multiply, halves into floats: M x K with K x N, by a subgroup of so many invocations.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Units {
    /// Rows of the first matrix.
    pub m: u32,
    /// Columns of the second one.
    pub n: u32,
    /// What is summed over.
    pub k: u32,
    /// Invocations of a subgroup.
    pub subgroup: u32,
    /// Results of theirs that a subgroup has of a product with many columns, by rows and columns.
    pub results: [u32; 2],
}

/// Invocations of a workgroup of a product.
pub(crate) const LANES: u32 = 256;
/// Columns up to which a workgroup has few of them.
const FEW: usize = 64;
/// What a subgroup may have of a product with more columns: the more, the less often weights are brought.
const RESULTS: [[u32; 2]; 4] = [[2, 4], [2, 2], [1, 2], [1, 1]];

/// How a workgroup divides its tile: units' results of a subgroup, and subgroups, both by rows and columns.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Tile {
    units: Units,
    results: [u32; 2],
    subgroups: [u32; 2],
}

impl Tile {
    /// Rows and columns.
    pub(crate) fn size(&self) -> [usize; 2] {
        let Tile { units, results, subgroups } = self;
        [results[0] * subgroups[0] * units.m, results[1] * subgroups[1] * units.n].map(|size| size as usize)
    }

    /// The kernel's constants, behind the type and whether rows are whole.
    pub(crate) fn constants(&self) -> [u32; 8] {
        let Units { m, n, k, subgroup, .. } = self.units;
        let ([results_m, results_n], [subgroups_m, subgroups_n]) = (self.results, self.subgroups);
        [m, n, k, results_m, results_n, subgroups_m, subgroups_n, subgroup]
    }

    /// Bytes of shared memory: rows and columns of 64 halves and 8 more, results of units, and what every kernel may have.
    fn shared(&self) -> u32 {
        let [rows, columns] = self.size();
        let [across, down] = self.subgroups;
        (rows + columns) as u32 * 144 + across * down * self.units.m * self.units.n * 4 + 4 * LANES + 2048
    }
}

impl Units {
    /// The tile of a product with so many columns.
    pub(crate) fn tile(self, columns: usize) -> Tile {
        let subgroups = LANES / self.subgroup;
        // Twice as many by rows where they are no square.
        let down = 1 << (subgroups.ilog2() / 2);
        let results = if columns <= FEW { [1, 1] } else { self.results };
        Tile { units: self, results, subgroups: [subgroups / down, down] }
    }

    /// With as many results as so much shared memory has room for, if the kernel can use them.
    fn with_room(self, shared: u32) -> Option<Units> {
        RESULTS.into_iter().map(|results| Units { results, ..self }).find(|units| units.is_usable(shared))
    }

    /// Whether the kernel can use them, with so much shared memory.
    fn is_usable(self, shared: u32) -> bool {
        let fits = |columns| {
            let tile = self.tile(columns);
            // Invocations bring 32 rows at once.
            tile.shared() <= shared && tile.size().iter().all(|size| size % 32 == 0)
        };
        let sizes = [self.m, self.n, self.k, self.subgroup];
        sizes.iter().all(|size| size.is_power_of_two() && (8..=64).contains(size))
            && (self.m * self.n).is_multiple_of(self.subgroup)
            && [FEW, FEW + 1].into_iter().all(fits)
    }
}

/// The units of a device that has the extension, if they multiply halves into floats in a size that the kernel can use.
pub(crate) fn units(
    loader: &ash::Entry,
    instance: &ash::Instance,
    device: vk::PhysicalDevice,
    subgroup: u32,
    shared: u32,
) -> Option<Units> {
    let of = ash::khr::cooperative_matrix::Instance::new(loader, instance);
    // SAFETY: a physical device of this instance that has the extension.
    let all = unsafe { of.get_physical_device_cooperative_matrix_properties(device) }.unwrap_or_default();
    let (half, float) = (vk::ComponentTypeKHR::FLOAT16, vk::ComponentTypeKHR::FLOAT32);
    all.iter()
        .filter(|p| [p.a_type, p.b_type] == [half; 2] && [p.c_type, p.result_type] == [float; 2])
        .filter(|p| p.scope == vk::ScopeKHR::SUBGROUP && p.saturating_accumulation == 0)
        .map(|p| Units { m: p.m_size, n: p.n_size, k: p.k_size, subgroup, results: RESULTS[0] })
        .find_map(|units| units.with_room(shared))
}

/// A driver that is not believed, whatever its version, and why.
struct Unbelieved {
    driver: vk::DriverId,
    why: &'static str,
}

/// What users of other programs have found: wrong results that show only with some models, so that a check may not find them.
const UNBELIEVED: [Unbelieved; 3] = [
    Unbelieved { driver: vk::DriverId::AMD_PROPRIETARY, why: "it offers matrix units on cards without any" },
    Unbelieved { driver: vk::DriverId::AMD_OPEN_SOURCE, why: "it offers matrix units on cards without any" },
    Unbelieved { driver: vk::DriverId::INTEL_PROPRIETARY_WINDOWS, why: "its matrix units gave wrong results" },
];

/// Why a driver's matrix units are not used, if it is one of those.
pub(crate) fn unbelieved(driver: vk::DriverId) -> Option<&'static str> {
    UNBELIEVED.iter().find(|of| of.driver == driver).map(|of| of.why)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Shared memory that NVIDIA's cards say they have.
    const SHARED: u32 = 48 << 10;

    #[test]
    fn units_that_exist_have_tiles() {
        let of_nvidia = Units { m: 16, n: 16, k: 16, subgroup: 32, results: RESULTS[0] };
        let of_software = Units { m: 8, n: 8, k: 8, subgroup: 8, results: RESULTS[0] };
        let sizes = |units: Option<Units>| units.map(|units| [units.tile(16).size(), units.tile(512).size()]);
        for units in [of_nvidia, of_software] {
            assert_eq!(sizes(units.with_room(SHARED)), Some([[64, 32], [128, 128]]), "{units:?}");
            assert_eq!(sizes(units.with_room(32 << 10)), Some([[64, 32], [64, 64]]), "{units:?} with less room");
            assert_eq!(sizes(units.with_room(16 << 10)), None, "{units:?} with too little");
        }
        assert!(Units { m: 16, n: 8, k: 8, subgroup: 128, ..of_nvidia }.with_room(SHARED).is_none());
        assert!(Units { k: 4, ..of_nvidia }.with_room(SHARED).is_none());
    }

    #[test]
    fn drivers_are_known_by_their_numbers() {
        assert!(unbelieved(vk::DriverId::AMD_PROPRIETARY).is_some());
        assert!(
            unbelieved(vk::DriverId::NVIDIA_PROPRIETARY).is_none() && unbelieved(vk::DriverId::MESA_RADV).is_none()
        );
    }
}
