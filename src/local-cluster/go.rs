//! Parses the output of the Go tool: its version and the reason of a failed build.

/// Oldest Go that builds Kubernetes 1.36.
pub const MINIMUM: (u32, u32) = (1, 26);

/// Major and minor release parsed from `go version go1.26.8 linux/amd64`; accepts `go1.27rc1` too.
pub fn parse_version(output: &str) -> Option<(u32, u32)> {
    let version = output.split_ascii_whitespace().find_map(|word| word.strip_prefix("go1."))?;
    let digits: String = version.chars().take_while(char::is_ascii_digit).collect();
    digits.parse().ok().map(|minor| (1, minor))
}

/// Reason of a failed build, as far as the output shows one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Failure {
    /// The disk is full.
    DiskFull,
    /// Modules could not be downloaded.
    Network,
    /// Go is too old and could not fetch a newer toolchain.
    TooOld,
    /// The compiler was killed, as by the kernel when memory runs out.
    Killed,
    /// No C compiler is installed.
    NoCompiler,
    /// Another reason.
    Other,
}

/// Recognizes the failures that the user can fix.
pub fn classify(output: &str) -> Failure {
    let text = output.to_lowercase();
    let has = |patterns: &[&str]| patterns.iter().any(|pattern| text.contains(pattern));
    if has(&["no space left on device", "disk quota exceeded"]) {
        return Failure::DiskFull;
    }
    if has(&["signal: killed", "cannot allocate memory"]) {
        return Failure::Killed;
    }
    if has(&["cgo: c compiler"]) {
        return Failure::NoCompiler;
    }
    // Checked before the network: an old Go without a network reports both.
    if has(&["toolchain not available", "download go1.", "requires go >= ", "invalid go version"]) {
        return Failure::TooOld;
    }
    if has(&[
        "dial tcp",
        "dial udp",
        "lookup ",
        "no such host",
        "i/o timeout",
        "tls handshake timeout",
        "connection refused",
        "connection reset",
        "network is unreachable",
        "proxyconnect",
        "bad gateway",
        "module lookup disabled",
        "unexpected eof",
        "503 service",
    ]) {
        return Failure::Network;
    }
    Failure::Other
}

/// The last lines of an output that are error messages rather than package names.
pub fn last_errors(output: &str, lines: usize) -> String {
    let telling: Vec<&str> =
        output.lines().map(str::trim).filter(|line| line.contains(' ') && !line.starts_with('#')).collect();
    telling[telling.len().saturating_sub(lines)..].join("; ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn versions() {
        assert_eq!(parse_version("go version go1.26.8 linux/amd64"), Some((1, 26)));
        assert_eq!(parse_version("go version go1.27rc1 linux/arm64"), Some((1, 27)));
        assert_eq!(parse_version("go version go1.9 linux/amd64"), Some((1, 9)));
        assert_eq!(parse_version("go version devel +abc"), None);
        assert!(parse_version("go version go1.9.7 x") < Some(MINIMUM));
    }

    #[test]
    fn failures() {
        for (output, failure) in [
            ("link: writing output: write a.out: no space left on device", Failure::DiskFull),
            (
                "go: x/y@v1: Get \"https://example.org/y\": dial tcp: lookup example.org: no such host",
                Failure::Network,
            ),
            ("Get \"https://example.org\": proxyconnect tcp: EOF", Failure::Network),
            ("module lookup disabled by GOPROXY=off", Failure::Network),
            ("go: go.mod requires go >= 1.26.0 (running go 1.24.1; GOTOOLCHAIN=local)", Failure::TooOld),
            ("go: download go1.26 for linux/amd64: dial tcp: i/o timeout", Failure::TooOld),
            ("compile: signal: killed", Failure::Killed),
            (
                "cgo: C compiler \"cc\" not found: exec: \"cc\": executable file not found in $PATH",
                Failure::NoCompiler,
            ),
            ("main.go:3: undefined: foo", Failure::Other),
        ] {
            assert_eq!(classify(output), failure, "{output}");
        }
    }

    #[test]
    fn errors_among_packages() {
        let output = "k8s.io/api/core/v1\n# k8s.io/x\nx.go:1:2: undefined: y\nk8s.io/api/apps/v1\n";
        assert_eq!(last_errors(output, 3), "x.go:1:2: undefined: y");
    }
}
