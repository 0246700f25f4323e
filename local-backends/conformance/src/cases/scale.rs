//! SCALE and CLAMP.

use super::*;

pub(super) fn cases(s: &mut Suite) {
    for (scale, bias) in [(2.5, 0.0), (-0.125, 3.0), (0.0, -1.0)] {
        let fill = Fill::Uniform(-1.0, 1.0);
        rowwise(s, &format!("{scale} x + {bias}"), Scale { scale, bias }, Check::DEFAULT, fill);
    }
    for (min, max) in [(-0.5, 0.5), (0.0, f32::INFINITY), (0.25, 0.25)] {
        rowwise(s, &format!("{min} to {max}"), Clamp { min, max }, Check::Exact, Fill::Uniform(-1.0, 1.0));
    }
    s.add("infinities and NaN", Check::Exact, |m| {
        let odd = vec![f32::NAN, f32::INFINITY, f32::NEG_INFINITY, 1.0];
        let x = m.input(DType::F32, &[37], Fill::Floats(odd))?;
        m.push(Clamp { min: -0.5, max: 0.5 }, &[x])
    });
}
