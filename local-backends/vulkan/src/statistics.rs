//! What a driver's compiler says of the kernels: registers, spills, occupancy. RADV says it of cards that are not there
//! (`RADV_FORCE_FAMILY`), so that kernels can be judged without one.

use crate::instance::vulkan;
use crate::launch::{PENALTY_PART, ROW_LANES, number};
use crate::pipelines::{Kernel, Making, Pipelines, Variant};
use crate::products::{MOST_ROWS, PACK_LANES, rows_of_many};
use ash::vk;
use outboard_core::DType;
use std::collections::BTreeMap;
use std::fmt;

/// What the compiler says of one kernel.
#[derive(Clone, Debug)]
pub struct Statistics {
    /// The kernel and what it was compiled for.
    pub name: String,
    /// The driver's names and numbers.
    pub numbers: BTreeMap<String, u64>,
}

/// What is kept of the numbers: the others are no properties of the code, or follow from these.
const KEPT: [&str; 7] =
    ["VGPRs", "Spilled SGPRs", "Spilled VGPRs", "LDS size", "Scratch size", "Subgroups per SIMD", "Instructions"];

impl fmt::Display for Statistics {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:44}", self.name)?;
        for name in KEPT {
            let value = self.numbers.get(name).map_or_else(|| "-".to_owned(), u64::to_string);
            write!(f, " {name} {value:>5}")?;
        }
        Ok(())
    }
}

/// Compiles the kernels that decode and read prompts on the first device, and asks its driver about them. An error says what is missing.
pub fn statistics() -> Result<Vec<Statistics>, String> {
    let vulkan = vulkan().ok_or("there is no Vulkan")?;
    let physical = vulkan.physical.first().ok_or("there is no Vulkan device")?;
    let priorities = [1.0];
    let queues =
        [vk::DeviceQueueCreateInfo::default().queue_family_index(physical.family).queue_priorities(&priorities)];
    let extensions =
        [ash::khr::pipeline_executable_properties::NAME.as_ptr(), ash::khr::shader_integer_dot_product::NAME.as_ptr()];
    let mut features12 =
        vk::PhysicalDeviceVulkan12Features::default().timeline_semaphore(true).buffer_device_address(true);
    let mut dot = vk::PhysicalDeviceShaderIntegerDotProductFeatures::default().shader_integer_dot_product(true);
    let mut properties =
        vk::PhysicalDevicePipelineExecutablePropertiesFeaturesKHR::default().pipeline_executable_info(true);
    let info = vk::DeviceCreateInfo::default()
        .queue_create_infos(&queues)
        .enabled_extension_names(&extensions)
        .push_next(&mut features12)
        .push_next(&mut dot)
        .push_next(&mut properties);
    // SAFETY: a physical device of this instance; what it lacks is an error.
    let device = unsafe { vulkan.instance.create_device(physical.handle, &info, None) }
        .map_err(|e| format!("its driver tells nothing of kernels: {e}"))?;
    let told = ash::khr::pipeline_executable_properties::Device::new(&vulkan.instance, &device);
    let making = Making { flags: vk::PipelineCreateFlags::CAPTURE_STATISTICS_KHR, ..Making::default() };
    let all = Pipelines::new(&device, making).map_err(|e| e.to_string()).and_then(|pipelines| {
        let of = |(name, variant): (String, Variant)| {
            let pipeline = pipelines.get(&variant).map_err(|e| format!("{name}: {e}"))?;
            let info = vk::PipelineExecutableInfoKHR::default().pipeline(pipeline);
            // SAFETY: a pipeline of this device that was made to be asked.
            let list = unsafe { told.get_pipeline_executable_statistics(&info) }.map_err(|e| format!("{name}: {e}"))?;
            Ok(Statistics { name, numbers: list.iter().filter_map(number_of).collect() })
        };
        variants().into_iter().map(of).collect()
    });
    // SAFETY: the pipelines are gone, and nothing else was made of it.
    unsafe { device.destroy_device(None) };
    all
}

/// A statistic that is a whole number.
fn number_of(statistic: &vk::PipelineExecutableStatisticKHR) -> Option<(String, u64)> {
    let name = statistic.name_as_c_str().ok()?.to_string_lossy().into_owned();
    if statistic.format != vk::PipelineExecutableStatisticFormatKHR::UINT64 {
        return None;
    }
    // SAFETY: the format says which of the values it is.
    Some((name, unsafe { statistic.value.u64 }))
}

/// Kernels as models use them.
pub(crate) fn variants() -> Vec<(String, Variant)> {
    let mut variants = Vec::new();
    let mut add = |name: String, kernel, constants: Vec<u32>| variants.push((name, Variant { kernel, constants }));
    for dtype in DType::ALL.into_iter().filter(|dtype| !matches!(dtype, DType::I32 | DType::Q8_K)) {
        let of = number(dtype);
        for (lanes, rows, columns) in [(64, 4, 1), (128, 2, 1), (64, 4, 4), (ROW_LANES, rows_of_many(dtype) as u32, 8)]
        {
            let constants = vec![lanes, of, rows, columns, 1, 1];
            add(format!("mul_mat_vec {dtype} columns={columns} rows={rows}"), Kernel::MulMatVec, constants.clone());
            if dtype.is_quantized() {
                let rows = if columns == 8 { MOST_ROWS as u32 } else { rows };
                let constants = vec![lanes, of, rows, columns, 1, 1];
                add(format!("mul_mat_vec_dot {dtype} columns={columns} rows={rows}"), Kernel::MulMatVecDot, constants);
            }
        }
        if dtype.is_quantized() {
            add(format!("mul_mat_id_dot {dtype}"), Kernel::MulMatIdDot, vec![64, of, 4, 1, 1, 1]);
            add(format!("mul_mat_dot {dtype}"), Kernel::MulMatDot, vec![256, of, 1]);
            add(format!("mul_mat_id_tiles_dot {dtype}"), Kernel::MulMatIdTilesDot, vec![256, of, 1]);
        }
        add(format!("mul_mat_id {dtype}"), Kernel::MulMatId, vec![64, of, 4, 1, 1, 1]);
        add(format!("mul_mat {dtype}"), Kernel::MulMat, vec![256, of, 1]);
        add(format!("mul_mat_id_tiles {dtype}"), Kernel::MulMatIdTiles, vec![256, of, 1]);
        add(format!("get_rows {dtype}"), Kernel::GetRows, vec![256, of]);
    }
    for dtype in [DType::F32, DType::F16, DType::BF16, DType::Q8_0] {
        let of = number(dtype);
        for (length, fours, heads) in [(64, 1, 3), (128, 1, 8), (256, 2, 4)] {
            let constants = vec![ROW_LANES, of, of, number(DType::F32), length, fours, heads, 1];
            add(format!("flash_attn {dtype} head={length} heads={heads}"), Kernel::FlashAttn, constants);
        }
        add(format!("set_rows {dtype}"), Kernel::SetRows, vec![64, of]);
    }
    for (name, kernel, lanes) in [
        ("binary", Kernel::Binary, 256),
        ("glu", Kernel::Glu, 256),
        ("log_prob", Kernel::LogProb, 256),
        ("norm", Kernel::Norm, 256),
        ("rope", Kernel::Rope, 32),
        ("sample", Kernel::Sample, 256),
        ("soft_max", Kernel::SoftMax, 256),
        ("top_k", Kernel::TopK, 256),
        ("unary", Kernel::Unary, 256),
    ] {
        add(name.to_owned(), kernel, vec![lanes]);
    }
    add("flash_attn_parts".to_owned(), Kernel::FlashAttnParts, vec![ROW_LANES]);
    add("mul_mat_id_sort".to_owned(), Kernel::MulMatIdSort, vec![256]);
    let of = number(DType::Q4_0);
    add("mul_mat_vec Q4_0 gated".to_owned(), Kernel::MulMatVec, vec![64, of, 4, 1, 1, 1, 3]);
    add("rope to F16".to_owned(), Kernel::Rope, vec![32, 1, 1 + number(DType::F16)]);
    add("quantize".to_owned(), Kernel::Quantize, vec![PACK_LANES, 1]);
    add("norm scaled".to_owned(), Kernel::Norm, vec![256, 0, 1]);
    add("penalty".to_owned(), Kernel::Penalty, vec![256, PENALTY_PART as u32]);
    variants
}
