//! The kernels: their SPIR-V, and pipelines made of it when they are first used.

use crate::gpu::PUSH_BYTES;
use ash::vk;
use outboard_core::lock;
use std::collections::HashMap;
use std::sync::{Arc, Mutex};

/// Lists kernels with their SPIR-V.
macro_rules! kernels {
    ($($name:ident => $file:literal),* $(,)?) => {
        /// A kernel, by its file in `shaders/`.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
        pub(crate) enum Kernel { $($name),* }

        impl Kernel {
            /// All of them.
            pub(crate) const ALL: &'static [Kernel] = &[$(Kernel::$name),*];

            /// Its SPIR-V.
            pub(crate) fn code(self) -> &'static [u8] {
                match self { $(Kernel::$name => include_bytes!(concat!("../spirv/", $file, ".spv"))),* }
            }
        }
    };
}

kernels! {
    AddId => "add_id",
    Argmax => "argmax",
    Argsort => "argsort",
    Binary => "binary",
    Concat => "concat",
    Copy => "copy",
    Cpy => "cpy",
    FlashAttn => "flash_attn",
    FlashAttnParts => "flash_attn_parts",
    GetRows => "get_rows",
    Glu => "glu",
    Halves => "halves",
    LogProb => "log_prob",
    MulMat => "mul_mat",
    MulMatDot => "mul_mat_dot",
    MulMatId => "mul_mat_id",
    MulMatIdDot => "mul_mat_id_dot",
    MulMatIdSort => "mul_mat_id_sort",
    MulMatIdTiles => "mul_mat_id_tiles",
    MulMatIdTilesDot => "mul_mat_id_tiles_dot",
    MulMatUnits => "mul_mat_units",
    MulMatVec => "mul_mat_vec",
    MulMatVecDot => "mul_mat_vec_dot",
    Norm => "norm",
    Penalty => "penalty",
    Quantize => "quantize",
    Repeat => "repeat",
    Rope => "rope",
    Sample => "sample",
    SetRows => "set_rows",
    SoftMax => "soft_max",
    SumRows => "sum_rows",
    TopK => "top_k",
    Unary => "unary",
    Unpack => "unpack",
}

/// A kernel with its specialisation constants, the first of which is the size of a workgroup.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Variant {
    pub(crate) kernel: Kernel,
    pub(crate) constants: Vec<u32>,
}

/// How pipelines are made.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Making<'a> {
    pub(crate) flags: vk::PipelineCreateFlags,
    /// What the driver once gave for its cache; nothing else, and nothing damaged.
    pub(crate) cached: &'a [u8],
    /// Whether the driver says where it had one from.
    pub(crate) has_feedback: bool,
    /// Whether it can promise whole subgroups, which matrix units ask for.
    pub(crate) has_full_subgroups: bool,
}

/// How many pipelines there are.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Counts {
    /// All of them.
    pub(crate) made: usize,
    /// Those that the driver says it had in its cache.
    pub(crate) from_cache: usize,
    /// Those that nobody has asked [`Pipelines::cached`] for.
    pub(crate) new: usize,
}

/// The pipelines of a device.
pub(crate) struct Pipelines {
    device: ash::Device,
    /// That of every pipeline: nothing but push constants.
    pub(crate) layout: vk::PipelineLayout,
    /// The driver's own; none if it cannot have one.
    cache: vk::PipelineCache,
    flags: vk::PipelineCreateFlags,
    has_feedback: bool,
    has_full_subgroups: bool,
    /// A driver compiles for a while: then only those wait who need the same one.
    made: Mutex<HashMap<Variant, Arc<Mutex<Option<vk::Pipeline>>>>>,
    counts: Mutex<Counts>,
}

impl Pipelines {
    pub(crate) fn new(device: &ash::Device, making: Making) -> Result<Pipelines, vk::Result> {
        let ranges = [vk::PushConstantRange::default().stage_flags(vk::ShaderStageFlags::COMPUTE).size(PUSH_BYTES)];
        let info = vk::PipelineLayoutCreateInfo::default().push_constant_ranges(&ranges);
        // SAFETY: the device lives, and the structure is whole.
        let layout = unsafe { device.create_pipeline_layout(&info, None) }?;
        let cache = |data| {
            let info = vk::PipelineCacheCreateInfo::default().initial_data(data);
            // SAFETY: as above; the data is what this driver gave.
            unsafe { device.create_pipeline_cache(&info, None) }
        };
        let cache = cache(making.cached).or_else(|_| cache(&[])).unwrap_or_default();
        let Making { flags, has_feedback, has_full_subgroups, .. } = making;
        Ok(Pipelines {
            device: device.clone(),
            layout,
            cache,
            flags,
            has_feedback,
            has_full_subgroups,
            made: Mutex::default(),
            counts: Mutex::default(),
        })
    }

    /// The pipeline of a variant, made if it is not there.
    pub(crate) fn get(&self, variant: &Variant) -> Result<vk::Pipeline, vk::Result> {
        let place = lock(&self.made).entry(variant.clone()).or_default().clone();
        let mut place = lock(&place);
        if let Some(pipeline) = *place {
            return Ok(pipeline);
        }
        let (pipeline, from_cache) = self.make(variant)?;
        *place = Some(pipeline);
        let mut counts = lock(&self.counts);
        counts.made += 1;
        if from_cache {
            counts.from_cache += 1;
        } else {
            counts.new += 1;
        }
        Ok(pipeline)
    }

    pub(crate) fn counts(&self) -> Counts {
        *lock(&self.counts)
    }

    /// What the driver has compiled, for [`Making::cached`].
    pub(crate) fn cached(&self) -> Result<Vec<u8>, vk::Result> {
        lock(&self.counts).new = 0;
        if self.cache == vk::PipelineCache::null() {
            return Ok(Vec::new());
        }
        // SAFETY: the device and its cache live; the cache may be used by several threads.
        unsafe { self.device.get_pipeline_cache_data(self.cache) }
    }

    /// Makes one, and says whether the driver had it in its cache.
    fn make(&self, variant: &Variant) -> Result<(vk::Pipeline, bool), vk::Result> {
        let words: Vec<u32> =
            variant.kernel.code().as_chunks::<4>().0.iter().map(|word| u32::from_le_bytes(*word)).collect();
        let info = vk::ShaderModuleCreateInfo::default().code(&words);
        // SAFETY: the device lives, and the code is what glslang made.
        let module = unsafe { self.device.create_shader_module(&info, None) }?;
        let entry = |i: usize| vk::SpecializationMapEntry { constant_id: i as u32, offset: 4 * i as u32, size: 4 };
        let entries: Vec<_> = (0..variant.constants.len()).map(entry).collect();
        let data: Vec<u8> = variant.constants.iter().flat_map(|constant| constant.to_le_bytes()).collect();
        let special = vk::SpecializationInfo::default().map_entries(&entries).data(&data);
        let stage_flags = match variant.kernel {
            Kernel::MulMatUnits if self.has_full_subgroups => {
                vk::PipelineShaderStageCreateFlags::REQUIRE_FULL_SUBGROUPS
            }
            _ => vk::PipelineShaderStageCreateFlags::empty(),
        };
        let stage = vk::PipelineShaderStageCreateInfo::default()
            .flags(stage_flags)
            .stage(vk::ShaderStageFlags::COMPUTE)
            .module(module)
            .name(c"main")
            .specialization_info(&special);
        let (mut whole, mut stages) = (vk::PipelineCreationFeedback::default(), [Default::default()]);
        let mut feedback = vk::PipelineCreationFeedbackCreateInfo::default()
            .pipeline_creation_feedback(&mut whole)
            .pipeline_stage_creation_feedbacks(&mut stages);
        let mut info = vk::ComputePipelineCreateInfo::default().flags(self.flags).stage(stage).layout(self.layout);
        if self.has_feedback {
            info = info.push_next(&mut feedback);
        }
        // SAFETY: module and layout are of this device; the constants have the types that the shader declares, four bytes each.
        let made = unsafe { self.device.create_compute_pipelines(self.cache, &[info], None) };
        // SAFETY: a module is not needed once its pipeline was made.
        unsafe { self.device.destroy_shader_module(module, None) };
        let hit = vk::PipelineCreationFeedbackFlags::VALID
            | vk::PipelineCreationFeedbackFlags::APPLICATION_PIPELINE_CACHE_HIT;
        match made {
            Ok(pipelines) => {
                let pipeline = pipelines.first().copied().ok_or(vk::Result::ERROR_UNKNOWN)?;
                Ok((pipeline, whole.flags.contains(hit)))
            }
            Err((_, error)) => Err(error),
        }
    }
}

impl Drop for Pipelines {
    fn drop(&mut self) {
        // SAFETY: the device is idle and about to be destroyed.
        unsafe {
            for pipeline in lock(&self.made).values().filter_map(|place| *lock(place)) {
                self.device.destroy_pipeline(pipeline, None);
            }
            self.device.destroy_pipeline_cache(self.cache, None);
            self.device.destroy_pipeline_layout(self.layout, None);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::Kernel;
    use std::path::Path;

    #[test]
    fn every_shader_is_a_kernel_and_was_built() {
        let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("shaders");
        let files = std::fs::read_dir(folder).unwrap().map(|file| file.unwrap().path());
        let shaders = files.filter(|path| path.extension().is_some_and(|e| e == "comp")).count();
        assert_eq!(Kernel::ALL.len(), shaders);
        for kernel in Kernel::ALL {
            let code = kernel.code();
            // The number that SPIR-V begins with, and its version: 1.5.
            assert_eq!(code[..8], [0x0723_0203u32.to_le_bytes(), 0x0001_0500u32.to_le_bytes()].concat(), "{kernel:?}");
            assert!(code.len() % 4 == 0, "{kernel:?}");
        }
    }
}
