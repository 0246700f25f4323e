//! Layouts against blocks built by hand, bit by bit, and round trips of every type.

use super::*;

fn read_all(dtype: DType, src: &[u8]) -> Vec<f32> {
    let mut y = vec![f32::NAN; src.len() / dtype.block_bytes() * dtype.block_len()];
    dequantize_row(dtype, src, &mut y).unwrap();
    y
}

/// Numbers without a pattern, roughly normal.
fn noise(n: usize) -> Vec<f32> {
    let mut s = 1u32;
    let mut next = || {
        s = s.wrapping_mul(1664525).wrapping_add(1013904223);
        (s >> 8) as f32 / (1 << 24) as f32 - 0.5
    };
    (0..n).map(|_| next() + next() + next()).collect()
}

const ONE: [u8; 2] = [0x00, 0x3c]; // f16 1.0
const TWO: [u8; 2] = [0x00, 0x40]; // f16 2.0
const HALF: [u8; 2] = [0x00, 0x38]; // f16 0.5

#[test]
fn round_trips() {
    let x = noise(1024);
    let power: f32 = x.iter().map(|v| v * v).sum();
    for dtype in DType::ALL.into_iter().filter(|&d| d != DType::I32) {
        let limit = match dtype {
            DType::F32 => 0.0,
            DType::F16 | DType::BF16 => 1e-5,
            DType::Q8_0 | DType::Q8_K => 1e-4,
            DType::Q6_K => 1e-3,
            DType::Q5_0 | DType::Q5_1 | DType::Q5_K => 3e-3,
            DType::MXFP4 => 0.02,
            DType::Q3_K => 0.04,
            DType::Q2_K => 0.12,
            _ => 0.01,
        };
        let mut bytes = vec![0xaa; dtype.row_bytes(x.len()).unwrap()];
        quantize_row(dtype, &x, &mut bytes).unwrap();
        let y = read_all(dtype, &bytes);
        let error: f32 = x.iter().zip(&y).map(|(a, b)| (a - b) * (a - b)).sum();
        assert!(error / power <= limit, "{dtype}: NMSE {}", error / power);
        // What was read is what a second pass writes again, to within the same error.
        quantize_row(dtype, &y, &mut bytes).unwrap();
        let z = read_all(dtype, &bytes);
        let again: f32 = y.iter().zip(&z).map(|(a, b)| (a - b) * (a - b)).sum();
        assert!(again / power <= limit, "{dtype}: second NMSE {}", again / power);
    }
}

#[test]
fn zeros_constants_and_bad_numbers() {
    for dtype in DType::ALL.into_iter().filter(|d| d.is_quantized()) {
        let mut bytes = vec![0xaa; dtype.block_bytes()];
        for (value, limit) in [(0.0f32, 0.0), (3.0, 0.2), (-3.0, 0.2)] {
            quantize_row(dtype, &vec![value; dtype.block_len()], &mut bytes).unwrap();
            for y in read_all(dtype, &bytes) {
                assert!((y - value).abs() <= limit * value.abs(), "{dtype}: {value} became {y}");
            }
        }
        for value in [f32::NAN, f32::INFINITY, f32::MAX, f32::MIN_POSITIVE / 4.0] {
            quantize_row(dtype, &vec![value; dtype.block_len()], &mut bytes).unwrap();
            read_all(dtype, &bytes);
        }
    }
}

#[test]
fn wrong_sizes() {
    let mut y = [0.0; 32];
    let size = QuantError::Size { dtype: DType::Q4_0, elements: 32, bytes: 17 };
    assert_eq!(dequantize_row(DType::Q4_0, &[0; 17], &mut y), Err(size));
    let block = QuantError::Block { dtype: DType::Q4_0, elements: 31 };
    assert_eq!(quantize_row(DType::Q4_0, &y[..31], &mut [0; 18]), Err(block));
    assert_eq!(dequantize_row(DType::I32, &[0; 128], &mut y), Err(QuantError::NotReal(DType::I32)));
}

#[test]
fn floats() {
    assert_eq!(read_all(DType::F32, &[0, 0, 0x20, 0xc1]), [-10.0]);
    assert_eq!(read_all(DType::F16, &[0x00, 0xc9]), [-10.0]);
    assert_eq!(read_all(DType::BF16, &[0x20, 0xc1]), [-10.0]);
}

#[test]
fn four_bits() {
    let mut b = [&TWO[..], &[0; 16]].concat();
    b[2] = 0xf8; // element 0: 8, element 16: 15
    b[17] = 0x0a; // element 15: 10, element 31: 0
    let y = read_all(DType::Q4_0, &b);
    assert_eq!([y[0], y[16], y[15], y[31], y[1]], [0.0, 14.0, 4.0, -16.0, -16.0]);

    let b = [&TWO[..], &HALF, &b[2..]].concat();
    let y = read_all(DType::Q4_1, &b);
    assert_eq!([y[0], y[16], y[15], y[31], y[1]], [16.5, 30.5, 20.5, 0.5, 0.5]);

    let b = [&TWO[..], &b[4..]].concat();
    let y = read_all(DType::IQ4_NL, &b);
    assert_eq!([y[0], y[16], y[15], y[31]], [2.0, 226.0, 50.0, -254.0]);

    // Exponent 129: 2^2.
    let b = [&[129][..], &b[2..]].concat();
    let y = read_all(DType::MXFP4, &b);
    assert_eq!([y[0], y[16], y[15], y[31]], [0.0, -24.0, -4.0, 0.0]);
    assert_eq!([e8m0_half(0), e8m0_half(1), e8m0_half(2)], [2f32.powi(-128), 2f32.powi(-127), 2f32.powi(-126)]);
    assert_eq!(e8m0_half(128), 1.0);
}

#[test]
fn five_and_eight_bits() {
    // Fifth bits of elements 0, 9 and 31.
    let mut b = [&TWO[..], &[0x01, 0x02, 0, 0x80], &[0; 16]].concat();
    b[6] = 0x21; // element 0: 1 + 16, element 16: 2
    b[21] = 0x30; // element 31: 3 + 16
    let y = read_all(DType::Q5_0, &b);
    assert_eq!([y[0], y[16], y[9], y[31], y[15]], [2.0, -28.0, 0.0, 6.0, -32.0]);
    let b = [&TWO[..], &ONE, &b[2..]].concat();
    let y = read_all(DType::Q5_1, &b);
    assert_eq!([y[0], y[16], y[9], y[31], y[15]], [35.0, 5.0, 33.0, 39.0, 1.0]);

    let mut b = [&HALF[..], &[0; 32]].concat();
    b[2] = 0x81;
    b[33] = 3;
    let y = read_all(DType::Q8_0, &b);
    assert_eq!([y[0], y[31], y[1]], [-63.5, 1.5, 0.0]);

    let mut b = vec![0; 292];
    b[..4].copy_from_slice(&0.5f32.to_le_bytes());
    b[259] = 0xff;
    assert_eq!(read_all(DType::Q8_K, &b)[255], -0.5);
}

#[test]
fn q2_k() {
    let mut b = [0; 84];
    b[80..82].copy_from_slice(&TWO);
    b[82..84].copy_from_slice(&HALF);
    b[16 + 32 + 17] = 0b11_01_00_10; // second half: elements 128 + 17, + 49, + 81, + 113
    for (group, s) in [(9, 0x23), (11, 0x01), (13, 0x0f), (15, 0xf1)] {
        b[group] = s;
    }
    let y = read_all(DType::Q2_K, &b);
    assert_eq!([y[145], y[177], y[209], y[241]], [2.0 * 3.0 * 2.0 - 1.0, 0.0, 30.0, 6.0 - 7.5]);
}

#[test]
fn q3_k() {
    let mut b = [0; 110];
    b[108..110].copy_from_slice(&TWO);
    // Element 128 + 32 + 5: group 10, low bits in byte 32 + 5 at shift 2, third bit in hmask byte 5, bit 5.
    b[32 + 32 + 5] = 0b1100;
    b[5] = 0b10_0000;
    // Scale 10: low nibble is the high half of byte 2, high bits at shift 4 of byte 8 + 2.
    b[96 + 2] = 0x50;
    b[96 + 10] = 0b10_0000;
    let y = read_all(DType::Q3_K, &b);
    assert_eq!(y[165], 2.0 * (5.0 + 32.0 - 32.0) * 3.0);
    assert_eq!(y[0], 2.0 * -32.0 * -4.0);
}

#[test]
fn q4_k_and_q5_k() {
    // Group 1: scale 33, minimum 7. Group 6: scale 0b10_0101, minimum 0b11_0010.
    let mut scales = [0u8; 12];
    scales[1] = 33;
    scales[5] = 7;
    scales[6 + 4] = 0b0010_0101;
    scales[2] |= 0b10 << 6;
    scales[6] |= 0b11 << 6;
    assert_eq!(scale_min_k4(&scales, 1), (33, 7));
    assert_eq!(scale_min_k4(&scales, 6), (37, 50));
    let mut qs = [0u8; 128];
    qs[4] = 0xb0; // element 36 (group 1): 11
    qs[96 + 31] = 0x09; // element 192 + 31 (group 6): 9
    let head = [&TWO[..], &HALF, &scales].concat();
    let y = read_all(DType::Q4_K, &[&head[..], &qs].concat());
    assert_eq!([y[36], y[223]], [66.0 * 11.0 - 3.5, 74.0 * 9.0 - 25.0]);

    let mut qh = [0u8; 32];
    qh[4] = 0b10; // element 36
    qh[31] = 0b100_0000; // element 223
    let y = read_all(DType::Q5_K, &[&head[..], &qh, &qs].concat());
    assert_eq!([y[36], y[223]], [66.0 * 27.0 - 3.5, 74.0 * 25.0 - 25.0]);
}

#[test]
fn q6_k() {
    let mut b = [0; 210];
    b[208..210].copy_from_slice(&TWO);
    // Element 128 + 100: low nibble in byte 64 + 36, high half; high bits in byte 32 + 4 at shift 6.
    b[64 + 36] = 0x70;
    b[128 + 32 + 4] = 0b1000_0000;
    b[192 + 14] = 0xfd; // -3
    let y = read_all(DType::Q6_K, &b);
    assert_eq!(y[228], 2.0 * -3.0 * (7.0 + 32.0 - 32.0));
}

#[test]
fn iq4_xs() {
    let mut b = [0; 136];
    b[..2].copy_from_slice(&HALF);
    // Group 5: low bits in the high half of byte 2, high bits at shift 10.
    b[4 + 2] = 0x90;
    b[3] = 0b1000;
    b[8 + 5 * 16 + 3] = 0xf1;
    let y = read_all(DType::IQ4_XS, &b);
    assert_eq!([y[163], y[179]], [0.5 * 9.0 * -104.0, 0.5 * 9.0 * 113.0]);
}
