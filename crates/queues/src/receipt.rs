//! Receipts: a consumer presents one to settle a message.
//!
//! `queue~shard~id~attempt~until~nonce`. Everything but the nonce identifies the message, the attempt and the end of
//! its lease; the nonce cannot be guessed from another receipt. A receipt is only accepted when the message is in
//! flight with the same nonce and attempt, so a forged one settles nothing.

use std::{fmt, str::FromStr};

use super::definition::is_queue_name;

/// The receipt of a pulled message.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Receipt {
    /// The queue.
    pub queue: String,
    /// The shard.
    pub shard: usize,
    /// The message.
    pub id: u64,
    /// The number of this delivery, counted from 1.
    pub attempt: u32,
    /// The original end of its lease, in unix milliseconds of the shard's clock.
    pub until_ms: u64,
    /// Random characters of the pull.
    pub nonce: String,
}

impl Receipt {
    /// The part that the scripts compare with the stored message in flight.
    pub(super) fn proof(&self) -> String {
        format!("{} {}", self.nonce, self.attempt)
    }
}

impl fmt::Display for Receipt {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { queue, shard, id, attempt, until_ms, nonce } = self;
        write!(f, "{queue}~{shard}~{id}~{attempt}~{until_ms}~{nonce}")
    }
}

/// The text is not a receipt.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("invalid receipt")]
pub struct Malformed;

impl FromStr for Receipt {
    type Err = Malformed;

    fn from_str(text: &str) -> Result<Self, Malformed> {
        // All parts of a receipt are short, so a longer text is not a receipt.
        let parts: Vec<&str> = if text.len() <= 256 { text.split('~').collect() } else { Vec::new() };
        let [queue, shard, id, attempt, until_ms, nonce] = parts[..] else { return Err(Malformed) };
        let nonce_fits = !nonce.is_empty() && nonce.bytes().all(|byte| byte.is_ascii_graphic());
        if !is_queue_name(queue) || !nonce_fits {
            return Err(Malformed);
        }
        fn number<N: FromStr>(text: &str) -> Result<N, Malformed> {
            let digits = text.bytes().all(|byte| byte.is_ascii_digit());
            if digits { text.parse().map_err(|_| Malformed) } else { Err(Malformed) }
        }
        Ok(Self {
            queue: queue.to_owned(),
            shard: number(shard)?,
            id: number(id)?,
            attempt: number(attempt)?,
            until_ms: number(until_ms)?,
            nonce: nonce.to_owned(),
        })
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn a_receipt_reads_back_as_it_was_written(
            queue in "[a-zA-Z0-9_-][a-zA-Z0-9_.-]{0,63}", shard in 0usize..64, id in 0u64..1 << 53, attempt in 1u32..,
            until_ms in 0u64..1 << 53, nonce in "[A-Za-z0-9_-]{16}",
        ) {
            let receipt = Receipt { queue, shard, id, attempt, until_ms, nonce };
            prop_assert_eq!(receipt.to_string().parse(), Ok(receipt));
        }

        #[test]
        fn any_other_text_is_rejected(text in ".{0,80}") {
            if let Ok(receipt) = text.parse::<Receipt>() {
                prop_assert_eq!(receipt.queue.is_empty(), false);
            }
        }
    }

    #[test]
    fn near_misses_are_not_receipts() {
        for bad in
            ["", "q~0~64~1~5", "q~0~64~1~5~", "q~0~+64~1~5~n", "q~0~64~-1~5~n", "q|x~0~64~1~5~n", "~~~~~"]
        {
            assert_eq!(bad.parse::<Receipt>(), Err(Malformed), "{bad}");
        }
        assert_eq!("a".repeat(10_000).parse::<Receipt>(), Err(Malformed));
    }

    #[test]
    fn fuzz_receipts() {
        let examples =
            ["mail~0~17~1~1795267331123~abcdefghijklmnop", "a~18446744073709551615~1~4294967295~0~!"];
        let words = ["~", "0", "00", "+1", "-1", "18446744073709551616", " ", "\u{661}", "~~"];
        let mut fuzz = signalbox_testkit::Fuzz::new("receipts", examples, &words);
        while let Some(text) = fuzz.text() {
            let Ok(receipt) = text.parse::<Receipt>() else { continue };
            assert_eq!(receipt.to_string().parse(), Ok(receipt.clone()), "{text}");
            assert!(is_queue_name(&receipt.queue) && !receipt.nonce.contains('~'), "{text}");
            fuzz.accepted();
        }
    }
}
