//! `ldmatrix` and `mma.sync`. Which lane holds what is in the PTX ISA, "Warp level matrix instructions".
use super::block::{Block, Step};
use super::memory::value_of;
use super::shadow::Access;
use super::step::addresses;
use super::warp::Warp;
use crate::code::lower::SHARED_WINDOW;
use crate::code::num;
use crate::code::op::{Address, Element, Instr, MmaShape};
use crate::finding::Fault;

impl Block<'_> {
    /// All lanes of a warp take part in these.
    fn whole(&self, warp: &Warp, instr: &Instr, lanes: u32) {
        if lanes != u32::MAX {
            let what = || format!("only lanes {lanes:#010x} take part in an instruction of the whole warp");
            self.note(warp, lanes.trailing_zeros(), Fault::MissingLanes, instr.place, what);
        }
    }

    pub(super) fn load_matrix(
        &mut self,
        warp: &mut Warp,
        instr: &Instr,
        transposed: bool,
        dst: &[u32],
        (from, generic): (&Address, bool),
        lanes: u32,
    ) -> Step {
        self.whole(warp, instr, lanes);
        let mut at = addresses(warp, from);
        if generic {
            at = at.map(|a| a.wrapping_sub(SHARED_WINDOW));
        }
        for (matrix, dst) in dst.iter().enumerate() {
            // Lanes 8 i to 8 i + 7 say where the rows of matrix i are.
            let mut rows = [0u128; 8];
            self.counts.shared(&at, 0xff << (8 * matrix), 16);
            for (i, row) in rows.iter_mut().enumerate() {
                let lane = matrix * 8 + i;
                let place = self.inside(warp, instr, lane, at[lane], 16, self.shared_size())?;
                self.touch(warp, instr, lane, place, 16, Access::Read);
                *row = value_of(&self.shared[place..place + 16]);
            }
            let element = |row: usize, column: usize| u32::from((rows[row] >> (16 * column)) as u16);
            let out = std::array::from_fn(|lane| {
                let (a, b) = (lane / 4, lane % 4 * 2);
                if transposed {
                    element(b, a) | element(b + 1, a) << 16
                } else {
                    element(a, b) | element(a, b + 1) << 16
                }
            });
            warp.set_row(*dst, &out, lanes);
        }
        Ok(())
    }

    pub(super) fn mma(
        &mut self,
        warp: &mut Warp,
        instr: &Instr,
        shape: MmaShape,
        (dst, a, b, c): (&[u32], &[u32], &[u32], &[u32]),
        lanes: u32,
    ) {
        self.whole(warp, instr, lanes);
        self.counts.mma_products += (shape.m * 8 * shape.k) as u64;
        let floats = matches!(shape.a, Element::F16 | Element::Bf16);
        if floats {
            float_product(warp, shape, dst, a, b, c, lanes);
        } else {
            integer_product(warp, shape, dst, a, b, c, lanes);
        }
    }
}

/// Row and column of what a lane's register holds of the result.
fn place_of_result(lane: usize, register: usize) -> (usize, usize) {
    (lane / 4 + register / 2 * 8, lane % 4 * 2 + register % 2)
}

fn float_product(warp: &mut Warp, shape: MmaShape, dst: &[u32], a: &[u32], b: &[u32], c: &[u32], lanes: u32) {
    let value = |bits: u32, high: usize| {
        let half = (bits >> (16 * high)) as u16;
        if shape.a == Element::F16 { num::f16(half) } else { num::bf16(half) }
    };
    let (mut left, mut right) = ([[0f32; 16]; 16], [[0f32; 16]; 8]);
    for lane in 0..32 {
        for (i, row) in a.iter().enumerate() {
            for high in 0..2 {
                left[lane / 4 + i % 2 * 8][lane % 4 * 2 + i / 2 * 8 + high] =
                    value(warp.rows[*row as usize][lane], high);
            }
        }
        for (i, row) in b.iter().enumerate() {
            for high in 0..2 {
                right[lane / 4][lane % 4 * 2 + i * 8 + high] = value(warp.rows[*row as usize][lane], high);
            }
        }
    }
    let out: Vec<[u32; 32]> = (0..dst.len())
        .map(|register| {
            std::array::from_fn(|lane| {
                let (row, column) = place_of_result(lane, register);
                let start = f64::from(f32::from_bits(warp.rows[c[register] as usize][lane]));
                // Products of f16 and bf16 are exact in f32; their sum is rounded once.
                let sum: f64 = (0..shape.k).map(|k| f64::from(left[row][k] * right[column][k])).sum();
                ((start + sum) as f32).to_bits()
            })
        })
        .collect();
    for (dst, out) in dst.iter().zip(&out) {
        warp.set_row(*dst, out, lanes);
    }
}

fn integer_product(warp: &mut Warp, shape: MmaShape, dst: &[u32], a: &[u32], b: &[u32], c: &[u32], lanes: u32) {
    let byte = |bits: u32, at: usize, element: Element| {
        let byte = (bits >> (8 * at)) as u8;
        if element == Element::S8 { i32::from(byte as i8) } else { i32::from(byte) }
    };
    let (mut left, mut right) = ([[0i32; 32]; 16], [[0i32; 32]; 8]);
    let halves = shape.m / 8;
    for lane in 0..32 {
        for (i, row) in a.iter().enumerate() {
            for at in 0..4 {
                let column = lane % 4 * 4 + i / halves * 16 + at;
                left[lane / 4 + i % halves * 8][column] = byte(warp.rows[*row as usize][lane], at, shape.a);
            }
        }
        for (i, row) in b.iter().enumerate() {
            for at in 0..4 {
                right[lane / 4][lane % 4 * 4 + i * 16 + at] = byte(warp.rows[*row as usize][lane], at, shape.b);
            }
        }
    }
    let out: Vec<[u32; 32]> = (0..dst.len())
        .map(|register| {
            std::array::from_fn(|lane| {
                let (row, column) = place_of_result(lane, register);
                let products = left[row].iter().zip(&right[column]).map(|(x, y)| x * y);
                products.fold(warp.rows[c[register] as usize][lane], |sum, p| sum.wrapping_add(p as u32))
            })
        })
        .collect();
    for (dst, out) in dst.iter().zip(&out) {
        warp.set_row(*dst, out, lanes);
    }
}
