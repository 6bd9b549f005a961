//! An endless body, rewritten line by line as it arrives.

use std::{io, mem};

use axum::body::{Body, Bytes};
use futures::{StreamExt, TryStreamExt};
use tokio_util::{
    bytes::BytesMut,
    codec::{Decoder, FramedRead},
    io::StreamReader,
};

/// Longest line, in bytes: etcd accepts objects of 1.5 MiB, and JSON is larger.
const LINE_MAX: usize = 4 << 20;

/// Passes `body` on, with each of its lines rewritten by `rewrite`.
pub fn rewritten(body: Body, mut rewrite: impl FnMut(Bytes) -> Bytes + Send + 'static) -> Body {
    let reader = StreamReader::new(body.into_data_stream().map_err(io::Error::other));
    let lines = FramedRead::new(reader, Lines::default());
    Body::from_stream(lines.map(move |line| line.map(&mut rewrite)))
}

/// Cuts bytes into lines, each with its newline; the last one may lack it.
#[derive(Default)]
struct Lines {
    /// Number of pending bytes that contain no newline.
    scanned: usize,
}

impl Decoder for Lines {
    type Item = Bytes;
    type Error = io::Error;

    fn decode(&mut self, pending: &mut BytesMut) -> io::Result<Option<Bytes>> {
        if let Some(at) = pending[self.scanned..].iter().position(|byte| *byte == b'\n') {
            let end = mem::take(&mut self.scanned) + at + 1;
            return Ok(Some(pending.split_to(end).freeze()));
        }
        self.scanned = pending.len();
        if pending.len() > LINE_MAX {
            return Err(io::Error::other(format!("a line of the watch is longer than {LINE_MAX} bytes")));
        }
        Ok(None)
    }

    fn decode_eof(&mut self, pending: &mut BytesMut) -> io::Result<Option<Bytes>> {
        if let Some(line) = self.decode(pending)? {
            return Ok(Some(line));
        }
        self.scanned = 0;
        Ok((!pending.is_empty()).then(|| pending.split().freeze()))
    }
}

#[cfg(test)]
mod tests {
    use futures::stream;

    use super::*;

    async fn passed(chunks: &[&'static str]) -> Vec<String> {
        let chunks: Vec<Result<Bytes, axum::Error>> =
            chunks.iter().map(|chunk| Ok(Bytes::from_static(chunk.as_bytes()))).collect();
        let upper = |line: Bytes| Bytes::from(line.to_ascii_uppercase());
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
