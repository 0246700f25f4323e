//! The functions of ggml.h and ggml-backend.h that are called, by name. Objects of the library stay opaque.

use std::ffi::{c_char, c_int, c_void};
use std::fmt;

/// A context of tensors, a tensor, a graph, a buffer, a buffer type, a device, a registry or a stream of the library.
pub(crate) type Object = *mut c_void;
type Text = *const c_char;
type F = f32;
type I = c_int;

/// `ggml_init_params`, which goes by value.
#[repr(C)]
pub(crate) struct InitParams {
    /// Bytes for the descriptions of tensors.
    pub(crate) size: usize,
    /// Null: the library takes them from its allocator.
    pub(crate) buffer: *mut c_void,
    /// True: tensors get no memory.
    pub(crate) no_alloc: bool,
}

/// `ggml_log_callback`: level, text, what was given with the function.
pub(crate) type LogCallback = unsafe extern "C" fn(c_int, Text, *mut c_void);
/// `ggml_abort_callback`: whether a graph that runs shall stop.
pub(crate) type AbortCallback = unsafe extern "C" fn(*mut c_void) -> bool;

/// What a library lacks.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Missing(pub Vec<&'static str>);

impl fmt::Display for Missing {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0.join(", "))
    }
}

macro_rules! functions {
    ($($name:ident($($arg:ty),*) $(-> $out:ty)?;)*) => {
        /// Every function that is called, found once when the library is opened.
        pub(crate) struct Functions {
            $(pub(crate) $name: unsafe extern "C" fn($($arg),*) $(-> $out)?,)*
            /// Whether `ggml_clamp` makes a tensor of its own: where it has no companion, it writes into its source.
            pub(crate) clamp_has_a_result: bool,
        }

        impl Functions {
            /// Finds all of them, or says which are not there.
            pub(crate) fn find(library: &libloading::Library) -> Result<Functions, Missing> {
                let mut missing = Vec::new();
                // SAFETY: the name is that of a function of ggml's public headers, and the type is the one that they declare for it.
                $(let $name = unsafe {
                    library.get::<unsafe extern "C" fn($($arg),*) $(-> $out)?>(concat!(stringify!($name), "\0").as_bytes())
                }
                .map_err(|_| missing.push(stringify!($name)));)*
                // SAFETY: the address is not used.
                let companion = unsafe { library.get::<*const ()>(b"ggml_clamp_inplace\0") };
                let clamp_has_a_result = companion.is_ok();
                match ($($name,)*) {
                    ($(Ok($name),)*) => Ok(Functions { $($name: *$name,)* clamp_has_a_result }),
                    _ => Err(Missing(missing)),
                }
            }
        }
    };
}

functions! {
    ggml_version() -> Text;
    ggml_log_set(LogCallback, *mut c_void);
    ggml_init(InitParams) -> Object;
    ggml_free(Object);
    ggml_tensor_overhead() -> usize;
    ggml_graph_overhead_custom(usize, bool) -> usize;
    ggml_new_graph_custom(Object, usize, bool) -> Object;
    ggml_build_forward_expand(Object, Object);
    ggml_graph_add_node(Object, Object);
    ggml_new_tensor_4d(Object, I, i64, i64, i64, i64) -> Object;
    ggml_view_4d(Object, Object, i64, i64, i64, i64, usize, usize, usize, usize) -> Object;
    ggml_permute(Object, Object, I, I, I, I) -> Object;

    ggml_add(Object, Object, Object) -> Object;
    ggml_sub(Object, Object, Object) -> Object;
    ggml_mul(Object, Object, Object) -> Object;
    ggml_div(Object, Object, Object) -> Object;
    ggml_add_id(Object, Object, Object, Object) -> Object;
    ggml_cast(Object, Object, I) -> Object;
    ggml_cont(Object, Object) -> Object;
    ggml_cpy(Object, Object, Object) -> Object;
    ggml_concat(Object, Object, Object, I) -> Object;
    ggml_cumsum(Object, Object) -> Object;
    ggml_mean(Object, Object) -> Object;
    ggml_sum_rows(Object, Object) -> Object;
    ggml_flash_attn_ext(Object, Object, Object, Object, Object, F, F, F) -> Object;
    ggml_flash_attn_ext_add_sinks(Object, Object);
    ggml_get_rows(Object, Object, Object) -> Object;
    ggml_set_rows(Object, Object, Object, Object) -> Object;
    ggml_mul_mat(Object, Object, Object) -> Object;
    ggml_mul_mat_id(Object, Object, Object, Object) -> Object;
    ggml_norm(Object, Object, F) -> Object;
    ggml_rms_norm(Object, Object, F) -> Object;
    ggml_l2_norm(Object, Object, F) -> Object;
    ggml_repeat_4d(Object, Object, i64, i64, i64, i64) -> Object;
    ggml_rope_ext(Object, Object, Object, Object, I, I, I, F, F, F, F, F, F) -> Object;
    ggml_scale_bias(Object, Object, F, F) -> Object;
    ggml_soft_max_ext(Object, Object, Object, F, F) -> Object;
    ggml_clamp(Object, Object, F, F) -> Object;
    ggml_reglu_split(Object, Object, Object) -> Object;
    ggml_geglu_split(Object, Object, Object) -> Object;
    ggml_swiglu_split(Object, Object, Object) -> Object;
    ggml_swiglu_oai(Object, Object, Object, F, F) -> Object;
    ggml_neg(Object, Object) -> Object;
    ggml_abs(Object, Object) -> Object;
    ggml_sqr(Object, Object) -> Object;
    ggml_sqrt(Object, Object) -> Object;
    ggml_exp(Object, Object) -> Object;
    ggml_log(Object, Object) -> Object;
    ggml_sin(Object, Object) -> Object;
    ggml_cos(Object, Object) -> Object;
    ggml_tanh(Object, Object) -> Object;
    ggml_relu(Object, Object) -> Object;
    ggml_sigmoid(Object, Object) -> Object;
    ggml_silu(Object, Object) -> Object;
    ggml_gelu(Object, Object) -> Object;
    ggml_gelu_erf(Object, Object) -> Object;
    ggml_gelu_quick(Object, Object) -> Object;
    ggml_softplus(Object, Object) -> Object;

    ggml_backend_reg_dev_count(Object) -> usize;
    ggml_backend_reg_dev_get(Object, usize) -> Object;
    ggml_backend_reg_get_proc_address(Object, Text) -> *mut c_void;
    ggml_backend_dev_memory(Object, *mut usize, *mut usize);
    ggml_backend_dev_get_props(Object, *mut c_void);
    ggml_backend_dev_init(Object, Text) -> Object;
    ggml_backend_dev_buffer_type(Object) -> Object;
    ggml_backend_dev_host_buffer_type(Object) -> Object;
    ggml_backend_dev_supports_op(Object, Object) -> bool;
    ggml_backend_buft_alloc_buffer(Object, usize) -> Object;
    ggml_backend_buft_get_alignment(Object) -> usize;
    ggml_backend_buft_get_max_size(Object) -> usize;
    ggml_backend_buft_get_alloc_size(Object, Object) -> usize;
    ggml_backend_buft_is_host(Object) -> bool;
    ggml_backend_buffer_free(Object);
    ggml_backend_buffer_get_base(Object) -> *mut c_void;
    ggml_backend_buffer_clear(Object, u8);
    ggml_backend_tensor_alloc(Object, Object, *mut c_void) -> I;
    ggml_backend_view_init(Object) -> I;
    ggml_backend_tensor_set(Object, *const c_void, usize, usize);
    ggml_backend_tensor_get(Object, *mut c_void, usize, usize);
    ggml_backend_tensor_set_async(Object, Object, *const c_void, usize, usize);
    ggml_backend_tensor_get_async(Object, Object, *mut c_void, usize, usize);
    ggml_backend_tensor_copy(Object, Object);
    ggml_backend_graph_compute(Object, Object) -> I;
    ggml_backend_graph_compute_async(Object, Object) -> I;
    ggml_backend_synchronize(Object);
    ggml_backend_event_new(Object) -> Object;
    ggml_backend_event_free(Object);
    ggml_backend_event_record(Object, Object);
    ggml_backend_event_synchronize(Object);
    ggml_backend_free(Object);
}
