//! Messages on a stream: a length, then JSON. Small by law, so that nobody sends tensors this way.

use serde::{Serialize, de::DeserializeOwned};
use std::io::{self, Read, Write};

/// The longest message.
const MAX_BYTES: usize = 1 << 20;

/// Sends one message in one write.
pub(super) fn write(stream: &mut impl Write, message: &impl Serialize) -> io::Result<()> {
    let mut frame = vec![0; 4];
    serde_json::to_writer(&mut frame, message)?;
    let num_bytes = frame.len() - 4;
    if num_bytes > MAX_BYTES {
        let error = format!("a control message of {num_bytes} bytes; at most {MAX_BYTES}");
        return Err(io::Error::new(io::ErrorKind::InvalidInput, error));
    }
    frame[..4].copy_from_slice(&(num_bytes as u32).to_be_bytes());
    stream.write_all(&frame)
}

/// Receives one message.
///
/// # Errors
/// The stream ended, or what came is no message.
pub(super) fn read<T: DeserializeOwned>(stream: &mut impl Read) -> io::Result<T> {
    let mut length = [0; 4];
    stream.read_exact(&mut length)?;
    let num_bytes = u32::from_be_bytes(length) as usize;
    if num_bytes > MAX_BYTES {
        let error = format!("{num_bytes} bytes announced; this is not dmuon on the other end");
        return Err(io::Error::new(io::ErrorKind::InvalidData, error));
    }
    let mut json = vec![0; num_bytes];
    stream.read_exact(&mut json)?;
    Ok(serde_json::from_slice(&json)?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn messages_come_out_as_they_went_in() {
        let mut stream = Vec::new();
        write(&mut stream, &"one").expect("a vector takes everything");
        write(&mut stream, &(2, "two")).expect("a vector takes everything");
        let mut stream = stream.as_slice();
        assert_eq!(read::<String>(&mut stream).ok().as_deref(), Some("one"));
        assert_eq!(read::<(u8, String)>(&mut stream).ok(), Some((2, "two".into())));
        let end = read::<String>(&mut stream).expect_err("nothing is left");
        assert_eq!(end.kind(), io::ErrorKind::UnexpectedEof);
    }

    #[test]
    fn strangers_and_tensors_are_refused() {
        let error = read::<String>(&mut &b"GET / HTTP/1.1"[..]).expect_err("not ours");
        assert!(error.to_string().contains("not dmuon"), "{error}");
        let error = write(&mut Vec::new(), &"x".repeat(MAX_BYTES)).expect_err("too long");
        assert!(error.to_string().contains("at most"), "{error}");
    }
}
