//! What a watch brings: frames of Kubernetes' protobuf, each with its length before it.

use std::collections::HashMap;

use k8s_pb::apimachinery::pkg::apis::meta::v1::{Status, WatchEvent};
use prost::Message;

use crate::wire::{self, AnyObject, WireError};

/// A frame beyond this is none, in bytes: the API server takes no object a fraction as large.
const LONGEST: usize = 64 << 20;
/// Bytes of the length before a frame.
const LENGTH: usize = 4;
/// Annotation of the bookmark that ends the list a watch begins with.
const END_OF_LIST: &str = "k8s.io/initial-events-end";
/// What a buffer may keep between two frames, in bytes.
const KEPT: usize = 1024;

/// What a frame says.
#[derive(Debug)]
pub enum Frame {
    /// An object came or changed, or was deleted.
    Object {
        /// Its version.
        version: String,
        /// Whether it is gone.
        deleted: bool,
        /// It, in its own message.
        raw: Vec<u8>,
    },
    /// Nothing happened up to this version.
    Bookmark {
        /// The version.
        version: String,
        /// Whether the list is complete that the watch began with.
        ends_list: bool,
    },
    /// The watch ends: the API server says why.
    Error(WireError),
}

/// What is not understood.
#[derive(Debug, thiserror::Error)]
pub enum FrameError {
    /// A length that none is.
    #[error("a frame of {0} bytes")]
    TooLong(usize),
    /// A frame that is no event.
    #[error("a frame cannot be decoded")]
    Decode(#[from] prost::DecodeError),
    /// An event without a readable object.
    #[error("the object of an event cannot be decoded")]
    Object(#[from] WireError),
}

/// What of a bookmark a watch goes by besides its version. Tags are those of meta/v1 `ObjectMeta`.
#[derive(Clone, PartialEq, Message)]
struct Bookmark {
    #[prost(message, optional, tag = "1")]
    metadata: Option<BookmarkMeta>,
}

#[derive(Clone, PartialEq, Message)]
struct BookmarkMeta {
    #[prost(map = "string, string", tag = "12")]
    annotations: HashMap<String, String>,
}

/// What came and was not told yet.
#[derive(Debug, Default)]
pub struct Frames {
    buffer: Vec<u8>,
    /// So much of it was told.
    told: usize,
}

impl Frames {
    /// More has come.
    pub fn push(&mut self, bytes: &[u8]) {
        self.buffer.drain(..self.told);
        self.told = 0;
        self.buffer.extend_from_slice(bytes);
    }

    /// The next whole frame.
    pub fn next(&mut self) -> Option<Result<Frame, FrameError>> {
        let (length, rest) = self.buffer.get(self.told..)?.split_first_chunk::<LENGTH>()?;
        let length = usize::try_from(u32::from_be_bytes(*length)).unwrap_or(usize::MAX);
        if length > LONGEST {
            return Some(Err(FrameError::TooLong(length)));
        }
        let frame = read(rest.get(..length)?);
        self.told += LENGTH + length;
        if self.told == self.buffer.len() {
            self.told = 0;
            self.buffer.clear();
            self.buffer.shrink_to(KEPT);
        }
        Some(frame)
    }
}

fn read(bytes: &[u8]) -> Result<Frame, FrameError> {
    let WatchEvent { r#type, object } = WatchEvent::decode(bytes)?;
    let raw = wire::unwrap(&object.and_then(|object| object.raw).unwrap_or_default())?;
    let kind = r#type.unwrap_or_default();
    if kind == "ERROR" {
        let Status { code, reason, message, .. } = Status::decode(raw.as_slice())?;
        return Ok(Frame::Error(WireError::Refused {
            code: u16::try_from(code.unwrap_or_default()).unwrap_or_default(),
            reason: reason.unwrap_or_default(),
            message: message.unwrap_or_default(),
        }));
    }
    let version = AnyObject::decode(raw.as_slice())?.into_version();
    Ok(if kind == "BOOKMARK" {
        let BookmarkMeta { annotations } = Bookmark::decode(raw.as_slice())?.metadata.unwrap_or_default();
        Frame::Bookmark { version, ends_list: annotations.contains_key(END_OF_LIST) }
    } else {
        Frame::Object { version, deleted: kind == "DELETED", raw }
    })
}

#[cfg(test)]
pub(super) mod tests {
    use k8s_pb::{
        api::core::v1::ConfigMap,
        apimachinery::pkg::{apis::meta::v1::ObjectMeta, runtime::RawExtension},
    };

    use super::*;

    /// A frame with a bookmark of this version.
    pub fn bookmark(version: &str, ends_list: bool) -> Vec<u8> {
        let object = config_map(version, ends_list.then_some(END_OF_LIST));
        framed("BOOKMARK", "v1", &object, "ConfigMap")
    }

    fn framed(kind: &str, api_version: &str, object: &impl Message, of: &str) -> Vec<u8> {
        let raw = Some(wire::envelope(api_version, of, object));
        let event =
            WatchEvent { r#type: Some(kind.to_owned()), object: Some(RawExtension { raw }) }.encode_to_vec();
        [&u32::try_from(event.len()).unwrap().to_be_bytes()[..], &event].concat()
    }

    fn config_map(version: &str, annotation: Option<&str>) -> ConfigMap {
        let annotations = annotation.map(|key| (key.to_owned(), "true".to_owned())).into_iter().collect();
        let metadata =
            ObjectMeta { resource_version: Some(version.to_owned()), annotations, ..ObjectMeta::default() };
        ConfigMap { metadata: Some(metadata), ..ConfigMap::default() }
    }

    #[test]
    fn frames_come_whole_however_they_are_cut() {
        let gone = Status { code: Some(410), ..Status::default() };
        let stream = [
            framed("ADDED", "v1", &config_map("5", None), "ConfigMap"),
            framed("BOOKMARK", "v1", &config_map("6", Some(END_OF_LIST)), "ConfigMap"),
            framed("DELETED", "v1", &config_map("7", None), "ConfigMap"),
            framed("BOOKMARK", "v1", &config_map("8", None), "ConfigMap"),
            framed("ERROR", "v1", &gone, "Status"),
        ]
        .concat();
        for cut in 1..=stream.len() {
            let (mut frames, mut seen) = (Frames::default(), Vec::new());
            for part in stream.chunks(cut) {
                frames.push(part);
                while let Some(frame) = frames.next() {
                    seen.push(frame.unwrap());
                }
            }
            let shown: Vec<String> = seen
                .iter()
                .map(|frame| match frame {
                    Frame::Object { version, deleted, raw } => {
                        let same = ConfigMap::decode(raw.as_slice()).is_ok();
                        format!("{version} {deleted} {same}")
                    }
                    Frame::Bookmark { version, ends_list } => format!("{version} {ends_list}"),
                    Frame::Error(error) => error.code().unwrap().to_string(),
                })
                .collect();
            assert_eq!(shown, ["5 false true", "6 true", "7 true true", "8 false", "410"], "cut at {cut}");
            assert!(frames.buffer.is_empty() && frames.buffer.capacity() <= KEPT);
        }
    }

    #[test]
    fn what_is_no_frame_is_an_error() {
        let mut frames = Frames::default();
        frames.push(b"<html>");
        assert!(matches!(frames.next(), Some(Err(FrameError::TooLong(_)))));
        let mut frames = Frames::default();
        frames.push(&[0, 0, 0, 2, 0xff, 0xff]);
        assert!(matches!(frames.next(), Some(Err(FrameError::Decode(_)))));
    }
}
