//! Reason of a failed build, from the output of the Go tool.

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

/// Parts of the output that show a failure, in lower case.
const PATTERNS: [(Failure, &[&str]); 5] = [
    (Failure::DiskFull, &["no space left on device", "disk quota exceeded"]),
    (Failure::Killed, &["signal: killed", "cannot allocate memory"]),
    (Failure::NoCompiler, &["cgo: c compiler"]),
    // Before the network: an old Go without a network reports both.
    (Failure::TooOld, &["toolchain not available", "download go1.", "requires go >= ", "invalid go version"]),
    (
        Failure::Network,
        &[
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
        ],
    ),
];

/// Recognizes the failures that the user can fix.
pub fn classify(output: &str) -> Failure {
    let text = output.to_lowercase();
    let found = PATTERNS.iter().find(|(_, patterns)| patterns.iter().any(|pattern| text.contains(pattern)));
    found.map_or(Failure::Other, |(failure, _)| *failure)
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
