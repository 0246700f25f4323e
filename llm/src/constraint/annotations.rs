//! What a JSON schema says that changes nothing of the texts that it allows.

use super::place::Place;
use serde_json::{Value, json};

/// The formats of JSON Schema (2020-12, validation, section 7.3). Any other one only describes: programs have their own.
const FORMATS: [&str; 19] = [
    "date-time",
    "date",
    "time",
    "duration",
    "email",
    "idn-email",
    "hostname",
    "idn-hostname",
    "ipv4",
    "ipv6",
    "uri",
    "uri-reference",
    "iri",
    "iri-reference",
    "uuid",
    "uri-template",
    "json-pointer",
    "relative-json-pointer",
    "regex",
];

/// Leaves it out.
pub(super) fn leave_out(schema: &mut Value) {
    leave_out_at(schema, Place::Schema);
}

fn leave_out_at(part: &mut Value, place: Place) {
    match part {
        Value::Array(parts) => parts.iter_mut().for_each(|part| leave_out_at(part, place.within(""))),
        Value::Object(keys) => {
            if place == Place::Schema {
                keys.retain(|keyword, value| !only_describes(keyword, value));
            }
            for (name, part) in keys {
                match place.within(name) {
                    Place::Value => {}
                    within => leave_out_at(part, within),
                }
            }
        }
        _ => {}
    }
}

fn only_describes(keyword: &str, value: &Value) -> bool {
    match keyword {
        "format" => value.as_str().is_some_and(|format| !FORMATS.contains(&format)),
        // Names are strings.
        "propertyNames" => [json!(true), json!({}), json!({"type": "string"})].contains(value),
        "uniqueItems" => *value == false,
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_only_describes_is_left_out() {
        let mut schema = json!({
            "properties": {"format": {"type": "string", "format": "path"}, "propertyNames": {"type": "string"}},
            "additionalProperties": {"format": "date", "propertyNames": {"type": "string"}, "uniqueItems": false},
            "anyOf": [{"const": {"format": "path"}}, {"propertyNames": {"maxLength": 3}, "uniqueItems": true}],
        });
        leave_out(&mut schema);
        let left = json!({
            "properties": {"format": {"type": "string"}, "propertyNames": {"type": "string"}},
            "additionalProperties": {"format": "date"},
            "anyOf": [{"const": {"format": "path"}}, {"propertyNames": {"maxLength": 3}, "uniqueItems": true}],
        });
        assert_eq!(schema, left);
    }
}
