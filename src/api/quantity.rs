//! Arithmetic on Kubernetes quantities (`4`, `500m`, `16Gi`, `1e3`), exact to a billionth.
//!
//! The grammar is that of apimachinery's `resource.Quantity`. kube-apiserver validates the quantities of
//! stored objects, so a parse error here means that an object bypassed the schema.

use k8s_openapi::apimachinery::pkg::api::resource::Quantity;

use crate::Resources;

/// Nano-units per unit.
const NANO: i128 = 1_000_000_000;
/// `NANO` as a power of ten.
const NANO_EXPONENT: i32 = 9;

/// The text is not a Kubernetes quantity.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{0:?} is no quantity: write for example 4, 500m or 16Gi")]
pub struct ParseQuantityError(String);

/// A quantity in nano-units. Smaller fractions are rounded up, as Kubernetes does.
pub fn nanos(quantity: &Quantity) -> Result<i128, ParseQuantityError> {
    nanos_of(&quantity.0)
}

/// [`nanos`] of a text.
pub fn nanos_of(text: &str) -> Result<i128, ParseQuantityError> {
    parse(text).ok_or_else(|| ParseQuantityError(text.to_owned()))
}

fn parse(text: &str) -> Option<i128> {
    let amount = text.strip_prefix(['-', '+']).unwrap_or(text);
    let end = amount.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(amount.len());
    let (number, suffix) = amount.split_at(end);
    let (whole, fraction) = number.split_once('.').unwrap_or((number, ""));
    if whole.len() + fraction.len() == 0 || fraction.contains('.') {
        return None;
    }
    let (multiplier, exponent) = scale(suffix)?;
    let digits: i128 = format!("{whole}{fraction}").parse().ok()?;
    let scaled = digits.checked_mul(multiplier)?;
    let exponent = exponent.checked_add(NANO_EXPONENT)?.checked_sub(i32::try_from(fraction.len()).ok()?)?;
    let power = 10_i128.checked_pow(exponent.unsigned_abs());
    let rounded_up = match power {
        _ if scaled == 0 => 0,
        Some(power) if exponent >= 0 => scaled.checked_mul(power)?,
        Some(power) => scaled / power + i128::from(scaled % power != 0),
        None if exponent >= 0 => return None,
        // The value is below one nano-unit, whatever its number of digits.
        None => 1,
    };
    Some(if text.starts_with('-') { -rounded_up } else { rounded_up })
}

/// Multiplier and power of ten of a quantity's suffix.
fn scale(suffix: &str) -> Option<(i128, i32)> {
    const DECIMAL: [&str; 10] = ["n", "u", "m", "", "k", "M", "G", "T", "P", "E"];
    const BINARY: [&str; 7] = ["", "Ki", "Mi", "Gi", "Ti", "Pi", "Ei"];
    let place = |names: &[&str]| {
        names.iter().position(|name| *name == suffix).and_then(|place| i32::try_from(place).ok())
    };
    if let Some(place) = place(&DECIMAL) {
        return Some((1, 3 * place - NANO_EXPONENT));
    }
    if let Some(place) = place(&BINARY) {
        return Some((1_024_i128.pow(place.unsigned_abs()), 0));
    }
    Some((1, suffix.strip_prefix(['e', 'E'])?.parse().ok()?))
}

/// A canonical form of the quantities: nano-units, so that equal amounts compare equal in any notation.
pub fn canonical(amounts: &Resources) -> Result<Resources, ParseQuantityError> {
    amounts.iter().map(|(name, amount)| Ok((name.clone(), Quantity(nanos(amount)?.to_string())))).collect()
}

/// `capacity` minus `reserved`, at least zero: the allocatable resources of a Node. Huge pages are no longer memory that pods
/// may use, as with a kubelet.
///
/// A resource of which nothing is taken keeps its notation.
pub fn allocatable(capacity: &Resources, reserved: &Resources) -> Result<Resources, ParseQuantityError> {
    let huge_pages = capacity.iter().filter(|(name, _)| name.starts_with("hugepages-"));
    let huge_pages = huge_pages.map(|(_, amount)| nanos(amount)).sum::<Result<i128, _>>()?;
    let left = |(name, amount): (&String, &Quantity)| {
        let taken = reserved.get(name).map(nanos).transpose()?.unwrap_or(0);
        let taken = if name == "memory" { taken + huge_pages } else { taken };
        if taken == 0 {
            return Ok((name.clone(), amount.clone()));
        }
        let left = (nanos(amount)? - taken).max(0);
        Ok((name.clone(), Quantity(written(left))))
    };
    capacity.iter().map(left).collect()
}

/// The shortest decimal form of nano-units: a whole number if possible, otherwise with suffix m, u or n.
fn written(nanos: i128) -> String {
    let mut larger = [("", NANO), ("m", NANO / 1_000), ("u", NANO / 1_000_000)].into_iter();
    let (unit, size) = larger.find(|(_, size)| nanos % size == 0).unwrap_or(("n", 1));
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
            ("0e99", 0),
            ("1e-99", 1),
            ("15.6250000000000000001Gi", 16_777_216_000_000_000_001),
            ("9223372036854775806", 9_223_372_036_854_775_806 * NANO),
            ("7.9999999999999999999Ei", 9_223_372_036_854_775_807_884_707_850),
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

    #[test]
    fn huge_pages_are_taken_out_of_the_allocatable_memory() {
        let capacity = amounts(&[("memory", "4Gi"), ("hugepages-2Mi", "1Gi"), ("hugepages-1Gi", "1Gi")]);
        let reserved = amounts(&[("memory", "1Gi")]);
        let wanted = amounts(&[("memory", "1073741824"), ("hugepages-2Mi", "1Gi"), ("hugepages-1Gi", "1Gi")]);
        assert_eq!(allocatable(&capacity, &reserved), Ok(wanted));
    }

    proptest! {
        #[test]
        fn what_is_written_reads_back(nanos in 0_i128..1_000_000_000_000_000_000_000) {
            prop_assert_eq!(of(&written(nanos)), Ok(nanos));
        }
    }
}
