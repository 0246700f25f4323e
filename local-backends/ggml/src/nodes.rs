//! Constructors of ggml's that take parameters beside tensors.
//!
//! Every block below calls a constructor with a context that has room for the tensor that it makes and with tensors of this library, and that
//! is what makes it sound. What a constructor asserts of shapes is the caller's duty: it would end the process.

use crate::functions::Functions;
use crate::tensors::{T, Tensors, kind};
use outboard_core::op::{Rope, RopeMode};
use outboard_core::{DIMS, DType, Layout};

/// `ggml_norm` and its like: context, source, epsilon.
pub(crate) type WithEps =
    unsafe extern "C" fn(crate::functions::Object, crate::functions::Object, f32) -> crate::functions::Object;

fn contiguous(dtype: DType, ne: [usize; DIMS]) -> Option<Layout> {
    Layout::contiguous(dtype, ne).ok()
}

impl Tensors {
    pub(crate) fn cast(&mut self, x: T, to: DType) -> Option<T> {
        let (layout, to) = (contiguous(to, x.layout.ne())?, kind(to)?);
        // SAFETY: see the module.
        self.with(layout, |f, context| unsafe { (f.ggml_cast)(context, x.object(), to) })
    }

    pub(crate) fn concat(&mut self, layout: Layout, [a, b]: [T; 2], dim: usize) -> Option<T> {
        // SAFETY: see the module.
        self.with(layout, |f, context| unsafe { (f.ggml_concat)(context, a.object(), b.object(), dim as i32) })
    }

    pub(crate) fn repeat(&mut self, x: T, ne: [usize; DIMS]) -> Option<T> {
        let (layout, [n0, n1, n2, n3]) = (contiguous(x.layout.dtype(), ne)?, ne.map(|n| n as i64));
        // SAFETY: see the module.
        self.with(layout, |f, context| unsafe { (f.ggml_repeat_4d)(context, x.object(), n0, n1, n2, n3) })
    }

    pub(crate) fn norm(&mut self, x: T, new: impl FnOnce(&Functions) -> WithEps, eps: f32) -> Option<T> {
        let layout = contiguous(DType::F32, x.layout.ne())?;
        // SAFETY: see the module.
        self.with(layout, |f, context| unsafe { new(f)(context, x.object(), eps) })
    }

    pub(crate) fn scale(&mut self, x: T, scale: f32, bias: f32) -> Option<T> {
        // SAFETY: see the module.
        self.with(x.layout, |f, context| unsafe { (f.ggml_scale_bias)(context, x.object(), scale, bias) })
    }

    /// Written into x, where ggml's has no result of its own.
    pub(crate) fn clamp(&mut self, x: T, min: f32, max: f32) -> Option<T> {
        // SAFETY: see the module.
        self.with(x.layout, |f, context| unsafe { (f.ggml_clamp)(context, x.object(), min, max) })
    }

    pub(crate) fn soft_max(&mut self, x: T, mask: Option<T>, scale: f32) -> Option<T> {
        let mask = mask.map_or(std::ptr::null_mut(), |mask| mask.object());
        // SAFETY: see the module; the mask may be null.
        self.with(x.layout, |f, context| unsafe { (f.ggml_soft_max_ext)(context, x.object(), mask, scale, 0.0) })
    }

    pub(crate) fn swiglu_oai(&mut self, [gate, up]: [T; 2], alpha: f32, limit: f32) -> Option<T> {
        let layout = contiguous(DType::F32, gate.layout.ne())?;
        // SAFETY: see the module.
        self.with(layout, |f, context| unsafe {
            (f.ggml_swiglu_oai)(context, gate.object(), up.object(), alpha, limit)
        })
    }

    pub(crate) fn rope(&mut self, [x, pos]: [T; 2], factors: Option<T>, op: &Rope) -> Option<T> {
        let factors = factors.map_or(std::ptr::null_mut(), |factors| factors.object());
        let layout = contiguous(DType::F32, x.layout.ne())?;
        let n_dims = i32::try_from(op.n_dims).ok()?;
        let context_length = i32::try_from(op.n_ctx_orig).ok()?;
        // GGML_ROPE_TYPE_NORMAL and GGML_ROPE_TYPE_NEOX.
        let mode = match op.mode {
            RopeMode::Normal => 0,
            RopeMode::Neox => 2,
        };
        let Rope { freq_base, freq_scale, ext_factor, attn_factor, beta_fast, beta_slow, .. } = *op;
        // SAFETY: see the module; the factors may be null.
        self.with(layout, |f, context| unsafe {
            (f.ggml_rope_ext)(
                context,
                x.object(),
                pos.object(),
                factors,
                n_dims,
                mode,
                context_length,
                freq_base,
                freq_scale,
                ext_factor,
                attn_factor,
                beta_fast,
                beta_slow,
            )
        })
    }

    pub(crate) fn attention(
        &mut self,
        layout: Layout,
        [q, k, v]: [T; 3],
        [mask, sinks]: [Option<T>; 2],
        scale: f32,
        softcap: f32,
    ) -> Option<T> {
        let mask = mask.map_or(std::ptr::null_mut(), |mask| mask.object());
        // SAFETY: see the module; the mask may be null.
        self.with(layout, |f, context| unsafe {
            let node = (f.ggml_flash_attn_ext)(context, q.object(), k.object(), v.object(), mask, scale, 0.0, softcap);
            if let Some(sinks) = sinks
                && !node.is_null()
            {
                (f.ggml_flash_attn_ext_add_sinks)(node, sinks.object());
            }
            node
        })
    }
}
