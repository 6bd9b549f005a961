//! Arithmetic on Kubernetes quantities (`4`, `500m`, `16Gi`, `1e3`), exact to a billionth.
//!
//! The grammar is that of apimachinery's resource.Quantity; kube-apiserver has checked what comes from stored objects,
//! so an error here means an object written past the schema.

use k8s_openapi::apimachinery::pkg::api::resource::Quantity;

use crate::api::Resources;

/// Billionths in one.
const NANO: i128 = 1_000_000_000;

/// Why a text is no quantity.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{text:?} is no quantity: write for example 4, 500m or 16Gi")]
pub struct ParseQuantityError {
    text: String,
}

/// The amount in billionths; finer parts are rounded up, as Kubernetes does.
pub fn nanos(quantity: &Quantity) -> Result<i128, ParseQuantityError> {
    nanos_of(&quantity.0)
}

/// The same of a text.
pub fn nanos_of(text: &str) -> Result<i128, ParseQuantityError> {
    parse(text).ok_or_else(|| ParseQuantityError { text: text.to_owned() })
}

fn parse(text: &str) -> Option<i128> {
    let (negative, rest) = match text.as_bytes().first()? {
        b'-' => (true, &text[1..]),
        b'+' => (false, &text[1..]),
        _ => (false, text),
    };
    let end = rest.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(rest.len());
    let (number, suffix) = rest.split_at(end);
    let (whole, fraction) = number.split_once('.').unwrap_or((number, ""));
    if whole.len() + fraction.len() == 0 || fraction.contains('.') {
        return None;
    }
    let (multiplier, divisor) = scale(suffix)?;
    let digits: i128 = format!("{whole}{fraction}").parse().ok()?;
    let divisor = divisor.checked_mul(10_i128.checked_pow(u32::try_from(fraction.len()).ok()?)?)?;
    let scaled = digits.checked_mul(multiplier)?.checked_mul(NANO)?;
    let rounded_up = scaled.checked_add(divisor - 1)?.checked_div(divisor)?;
    Some(if negative { -rounded_up } else { rounded_up })
}

/// A suffix as a fraction: multiplier and divisor.
fn scale(suffix: &str) -> Option<(i128, i128)> {
    const DECIMAL: [&str; 7] = ["", "k", "M", "G", "T", "P", "E"];
    const BINARY: [&str; 7] = ["", "Ki", "Mi", "Gi", "Ti", "Pi", "Ei"];
    const SMALL: [&str; 4] = ["", "m", "u", "n"];
    let power =
        |names: &[&str]| names.iter().position(|name| *name == suffix).and_then(|at| u32::try_from(at).ok());
    if let Some(at) = power(&DECIMAL) {
        return Some((1_000_i128.pow(at), 1));
    }
    if let Some(at) = power(&BINARY) {
        return Some((1_024_i128.pow(at), 1));
    }
    if let Some(at) = power(&SMALL) {
        return Some((1, 1_000_i128.pow(at)));
    }
    let exponent: i32 = suffix.strip_prefix(['e', 'E'])?.parse().ok()?;
    let size = 10_i128.checked_pow(exponent.unsigned_abs())?;
    Some(if exponent < 0 { (1, size) } else { (size, 1) })
}

/// The amounts in a form in which equal amounts read equally, however they were written: billionths.
pub fn canonical(amounts: &Resources) -> Result<Resources, ParseQuantityError> {
    amounts.iter().map(|(name, amount)| Ok((name.clone(), Quantity(nanos(amount)?.to_string())))).collect()
}

/// Capacity less what is reserved, never below zero: what a Node reports as allocatable.
///
/// Amounts that nothing is reserved of keep the form they were written in.
pub fn allocatable(capacity: &Resources, reserved: &Resources) -> Result<Resources, ParseQuantityError> {
    capacity
        .iter()
        .map(|(name, amount)| {
            let Some(taken) = reserved.get(name) else { return Ok((name.clone(), amount.clone())) };
            let left = (nanos(amount)? - nanos(taken)?).max(0);
            Ok((name.clone(), Quantity(written(left))))
        })
        .collect()
}

/// Billionths in the shortest decimal form: whole where it is, else in m, u or n.
fn written(nanos: i128) -> String {
    let (mut unit, mut size) = ("", NANO);
    for smaller in ["m", "u", "n"] {
        if nanos % size == 0 {
            break;
        }
        (unit, size) = (smaller, size / 1_000);
    }
    format!("{}{unit}", nanos / size)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn of(text: &str) -> Result<i128, ParseQuantityError> {
        nanos(&Quantity(text.to_owned()))
    }

    fn amounts(rows: &[(&str, &str)]) -> Resources {
        rows.iter().map(|(name, amount)| ((*name).to_owned(), Quantity((*amount).to_owned()))).collect()
    }

    #[test]
    fn reads_every_form() {
        for (text, nanos) in [
            ("4", 4 * NANO),
            ("500m", NANO / 2),
            ("1.5", 3 * NANO / 2),
            (".5", NANO / 2),
            ("1e3", 1_000 * NANO),
            ("1E", NANO * 10_i128.pow(18)),
            ("1E2", 100 * NANO),
            ("16Gi", 16 * 1024 * 1024 * 1024 * NANO),
            ("-1k", -1_000 * NANO),
            ("0.1n", 1),
        ] {
            assert_eq!(of(text), Ok(nanos), "{text}");
        }
    }

    #[test]
    fn refuses_what_is_no_quantity() {
        for text in [
            "",
            "-",
            "4x",
            "Gi",
            "1.2.3",
            "1 Gi",
            "1ee3",
            "1KI",
            "1e99",
            "9999999999999999999999999999999999999999",
        ] {
            assert!(of(text).is_err(), "{text}");
        }
    }

    #[test]
    fn allocatable_is_capacity_less_reserved() {
        let capacity = amounts(&[("cpu", "4"), ("memory", "16Gi"), ("pods", "110")]);
        let reserved = amounts(&[("cpu", "100m"), ("memory", "512Mi")]);
        let wanted = amounts(&[("cpu", "3900m"), ("memory", "16642998272"), ("pods", "110")]);
        assert_eq!(allocatable(&capacity, &reserved), Ok(wanted));
    }

    proptest! {
        #[test]
        fn what_is_written_reads_back(nanos in 0_i128..1_000_000_000_000_000_000_000) {
            prop_assert_eq!(of(&written(nanos)), Ok(nanos));
        }
    }
}
