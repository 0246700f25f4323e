//! Numbers of a JSON schema, for which llguidance has floats.
//!
//! A float of 64 bits holds all integers up to 2^53 - 1, as JSON's readers do (RFC 8259, section 6). A bound beyond that becomes that number, where the
//! schema means less than it; what else is beyond is an error, since the text would be another one than the schema asks for.

use super::place::{Place, VALUES};
use serde_json::{Map, Number, Value};

/// The largest integer that a float holds, as all below it.
const MOST: i64 = (1 << 53) - 1;
/// Places behind the point of 'multipleOf', at most.
const MOST_PLACES: u32 = 8;

/// Characters of a wrong reference that are told.
const SHOWN: usize = 100;

/// Bounds the numbers of a schema. Fails with what is wrong if that would change which texts it allows.
pub(super) fn bound(schema: &mut Value) -> Result<(), String> {
    bound_at(schema, Place::Schema)
}

fn bound_at(part: &mut Value, place: Place) -> Result<(), String> {
    match part {
        // A reference names the part by its number.
        Value::Array(parts) => parts.iter_mut().try_for_each(|part| bound_at(part, place.within(""))),
        Value::Object(keys) => {
            if place == Place::Schema {
                take_booleans(keys);
                check_close(keys)?;
            }
            for (name, part) in keys {
                match place.within(name) {
                    Place::Value if VALUES.contains(&name.as_str()) => check_values(name, part)?,
                    Place::Value => {}
                    _ if place == Place::Schema => bound_keyword(name, part)?,
                    within => bound_at(part, within)?,
                }
            }
            Ok(())
        }
        _ => Ok(()),
    }
}

fn bound_keyword(name: &str, part: &mut Value) -> Result<(), String> {
    match (name, &*part) {
        ("minimum" | "exclusiveMinimum", Value::Number(number)) if is_beyond(number) => {
            if number.as_f64().is_some_and(|number| number > 0.0) {
                return Err(beyond(name, number));
            }
            *part = (-MOST).into();
            Ok(())
        }
        ("maximum" | "exclusiveMaximum", Value::Number(number)) if is_beyond(number) => {
            if number.as_f64().is_some_and(|number| number < 0.0) {
                return Err(beyond(name, number));
            }
            *part = MOST.into();
            Ok(())
        }
        // What it refers to would be taken for a schema, and was not looked at as one.
        ("$ref", Value::String(to)) if place_of(to) != Place::Schema => {
            Err(format!("'$ref' is '{}', and there is no schema at that place", shown(to)))
        }
        // llguidance takes names as they are written, and the first one for the whole schema.
        ("$ref", Value::String(to)) if to.contains(['~', '%']) || to == "#/" => {
            let to = shown(to);
            Err(format!("'$ref' is '{to}': names with '~' or '%', and those that are empty, are not referred to"))
        }
        _ => bound_at(part, Place::Schema.within(name)),
    }
}

/// As much of a reference as an error says.
fn shown(reference: &str) -> String {
    reference.chars().take(SHOWN).collect()
}

/// Writes bounds of draft 4, whose exclusion is said beside them, as those of later drafts: llguidance takes them apart where another keyword stands between.
fn take_booleans(keys: &mut Map<String, Value>) {
    for (bound, exclusive) in [("minimum", "exclusiveMinimum"), ("maximum", "exclusiveMaximum")] {
        match keys.get(exclusive) {
            Some(Value::Bool(true)) => {
                keys.shift_remove(exclusive);
                if let Some(number) = keys.shift_remove(bound) {
                    keys.insert(exclusive.into(), number);
                }
            }
            Some(Value::Bool(false)) => drop(keys.shift_remove(exclusive)),
            _ => {}
        }
    }
}

/// Fails for a bound that excludes an integer where the other one is less than 1 from it: llguidance would let the integer be written.
fn check_close(keys: &Map<String, Value>) -> Result<(), String> {
    let number = |name: &str| keys.get(name).and_then(Value::as_f64);
    let (above, below) = (number("exclusiveMinimum"), number("exclusiveMaximum"));
    let most = number("maximum").into_iter().chain(below).reduce(f64::min);
    let least = number("minimum").into_iter().chain(above).reduce(f64::max);
    let is_close = |excluded: Option<f64>, other: Option<f64>| {
        excluded.zip(other).is_some_and(|(n, other)| n.fract() == 0.0 && n != other && (n - other).abs() < 1.0)
    };
    if is_close(above, most) || is_close(below, least) {
        return Err(
            "a bound that excludes an integer is less than 1 from the other bound, for which there is nothing here"
                .into(),
        );
    }
    Ok(())
}

/// What is at the place that a reference has, in the same document.
fn place_of(reference: &str) -> Place {
    reference.strip_prefix("#/").unwrap_or_default().split('/').fold(Place::Schema, Place::within)
}

/// Whether all numbers of a value are written as they are.
fn check_values(keyword: &str, value: &Value) -> Result<(), String> {
    match value {
        Value::Number(number) if is_beyond(number) => Err(beyond(keyword, number)),
        Value::Array(values) => values.iter().try_for_each(|value| check_values(keyword, value)),
        Value::Object(values) => values.values().try_for_each(|value| check_values(keyword, value)),
        _ => Ok(()),
    }
}

fn is_beyond(number: &Number) -> bool {
    match number.as_i64() {
        Some(number) => !(-MOST..=MOST).contains(&number),
        None => number.as_f64().is_none_or(|number| number.abs() > MOST as f64),
    }
}

fn beyond(keyword: &str, number: &Number) -> String {
    format!("'{keyword}' has the number {number}, and numbers are at most {MOST} (2^53 - 1) in size")
}

/// What a number has to be a multiple of: `units` of 10^-`places`; with no units it may be any.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Multiple {
    units: u64,
    places: u32,
}

impl Multiple {
    pub(super) const OF_NOTHING: Multiple = Multiple { units: 0, places: 0 };
    /// More than anything that is taken.
    const TOO_LARGE: Multiple = Multiple { units: u64::MAX, places: 0 };

    /// What these keywords say of it themselves.
    pub(super) fn of(keys: &Map<String, Value>) -> Multiple {
        let Some(number) = keys.get("multipleOf").and_then(Value::as_f64) else { return Multiple::OF_NOTHING };
        let (mut units, mut places) = (number.abs(), 0);
        while units.fract() != 0.0 && places <= MOST_PLACES {
            units *= 10.0;
            places += 1;
        }
        if places > MOST_PLACES || units > u32::MAX.into() {
            return Multiple::TOO_LARGE;
        }
        // Of 0 there is one.
        Multiple { units: (units as u64).max(1), places }
    }

    /// The least common multiple: a number is one of both, or its digits are counted for both at once.
    pub(super) fn and(self, other: Multiple) -> Multiple {
        if self == Multiple::OF_NOTHING || other == Multiple::OF_NOTHING {
            return if self == Multiple::OF_NOTHING { other } else { self };
        }
        let places = self.places.max(other.places);
        let units = |one: Multiple| one.units.saturating_mul(10u64.pow(places - one.places));
        let (a, b) = (units(self), units(other));
        Multiple { units: (a / gcd(a, b)).saturating_mul(b), places }
    }

    /// What has to be remembered of the digits before the next one: a remainder, before or behind the point.
    pub(super) fn states(self) -> u64 {
        self.units.saturating_mul(u64::from(self.places) + 1)
    }

    pub(super) fn units(self) -> u64 {
        self.units
    }
}

fn gcd(a: u64, b: u64) -> u64 {
    if b == 0 { a } else { gcd(b, a % b) }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn bounded(text: &str) -> Result<String, String> {
        let mut schema = serde_json::from_str(text).unwrap();
        bound(&mut schema).map(|()| schema.to_string())
    }

    #[test]
    fn bounds_beyond_floats_become_the_largest_integer() {
        for (keyword, beyond, becomes) in [
            ("minimum", "-9223372036854775808", "-9007199254740991"),
            ("exclusiveMinimum", "-1e300", "-9007199254740991"),
            ("maximum", "18446744073709551615", "9007199254740991"),
            ("exclusiveMaximum", "9007199254740992", "9007199254740991"),
            ("maximum", "9007199254740991", "9007199254740991"),
        ] {
            for (before, after) in [("", ""), (r#"{"properties":{"const":"#, "}}"), (r#"{"anyOf":[true,"#, "]}")] {
                let schema = |number: &str| format!(r#"{before}{{"{keyword}":{number}}}{after}"#);
                assert_eq!(bounded(&schema(beyond)), Ok(schema(becomes)), "{keyword}");
            }
        }
        for wrong in [r#"{"minimum": 9007199254740992}"#, r#"{"exclusiveMaximum": -9223372036854775808}"#] {
            assert!(bounded(wrong).unwrap_err().contains("2^53"), "{wrong}");
        }
    }

    #[test]
    fn values_beyond_floats_are_refused() {
        for value in ["9007199254740992", "-9223372036854775808", "1e16", r#"[{"maximum": 1e16}]"#] {
            for schema in [
                format!(r#"{{"const": {value}}}"#),
                format!(r#"{{"properties": {{"enum": {{"enum": [1, {value}]}}}}}}"#),
                format!(r##"{{"x": {{"y": [{{"const": {value}}}]}}, "$ref": "#/x/y/0"}}"##),
                format!(r##"{{"$defs": [{{"const": {value}}}], "$ref": "#/$defs/0"}}"##),
                format!(r##"{{"$defs": [[{{"const": {value}}}]], "$ref": "#/$defs/0/0"}}"##),
            ] {
                assert!(bounded(&schema).unwrap_err().contains("2^53"), "{schema}");
            }
        }
        for schema in [r#"{"const":9007199254740991}"#, r#"{"default":1e300,"enum":[0.1,-1e15]}"#] {
            assert!(bounded(schema).is_ok(), "{schema}");
        }
    }

    #[test]
    fn bounds_of_draft_4_are_those_of_later_ones() {
        let draft_4 =
            r#"{"exclusiveMinimum":true,"anyOf":[{"const":5}],"minimum":5,"exclusiveMaximum":false,"maximum":9}"#;
        assert_eq!(bounded(draft_4).unwrap(), r#"{"anyOf":[{"const":5}],"maximum":9,"exclusiveMinimum":5}"#);
        assert_eq!(bounded(r#"{"exclusiveMaximum":true}"#).unwrap(), "{}");
    }

    #[test]
    fn bounds_that_exclude_an_integer_are_not_close() {
        for close in [
            r#"{"exclusiveMinimum": 0, "maximum": 0.5}"#,
            r#"{"exclusiveMinimum": 19, "exclusiveMaximum": 19.01}"#,
            r#"{"exclusiveMaximum": -3, "minimum": -3.5}"#,
            r#"{"items": {"exclusiveMinimum": true, "minimum": 0, "maximum": 0.1}}"#,
        ] {
            assert!(bounded(close).unwrap_err().contains("less than 1"), "{close}");
        }
        for taken in [r#"{"exclusiveMinimum": 0, "maximum": 1}"#, r#"{"exclusiveMinimum": 0.5, "maximum": 0.75}"#] {
            assert!(bounded(taken).is_ok(), "{taken}");
        }
    }

    #[test]
    fn what_is_no_schema_is_not_referred_to() {
        for to in ["#/default", "#/const/a", "#/properties", "#/properties/a/enum/0", "#/$defs//const"] {
            let schema = format!(r#"{{"$ref": "{to}"}}"#);
            assert!(bounded(&schema).unwrap_err().contains("no schema"), "{to}");
        }
        for to in ["#/$defs/a~1b", "#/$defs/%25", "#/"] {
            assert!(bounded(&format!(r#"{{"items": {{"$ref": "{to}"}}}}"#)).unwrap_err().contains("referred"), "{to}");
        }
        for to in ["#", "#/$defs/const", "#/properties/properties/items/0", "#/components/schemas/a", "#/items"] {
            assert!(bounded(&format!(r#"{{"items": {{"$ref": "{to}"}}}}"#)).is_ok(), "{to}");
        }
    }
}
