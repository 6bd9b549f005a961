//! `prost` with another decoding of strings that are not UTF-8: invalid byte sequences become U+FFFD, as in
//! the API server's JSON.
//!
//! Go writes any bytes as a protobuf string, and the API server checks only the fields that it validates:
//! anyone who may create a pod may write such an annotation. `prost` refuses the whole message for it, and
//! with that message the whole list.
//!
//! A message uses this module by `#[prost(prost_path = "crate::lossy")]`, as `messages!` declares it.

pub use prost::*;

/// `prost::encoding` with another `string`.
pub mod encoding {
    pub use prost::encoding::*;

    /// Encoding of strings.
    pub mod string {
        pub use prost::encoding::string::{encode, encode_repeated, encoded_len, encoded_len_repeated};
        use prost::{
            DecodeError,
            bytes::Buf,
            encoding::{DecodeContext, WireType, bytes},
        };

        /// Decodes a string.
        pub fn merge(
            wire_type: WireType,
            value: &mut String,
            buf: &mut impl Buf,
            ctx: DecodeContext,
        ) -> Result<(), DecodeError> {
            let mut read = std::mem::take(value).into_bytes();
            bytes::merge(wire_type, &mut read, buf, ctx)?;
            *value = String::from_utf8(read)
                .unwrap_or_else(|error| String::from_utf8_lossy(error.as_bytes()).into_owned());
            Ok(())
        }

        /// Decodes one element of a repeated string.
        pub fn merge_repeated(
            wire_type: WireType,
            values: &mut Vec<String>,
            buf: &mut impl Buf,
            ctx: DecodeContext,
        ) -> Result<(), DecodeError> {
            let mut value = String::new();
            merge(wire_type, &mut value, buf, ctx)?;
            values.push(value);
            Ok(())
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use prost::Message;

    /// The same fields as strings and, below, as bytes.
    #[derive(Clone, PartialEq, Message)]
    #[prost(prost_path = "crate::lossy")]
    struct Strings {
        #[prost(string, tag = "1")]
        one: String,
        #[prost(string, optional, tag = "2")]
        maybe: Option<String>,
        #[prost(string, repeated, tag = "3")]
        many: Vec<String>,
        #[prost(btree_map = "string, string", tag = "4")]
        map: BTreeMap<String, String>,
    }

    #[derive(Clone, PartialEq, Message)]
    struct Bytes {
        #[prost(bytes = "vec", tag = "1")]
        one: Vec<u8>,
        #[prost(bytes = "vec", optional, tag = "2")]
        maybe: Option<Vec<u8>>,
        #[prost(bytes = "vec", repeated, tag = "3")]
        many: Vec<Vec<u8>>,
        #[prost(message, repeated, tag = "4")]
        map: Vec<Entry>,
    }

    #[derive(Clone, PartialEq, Message)]
    struct Entry {
        #[prost(bytes = "vec", tag = "1")]
        key: Vec<u8>,
        #[prost(bytes = "vec", tag = "2")]
        value: Vec<u8>,
    }

    proptest::proptest! {
        #[test]
        fn any_bytes_are_read_as_the_json_of_the_api_server_has_them(one: Vec<u8>, maybe: Option<Vec<u8>>, many: Vec<Vec<u8>>, value: Vec<u8>) {
            let map = vec![Entry { key: b"key\xff".to_vec(), value: value.clone() }];
            let bytes = Bytes { one: one.clone(), maybe: maybe.clone(), many: many.clone(), map }.encode_to_vec();
            let lossy = |bytes: &Vec<u8>| String::from_utf8_lossy(bytes).into_owned();
            let strings = Strings {
                one: lossy(&one),
                maybe: maybe.as_ref().map(lossy),
                many: many.iter().map(lossy).collect(),
                map: [("key\u{fffd}".to_owned(), lossy(&value))].into(),
            };
            assert_eq!(Strings::decode(bytes.as_slice()), Ok(strings.clone()));
            assert_eq!(Strings::decode(strings.encode_to_vec().as_slice()), Ok(strings));
        }
    }
}
