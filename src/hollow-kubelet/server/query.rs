//! Query of a request.

use std::borrow::Cow;

use http::Uri;

/// Keys and values of a query, decoded.
pub struct Query<'a>(Vec<(Cow<'a, str>, Cow<'a, str>)>);

impl<'a> Query<'a> {
    /// Query of a URI.
    pub fn of(uri: &'a Uri) -> Self {
        Self(form_urlencoded::parse(uri.query().unwrap_or_default().as_bytes()).collect())
    }

    /// All values of a key.
    pub fn all(&self, key: &str) -> impl Iterator<Item = &str> {
        self.0.iter().filter(move |(name, _)| name == key).map(|(_, value)| &**value)
    }

    /// First value of a key.
    pub fn first(&self, key: &str) -> Option<&str> {
        self.all(key).next()
    }

    /// Returns true if a key is set to true, as the API server writes it.
    pub fn has(&self, key: &str) -> bool {
        self.all(key).any(|value| ["1", "true"].contains(&value))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_query_is_decoded() {
        let uri: Uri = "/exec/a/b/c?command=sh&command=-c&command=echo+a%26b&input=1&tty=0".parse().unwrap();
        let query = Query::of(&uri);
        assert_eq!(query.all("command").collect::<Vec<_>>(), ["sh", "-c", "echo a&b"]);
        assert!(query.has("input") && !query.has("tty") && !query.has("output"));
        assert_eq!((query.first("command"), query.first("none")), (Some("sh"), None));
    }
}
