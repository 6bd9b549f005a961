//! Templates of configuration files and command lines.

/// The template with each `{name}` replaced by its value. Other braces stay; values are not filled in turn.
pub(super) fn fill(template: &str, values: &[(&str, String)]) -> String {
    let mut filled = String::new();
    let mut rest = template;
    while let Some((before, after)) = rest.split_once('{') {
        filled.push_str(before);
        let value = after.split_once('}').and_then(|(name, after)| {
            values.iter().find(|(known, _)| *known == name).map(|(_, value)| (value.as_str(), after))
        });
        let (value, after) = value.unwrap_or(("{", after));
        filled.push_str(value);
        rest = after;
    }
    filled + rest
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn known_names_alone_are_replaced() {
        let values = [("dir", "/{x}".to_owned()), ("x", "1".to_owned())];
        assert_eq!(fill("{a: {dir}/b, {y}: {x}} {", &values), "{a: /{x}/b, {y}: 1} {");
    }
}
