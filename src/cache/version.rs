//! The version that a write made, against what the watch shows.

/// What the last write of an object made of its resourceVersion. Versions are numbers that grow (Kubernetes 1.35 on); any
/// other outruns nothing.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Written(u64);

impl Written {
    /// A write made `version`.
    #[must_use]
    pub fn version(version: &str) -> Self {
        Self(version.parse().unwrap_or_default())
    }

    /// Whether `shown` is older, so that nothing can be concluded from it: the watch is about to show what was written.
    #[must_use]
    pub fn outruns(self, shown: &str) -> bool {
        shown.parse().is_ok_and(|shown: u64| shown < self.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_write_outruns_what_is_older() {
        let written = Written::version("10");
        assert_eq!(
            ["9", "10", "11", "opaque"].map(|shown| written.outruns(shown)),
            [true, false, false, false]
        );
        assert!(!Written::version("opaque").outruns("9") && !Written::default().outruns("9"));
    }
}
