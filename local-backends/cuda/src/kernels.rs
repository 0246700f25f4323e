//! The kernels: their PTX, and functions of it, which the driver makes when they are first used.

use cudarc::driver::result::{self, DriverError};
use cudarc::driver::sys;
use outboard_core::DType;
use std::collections::HashMap;
use std::ffi::CString;

/// Lists kernels with the compute capabilities that there is PTX for, the lowest first.
macro_rules! kernels {
    ($($name:ident => $file:literal [$($compute:literal)+]),* $(,)?) => {
        /// A kernel, by its file in `kernels/`.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
        pub(crate) enum Kernel { $($name),* }

        impl Kernel {
            /// All of them.
            #[cfg(test)]
            pub(crate) const ALL: &'static [Kernel] = &[$(Kernel::$name),*];

            /// Its file's name.
            pub(crate) fn file(self) -> &'static str {
                match self { $(Kernel::$name => $file),* }
            }

            /// Its PTX, with the compute capability that it is for.
            pub(crate) fn ptx(self) -> &'static [(u32, &'static str)] {
                match self {
                    $(Kernel::$name => &[$(($compute, include_str!(concat!("../kernels/ptx/", $file, ".sm_", $compute, ".ptx")))),+]),*
                }
            }
        }
    };
}

kernels! {
    AddId => "add_id" [61],
    Argmax => "argmax" [61],
    Argsort => "argsort" [61],
    Binary => "binary" [61],
    Concat => "concat" [61],
    Cpy => "cpy" [61],
    FlashAttn => "flash_attn" [61],
    FlashAttnFew => "flash_attn_few" [61],
    FlashAttnParts => "flash_attn_parts" [61],
    FlashAttnTiles => "flash_attn_tiles" [75 80],
    GetRows => "get_rows" [61],
    Glu => "glu" [61],
    Halves => "halves" [75 80],
    LogProb => "log_prob" [61],
    MulMat => "mul_mat" [61 75 80],
    MulMatId => "mul_mat_id" [61 80],
    MulMatIdSort => "mul_mat_id_sort" [75],
    MulMatIdTiles => "mul_mat_id_tiles" [75 80],
    MulMatVecF32 => "mul_mat_vec_F32" [61],
    MulMatVecF16 => "mul_mat_vec_F16" [61],
    MulMatVecBf16 => "mul_mat_vec_BF16" [61],
    MulMatVecQ40 => "mul_mat_vec_Q4_0" [61 80],
    MulMatVecQ41 => "mul_mat_vec_Q4_1" [61 80],
    MulMatVecQ50 => "mul_mat_vec_Q5_0" [61 80],
    MulMatVecQ51 => "mul_mat_vec_Q5_1" [61 80],
    MulMatVecQ80 => "mul_mat_vec_Q8_0" [61 80],
    MulMatVecQ2K => "mul_mat_vec_Q2_K" [61 80],
    MulMatVecQ3K => "mul_mat_vec_Q3_K" [61 80],
    MulMatVecQ4K => "mul_mat_vec_Q4_K" [61 80],
    MulMatVecQ5K => "mul_mat_vec_Q5_K" [61 80],
    MulMatVecQ6K => "mul_mat_vec_Q6_K" [61 80],
    MulMatVecIq4Nl => "mul_mat_vec_IQ4_NL" [61 80],
    MulMatVecIq4Xs => "mul_mat_vec_IQ4_XS" [61 80],
    MulMatVecMxfp4 => "mul_mat_vec_MXFP4" [61 80],
    Norm => "norm" [61],
    Penalty => "penalty" [61],
    Quantize => "quantize" [61],
    Repeat => "repeat" [61],
    Rope => "rope" [61],
    RopeCache => "rope_cache" [61],
    Sample => "sample" [61],
    SetRows => "set_rows" [61],
    SoftMax => "soft_max" [61],
    SumRows => "sum_rows" [61],
    TopK => "top_k" [61],
    Unary => "unary" [61],
    Unpack => "unpack" [61],
}

impl Kernel {
    /// That of products with few columns, for weights of a type.
    pub(crate) fn mul_mat_vec(dtype: DType) -> Option<Kernel> {
        Some(match dtype {
            DType::F32 => Kernel::MulMatVecF32,
            DType::F16 => Kernel::MulMatVecF16,
            DType::BF16 => Kernel::MulMatVecBf16,
            DType::Q4_0 => Kernel::MulMatVecQ40,
            DType::Q4_1 => Kernel::MulMatVecQ41,
            DType::Q5_0 => Kernel::MulMatVecQ50,
            DType::Q5_1 => Kernel::MulMatVecQ51,
            DType::Q8_0 => Kernel::MulMatVecQ80,
            DType::Q2_K => Kernel::MulMatVecQ2K,
            DType::Q3_K => Kernel::MulMatVecQ3K,
            DType::Q4_K => Kernel::MulMatVecQ4K,
            DType::Q5_K => Kernel::MulMatVecQ5K,
            DType::Q6_K => Kernel::MulMatVecQ6K,
            DType::IQ4_NL => Kernel::MulMatVecIq4Nl,
            DType::IQ4_XS => Kernel::MulMatVecIq4Xs,
            DType::MXFP4 => Kernel::MulMatVecMxfp4,
            DType::I32 | DType::Q8_K => return None,
        })
    }

    /// Whether it is one of those that [`Kernel::mul_mat_vec`] gives.
    pub(crate) fn is_mul_mat_vec(self) -> bool {
        DType::ALL.into_iter().any(|dtype| Kernel::mul_mat_vec(dtype) == Some(self))
    }
}
/// Bytes of shared memory that a launch may add without asking for it.
pub(crate) const USUAL_SHARED: u32 = 48 << 10;

/// A function of a kernel: files whose code differs by type have one for each.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Variant {
    pub(crate) kernel: Kernel,
    /// Its name in the PTX.
    pub(crate) entry: String,
    /// Bytes of shared memory that a launch adds.
    pub(crate) shared: u32,
}

impl Variant {
    /// The function that has the kernel's name, and these words behind it.
    pub(crate) fn of(kernel: Kernel, words: &[&str]) -> Variant {
        let entry = [&[kernel.file()], words].concat().join("_");
        Variant { kernel, entry, shared: 0 }
    }

    /// With so many bytes of shared memory.
    pub(crate) fn with_shared(self, shared: u32) -> Variant {
        Variant { shared, ..self }
    }
}

/// A function that can be launched, and the bytes of shared memory that a launch adds. It lives as long as its context.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Function(pub(crate) sys::CUfunction, pub(crate) u32);

// SAFETY: a handle that any thread may use.
unsafe impl Send for Function {}
// SAFETY: as above.
unsafe impl Sync for Function {}

/// A module of a context, which is freed with it.
#[derive(Debug)]
struct Module(sys::CUmodule);

// SAFETY: a handle that any thread may use.
unsafe impl Send for Module {}

/// The kernels of a context.
#[derive(Debug, Default)]
pub(crate) struct Kernels {
    modules: HashMap<Kernel, Module>,
    functions: HashMap<Variant, Function>,
}

impl Kernels {
    /// The function of a variant, on a device of this compute capability whose context is this thread's.
    pub(crate) fn get(&mut self, variant: &Variant, capability: u32) -> Result<Function, DriverError> {
        if let Some(&function) = self.functions.get(variant) {
            return Ok(function);
        }
        let module = match self.modules.get(&variant.kernel) {
            Some(module) => module.0,
            None => {
                let module = load(variant.kernel, capability)?;
                self.modules.insert(variant.kernel, Module(module));
                module
            }
        };
        let none = |_| DriverError(sys::CUresult::CUDA_ERROR_NOT_FOUND);
        let name = CString::new(variant.entry.as_str()).map_err(none)?;
        // SAFETY: the module is of this thread's context.
        let function = Function(unsafe { result::module::get_function(module, name) }?, variant.shared);
        if variant.shared > USUAL_SHARED {
            let attribute = sys::CUfunction_attribute_enum::CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES;
            // SAFETY: a function of this thread's context.
            unsafe { result::function::set_function_attribute(function.0, attribute, variant.shared as i32) }?;
        }
        self.functions.insert(variant.clone(), function);
        Ok(function)
    }
}

/// Loads the newest PTX that suits a device.
fn load(kernel: Kernel, capability: u32) -> Result<sys::CUmodule, DriverError> {
    let suits = |&&(compute, _): &&(u32, &str)| compute <= capability;
    let none = DriverError(sys::CUresult::CUDA_ERROR_NO_BINARY_FOR_GPU);
    let (_, ptx) = kernel.ptx().iter().rev().find(suits).ok_or(none)?;
    let text = CString::new(*ptx).map_err(|_| none)?;
    // SAFETY: text that ends with a zero, which the driver reads during the call.
    unsafe { result::module::load_data(text.as_ptr().cast()) }
}

#[cfg(test)]
mod tests {
    use super::Kernel;
    use std::path::Path;

    #[test]
    fn every_file_is_a_kernel_and_was_built() {
        let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("kernels");
        let files = std::fs::read_dir(&folder).unwrap().map(|file| file.unwrap().path());
        let sources = files.filter(|path| path.extension().is_some_and(|e| e == "cu")).count();
        assert_eq!(Kernel::ALL.len(), sources);
        for kernel in Kernel::ALL {
            let source = std::fs::read_to_string(folder.join(format!("{}.cu", kernel.file()))).unwrap();
            let built = kernel.ptx().iter().map(|(compute, _)| compute.to_string()).collect::<Vec<_>>().join(" ");
            assert_eq!(source.lines().next(), Some(format!("// compute: {built}").as_str()), "{kernel:?}");
            for (compute, ptx) in kernel.ptx() {
                assert!(ptx.contains(".version 8.2") && ptx.contains(&format!(".target sm_{compute}")), "{kernel:?}");
            }
        }
    }
}
