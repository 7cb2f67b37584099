//! Arrays of texts, as scripts store them with `cmsgpack.pack`.

/// Reads a MessagePack array of `N` strings, at most 15. `None` if it is anything else.
pub fn unpacked<const N: usize>(stored: &[u8]) -> Option<[Vec<u8>; N]> {
    let mut rest = stored.strip_prefix(&[0x90 | u8::try_from(N).ok()?])?;
    let mut texts = Vec::with_capacity(N);
    while texts.len() < N {
        let (length, after) = match *rest.first()? {
            head @ 0xa0..=0xbf => (usize::from(head & 0x1f), rest.get(1..)?),
            0xd9 => (usize::from(*rest.get(1)?), rest.get(2..)?),
            0xda => (usize::from(u16::from_be_bytes(rest.get(1..3)?.try_into().ok()?)), rest.get(3..)?),
            0xdb => {
                let length = u32::from_be_bytes(rest.get(1..5)?.try_into().ok()?);
                (usize::try_from(length).ok()?, rest.get(5..)?)
            }
            _ => return None,
        };
        texts.push(after.get(..length)?.to_vec());
        rest = &after[length..];
    }
    texts.try_into().ok()
}
