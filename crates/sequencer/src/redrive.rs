//! Dead letters go back to the queues of their objects.

use std::sync::Arc;

use super::{
    handle::letter_parts,
    store::{Letter, REDRIVEN, Store},
};
use signalbox_bus::{self as bus, Error, Event};

/// Maximum number of dead letters in one call of the script.
const PART: usize = 100;
/// Approximate maximum number of bytes in one call of the script.
const PART_BYTES: usize = 1 << 20;
/// Maximum number of attempts, each with a newer registry.
const TRIES: usize = 3;

/// Puts the current dead letters back. Returns how many were put back, and how many remain.
pub(super) async fn run(
    bus: &bus::Handle,
    stores: &[Arc<Store>],
    backend: &str,
) -> Result<(u64, u64), Error> {
    bus.refresh_registry().await?;
    served(bus, backend)?;
    let (mut redriven, mut kept) = (0, 0);
    for store in stores {
        let mut left = store.dead_count(backend).await?;
        // Letters that cannot be put back remain at the front of the list.
        let mut from = 0;
        while left > 0 {
            let entries = store.dead(backend, from as u64, left.min(PART) as u64).await?;
            if entries.is_empty() {
                break;
            }
            let (letters, examined) = part(&entries);
            let unreadable = examined - letters.len();
            let (put, full) =
                if letters.is_empty() { (0, 0) } else { put(bus, store, backend, &letters).await? };
            left = left.saturating_sub(examined);
            from += usize::try_from(full).unwrap_or(usize::MAX).saturating_add(unreadable);
            redriven += put;
            kept += full + unreadable as u64;
        }
    }
    Ok((redriven, kept))
}

/// The events that fit into one call, and the number of entries that were read, including unreadable ones.
fn part(entries: &[Vec<u8>]) -> (Vec<Letter>, usize) {
    let (mut letters, mut bytes, mut examined) = (Vec::new(), 0, 0);
    for entry in entries {
        bytes += 2 * entry.len();
        if examined > 0 && bytes > PART_BYTES {
            break;
        }
        examined += 1;
        letters.extend(letter(entry));
    }
    (letters, examined)
}

/// An unreadable entry cannot be sent: it stays for operators who inspect the list.
fn letter(letter: &[u8]) -> Option<Letter> {
    let (_, _, _, event) = letter_parts(letter)?;
    let object = Event::from_log(event).ok()?.object;
    Some(Letter { object, letter: letter.to_owned(), entry: marked(event) })
}

/// Inserts the redriven mark after the id. An entry that already has the mark is unchanged.
fn marked(entry: &[u8]) -> Vec<u8> {
    let comma = entry.iter().position(|byte| *byte == b',').unwrap_or(entry.len());
    let (id, rest) = entry.split_at(comma);
    if rest.starts_with(REDRIVEN) {
        return entry.to_owned();
    }
    [id, REDRIVEN, rest].concat()
}

/// Rejects a backend that does not exist or is being removed.
fn served(bus: &bus::Handle, backend: &str) -> Result<(), Error> {
    match bus.registry().backends.get(backend) {
        Some(one) if !one.draining => Ok(()),
        _ => Err(Error::NoSuchBackend),
    }
}

async fn put(
    bus: &bus::Handle,
    store: &Store,
    backend: &str,
    letters: &[Letter],
) -> Result<(u64, u64), Error> {
    for _ in 0..TRIES {
        // The order matters: the script rejects a registry that is newer than its stamp.
        let stamp = bus.stamp();
        served(bus, backend)?;
        match store.redrive(&stamp, backend, bus.object_events(), letters).await? {
            Some(done) => return Ok(done),
            None => bus.refresh_registry().await?,
        }
    }
    Err(Error::Contended)
}

#[cfg(test)]
mod tests {
    use super::*;

    const EVENT: &str = r#"{"id":64,"last":7,"object":"work:1","topic":"works","type":"update","tenant":"shop","url":"https://a.example/1","timestamp":7}"#;

    #[test]
    fn a_letter_is_marked_once_and_its_event_stays_as_it_was() {
        let back = letter(format!("1 2 3 bad{EVENT}").as_bytes()).unwrap();
        assert_eq!(back.object, "work:1");
        let text = String::from_utf8(back.entry.clone()).unwrap();
        assert_eq!(text, EVENT.replacen("64,", "64,\"redriven\":true,", 1));
        assert_eq!(marked(&back.entry), back.entry);
        let (before, after) =
            (Event::from_log(EVENT.as_bytes()).unwrap(), Event::from_log(&back.entry).unwrap());
        assert_eq!((before.id, before.prev, before.object), (after.id, after.prev, after.object));
        assert!(letter(b"1 2 3 bad{}").is_none());
    }

    #[test]
    fn a_part_is_bounded_in_bytes_and_counts_unreadable_entries() {
        let good = format!("1 2 3 bad{EVENT}").into_bytes();
        let (letters, examined) = part(&[b"?".to_vec(), good.clone(), good.clone()]);
        assert_eq!((letters.len(), examined), (2, 3));
        let large = [good.clone(), vec![b' '; PART_BYTES]].concat();
        let (_, examined) = part(&[large.clone(), good]);
        assert_eq!(examined, 1, "at least one, however large");
    }
}
