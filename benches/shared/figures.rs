//! Several measurements as one figure.

/// The one in the middle.
pub fn median(values: &[f64]) -> Option<f64> {
    let mut values = values.to_vec();
    values.sort_by(f64::total_cmp);
    values.get(values.len() / 2).copied()
}

/// Median, least and greatest.
pub fn spread(values: &[f64]) -> String {
    let least = values.iter().copied().min_by(f64::total_cmp);
    let greatest = values.iter().copied().max_by(f64::total_cmp);
    match (least, median(values), greatest) {
        (Some(least), Some(median), Some(greatest)) => format!("{median:.2} ({least:.2}–{greatest:.2})"),
        _ => "–".to_owned(),
    }
}
