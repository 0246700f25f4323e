//! The ops: one file each (or one per family), with parameters, the shape rule and what it validates.
//!
//! Names are ggml's; an op travels by its name with its parameters as [`Attrs`]. How to add one is in ARCHITECTURE.md.

use crate::attr::{AttrReader, Attrs};
use crate::dtype::DType;
use crate::shape::{DIMS, Layout};

pub mod add_id;
pub mod argmax;
pub mod argsort;
pub mod binary;
pub mod cast;
pub mod clamp;
pub mod concat;
pub mod cont;
pub mod cpy;
pub mod flash_attn;
pub mod get_rows;
pub mod glu;
pub mod log_prob;
pub mod mul_mat;
pub mod mul_mat_id;
pub mod norm;
pub mod penalty;
pub mod repeat;
pub mod rope;
pub mod sample;
pub mod scale;
pub mod set_rows;
pub mod soft_max;
pub mod sum_rows;
pub mod top_k;
pub mod unary;
pub mod view;

pub use add_id::AddId;
pub use argmax::Argmax;
pub use argsort::{Argsort, Order};
pub use binary::{Binary, BinaryKind};
pub use cast::Cast;
pub use clamp::Clamp;
pub use concat::Concat;
pub use cont::Cont;
pub use cpy::Cpy;
pub use flash_attn::{BLOCK_ROWS, FlashAttn};
pub use get_rows::GetRows;
pub use glu::{Glu, GluKind};
pub use log_prob::LogProb;
pub use mul_mat::MulMat;
pub use mul_mat_id::MulMatId;
pub use norm::{Norm, NormKind};
pub use penalty::{Penalties, Penalty};
pub use repeat::Repeat;
pub use rope::{Rope, RopeMode};
pub use sample::{Candidate, Sample, Sampler};
pub use scale::Scale;
pub use set_rows::SetRows;
pub use soft_max::SoftMax;
pub use sum_rows::{Reduce, ReduceKind};
pub use top_k::TopK;
pub use unary::{Unary, UnaryKind};
pub use view::{Permute, Reshape, View};

/// Most sources of one op.
pub const MAX_SRCS: usize = 8;

/// Where a result lies that has no memory of its own.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Alias {
    /// Index of the source in whose memory it lies.
    pub src: usize,
    /// Bytes from that source's first element.
    pub offset: usize,
}

/// What an op makes of its sources.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Inferred {
    /// Type, shape and strides of the result.
    pub layout: Layout,
    /// Set for views and for ops that write into a source.
    pub alias: Option<Alias>,
}

impl Inferred {
    /// A new contiguous tensor.
    pub fn new(dtype: DType, ne: [usize; DIMS]) -> Result<Inferred, String> {
        let layout = Layout::contiguous(dtype, ne).map_err(|e| e.to_string())?;
        Ok(Inferred { layout, alias: None })
    }

    /// A result in the memory of source `src`.
    pub fn alias(layout: Layout, src: usize, offset: usize) -> Inferred {
        Inferred { layout, alias: Some(Alias { src, offset }) }
    }
}

/// The sources of an op while its shape rule looks at them.
#[derive(Debug)]
pub struct Srcs<'a>(pub &'a [Option<Layout>]);

impl Srcs<'_> {
    /// Fails unless there are `min..=max` sources.
    pub fn count(&self, min: usize, max: usize) -> Result<(), String> {
        if (min..=max).contains(&self.0.len()) {
            return Ok(());
        }
        if min == max {
            Err(format!("takes {min} sources, not {}", self.0.len()))
        } else {
            Err(format!("takes {min} to {max} sources, not {}", self.0.len()))
        }
    }

    /// Source `i`, which must be there; `name` is what the op calls it.
    pub fn get(&self, i: usize, name: &str) -> Result<Layout, String> {
        self.opt(i).ok_or_else(|| format!("source {name} is missing"))
    }

    /// Source `i`, if there.
    pub fn opt(&self, i: usize) -> Option<Layout> {
        self.0.get(i).copied().flatten()
    }

    /// Source `i` with the given type.
    pub fn typed(&self, i: usize, name: &str, dtype: DType) -> Result<Layout, String> {
        let l = self.get(i, name)?;
        check(l.dtype() == dtype, || format!("{name} must be {dtype}, not {l}"))?;
        Ok(l)
    }

    /// Source `i` as F32 with dense rows, what most ops on activations take.
    pub fn f32_rows(&self, i: usize, name: &str) -> Result<Layout, String> {
        let l = self.typed(i, name, DType::F32)?;
        check(l.has_dense_rows(), || format!("{name} must have dense rows, not {l}"))?;
        Ok(l)
    }
}

/// `Err` with a text made only then.
pub(crate) fn check(ok: bool, why: impl FnOnce() -> String) -> Result<(), String> {
    if ok { Ok(()) } else { Err(why()) }
}

/// What every op file defines.
pub trait OpSpec: Clone + PartialEq + std::fmt::Debug {
    /// Names on the wire that this type covers.
    const NAMES: &'static [&'static str];
    /// Name on the wire and in reports.
    fn name(&self) -> &'static str;
    /// Parameters for the wire.
    fn attrs(&self, attrs: &mut Attrs);
    /// The op of that name (one of `NAMES`) with these parameters.
    fn from_attrs(name: &str, attrs: &mut AttrReader) -> Result<Self, String>;
    /// Shape rule: what the op makes of its sources, or why it cannot.
    fn infer(&self, srcs: &Srcs) -> Result<Inferred, String>;
    /// Sources whose memory the result may take over, if they are of the same layout and not needed afterwards: the
    /// kernel reads each element before it writes it.
    fn in_place(&self) -> &'static [usize] {
        &[]
    }
    /// The source that this op writes into, whose memory the result then is.
    fn writes(&self) -> Option<usize> {
        None
    }
    /// Floating-point operations, for estimates; one per result element unless an op knows better.
    fn flops(&self, _srcs: &Srcs, out: &Layout) -> u64 {
        out.elements() as u64
    }
}

macro_rules! ops {
    ($($name:ident),* $(,)?) => {
        /// Any op.
        #[derive(Clone, Debug, PartialEq)]
        pub enum Op {
            $(#[doc = concat!("See [`", stringify!($name), "`].")] $name($name)),*
        }

        $(impl From<$name> for Op {
            fn from(op: $name) -> Op {
                Op::$name(op)
            }
        })*

        impl Op {
            /// Every name that [`Op::from_attrs`] knows.
            pub fn names() -> impl Iterator<Item = &'static str> {
                [$($name::NAMES),*].into_iter().flatten().copied()
            }

            /// The op of that name, or what is wrong with name or parameters.
            pub fn from_attrs(name: &str, attrs: Attrs) -> Result<Op, String> {
                let mut reader = AttrReader::new(attrs);
                $(if $name::NAMES.contains(&name) {
                    let op = $name::from_attrs(name, &mut reader)?;
                    reader.finish()?;
                    return Ok(Op::$name(op));
                })*
                Err(format!("unknown op {name}"))
            }

            /// Name on the wire and in reports.
            pub fn name(&self) -> &'static str {
                match self { $(Op::$name(op) => op.name()),* }
            }

            /// Parameters for the wire.
            pub fn attrs(&self) -> Attrs {
                let mut attrs = Attrs::default();
                match self { $(Op::$name(op) => op.attrs(&mut attrs)),* }
                attrs
            }

            /// Shape rule, see [`OpSpec::infer`].
            pub fn infer(&self, srcs: &Srcs) -> Result<Inferred, String> {
                match self { $(Op::$name(op) => op.infer(srcs)),* }
            }

            /// See [`OpSpec::in_place`].
            pub fn in_place(&self) -> &'static [usize] {
                match self { $(Op::$name(op) => op.in_place()),* }
            }

            /// See [`OpSpec::writes`].
            pub fn writes(&self) -> Option<usize> {
                match self { $(Op::$name(op) => op.writes()),* }
            }

            /// See [`OpSpec::flops`].
            pub fn flops(&self, srcs: &Srcs, out: &Layout) -> u64 {
                match self { $(Op::$name(op) => op.flops(srcs, out)),* }
            }
        }
    };
}

/// Defines an enum of functions with their names on the wire, for families of ops that differ only in the function.
macro_rules! kinds {
    ($(#[$meta:meta])* $enum:ident { $($(#[$vmeta:meta])* $variant:ident => $text:literal),* $(,)? }) => {
        $(#[$meta])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
        pub enum $enum { $($(#[$vmeta])* $variant),* }

        impl $enum {
            /// Every function of the family.
            pub const ALL: &'static [$enum] = &[$($enum::$variant),*];
            /// Their names on the wire, in the same order.
            pub const NAMES: &'static [&'static str] = &[$($text),*];

            /// Name on the wire.
            pub const fn name(self) -> &'static str {
                match self { $($enum::$variant => $text),* }
            }

            /// The function of that name.
            pub fn from_name(name: &str) -> Result<$enum, String> {
                $enum::ALL.iter().copied().find(|k| k.name() == name).ok_or_else(|| format!("unknown op {name}"))
            }
        }
    };
}
pub(crate) use kinds;

ops! {
    AddId, Argmax, Argsort, Binary, Cast, Clamp, Concat, Cont, Cpy, FlashAttn, GetRows, Glu, LogProb, MulMat, MulMatId,
    Norm, Penalty, Permute, Reduce, Repeat, Reshape, Rope, Sample, Scale, SetRows, SoftMax, TopK, Unary, View,
}

impl Op {
    /// Whether nothing is computed: the result is another way to look at a source.
    pub fn is_view(&self) -> bool {
        matches!(self, Op::View(_) | Op::Reshape(_) | Op::Permute(_))
    }
}
