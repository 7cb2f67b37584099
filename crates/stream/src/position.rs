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
        // The low six bits of an id are the number of its shard.
        let is_of_shard = |(shard, id): (usize, &EventId)| id.0 == 0 || id.0 % 64 == shard as u64;
        (ids.len() == shards && ids.iter().enumerate().all(is_of_shard)).then_some(Self(ids))
    }

    /// Whether every shard may have assigned its id by now. After an id from the future, a stream would send nothing until
    /// then. `last` has the last ids. A later id that is not in the future is from before a failover that lost it.
    pub fn is_reached(&self, last: &Self, now_ms: u64) -> bool {
        let now = EventId::at_ms(now_ms);
        self.0.iter().enumerate().all(|(shard, id)| *id <= last.of(shard).max(now))
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
        fn a_position_reads_back(ids in prop::collection::vec(0_u64..1 << 47, 1..64)) {
            let of_shard = |(shard, id): (usize, u64)| EventId(if id == 0 { 0 } else { id * 64 + shard as u64 });
            let position = Position(ids.into_iter().enumerate().map(of_shard).collect());
            let ids = &position.0;
            prop_assert_eq!(Position::read(&position.to_string(), ids.len()), Some(position));
        }

        #[test]
        fn any_position_of_a_client_is_read_or_rejected(text in "\\PC{0,80}", shards in 1_usize..4) {
            let _ = Position::read(&text, shards);
        }
    }

    #[test]
    fn a_position_of_another_fabric_is_none() {
        // 1s is 64, 1t is 65.
        for text in ["", ".", "1s", "1s.1t.1u", "1s.-1t", "zzzzzzzzzzzzz.1t", "1s.1t ", "1t.1s", "x.0"] {
            assert_eq!(Position::read(text, 2), None, "{text}");
        }
        assert_eq!(Position::read("1s.1t", 2), Some(Position(vec![EventId(64), EventId(65)])));
    }

    #[test]
    fn a_position_in_the_future_is_not_reached() {
        let now_ms = 1_750_000_000_000;
        let (now, ahead) = (EventId::at_ms(now_ms), EventId::at_ms(now_ms + 1));
        let reached = |id, last| Position(vec![id]).is_reached(&Position(vec![last]), now_ms);
        assert!(reached(now, EventId(0)), "the shard has lost it");
        assert!(reached(ahead, ahead), "ids can be ahead of the clock");
        assert!(!reached(ahead, now));
        assert!(!reached(EventId(u64::MAX), now));
    }
}
