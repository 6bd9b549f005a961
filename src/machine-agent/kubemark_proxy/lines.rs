//! An endless body, rewritten line by line as it arrives.

use std::io;

use axum::body::{Body, Bytes};
use futures::TryStreamExt;
use tokio_util::{
    codec::{AnyDelimiterCodec, FramedRead},
    io::StreamReader,
};

/// Longest line, in bytes: etcd accepts objects of 1.5 MiB, and JSON is larger.
const LINE_MAX: usize = 4 << 20;

/// Passes `body` on, with each of its lines rewritten by `rewrite`. Lines go to `rewrite` without their newline.
pub fn rewritten(body: Body, mut rewrite: impl FnMut(&[u8]) -> Vec<u8> + Send + 'static) -> Body {
    let reader = StreamReader::new(body.into_data_stream().map_err(io::Error::other));
    let newline = b"\n".to_vec();
    let lines = AnyDelimiterCodec::new_with_max_length(newline.clone(), newline, LINE_MAX);
    Body::from_stream(FramedRead::new(reader, lines).map_ok(move |line| {
        let mut line = rewrite(&line);
        line.push(b'\n');
        Bytes::from(line)
    }))
}

#[cfg(test)]
mod tests {
    use futures::{StreamExt, stream};

    use super::*;

    async fn passed(chunks: &[&'static str]) -> Vec<String> {
        let chunks: Vec<Result<Bytes, axum::Error>> =
            chunks.iter().map(|chunk| Ok(Bytes::from_static(chunk.as_bytes()))).collect();
        let upper = |line: &[u8]| line.to_ascii_uppercase();
        let lines = rewritten(Body::from_stream(stream::iter(chunks)), upper).into_data_stream();
        lines.map(|line| String::from_utf8(line.unwrap().to_vec()).unwrap()).collect().await
    }

    #[tokio::test]
    async fn lines_are_whole_whatever_the_pieces() {
        assert_eq!(passed(&["a\nb", "c", "\n\nd\n"]).await, ["A\n", "BC\n", "\n", "D\n"]);
        assert_eq!(passed(&["a"]).await, ["A\n"], "the last line may lack its end");
        assert!(passed(&[]).await.is_empty());
    }

    #[tokio::test]
    async fn a_line_comes_when_it_is_whole_and_not_later() {
        let first = stream::iter([Ok::<_, axum::Error>(Bytes::from_static(b"a\nb"))]);
        let body = Body::from_stream(first.chain(stream::pending()));
        let mut lines = rewritten(body, <[u8]>::to_vec).into_data_stream();
        assert_eq!(lines.next().await.unwrap().unwrap(), "a\n");
        let more = tokio::time::timeout(std::time::Duration::from_millis(50), lines.next()).await;
        assert!(more.is_err(), "half a line stays");
    }

    #[tokio::test]
    async fn a_line_without_end_is_given_up() {
        let chunk = || Ok::<_, axum::Error>(Bytes::from(vec![b'x'; 1 << 20]));
        let body = Body::from_stream(stream::repeat_with(chunk));
        let mut lines = rewritten(body, <[u8]>::to_vec).into_data_stream();
        assert!(lines.next().await.unwrap().is_err());
    }
}
