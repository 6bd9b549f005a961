//! Frames of SPDY/3.1 (draft-mbelshe-httpbis-spdy-00, 2.6), as far as streams of Kubernetes need them.

use std::io;

use bytes::{Buf, BufMut, Bytes, BytesMut};

/// Maximum size of an accepted frame, in bytes.
const LARGEST: usize = 1 << 20;
/// Mark of a control frame, with the version.
const CONTROL: u16 = 0x8003;
/// Flag of a stream's last frame.
const FIN: u8 = 1;

const SYN_STREAM: u16 = 1;
const SYN_REPLY: u16 = 2;
const RST_STREAM: u16 = 3;
const PING: u16 = 6;
const GOAWAY: u16 = 7;

/// Status code of a refused stream.
const REFUSED_STREAM: u32 = 3;

/// A frame from a client.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Frame {
    /// Opens a stream.
    Open {
        /// Number of the stream.
        stream: u32,
        /// Headers of the stream, compressed.
        headers: Bytes,
        /// True if the client sends no data on the stream.
        last: bool,
    },
    /// Part of a stream.
    Data {
        /// Number of the stream.
        stream: u32,
        /// Data of the part.
        data: Bytes,
        /// True for the last part.
        last: bool,
    },
    /// Resets a stream.
    Reset(u32),
    /// Ping with its ID.
    Ping(u32),
    /// The client ends the connection.
    GoAway,
    /// Ignored frame: clients of Kubernetes use neither windows nor settings.
    Other,
}

/// Takes the first frame out of `from`; None while it is incomplete.
pub fn take(from: &mut BytesMut) -> io::Result<Option<Frame>> {
    let Some(head) = from.first_chunk::<8>().copied() else { return Ok(None) };
    let [mark @ .., a, b, c] = head;
    let length = usize::try_from(u32::from_be_bytes([0, a, b, c])).unwrap_or(usize::MAX);
    if length > LARGEST {
        return Err(io::Error::other(format!("a frame of {length} bytes")));
    }
    if from.len() < head.len() + length {
        return Ok(None);
    }
    from.advance(head.len());
    let body = from.split_to(length).freeze();
    let [first, second, third, fourth, flags] = mark;
    let last = flags & FIN != 0;
    if first & 0x80 == 0 {
        let stream = u32::from_be_bytes([first, second, third, fourth]);
        return Ok(Some(Frame::Data { stream, data: body, last }));
    }
    if u16::from_be_bytes([first, second]) != CONTROL {
        return Err(io::Error::other("a frame of another protocol"));
    }
    control(u16::from_be_bytes([third, fourth]), body, last).map(Some)
}

fn control(kind: u16, mut body: Bytes, last: bool) -> io::Result<Frame> {
    Ok(match kind {
        SYN_STREAM => {
            let stream = body.try_get_u32()? & 0x7fff_ffff;
            // Associated stream, priority and slot.
            body.try_get_u32()?;
            body.try_get_u16()?;
            Frame::Open { stream, headers: body, last }
        }
        RST_STREAM => Frame::Reset(body.try_get_u32()? & 0x7fff_ffff),
        PING => Frame::Ping(body.try_get_u32()?),
        GOAWAY => Frame::GoAway,
        _ => Frame::Other,
    })
}

/// Frame with a part of a stream.
pub fn data(stream: u32, data: &[u8], last: bool) -> Bytes {
    frame(stream & 0x7fff_ffff, u8::from(last) * FIN, data)
}

/// Frame that replies to an opened stream.
pub fn reply(stream: u32, headers: &[u8]) -> Bytes {
    control_of(SYN_REPLY, &[&stream.to_be_bytes(), headers].concat())
}

/// Frame that refuses a stream.
pub fn refuse(stream: u32) -> Bytes {
    control_of(RST_STREAM, &[stream.to_be_bytes(), REFUSED_STREAM.to_be_bytes()].concat())
}

/// Frame that answers a ping.
pub fn pong(id: u32) -> Bytes {
    control_of(PING, &id.to_be_bytes())
}

/// Frame that ends the connection. No stream was opened by this server.
pub fn go_away() -> Bytes {
    control_of(GOAWAY, &[0; 8])
}

fn control_of(kind: u16, body: &[u8]) -> Bytes {
    frame(u32::from(CONTROL) << 16 | u32::from(kind), 0, body)
}

/// A frame. Those of this server are far below the three-byte limit.
fn frame(mark: u32, flags: u8, body: &[u8]) -> Bytes {
    let length = u32::try_from(body.len()).unwrap_or(u32::MAX).min(0x00ff_ffff);
    let mut frame = BytesMut::with_capacity(8 + body.len());
    frame.put_u32(mark);
    frame.put_u32(u32::from(flags) << 24 | length);
    frame.extend_from_slice(body);
    frame.freeze()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn all(bytes: &[u8]) -> io::Result<Vec<Frame>> {
        let mut from = BytesMut::from(bytes);
        let mut frames = Vec::new();
        while let Some(frame) = take(&mut from)? {
            frames.push(frame);
        }
        Ok(frames)
    }

    #[test]
    fn frames_are_taken_once_they_are_there() {
        let open = [&[0x80, 3, 0, 1, 1, 0, 0, 12, 0, 0, 0, 5, 0, 0, 0, 0, 0, 0][..], b"hh"].concat();
        let bytes = [&open[..], &data(5, b"abc", true), &pong(7), &refuse(5), &go_away()].concat();
        let frames = all(&bytes).unwrap();
        assert_eq!(frames[0], Frame::Open { stream: 5, headers: Bytes::from_static(b"hh"), last: true });
        assert_eq!(frames[1], Frame::Data { stream: 5, data: Bytes::from_static(b"abc"), last: true });
        assert_eq!(frames[2..], [Frame::Ping(7), Frame::Reset(5), Frame::GoAway]);
        for cut in 0..bytes.len() {
            assert!(all(&bytes[..cut]).unwrap().len() < frames.len());
        }
    }

    #[test]
    fn what_is_no_frame_is_refused() {
        for (bytes, message) in [
            (&[0, 0, 0, 1, 0, 0xff, 0xff, 0xff][..], "a frame of 16777215 bytes"),
            (&[0x80, 2, 0, 1, 0, 0, 0, 0], "another protocol"),
            (&[0x80, 3, 0, 6, 0, 0, 0, 2, 0, 0], "Not enough bytes"),
        ] {
            let error = all(bytes).unwrap_err().to_string();
            assert!(error.contains(message), "{error}");
        }
        assert_eq!(all(&[0x80, 3, 0, 4, 0, 0, 0, 0]).unwrap(), [Frame::Other]);
    }

    proptest! {
        #[test]
        fn no_bytes_are_too_strange(bytes in prop::collection::vec(any::<u8>(), 0..200)) {
            let _ = all(&bytes);
        }

        #[test]
        fn data_comes_back(stream in 0..0x7fff_ffff_u32, part in prop::collection::vec(any::<u8>(), 0..200), last: bool) {
            let frames = all(&data(stream, &part, last)).unwrap();
            prop_assert_eq!(frames, [Frame::Data { stream, data: part.into(), last }]);
        }
    }
}
