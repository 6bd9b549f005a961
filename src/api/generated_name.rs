//! Suffixes of generated names.

/// Letters of a suffix: those of Kubernetes' generated names, which can form no word.
pub const ALPHABET: &[u8] = b"bcdfghjklmnpqrstvwxz2456789";
/// Length of a Node name's suffix: 387 million names, so that no name is reused.
pub const LENGTH: usize = 6;
