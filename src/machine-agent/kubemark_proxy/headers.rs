//! Header filter of the kubemark proxy: hop-by-hop headers end here, and so do credentials and impersonation,
//! so that a client inside the pod can only be the machine.

use http::{
    HeaderMap, HeaderValue,
    header::{ACCEPT, ACCEPT_ENCODING, CONNECTION},
};

/// Hop-by-hop headers (RFC 9110, 7.6.1).
const HOP_BY_HOP: [&str; 9] = [
    "connection",
    "keep-alive",
    "proxy-connection",
    "proxy-authenticate",
    "proxy-authorization",
    "te",
    "trailer",
    "transfer-encoding",
    "upgrade",
];
/// Headers that the proxy sets by itself: the identity of the client, and lengths and hosts.
const OURS: [&str; 5] = ["authorization", "cookie", "forwarded", "host", "content-length"];
/// Prefixes of such headers: impersonation, the API server's own front proxy, and proxies at large.
const OURS_BEGIN: [&str; 3] = ["impersonate-", "x-remote-", "x-forwarded-"];

/// Headers of a request that go to the API server.
pub fn of_request(headers: &HeaderMap) -> HeaderMap {
    let is_ours = |name: &str| OURS.contains(&name) || OURS_BEGIN.iter().any(|begin| name.starts_with(begin));
    filtered(&of_response(headers), |name| !is_ours(name))
}

/// Like [`of_request`], for a request whose response is parsed here: plain JSON.
pub fn of_readable_request(headers: &HeaderMap) -> HeaderMap {
    let mut headers = of_request(headers);
    headers.remove(ACCEPT_ENCODING);
    headers.insert(ACCEPT, HeaderValue::from_static("application/json"));
    headers
}

/// Headers of a response that go to kubemark.
pub fn of_response(headers: &HeaderMap) -> HeaderMap {
    let values = headers.get_all(CONNECTION).iter().filter_map(|value| value.to_str().ok());
    let listed: Vec<&str> = values.flat_map(|value| value.split(',').map(str::trim)).collect();
    filtered(headers, |name| {
        !HOP_BY_HOP.contains(&name) && !listed.iter().any(|hop| hop.eq_ignore_ascii_case(name))
    })
}

fn filtered(headers: &HeaderMap, keep: impl Fn(&str) -> bool) -> HeaderMap {
    let filtered = headers.iter().filter(|(name, _)| keep(name.as_str()));
    filtered.map(|(name, value)| (name.clone(), value.clone())).collect()
}

#[cfg(test)]
mod tests {
    use http::HeaderName;

    use super::*;

    fn headers(pairs: &[(&'static str, &'static str)]) -> HeaderMap {
        pairs.iter().map(|(name, value)| (HeaderName::from_static(name), value.parse().unwrap())).collect()
    }

    #[test]
    fn nobody_inside_the_pod_is_somebody_else() {
        let passed = of_request(&headers(&[
            ("authorization", "Bearer stolen"),
            ("impersonate-user", "admin"),
            ("impersonate-extra-scopes", "all"),
            ("x-remote-user", "admin"),
            ("x-forwarded-for", "10.0.0.1"),
            ("cookie", "a=b"),
            ("host", "127.0.0.1:6444"),
            ("content-length", "7"),
            ("user-agent", "hollow-kubelet"),
            ("content-type", "application/json"),
        ]));
        assert_eq!(
            passed,
            headers(&[("user-agent", "hollow-kubelet"), ("content-type", "application/json")])
        );
    }

    #[test]
    fn what_speaks_of_one_connection_stays_on_it() {
        let passed = of_response(&headers(&[
            ("connection", "close, X-Hop"),
            ("x-hop", "1"),
            ("transfer-encoding", "chunked"),
            ("keep-alive", "timeout=5"),
            ("audit-id", "7"),
        ]));
        assert_eq!(passed, headers(&[("audit-id", "7")]));
    }

    #[test]
    fn an_answer_that_is_read_here_is_plain_json() {
        let passed = of_readable_request(&headers(&[
            ("accept", "application/vnd.kubernetes.protobuf"),
            ("accept-encoding", "gzip"),
        ]));
        assert_eq!(passed, headers(&[("accept", "application/json")]));
    }
}
