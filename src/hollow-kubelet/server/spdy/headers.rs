//! Headers of SPDY/3: names and values with length prefixes, in one zlib stream per direction that begins
//! with a dictionary of the protocol (draft-mbelshe-httpbis-spdy-00, 2.6.10).

use std::{io, sync::LazyLock};

use bytes::Buf;
use flate2::{Compress, Compression, Decompress, FlushCompress, FlushDecompress, Status};

/// Maximum size of a stream's headers, in bytes.
const LARGEST: usize = 8 << 10;
/// Maximum number of headers of a stream.
const MOST: u32 = 64;

/// Names and values at the beginning of the dictionary, each with its length.
const WORDS: &str = "options head post put delete trace accept accept-charset accept-encoding accept-language \
    accept-ranges age allow authorization cache-control connection content-base content-encoding content-language \
    content-length content-location content-md5 content-range content-type date etag expect expires from host if-match \
    if-modified-since if-none-match if-range if-unmodified-since last-modified location max-forwards pragma \
    proxy-authenticate proxy-authorization range referer retry-after server te trailer transfer-encoding upgrade \
    user-agent vary via warning www-authenticate method get status 200_OK version HTTP/1.1 url public set-cookie \
    keep-alive origin";
/// Rest of the dictionary.
const REST: &str = "100101201202205206300302303304305306307402405406407408409410411412413414415416417502504505203 \
    Non-Authoritative Information204 No Content301 Moved Permanently400 Bad Request401 Unauthorized403 Forbidden404 Not \
    Found500 Internal Server Error501 Not Implemented503 Service UnavailableJan Feb Mar Apr May Jun Jul Aug Sept Oct Nov \
    Dec 00:00:00 Mon, Tue, Wed, Thu, Fri, Sat, Sun, GMTchunked,text/html,image/png,image/jpg,image/gif,\
    application/xml,application/xhtml+xml,text/plain,text/javascript,publicprivatemax-age=gzip,deflate,\
    sdchcharset=utf-8charset=iso-8859-1,utf-,*,enq=0.";

static DICTIONARY: LazyLock<Vec<u8>> = LazyLock::new(|| {
    let mut dictionary = Vec::new();
    for word in WORDS.split(' ') {
        put(&mut dictionary, word.replace('_', " ").as_bytes());
    }
    dictionary.extend_from_slice(REST.as_bytes());
    dictionary
});

/// Names in lower case, and values.
pub type Headers = Vec<(String, String)>;

fn unreadable(reason: &str) -> io::Error {
    io::Error::other(format!("headers cannot be read: {reason}"))
}

/// Reader of the headers that a client sends.
pub struct Reader(Decompress);

impl Default for Reader {
    fn default() -> Self {
        Self(Decompress::new(true))
    }
}

impl Reader {
    /// Reads the headers of one frame.
    pub fn read(&mut self, block: &[u8]) -> io::Result<Headers> {
        parse(&self.inflate(block)?)
    }

    fn inflate(&mut self, block: &[u8]) -> io::Result<Vec<u8>> {
        let mut plain = Vec::with_capacity(LARGEST);
        let begun = self.0.total_in();
        loop {
            let used = usize::try_from(self.0.total_in() - begun).unwrap_or(usize::MAX);
            let rest = block.get(used..).unwrap_or_default();
            let before = (self.0.total_in(), plain.len());
            match self.0.decompress_vec(rest, &mut plain, FlushDecompress::Sync) {
                Ok(Status::StreamEnd) => return Err(unreadable("their stream has ended")),
                Ok(_) if plain.len() >= LARGEST => return Err(unreadable("they are too large")),
                // The output is complete once no byte goes in or comes out any more.
                Ok(_) if before == (self.0.total_in(), plain.len()) => return Ok(plain),
                Ok(_) => {}
                Err(error) if error.needs_dictionary().is_some() => {
                    let set = self.0.set_dictionary(&DICTIONARY);
                    set.map_err(|_| unreadable("another dictionary is requested"))?;
                }
                Err(_) => return Err(unreadable("they are not compressed")),
            }
        }
    }
}

fn parse(mut plain: &[u8]) -> io::Result<Headers> {
    let count = plain.try_get_u32()?;
    if count > MOST {
        return Err(unreadable("there are too many"));
    }
    let header = |_| Ok((text(&mut plain)?.to_ascii_lowercase(), text(&mut plain)?));
    (0..count).map(header).collect()
}

fn text(from: &mut &[u8]) -> io::Result<String> {
    let length = usize::try_from(from.try_get_u32()?).unwrap_or(usize::MAX);
    let text = from.split_off(..length).ok_or_else(|| unreadable("they are cut off"))?;
    String::from_utf8(text.to_vec()).map_err(io::Error::other)
}

fn put(to: &mut Vec<u8>, text: &[u8]) {
    to.extend_from_slice(&u32::try_from(text.len()).unwrap_or_default().to_be_bytes());
    to.extend_from_slice(text);
}

/// Writer of headers to a client.
pub struct Writer(Compress);

impl Writer {
    /// Creates a writer; fails if the zlib library has no dictionaries.
    pub fn new() -> io::Result<Self> {
        let mut compress = Compress::new(Compression::fast(), true);
        compress.set_dictionary(&DICTIONARY)?;
        Ok(Self(compress))
    }

    /// Writes a frame without headers: this server has none to send.
    pub fn write_none(&mut self) -> io::Result<Vec<u8>> {
        self.compress(&0_u32.to_be_bytes())
    }

    fn compress(&mut self, plain: &[u8]) -> io::Result<Vec<u8>> {
        // Small headers grow by no more than the overhead of the compression itself.
        let mut block = Vec::with_capacity(2 * plain.len() + 256);
        self.0.compress_vec(plain, &mut block, FlushCompress::Sync)?;
        Ok(block)
    }

    /// Writes the headers of one frame, as clients do.
    #[cfg(test)]
    pub fn write(&mut self, headers: &[(&str, &str)]) -> io::Result<Vec<u8>> {
        let mut plain = u32::try_from(headers.len()).unwrap().to_be_bytes().to_vec();
        for (name, value) in headers {
            put(&mut plain, name.as_bytes());
            put(&mut plain, value.as_bytes());
        }
        self.compress(&plain)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn the_dictionary_is_the_protocols() {
        assert_eq!(DICTIONARY.len(), 1_423);
        // Adler-32 of the dictionary, by which zlib streams name it.
        assert_eq!(
            Compress::new(Compression::fast(), true).set_dictionary(&DICTIONARY).unwrap(),
            0xe3c6_a7c2
        );
    }

    #[test]
    fn what_was_written_is_read_one_frame_after_the_other() {
        let (mut writer, mut reader) = (Writer::new().unwrap(), Reader::default());
        for turn in 0..20 {
            let turn = turn.to_string();
            let headers = [("Streamtype", "error"), ("port", "8080"), ("requestid", &turn)];
            let block = writer.write(&headers).unwrap();
            let read = reader.read(&block).unwrap();
            assert_eq!(read[0], ("streamtype".to_owned(), "error".to_owned()));
            assert_eq!(read[2], ("requestid".to_owned(), turn));
        }
    }

    #[test]
    fn what_is_too_large_is_refused() {
        let large = "x".repeat(LARGEST);
        let mut writer = Writer::new().unwrap();
        let block = writer.write(&[("a", &large)]).unwrap();
        let error = Reader::default().read(&block).unwrap_err().to_string();
        assert!(error.contains("too large"), "{error}");
    }

    proptest! {
        #[test]
        fn no_bytes_are_too_strange(block in prop::collection::vec(any::<u8>(), 0..300), cut in 0_usize..100) {
            let mut reader = Reader::default();
            let _ = reader.read(&block);
            let _ = reader.read(&block);
            let mut written = Writer::new().unwrap().write(&[("name", "value")]).unwrap();
            written.truncate(written.len().saturating_sub(cut));
            let _ = Reader::default().read(&written);
            let _ = parse(&block);
        }
    }
}
