//! Fuzzing without special compilers: mutated inputs, repeatable by their seed.
//!
//! A target runs a number of inputs that is the same in every run, so it is an ordinary test. `FUZZ_SECONDS` lets it run for that
//! long instead, and `FUZZ_SEED` chooses other inputs. `make fuzz` sets both. If a target fails, the input and the seed are
//! printed. Add the input to the target's examples: they run first and unchanged, so the failure cannot return.
//!
//! Inputs that a target accepts become examples for later mutations. This leads deeper into a parser than random bytes do.

use std::{env, fmt::Write as _, time::Duration};

use tokio::time::Instant;

/// Inputs of a run without `FUZZ_SECONDS`.
const INPUTS: u64 = 1_500;
/// Accepted inputs that are kept as examples.
const MAX_KEPT: usize = 2_000;
/// Mutations of one input.
const MAX_MUTATIONS: u64 = 6;

/// The inputs of one target.
#[derive(Debug)]
pub struct Fuzz {
    target: &'static str,
    seed: u64,
    state: u64,
    end: Option<Instant>,
    max_bytes: usize,
    words: Vec<Vec<u8>>,
    examples: usize,
    pool: Vec<Vec<u8>>,
    runs: u64,
    kept: u64,
    current: Vec<u8>,
}

impl Fuzz {
    /// Mutates these examples, and inserts these words.
    ///
    /// # Panics
    /// Without an example, or if `FUZZ_SECONDS` or `FUZZ_SEED` is not a number.
    pub fn new<E: AsRef<[u8]>>(
        target: &'static str,
        examples: impl IntoIterator<Item = E>,
        words: &[&str],
    ) -> Self {
        let pool: Vec<Vec<u8>> = examples.into_iter().map(|example| example.as_ref().to_vec()).collect();
        let longest = pool.iter().map(Vec::len).max().expect("an example");
        let number = |name: &str| {
            let text = env::var(name).ok().filter(|text| !text.is_empty())?;
            Some(text.parse::<u64>().unwrap_or_else(|_| panic!("{name} must be a number, not {text:?}")))
        };
        let seed = number("FUZZ_SEED").unwrap_or(1);
        Self {
            target,
            seed,
            // Targets with the same seed get different inputs.
            state: target.bytes().fold(seed, |hash, byte| hash.rotate_left(7) ^ u64::from(byte)),
            end: number("FUZZ_SECONDS").map(|seconds| Instant::now() + Duration::from_secs(seconds)),
            max_bytes: longest * 2 + 64,
            words: words.iter().map(|word| word.as_bytes().to_vec()).collect(),
            examples: pool.len(),
            pool,
            runs: 0,
            kept: 0,
            current: Vec::new(),
        }
    }

    /// The next input, or `None` at the end of the run.
    pub fn input(&mut self) -> Option<Vec<u8>> {
        let over = self.end.map_or(self.runs >= INPUTS, |end| Instant::now() >= end);
        let example = usize::try_from(self.runs).ok().filter(|number| *number < self.examples);
        if over && example.is_none() {
            println!(
                "fuzz {}: {} inputs, {} accepted, seed {}",
                self.target, self.runs, self.kept, self.seed
            );
            return None;
        }
        self.runs += 1;
        self.current = match example {
            Some(number) => self.pool[number].clone(),
            None => self.mutated(),
        };
        Some(self.current.clone())
    }

    /// The next input as text; invalid UTF-8 is replaced.
    pub fn text(&mut self) -> Option<String> {
        self.input().map(|bytes| String::from_utf8_lossy(&bytes).into_owned())
    }

    /// The target accepted the latest input.
    pub fn accepted(&mut self) {
        self.kept += 1;
        if self.pool.len() < self.examples + MAX_KEPT {
            self.pool.push(self.current.clone());
        } else {
            let place = self.examples + self.below(MAX_KEPT);
            self.pool[place] = self.current.clone();
        }
    }

    /// A number below `limit`, for choices of the target.
    pub fn below(&mut self, limit: usize) -> usize {
        let limit = u64::try_from(limit).expect("64 bit").max(1);
        usize::try_from(self.random() % limit).expect("below a usize")
    }

    /// The generator splitmix64 (Steele, Lea, Flood: "Fast splittable pseudorandom number generators").
    fn random(&mut self) -> u64 {
        self.state = self.state.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.state;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }

    fn mutated(&mut self) -> Vec<u8> {
        let chosen = self.below(self.pool.len());
        let mut bytes = self.pool[chosen].clone();
        for _ in 0..=self.random() % MAX_MUTATIONS {
            self.mutate(&mut bytes);
        }
        bytes.truncate(self.max_bytes);
        bytes
    }

    fn mutate(&mut self, bytes: &mut Vec<u8>) {
        let at = self.below(bytes.len() + 1);
        let length = self.below(16.min(bytes.len() - at) + 1);
        match self.below(8) {
            0 if at < bytes.len() => bytes[at] ^= 1 << self.below(8),
            1 if at < bytes.len() => bytes[at] = self.byte(),
            2 => bytes.insert(at, self.byte()),
            3 => drop(bytes.drain(at..at + length)),
            4 => {
                let copy = bytes[at..at + length].to_vec();
                let to = self.below(bytes.len() + 1);
                bytes.splice(to..to, copy);
            }
            5 => {
                let other = self.below(self.pool.len());
                let from = self.below(self.pool[other].len() + 1);
                let piece = self.pool[other][from..].to_vec();
                bytes.truncate(at);
                bytes.extend(piece);
            }
            _ if !self.words.is_empty() => {
                let word = self.below(self.words.len());
                // Half of the words replace something, so that inputs do not only grow.
                let replaced = if self.random().is_multiple_of(2) { length } else { 0 };
                bytes.splice(at..at + replaced, self.words[word].clone());
            }
            _ => {}
        }
    }

    fn byte(&mut self) -> u8 {
        const ODD: [u8; 12] = [0, 9, 10, 13, 32, 34, 39, 92, 127, 128, 192, 255];
        match self.below(3) {
            0 => ODD[self.below(ODD.len())],
            _ => u8::try_from(self.below(256)).expect("below 256"),
        }
    }
}

impl Drop for Fuzz {
    fn drop(&mut self) {
        if std::thread::panicking() {
            let mut shown = String::new();
            for byte in &self.current {
                write!(shown, "{}", std::ascii::escape_default(*byte)).expect("a string takes it");
            }
            println!("fuzz {}: input {} of seed {} fails: b\"{shown}\"", self.target, self.runs, self.seed);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn inputs(target: &'static str) -> Vec<Vec<u8>> {
        let mut fuzz = Fuzz::new(target, ["one", "two"], &["word"]);
        (0..100).filter_map(|_| fuzz.input().inspect(|_| fuzz.accepted())).collect()
    }

    #[test]
    fn a_seed_repeats_its_inputs_and_examples_come_first_unchanged() {
        let all = inputs("a");
        assert_eq!(all, inputs("a"));
        assert_ne!(all, inputs("b"));
        assert_eq!((all.len(), &all[..2]), (100, &[b"one".to_vec(), b"two".to_vec()][..]));
        assert!(all.iter().any(|input| input.windows(4).any(|part| part == b"word")));
    }
}
