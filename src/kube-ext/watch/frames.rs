//! Decoder of a watch stream: frames of Kubernetes' protobuf, each preceded by its length.

use k8s_pb::apimachinery::pkg::apis::meta::v1::{PartialObjectMetadata, Status, WatchEvent};
use prost::Message;

use crate::transport::{self, AnyObject, TransportError};

/// Longest accepted frame, in bytes; the API server accepts no object a fraction as large.
const LONGEST: usize = 64 << 20;
/// Length prefix of a frame, in bytes.
const LENGTH: usize = 4;
/// Annotation of the bookmark that ends the initial list.
const END_OF_LIST: &str = "k8s.io/initial-events-end";
/// Capacity that the buffer may keep between two frames, in bytes.
const KEPT: usize = 1024;

/// Decoded frame.
#[derive(Debug)]
pub enum Frame {
    /// An object was added, changed or deleted.
    Object {
        /// Resource version.
        version: String,
        /// True if the object was deleted.
        deleted: bool,
        /// The object, as its encoded message.
        raw: Vec<u8>,
    },
    /// No change up to this resource version.
    Bookmark {
        /// Resource version.
        version: String,
        /// True if the initial list is complete.
        ends_list: bool,
    },
}

/// Received bytes, split into frames.
#[derive(Debug, Default)]
pub struct Frames {
    buffer: Vec<u8>,
    /// Number of bytes in the buffer that were decoded already.
    decoded: usize,
}

impl Frames {
    /// Appends received bytes.
    pub fn push(&mut self, bytes: &[u8]) {
        self.buffer.drain(..self.decoded);
        self.decoded = 0;
        self.buffer.extend_from_slice(bytes);
    }

    /// The next complete frame; an error if the API server ends the watch with one.
    pub fn next(&mut self) -> Option<Result<Frame, TransportError>> {
        let (length, rest) = self.buffer.get(self.decoded..)?.split_first_chunk::<LENGTH>()?;
        let length = usize::try_from(u32::from_be_bytes(*length)).unwrap_or(usize::MAX);
        if length > LONGEST {
            return Some(Err(TransportError::TooLong(length)));
        }
        let frame = read(rest.get(..length)?);
        self.decoded += LENGTH + length;
        if self.decoded == self.buffer.len() {
            self.decoded = 0;
            self.buffer.clear();
            self.buffer.shrink_to(KEPT);
        }
        Some(frame)
    }
}

fn read(bytes: &[u8]) -> Result<Frame, TransportError> {
    let WatchEvent { r#type, object } = WatchEvent::decode(bytes)?;
    let raw = transport::unwrap(&object.and_then(|object| object.raw).unwrap_or_default())?;
    let kind = r#type.unwrap_or_default();
    if kind == "ERROR" {
        let status = transport::status_of(Status::decode(raw.as_slice())?);
        return Err(TransportError::Refused(status.boxed()));
    }
    let version = AnyObject::decode(raw.as_slice())?.into_version();
    Ok(if kind == "BOOKMARK" {
        let metadata = PartialObjectMetadata::decode(raw.as_slice())?.metadata.unwrap_or_default();
        Frame::Bookmark { version, ends_list: metadata.annotations.contains_key(END_OF_LIST) }
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

    /// A bookmark frame with this resource version.
    pub fn bookmark(version: &str, ends_list: bool) -> Vec<u8> {
        let object = config_map(version, ends_list.then_some(END_OF_LIST));
        framed("BOOKMARK", "v1", &object, "ConfigMap")
    }

    fn framed(kind: &str, api_version: &str, object: &impl Message, of: &str) -> Vec<u8> {
        let raw = Some(transport::envelope(api_version, of, object));
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
                    seen.push(frame);
                }
            }
            let shown: Vec<String> = seen
                .iter()
                .map(|frame| match frame {
                    Ok(Frame::Object { version, deleted, raw }) => {
                        let same = ConfigMap::decode(raw.as_slice()).is_ok();
                        format!("{version} {deleted} {same}")
                    }
                    Ok(Frame::Bookmark { version, ends_list }) => format!("{version} {ends_list}"),
                    Err(error) => error.code().unwrap().to_string(),
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
        assert!(matches!(frames.next(), Some(Err(TransportError::TooLong(_)))));
        let mut frames = Frames::default();
        frames.push(&[0, 0, 0, 2, 0xff, 0xff]);
        assert!(matches!(frames.next(), Some(Err(TransportError::Decode(_)))));
    }
}
