//! Values of 32 lanes. A row has 32 bits of each lane; a value of 64 bits takes two rows, the low half first. Values of 8 and 16 bits
//! are in the low bits of a row.

/// 32 bits of every lane.
pub(crate) type Row = [u32; 32];

/// Arithmetic of all lanes: registers, which rows are the sources, and where the result goes. Lanes that do not take part are computed,
/// too, and thrown away; so no function may panic, whatever the values.
pub(crate) type AluFn = fn(&[Row], &[u32; 4], &mut [Row; 2]);

/// What a lane's value can be seen as.
pub(crate) trait Lane: Copy {
    /// The rows of one value.
    type View<'a>;
    fn view(rows: &[Row], row: u32) -> Self::View<'_>;
    fn get(view: &Self::View<'_>, lane: usize) -> Self;
    fn put(self, out: &mut [Row; 2], lane: usize);
}

macro_rules! narrow {
    ($ty:ty, $from:expr, $to:expr) => {
        impl Lane for $ty {
            type View<'a> = &'a Row;
            #[inline(always)]
            fn view(rows: &[Row], row: u32) -> &Row {
                &rows[row as usize]
            }
            #[inline(always)]
            fn get(view: &&Row, lane: usize) -> Self {
                $from(view[lane])
            }
            #[inline(always)]
            fn put(self, out: &mut [Row; 2], lane: usize) {
                out[0][lane] = $to(self);
            }
        }
    };
}

macro_rules! wide {
    ($ty:ty, $from:expr, $to:expr) => {
        impl Lane for $ty {
            type View<'a> = (&'a Row, &'a Row);
            #[inline(always)]
            fn view(rows: &[Row], row: u32) -> (&Row, &Row) {
                (&rows[row as usize], &rows[row as usize + 1])
            }
            #[inline(always)]
            fn get(view: &(&Row, &Row), lane: usize) -> Self {
                $from(u64::from(view.0[lane]) | u64::from(view.1[lane]) << 32)
            }
            #[inline(always)]
            fn put(self, out: &mut [Row; 2], lane: usize) {
                let bits: u64 = $to(self);
                out[0][lane] = bits as u32;
                out[1][lane] = (bits >> 32) as u32;
            }
        }
    };
}

narrow!(u32, |x| x, |x| x);
narrow!(i32, |x| x as i32, |x| x as u32);
narrow!(f32, f32::from_bits, f32::to_bits);
narrow!(u16, |x| x as u16, u32::from);
narrow!(i16, |x| x as i16, |x: i16| u32::from(x as u16));
wide!(u64, |x| x, |x| x);
wide!(i64, |x| x as i64, |x| x as u64);
wide!(f64, f64::from_bits, f64::to_bits);

/// A function over rows from an expression over the values of one lane.
macro_rules! lanes {
    ($d:ty = |$($x:ident: $t:ty),*| $body:expr) => {{
        fn run(rows: &[$crate::code::Row], at: &[u32; 4], out: &mut [$crate::code::Row; 2]) {
            use $crate::code::lanes::Lane;
            let mut next = at.iter();
            $(let $x = <$t as Lane>::view(rows, next.next().copied().unwrap_or(0));)*
            for lane in 0..32 {
                $(let $x = <$t as Lane>::get(&$x, lane);)*
                let result: $d = $body;
                result.put(out, lane);
            }
        }
        run as $crate::code::AluFn
    }};
}

/// The function over rows for each width, without a sign.
macro_rules! unsigned {
    ($ty:expr, |$($x:ident),*| $body:expr) => {
        match $crate::code::alu::plain($ty) {
            Ty::U(16) => lanes!(u16 = |$($x: u16),*| $body),
            Ty::U(32) => lanes!(u32 = |$($x: u32),*| $body),
            Ty::U(64) => lanes!(u64 = |$($x: u64),*| $body),
            _ => return None,
        }
    };
}

/// A mask of lanes from a comparison of the values of one lane.
macro_rules! compare {
    ($t:ty, |$a:ident, $b:ident| $body:expr) => {{
        fn run(rows: &[$crate::code::Row], a: u32, b: u32) -> u32 {
            use $crate::code::lanes::Lane;
            let (va, vb) = (<$t as Lane>::view(rows, a), <$t as Lane>::view(rows, b));
            let mut mask = 0;
            for lane in 0..32 {
                let ($a, $b) = (<$t as Lane>::get(&va, lane), <$t as Lane>::get(&vb, lane));
                mask |= u32::from($body) << lane;
            }
            mask
        }
        run as $crate::code::op::CompareFn
    }};
}

pub(crate) use {compare, lanes, unsigned};
