//! Which instruction sets this processor has, and the choice among kernels.

/// An instruction set that this processor has: holding a value is the proof, there is no other way to get one.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Isa(Kind);

#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, PartialOrd, Ord)]
pub(crate) enum Kind {
    /// Plain Rust, vectorized by the compiler for the target's baseline.
    Portable,
    /// AVX2, FMA and F16C.
    #[cfg(target_arch = "x86_64")]
    Avx2,
    /// AVX-VNNI (VPDPBUSD of 256 bits) on top of AVX2: processors of today without AVX-512.
    #[cfg(target_arch = "x86_64")]
    AvxVnni,
    /// AVX-512 F, BW, DQ, VL and VNNI, on top of AVX2. Processors with AVX-512 but no VNNI run the AVX2 kernels, which gain
    /// little from 512 bits alone.
    #[cfg(target_arch = "x86_64")]
    Avx512,
    /// NEON, which is aarch64's baseline.
    #[cfg(target_arch = "aarch64")]
    Neon,
    /// NEON with the dot-product extension (SDOT).
    #[cfg(target_arch = "aarch64")]
    NeonDot,
}

impl Isa {
    /// Plain Rust, which always works.
    pub const PORTABLE: Isa = Isa(Kind::Portable);

    /// The best there is.
    pub fn detect() -> Isa {
        Isa::available().last().copied().unwrap_or(Isa::PORTABLE)
    }

    /// Everything that runs here, from the plainest to the best.
    pub fn available() -> Vec<Isa> {
        #[allow(unused_mut)]
        let mut all = vec![Isa::PORTABLE];
        #[cfg(target_arch = "x86_64")]
        {
            use std::arch::is_x86_feature_detected as has;
            let avx2 = has!("avx2") && has!("fma") && has!("f16c");
            let avx512 = has!("avx512f") && has!("avx512bw") && has!("avx512dq") && has!("avx512vl");
            if avx2 {
                all.push(Isa(Kind::Avx2));
            }
            if avx2 && has!("avxvnni") {
                all.push(Isa(Kind::AvxVnni));
            }
            if avx2 && avx512 && has!("avx512vnni") {
                all.push(Isa(Kind::Avx512));
            }
        }
        #[cfg(target_arch = "aarch64")]
        {
            all.push(Isa(Kind::Neon));
            if std::arch::is_aarch64_feature_detected!("dotprod") {
                all.push(Isa(Kind::NeonDot));
            }
        }
        all
    }

    /// Name for reports.
    pub const fn name(self) -> &'static str {
        match self.0 {
            Kind::Portable => "portable",
            #[cfg(target_arch = "x86_64")]
            Kind::Avx2 => "avx2",
            #[cfg(target_arch = "x86_64")]
            Kind::AvxVnni => "avx-vnni",
            #[cfg(target_arch = "x86_64")]
            Kind::Avx512 => "avx512",
            #[cfg(target_arch = "aarch64")]
            Kind::Neon => "neon",
            #[cfg(target_arch = "aarch64")]
            Kind::NeonDot => "neon+dotprod",
        }
    }

    pub(crate) const fn kind(self) -> Kind {
        self.0
    }
}

/// Defines a function that runs one body under the features of the chosen [`Isa`]: the compiler makes a version of the
/// body, which must be `#[inline(always)]`, for each.
macro_rules! per_isa {
    ($(#[$meta:meta])* $vis:vis fn $name:ident($($arg:ident: $ty:ty),* $(,)?) $(-> $ret:ty)? = $body:path) => {
        $(#[$meta])*
        #[allow(clippy::too_many_arguments)]
        $vis fn $name(isa: $crate::kernels::Isa, $($arg: $ty),*) $(-> $ret)? {
            #[cfg(target_arch = "x86_64")]
            #[target_feature(enable = "avx2,fma,f16c")]
            #[allow(clippy::too_many_arguments)]
            fn avx2($($arg: $ty),*) $(-> $ret)? {
                $body($($arg),*)
            }
            #[cfg(target_arch = "x86_64")]
            #[target_feature(enable = "avx2,fma,f16c,avx512f,avx512bw,avx512dq,avx512vl,avx512vnni")]
            #[allow(clippy::too_many_arguments)]
            fn avx512($($arg: $ty),*) $(-> $ret)? {
                $body($($arg),*)
            }
            match isa.kind() {
                $crate::kernels::isa::Kind::Portable => $body($($arg),*),
                // SAFETY: an Isa of these kinds exists only where these features are; VPDPBUSD is of no use to floats.
                #[cfg(target_arch = "x86_64")]
                $crate::kernels::isa::Kind::Avx2 | $crate::kernels::isa::Kind::AvxVnni => unsafe { avx2($($arg),*) },
                // SAFETY: as above.
                #[cfg(target_arch = "x86_64")]
                $crate::kernels::isa::Kind::Avx512 => unsafe { avx512($($arg),*) },
                // The baseline is NEON, and SDOT is of no use to floats.
                #[cfg(target_arch = "aarch64")]
                $crate::kernels::isa::Kind::Neon | $crate::kernels::isa::Kind::NeonDot => $body($($arg),*),
            }
        }
    };
}
pub(crate) use per_isa;
