//! ROPE.

use super::*;

/// Positions up to this: beyond, the rounding of an F32 angle is larger than the error that is allowed.
const POSITIONS: i32 = 512;

pub(super) fn cases(s: &mut Suite) {
    for mode in [RopeMode::Normal, RopeMode::Neox] {
        let plain = |n_dims| Rope::plain(mode, n_dims, 10000.0);
        for (d, heads, tokens, n_dims) in [
            (2, 1, 1, 2),
            (64, 9, 1, 64),
            (64, 3, 7, 64),
            (128, 4, 5, 64),
            (80, 2, 33, 32),
            (6, 5, 4, 6),
            (64, 2, 0, 64),
        ] {
            s.add(format!("{mode:?} d={d} heads={heads} tokens={tokens} n_dims={n_dims}"), Check::DEFAULT, |m| {
                let x = m.f32(&[d, heads, tokens])?;
                let pos = m.i32(&[tokens], Fill::Integers(0, POSITIONS))?;
                m.push(plain(n_dims), &[x, pos])
            });
        }
        let parameters = [
            ("base 1e6", Rope { freq_base: 1e6, ..plain(64) }, 1e-7),
            ("linear scaling", Rope { freq_scale: 0.25, ..plain(64) }, 1e-7),
            ("amplitude", Rope { attn_factor: 1.3, ..plain(64) }, 1e-7),
            ("YaRN", Rope { freq_scale: 0.25, ext_factor: 1.0, n_ctx_orig: 4096, ..plain(64) }, 1e-7),
            (
                "YaRN, half mixed",
                Rope { freq_scale: 0.5, ext_factor: 0.5, n_ctx_orig: 2048, attn_factor: 0.9, ..plain(48) },
                1e-7,
            ),
        ];
        for (name, op, nmse) in parameters {
            for factors in [false, true] {
                let name = format!("{mode:?} {name}{}", if factors { " with factors" } else { "" });
                s.add(name, Check::Nmse(nmse), |m| {
                    let x = m.f32(&[64, 3, 9])?;
                    let pos = m.i32(&[9], Fill::Integers(0, POSITIONS))?;
                    if factors {
                        let factors = m.input(DType::F32, &[32], Fill::Uniform(1.0, 8.0))?;
                        m.push(op, &[x, pos, factors])
                    } else {
                        m.push(op, &[x, pos])
                    }
                });
            }
        }
        // An F32 angle of this size is off by 1e-2.
        s.add(format!("{mode:?} far positions"), Check::Nmse(1e-4), |m| {
            let x = m.f32(&[64, 2, 8])?;
            let pos = m.i32(&[8], Fill::Ints(vec![0, 1, 4095, 8191, 32767, 65535, 131_071]))?;
            m.push(plain(64), &[x, pos])
        });
        s.add(format!("{mode:?} negative positions"), Check::DEFAULT, |m| {
            let x = m.f32(&[64, 2, 4])?;
            let pos = m.i32(&[4], Fill::Integers(-100, 0))?;
            m.push(plain(64), &[x, pos])
        });
        s.add(format!("{mode:?} padded"), Check::DEFAULT, |m| {
            let x = m.padded_f32([66, 3, 5, 1])?;
            let pos = m.spread_i32([5, 1, 1, 1], Fill::Integers(0, POSITIONS))?;
            m.push(plain(64), &[x, pos])
        });
        s.add(format!("{mode:?} heads of a joint tensor"), Check::DEFAULT, |m| {
            let x = m.f32(&[192, 5])?;
            let view = View { ne: [32, 3, 5, 1], nb: [4, 128, 768, 3840], offset: 256 };
            let x = m.push(view, &[x])?;
            let pos = m.i32(&[5], Fill::Integers(0, POSITIONS))?;
            m.push(plain(32), &[x, pos])
        });
        s.add(format!("{mode:?} in place"), Check::DEFAULT, |m| {
            let x = m.f32(&[80, 3, 5])?;
            let pos = m.i32(&[5], Fill::Integers(0, POSITIONS))?;
            m.push_in_place(plain(64), &[x, pos], 0)
        });
    }
}
