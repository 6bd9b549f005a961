//! An endless body, rewritten line by line as it arrives.

use std::io;

use axum::body::{Body, BodyDataStream, Bytes};
use futures::{StreamExt, stream};

/// Longest line, in bytes: etcd accepts objects of 1.5 MiB, and JSON is larger.
const LINE_MAX: usize = 4 << 20;

/// Received bytes that are not passed on yet.
struct Lines<F> {
    source: BodyDataStream,
    pending: Vec<u8>,
    /// Number of pending bytes that contain no newline.
    scanned: usize,
    ended: bool,
    rewrite: F,
}

/// Passes `body` on, with each of its lines rewritten by `rewrite`.
pub fn rewritten(body: Body, rewrite: impl FnMut(Vec<u8>) -> Vec<u8> + Send + 'static) -> Body {
    let lines =
        Lines { source: body.into_data_stream(), pending: Vec::new(), scanned: 0, ended: false, rewrite };
    Body::from_stream(stream::try_unfold(lines, Lines::next))
}

impl<F: FnMut(Vec<u8>) -> Vec<u8>> Lines<F> {
    async fn next(mut self) -> Result<Option<(Bytes, Self)>, axum::Error> {
        loop {
            let unseen = self.pending.get(self.scanned..).unwrap_or_default();
            if let Some(at) = unseen.iter().position(|byte| *byte == b'\n') {
                let rest = self.pending.split_off(self.scanned + at + 1);
                let line = std::mem::replace(&mut self.pending, rest);
                self.scanned = 0;
                return Ok(Some((Bytes::from((self.rewrite)(line)), self)));
            }
            self.scanned = self.pending.len();
            if self.ended && self.pending.is_empty() {
                return Ok(None);
            }
            if self.ended {
                let line = std::mem::take(&mut self.pending);
                self.scanned = 0;
                return Ok(Some((Bytes::from((self.rewrite)(line)), self)));
            }
            if self.pending.len() > LINE_MAX {
                return Err(axum::Error::new(io::Error::other(format!(
                    "a line of the watch is longer than {LINE_MAX} bytes"
                ))));
            }
            match self.source.next().await {
                Some(chunk) => self.pending.extend_from_slice(&chunk?),
                None => self.ended = true,
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    async fn passed(chunks: &[&'static str]) -> Vec<String> {
        let chunks: Vec<Result<Bytes, axum::Error>> =
            chunks.iter().map(|chunk| Ok(Bytes::from_static(chunk.as_bytes()))).collect();
        let upper = |line: Vec<u8>| line.to_ascii_uppercase();
        let lines = rewritten(Body::from_stream(stream::iter(chunks)), upper).into_data_stream();
        lines.map(|line| String::from_utf8(line.unwrap().to_vec()).unwrap()).collect().await
    }

    #[tokio::test]
    async fn lines_are_whole_whatever_the_pieces() {
        assert_eq!(passed(&["a\nb", "c", "\n\nd\n"]).await, ["A\n", "BC\n", "\n", "D\n"]);
        assert_eq!(passed(&["a"]).await, ["A"], "the last line may lack its end");
        assert!(passed(&[]).await.is_empty());
    }

    #[tokio::test]
    async fn a_line_comes_when_it_is_whole_and_not_later() {
        let first = stream::iter([Ok::<_, axum::Error>(Bytes::from_static(b"a\nb"))]);
        let body = Body::from_stream(first.chain(stream::pending()));
        let mut lines = rewritten(body, |line| line).into_data_stream();
        assert_eq!(lines.next().await.unwrap().unwrap(), "a\n");
        let more = tokio::time::timeout(std::time::Duration::from_millis(50), lines.next()).await;
        assert!(more.is_err(), "half a line stays");
    }

    #[tokio::test]
    async fn a_line_without_end_is_given_up() {
        let chunk = || Ok::<_, axum::Error>(Bytes::from(vec![b'x'; 1 << 20]));
        let body = Body::from_stream(stream::repeat_with(chunk));
        let mut lines = rewritten(body, |line| line).into_data_stream();
        assert!(lines.next().await.unwrap().is_err());
    }
}
