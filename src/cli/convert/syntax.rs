//! Texts that API servers accept, as the schema of NodeClass and NodeSet has them. No I/O.
//!
//! The schema has these rules as CEL (`src/api/schema`), which only an API server evaluates.

/// Returns true for the key of a label or taint: a name, after a DNS subdomain and a slash where it has a prefix.
pub(super) fn is_qualified(text: &str) -> bool {
    let part = |part: &str| is_between(part, |c| c.is_ascii_lowercase() || c.is_ascii_digit(), |c| c == '-');
    match text.split_once('/') {
        Some((prefix, name)) => prefix.len() <= 253 && prefix.split('.').all(part) && is_name(name),
        None => is_name(text),
    }
}

pub(super) fn is_label_value(text: &str) -> bool {
    text.is_empty() || is_name(text)
}

fn is_name(text: &str) -> bool {
    text.len() <= 63 && is_between(text, |c| c.is_ascii_alphanumeric(), |c| "-_.".contains(c))
}

/// Returns true for the reference of an image: registry, path, tag and digest.
pub(super) fn is_image(text: &str) -> bool {
    let (name, digest) = text.split_once('@').map_or((text, None), |(name, digest)| (name, Some(digest)));
    let (folders, last) = name.rsplit_once('/').unwrap_or(("", name));
    let (last, tag) = last.split_once(':').map_or((last, None), |(last, tag)| (last, Some(tag)));
    let mut folders = folders.split('/');
    let first = folders.next().unwrap_or_default();
    text.len() <= 1024
        && is_component(last)
        && (first.is_empty() && !name.starts_with('/') || is_registry(first) || is_component(first))
        && folders.all(is_component)
        && tag.is_none_or(is_tag)
        && digest.is_none_or(is_digest)
}

fn is_registry(text: &str) -> bool {
    let (host, port) = match text.rsplit_once(':') {
        Some((host, port)) if !port.ends_with(']') => (host, port),
        _ => (text, "0"),
    };
    let is_host = match host.strip_prefix('[') {
        Some(address) => address.strip_suffix(']').is_some_and(|address| {
            !address.is_empty() && address.chars().all(|c| c.is_ascii_hexdigit() || c == ':')
        }),
        None => {
            host.starts_with(|c: char| c.is_ascii_alphanumeric())
                && host.chars().all(|c| c.is_ascii_alphanumeric() || "-.".contains(c))
        }
    };
    is_host && !port.is_empty() && port.bytes().all(|byte| byte.is_ascii_digit())
}

/// Returns true for a part of an image's path, with separators between its words.
fn is_component(text: &str) -> bool {
    let is_word = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit();
    let is_separator = |text: &str| matches!(text, "" | "." | "_" | "__") || text.chars().all(|c| c == '-');
    is_between(text, is_word, |c| "-_.".contains(c)) && text.split(is_word).all(is_separator)
}

fn is_tag(text: &str) -> bool {
    let is_word = |c: char| c.is_ascii_alphanumeric() || c == '_';
    text.len() <= 128 && text.starts_with(is_word) && text.chars().all(|c| is_word(c) || "-.".contains(c))
}

fn is_digest(text: &str) -> bool {
    text.split_once(':').is_some_and(|(algorithm, digest)| {
        algorithm.starts_with(|c: char| c.is_ascii_alphabetic())
            && algorithm.chars().all(|c| c.is_ascii_alphanumeric() || "-_+.".contains(c))
            && digest.len() >= 32
            && digest.bytes().all(|byte| byte.is_ascii_hexdigit())
    })
}

/// Returns true for a text of outer and inner characters with outer ones at both ends.
fn is_between(text: &str, outer: impl Fn(char) -> bool, inner: impl Fn(char) -> bool) -> bool {
    text.starts_with(&outer) && text.ends_with(&outer) && text.chars().all(|c| outer(c) || inner(c))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_and_values_are_those_of_labels() {
        let long = "a".repeat(64);
        for good in ["a", "example.com/zone", "a-b_c.D", "x.y-z/A", &long[1..]] {
            assert!(is_qualified(good), "{good}");
        }
        for bad in ["", "-", "!a", "a b", "a/", "/a", "A.com/a", "a..b/c", "a/b/c", "a-", &long] {
            assert!(!is_qualified(bad), "{bad}");
        }
        assert!(is_label_value("") && is_label_value("v1.2_3") && !is_label_value("has space"));
    }

    #[test]
    fn images_are_those_of_the_schema() {
        let digest = format!("gofed/kubemark@sha256:{}", "0".repeat(64));
        for good in [
            "kubemark",
            "Registry/kubemark:v1.36.3",
            "r:5000/a/b__c/d--e:latest",
            "[::1]:5000/a",
            "[::1]/a",
            "docker.io/gofed/kubemark:v1.13.7-beta.0-2",
            &digest,
        ] {
            assert!(is_image(good), "{good}");
        }
        for bad in [
            "",
            "Registry/Kubemark:v1.36.3",
            "/a",
            "a/",
            "a//b",
            "a b",
            "a:",
            "a:b:c",
            "r:x/a",
            "a._b",
            "a___b",
            "a@sha256:0",
            "a/r:5000/b",
        ] {
            assert!(!is_image(bad), "{bad}");
        }
    }
}
