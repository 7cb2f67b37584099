//! The position of a stream: the last ID of each shard, as text from which a client resumes.

use signalbox_bus::EventId;

/// The position of a stream: one event id for each shard.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Position(pub(super) Vec<EventId>);

impl Position {
    /// Parses a client's position; `None` if it is not a valid position in `shards` shards.
    pub fn read(text: &str, shards: usize) -> Option<Self> {
        let ids: Vec<EventId> =
            text.split('.').map(|id| u64::from_str_radix(id, 36).ok().map(EventId)).collect::<Option<_>>()?;
        // With an id from the far future, the stream would never send anything.
        (ids.len() == shards && ids.iter().all(|id| id.0 < 1 << 53)).then_some(Self(ids))
    }

    pub(super) fn of(&self, shard: usize) -> EventId {
        self.0.get(shard).copied().unwrap_or(EventId(0))
    }

    pub(super) fn set(&mut self, shard: usize, id: EventId) {
        if let Some(place) = self.0.get_mut(shard) {
            *place = id;
        }
    }
}

impl std::fmt::Display for Position {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        for (shard, id) in self.0.iter().enumerate() {
            if shard > 0 {
                f.write_str(".")?;
            }
            f.write_str(&base36(id.0))?;
        }
        Ok(())
    }
}

/// Encodes a number: short, and evidently not meant for arithmetic.
fn base36(mut number: u64) -> String {
    let mut digits = Vec::new();
    loop {
        digits.push(char::from_digit((number % 36) as u32, 36).unwrap_or('0'));
        number /= 36;
        if number == 0 {
            return digits.iter().rev().collect();
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn a_position_reads_back(ids in prop::collection::vec(0_u64..1 << 53, 1..64)) {
            let position = Position(ids.iter().copied().map(EventId).collect());
            prop_assert_eq!(Position::read(&position.to_string(), ids.len()), Some(position));
        }

        #[test]
        fn any_position_of_a_client_is_read_or_rejected(text in "\\PC{0,80}", shards in 1_usize..4) {
            let _ = Position::read(&text, shards);
        }
    }

    #[test]
    fn a_position_of_another_fabric_is_none() {
        for text in ["", ".", "1", "1.2.3", "1.-2", "zzzzzzzzzzzz.1", "1.2 "] {
            assert_eq!(Position::read(text, 2), None, "{text}");
        }
    }
}
