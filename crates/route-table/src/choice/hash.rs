//! Consistent hashing as the edge does it (`lua/signalbox/balance/hash.lua`): the highest of the scores that each
//! address has with the key.

/// The address for `key` among the addresses of `list`, each with its weight. Without `weighted`, weights are
/// ignored.
pub(super) fn pick<'a>(list: &[(&'a str, f64)], key: &str, weighted: bool) -> Option<&'a str> {
    let hashed = mix(crc32(key.as_bytes()));
    let mut best: Option<(&str, f64)> = None;
    for (address, weight) in list {
        let score = f64::from(mix(hashed ^ mix(crc32(address.as_bytes()))));
        let own = match weighted {
            false => score,
            true if *weight <= 0.0 => continue,
            true => weight / -((score + 0.5) / 4_294_967_296.0).ln(),
        };
        if best.is_none_or(|(_, most)| own > most) {
            best = Some((address, own));
        }
    }
    best.map(|(address, _)| address)
}

/// CRC-32 of IEEE 802.3, computed bit by bit because the input has only a few dozen bytes.
fn crc32(bytes: &[u8]) -> u32 {
    let step = |sum: u32| if sum & 1 == 1 { (sum >> 1) ^ 0xEDB8_8320 } else { sum >> 1 };
    !bytes.iter().fold(!0, |sum, byte| (0..8).fold(sum ^ u32::from(*byte), |sum, _| step(sum)))
}

/// The finalizer of `MurmurHash3`.
fn mix(mut hash: u32) -> u32 {
    hash ^= hash >> 16;
    hash = hash.wrapping_mul(0x85eb_ca6b);
    hash ^= hash >> 13;
    hash = hash.wrapping_mul(0xc2b2_ae35);
    hash ^ (hash >> 16)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sums_are_those_of_the_standard() {
        assert_eq!(crc32(b"123456789"), 0xCBF4_3926);
        // Values of MurmurHash3's finalizer, as its author published it.
        assert_eq!((mix(0), mix(1)), (0, 0x514E_28B7));
    }

    #[test]
    fn the_edge_picks_the_same() {
        // The same list is in lua/spec/algorithms_spec.lua.
        let all = |weights: [f64; 3], weighted: bool| -> String {
            let list =
                [("127.0.0.1:1", weights[0]), ("127.0.0.1:2", weights[1]), ("127.0.0.1:3", weights[2])];
            let last = |n: i32| pick(&list, &format!("user {n}"), weighted).unwrap().chars().last();
            (0..8).filter_map(last).collect()
        };
        assert_eq!(all([1.0; 3], false), "33213112");
        assert_eq!(all([5.0, 1.0, 2.0], true), "33113112");
    }

    #[test]
    fn weights_get_their_part_of_the_keys() {
        let list = [("127.0.0.1:1", 3.0), ("127.0.0.1:2", 1.0), ("127.0.0.1:3", 0.0)];
        let mut counts = [0_u32; 3];
        for key in 0..4000 {
            let chosen = pick(&list, &format!("user-{key}"), true).unwrap();
            counts[list.iter().position(|(address, _)| *address == chosen).unwrap()] += 1;
        }
        assert!((2800..3200).contains(&counts[0]) && counts[2] == 0, "{counts:?}");
        let even = [("127.0.0.1:1", 1.0), ("127.0.0.1:2", 1.0)];
        for key in 0..200 {
            let key = key.to_string();
            assert_eq!(pick(&even, &key, true), pick(&even, &key, false));
        }
        assert_eq!(pick(&[], "a", false), None);
    }
}
