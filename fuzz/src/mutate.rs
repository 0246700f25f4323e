//! Changes of bytes: blind ones, and ones that know how protobuf is built, so that what they make is decoded further than its
//! first byte.

use rand::Rng;
use rand::rngs::StdRng;
use rand::seq::IndexedRandom;

/// Numbers at which sizes, counts and offsets go wrong.
pub const LIMITS: [u64; 24] = [
    0,
    1,
    2,
    31,
    32,
    63,
    127,
    128,
    255,
    256,
    0x7fff,
    0xffff,
    0x1_0000,
    0x7fff_ffff,
    0x8000_0000,
    0xffff_ffff,
    0x1_0000_0000,
    1 << 44,
    (1 << 44) + 1,
    (1 << 60) - 1,
    0x7fff_ffff_ffff_ffff,
    0x8000_0000_0000_0000,
    u64::MAX - 1,
    u64::MAX,
];

/// Deepest nesting that is looked into.
const MAX_DEPTH: usize = 6;

/// Changes bytes without a thought to what they mean.
pub fn flat(bytes: &[u8], rng: &mut StdRng) -> Vec<u8> {
    let mut out = bytes.to_vec();
    for _ in 0..rng.random_range(1..4) {
        let at = rng.random_range(0..=out.len());
        match rng.random_range(0..8) {
            0 | 1 if at < out.len() => out[at] ^= 1 << rng.random_range(0..8),
            2 if at < out.len() => out[at] = rng.random(),
            3 => out.truncate(at),
            4 => out.insert(at, rng.random()),
            5 if at < out.len() => drop(out.remove(at)),
            6 => {
                let limit = LIMITS.choose(rng).copied().unwrap_or(0).to_le_bytes();
                let n = [1, 2, 4, 8].choose(rng).copied().unwrap_or(1);
                out.iter_mut().skip(at).zip(&limit[..n]).for_each(|(to, from)| *to = *from);
            }
            _ => {
                let end = rng.random_range(at..=out.len()).min(at + 64);
                let part = out[at..end].to_vec();
                let to = rng.random_range(0..=out.len());
                out.splice(to..to, part);
            }
        }
    }
    out
}

/// A field of a message.
#[derive(Clone, Debug)]
enum Field {
    Varint(u64, u64),
    Fixed64(u64, [u8; 8]),
    Bytes(u64, Vec<u8>),
    Fixed32(u64, [u8; 4]),
}

/// Changes an encoded message: one of its fields, at some depth, or their order, number and types; now and then its bytes.
pub fn protobuf(bytes: &[u8], rng: &mut StdRng) -> Vec<u8> {
    change(bytes, rng, 0)
}

/// An encoded message once for each of its numbers, at whatever depth, and each of [`LIMITS`] in its place.
pub fn at_limits(bytes: &[u8]) -> Vec<Vec<u8>> {
    let Some(fields) = fields(bytes) else { return Vec::new() };
    let mut all = Vec::new();
    for (i, field) in fields.iter().enumerate() {
        let instead: Vec<Field> = match field {
            Field::Varint(tag, _) => LIMITS.iter().map(|&n| Field::Varint(*tag, n)).collect(),
            Field::Fixed64(tag, _) => LIMITS.iter().map(|&n| Field::Fixed64(*tag, n.to_le_bytes())).collect(),
            Field::Bytes(tag, inner) => at_limits(inner).into_iter().map(|inner| Field::Bytes(*tag, inner)).collect(),
            Field::Fixed32(..) => Vec::new(),
        };
        for one in instead {
            let mut out = Vec::with_capacity(bytes.len() + 16);
            fields.iter().enumerate().for_each(|(j, f)| encode(if i == j { &one } else { f }, &mut out));
            all.push(out);
        }
    }
    all
}

fn change(bytes: &[u8], rng: &mut StdRng, depth: usize) -> Vec<u8> {
    let Some(mut fields) = fields(bytes).filter(|f| !f.is_empty() && depth < MAX_DEPTH) else {
        return flat(bytes, rng);
    };
    let i = rng.random_range(0..fields.len());
    match rng.random_range(0..16) {
        0 => return flat(bytes, rng),
        1 => drop(fields.remove(i)),
        2 => fields.insert(rng.random_range(0..=fields.len()), fields[i].clone()),
        3 => {
            let other = rng.random_range(0..fields.len());
            fields.swap(i, other);
        }
        4 => {
            let tag = rng.random_range(1..16);
            let (Field::Varint(t, _) | Field::Fixed64(t, _) | Field::Bytes(t, _) | Field::Fixed32(t, _)) =
                &mut fields[i];
            *t = tag;
        }
        // The same field many times.
        5 => {
            let (one, times) = (fields[i].clone(), rng.random_range(2..40));
            fields.splice(i..i, std::iter::repeat_n(one, times));
        }
        _ => match &mut fields[i] {
            Field::Varint(_, value) => {
                *value = match rng.random_range(0..4) {
                    0 => value.wrapping_add(1),
                    1 => value.wrapping_sub(1),
                    2 => *value ^ (1 << rng.random_range(0..64)),
                    _ => LIMITS.choose(rng).copied().unwrap_or(0),
                }
            }
            Field::Fixed64(_, value) => *value = LIMITS.choose(rng).copied().unwrap_or(0).to_le_bytes(),
            Field::Fixed32(_, value) => {
                let specials = [f32::NAN, f32::INFINITY, -1.0, 0.0, f32::MAX, f32::MIN_POSITIVE];
                *value = specials.choose(rng).copied().unwrap_or(0.0).to_le_bytes();
            }
            Field::Bytes(_, inner) => *inner = change(inner, rng, depth + 1),
        },
    }
    let mut out = Vec::with_capacity(bytes.len() + 16);
    fields.iter().for_each(|f| encode(f, &mut out));
    out
}

fn fields(mut bytes: &[u8]) -> Option<Vec<Field>> {
    let mut fields = Vec::new();
    while !bytes.is_empty() {
        let key = varint(&mut bytes)?;
        let tag = key >> 3;
        fields.push(match key & 7 {
            0 => Field::Varint(tag, varint(&mut bytes)?),
            1 => Field::Fixed64(tag, *bytes.split_off(..8)?.first_chunk()?),
            2 => {
                let len = usize::try_from(varint(&mut bytes)?).ok()?;
                Field::Bytes(tag, bytes.split_off(..len)?.to_vec())
            }
            5 => Field::Fixed32(tag, *bytes.split_off(..4)?.first_chunk()?),
            _ => return None,
        });
    }
    Some(fields)
}

fn encode(field: &Field, out: &mut Vec<u8>) {
    match field {
        Field::Varint(tag, value) => {
            put_varint(tag << 3, out);
            put_varint(*value, out);
        }
        Field::Fixed64(tag, value) => {
            put_varint(tag << 3 | 1, out);
            out.extend(value);
        }
        Field::Bytes(tag, value) => {
            put_varint(tag << 3 | 2, out);
            put_varint(value.len() as u64, out);
            out.extend(value);
        }
        Field::Fixed32(tag, value) => {
            put_varint(tag << 3 | 5, out);
            out.extend(value);
        }
    }
}

fn varint(bytes: &mut &[u8]) -> Option<u64> {
    let mut value = 0;
    for shift in (0..64).step_by(7) {
        let byte = *bytes.split_off_first()?;
        value |= u64::from(byte & 0x7f) << shift;
        if byte < 0x80 {
            return Some(value);
        }
    }
    None
}

fn put_varint(mut value: u64, out: &mut Vec<u8>) {
    while value >= 0x80 {
        out.push(value as u8 | 0x80);
        value >>= 7;
    }
    out.push(value as u8);
}

#[cfg(test)]
mod tests {
    use super::*;
    use rand::SeedableRng;

    #[test]
    fn messages_come_apart_and_together() {
        let seeds = crate::seeds("messages");
        let mut changed = 0;
        for (i, (name, seed)) in seeds.iter().enumerate() {
            let (_, message) = seed.split_first().unwrap();
            let mut again = Vec::new();
            fields(message).unwrap().iter().for_each(|f| encode(f, &mut again));
            assert_eq!(again, message, "{name}");
            let mut rng = StdRng::seed_from_u64(i as u64);
            changed += (0..100).filter(|_| protobuf(message, &mut rng) != message).count();
        }
        assert!(changed > seeds.len() * 70, "{changed} of {} changes", seeds.len() * 100);
    }
}
