//! What came out, by op.

use crate::case::{Case, Check, Expect};
use crate::compare::Wrong;
use std::collections::BTreeMap;
use std::fmt;

/// A case that went wrong.
#[derive(Clone, Debug, PartialEq)]
pub struct Failure {
    /// The case's name.
    pub case: String,
    /// What is wrong.
    pub detail: String,
    /// The normalised mean squared error, where that is what is too large.
    pub nmse: Option<f64>,
}

/// The cases of one op.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct OpReport {
    /// How many were looked at.
    pub cases: usize,
    /// Of these, the names of those that the device does not support.
    pub unsupported: Vec<String>,
    /// Largest error of one that passed; 0 where results are exact.
    pub worst: f64,
    /// The error that is allowed in that case.
    pub allowed: f64,
    /// What went wrong.
    pub failures: Vec<Failure>,
}

/// The cases of every op.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Report {
    /// The device's id.
    pub device: String,
    /// By the op's name.
    pub ops: BTreeMap<&'static str, OpReport>,
}

impl Report {
    /// Whether nothing went wrong.
    pub fn ok(&self) -> bool {
        self.failed() == 0
    }

    /// Number of cases that went wrong.
    pub fn failed(&self) -> usize {
        self.ops.values().map(|op| op.failures.len()).sum()
    }

    /// Number of cases that were looked at.
    pub fn cases(&self) -> usize {
        self.ops.values().map(|op| op.cases).sum()
    }

    /// Number of cases that the device does not support.
    pub fn unsupported(&self) -> usize {
        self.ops.values().map(|op| op.unsupported.len()).sum()
    }

    /// What is wrong with a declaration of what the device does not support, as names of ops (`ROPE`) or of cases (`ROPE yarn`): cases that are
    /// not supported and not declared, and declarations that no such case answers.
    pub fn against(&self, declared: &[&str]) -> Vec<String> {
        let mut wrong = self.undeclared(declared);
        let answered = |d: &str| self.each_unsupported().any(|(name, full)| d == name || d == full);
        let stale = declared.iter().filter(|d| !answered(d));
        wrong.extend(stale.map(|d| format!("{d} is declared as not supported, and is supported")));
        wrong
    }

    /// Of that, the cases that are not supported and not declared: all that can be said where only some cases ran.
    pub fn undeclared(&self, declared: &[&str]) -> Vec<String> {
        let unknown = self.each_unsupported().filter(|(name, full)| !declared.iter().any(|d| d == name || d == full));
        unknown.map(|(_, full)| format!("{full} is not supported, and that is not declared")).collect()
    }

    /// The op and the whole name of each case that is not supported.
    fn each_unsupported(&self) -> impl Iterator<Item = (&str, String)> {
        let of = |(name, op): (&'static str, &OpReport)| {
            op.unsupported.iter().map(move |case| (name, format!("{name} {case}"))).collect::<Vec<_>>()
        };
        self.ops.iter().flat_map(move |(name, op)| of((name, op)))
    }

    /// What went wrong and is not declared: a declaration is the name of an op or of a case, and the largest error that its results may have;
    /// infinity where some are no numbers that should be, or the other way round.
    pub fn beyond(&self, declared: &[(&str, f64)]) -> Vec<String> {
        let mut wrong = Vec::new();
        for (name, op) in &self.ops {
            for Failure { case, detail, nmse } in &op.failures {
                let full = format!("{name} {case}");
                let most = declared.iter().filter(|(d, _)| d == name || *d == full).map(|(_, most)| *most);
                if most.fold(0.0, f64::max) < nmse.unwrap_or(f64::INFINITY) {
                    wrong.push(format!("{full}: {detail}"));
                }
            }
        }
        wrong
    }

    pub(crate) fn unsupported_case(&mut self, case: &Case) {
        let op = self.ops.entry(case.op).or_default();
        op.cases += 1;
        op.unsupported.push(case.name.clone());
    }

    pub(crate) fn result(&mut self, case: &Case, result: Result<f64, Wrong>) {
        let op = self.ops.entry(case.op).or_default();
        op.cases += 1;
        match result {
            Ok(error) if error >= op.worst => {
                op.worst = error;
                op.allowed = match case.expect {
                    Expect::Result(Check::Nmse(limit)) => limit.max(op.allowed),
                    _ => op.allowed,
                };
            }
            Ok(_) => {}
            Err(Wrong { detail, nmse }) => op.failures.push(Failure { case: case.name.clone(), detail, nmse }),
        }
    }
}

impl fmt::Display for Report {
    /// A table, and a line for each failure.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "{:<16} {:>6} {:>12} {:>7} {:>11}", self.device, "cases", "unsupported", "failed", "worst NMSE")?;
        for (name, op) in &self.ops {
            write!(f, "{name:<16} {:>6} {:>12} {:>7} ", op.cases, op.unsupported.len(), op.failures.len())?;
            match op.worst {
                0.0 => writeln!(f, "{:>11}", if op.cases > op.unsupported.len() { "exact" } else { "-" })?,
                worst => writeln!(f, "{worst:>11.1e}")?,
            }
        }
        let total = (self.cases(), self.unsupported(), self.failed());
        writeln!(f, "{:<16} {:>6} {:>12} {:>7}", "all", total.0, total.1, total.2)?;
        for (name, op) in &self.ops {
            for Failure { case, detail, .. } in &op.failures {
                writeln!(f, "FAILED {name} {case}: {detail}")?;
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_not_supported_has_to_be_declared() {
        let of = |cases: &[&str]| OpReport {
            unsupported: cases.iter().map(|c| (*c).into()).collect(),
            ..Default::default()
        };
        let ops = BTreeMap::from([("ROPE", of(&["yarn", "plain"])), ("SCALE", of(&[]))]);
        let report = Report { device: "D".into(), ops };
        assert_eq!(report.against(&["ROPE"]), Vec::<String>::new());
        assert_eq!(report.against(&["ROPE yarn", "ROPE plain"]), Vec::<String>::new());
        assert_eq!(report.against(&["ROPE yarn"]), ["ROPE plain is not supported, and that is not declared"]);
        assert_eq!(report.against(&["ROPE", "SCALE"]), ["SCALE is declared as not supported, and is supported"]);
    }

    #[test]
    fn differences_are_declared_with_their_size() {
        let failure = |case: &str, nmse| Failure { case: case.into(), detail: "off".into(), nmse };
        let failures = vec![failure("a", Some(1e-5)), failure("b", None)];
        let ops = BTreeMap::from([("GELU", OpReport { failures, ..Default::default() })]);
        let report = Report { device: "D".into(), ops };
        assert_eq!(report.beyond(&[]), ["GELU a: off", "GELU b: off"]);
        assert_eq!(report.beyond(&[("GELU", 1e-4)]), ["GELU b: off"]);
        assert_eq!(report.beyond(&[("GELU", 1e-6), ("GELU b", f64::INFINITY)]), ["GELU a: off"]);
        assert!(report.beyond(&[("GELU a", 1e-5), ("GELU b", f64::INFINITY)]).is_empty());
    }
}
