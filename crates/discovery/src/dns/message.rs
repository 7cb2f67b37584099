//! Messages of DNS (RFC 1035): a question for one name, and the records of an answer. Pure.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

/// The types of records that are read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Kind {
    A,
    Aaaa,
    Srv,
}

impl Kind {
    fn code(self) -> u16 {
        match self {
            Self::A => 1,
            Self::Aaaa => 28,
            Self::Srv => 33,
        }
    }
}

const INTERNET: u16 = 1;
const CNAME: u16 = 5;
/// Maximum number of pointers in a name, so that a loop ends.
const MAX_POINTERS: usize = 32;
const MAX_NAME_BYTES: usize = 255;
/// The longest chain of aliases.
const MAX_ALIASES: usize = 8;

/// A record of a service.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Srv {
    pub(super) priority: u16,
    pub(super) weight: u16,
    pub(super) port: u16,
    pub(super) target: String,
}

/// The records of an answer.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Answer {
    pub(super) services: Vec<Srv>,
    addresses: Vec<(String, IpAddr)>,
    aliases: Vec<(String, String)>,
    /// The smallest number of seconds for which a record is valid.
    pub(super) min_ttl: u32,
}

impl Answer {
    /// The addresses of a name, also through aliases.
    pub(super) fn addresses_of(&self, name: &str) -> Vec<IpAddr> {
        let mut name = name.to_ascii_lowercase();
        for _ in 0..MAX_ALIASES {
            match self.aliases.iter().find(|(alias, _)| *alias == name) {
                Some((_, target)) => name.clone_from(target),
                None => break,
            }
        }
        let own = self.addresses.iter().filter(|(owner, _)| *owner == name);
        own.map(|(_, address)| *address).collect()
    }
}

/// Why an answer is of no use.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Unusable {
    /// It belongs to another question.
    Foreign,
    /// It has to be asked again over TCP.
    Truncated,
    /// The server cannot answer, with the response code.
    Failed(u8),
    Malformed,
}

/// A question for one name; nothing if the name is not valid.
pub(super) fn question(id: u16, name: &str, kind: Kind) -> Option<Vec<u8>> {
    let mut message = Vec::with_capacity(64);
    // Recursion desired; one question.
    for word in [id, 0x0100, 1, 0, 0, 0] {
        message.extend(word.to_be_bytes());
    }
    let begin = message.len();
    for label in name.trim_end_matches('.').split('.') {
        let length = u8::try_from(label.len()).ok().filter(|length| (1..=63).contains(length))?;
        message.push(length);
        message.extend(label.as_bytes());
    }
    message.push(0);
    if message.len() - begin > MAX_NAME_BYTES {
        return None;
    }
    message.extend(kind.code().to_be_bytes());
    message.extend(INTERNET.to_be_bytes());
    Some(message)
}

/// Reads the answer to `question`.
pub(super) fn answer(message: &[u8], question: &[u8]) -> Result<Answer, Unusable> {
    let mut reader = Reader { message, at: 0 };
    let header: [u16; 6] = reader.words().ok_or(Unusable::Malformed)?;
    let [id, flags, questions, answers, authorities, additional] = header;
    let asked = question.get(12..).unwrap_or_default();
    let repeated = message.get(12..12 + asked.len()).unwrap_or_default();
    let is_response = flags & 0x8000 != 0;
    let same_id = question.get(..2) == Some(&id.to_be_bytes()[..]);
    if !is_response || !same_id || questions != 1 || !repeated.eq_ignore_ascii_case(asked) {
        return Err(Unusable::Foreign);
    }
    if flags & 0x0200 != 0 {
        return Err(Unusable::Truncated);
    }
    let code = u8::try_from(flags & 0x000f).unwrap_or_default();
    if code != 0 {
        return Err(Unusable::Failed(code));
    }
    reader.at = 12 + asked.len();
    let mut found = Answer { min_ttl: u32::MAX, ..Answer::default() };
    for number in 0..usize::from(answers) + usize::from(authorities) + usize::from(additional) {
        let ttl = reader.record(&mut found).ok_or(Unusable::Malformed)?;
        if number < usize::from(answers) {
            found.min_ttl = found.min_ttl.min(ttl);
        }
    }
    Ok(found)
}

struct Reader<'a> {
    message: &'a [u8],
    at: usize,
}

impl Reader<'_> {
    fn take(&mut self, count: usize) -> Option<&[u8]> {
        let piece = self.message.get(self.at..self.at.checked_add(count)?)?;
        self.at += count;
        Some(piece)
    }

    fn word(&mut self) -> Option<u16> {
        self.take(2).map(|bytes| u16::from_be_bytes([bytes[0], bytes[1]]))
    }

    fn words<const N: usize>(&mut self) -> Option<[u16; N]> {
        let mut words = [0; N];
        for word in &mut words {
            *word = self.word()?;
        }
        Some(words)
    }

    /// Reads a record into `found`, and returns how long it is valid.
    fn record(&mut self, found: &mut Answer) -> Option<u32> {
        let owner = self.name()?;
        let [kind, class, high, low, length] = self.words()?;
        let end = self.at.checked_add(length.into())?;
        let data = self.message.get(self.at..end)?;
        if class == INTERNET {
            match kind {
                1 => found.addresses.push((owner, Ipv4Addr::from(<[u8; 4]>::try_from(data).ok()?).into())),
                28 => found.addresses.push((owner, Ipv6Addr::from(<[u8; 16]>::try_from(data).ok()?).into())),
                33 => {
                    let [priority, weight, port] = self.words()?;
                    found.services.push(Srv { priority, weight, port, target: self.name()? });
                }
                CNAME => {
                    let target = self.name()?;
                    found.aliases.push((owner, target));
                }
                _ => {}
            }
        }
        self.at = end;
        Some(u32::from(high) << 16 | u32::from(low))
    }

    /// A name in lower case, which may point back into the message.
    fn name(&mut self) -> Option<String> {
        let (mut name, mut after, mut pointers) = (String::new(), None, 0);
        loop {
            let length = self.take(1)?[0];
            match length {
                0 => break,
                1..=63 => {
                    let label = self.take(length.into())?;
                    let label = std::str::from_utf8(label).ok()?.to_ascii_lowercase();
                    if !name.is_empty() {
                        name.push('.');
                    }
                    name.push_str(&label);
                    if name.len() > MAX_NAME_BYTES {
                        return None;
                    }
                }
                192.. => {
                    pointers += 1;
                    if pointers > MAX_POINTERS {
                        return None;
                    }
                    let low = self.take(1)?[0];
                    after.get_or_insert(self.at);
                    self.at = usize::from(length & 0x3f) << 8 | usize::from(low);
                }
                _ => return None,
            }
        }
        if let Some(after) = after {
            self.at = after;
        }
        Some(name)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn response(question: &[u8], records: &[&[u8]], answers: u16) -> Vec<u8> {
        let mut message = question.to_vec();
        message[2] = 0x81;
        message[6..8].copy_from_slice(&answers.to_be_bytes());
        let more = u16::try_from(records.len()).unwrap() - answers;
        message[10..12].copy_from_slice(&more.to_be_bytes());
        for record in records {
            message.extend(*record);
        }
        message
    }

    /// A record of the name in the question.
    fn record(kind: u16, ttl: u8, data: &[u8]) -> Vec<u8> {
        let mut record = vec![0xc0, 12];
        record.extend(kind.to_be_bytes());
        record.extend([0, 1, 0, 0, 0, ttl, 0, u8::try_from(data.len()).unwrap()]);
        record.extend(data);
        record
    }

    #[test]
    fn services_and_addresses_are_read() {
        let question = question(7, "_http._tcp.Shop.test", Kind::Srv).unwrap();
        let service = record(33, 30, &[0, 1, 0, 5, 0x1f, 0x90, 1, b'A', 0xc0, 23]);
        let mut address = vec![1, b'a', 0xc0, 23];
        address.extend(&record(1, 5, &[10, 0, 0, 1])[2..]);
        let found = answer(&response(&question, &[&service, &address], 1), &question).unwrap();
        let expected = Srv { priority: 1, weight: 5, port: 8080, target: "a.shop.test".to_owned() };
        assert_eq!((found.services.as_slice(), found.min_ttl), (&[expected][..], 30));
        assert_eq!(found.addresses_of("a.shop.test"), [IpAddr::from([10, 0, 0, 1])]);
    }

    #[test]
    fn an_alias_leads_to_its_addresses() {
        let question = question(7, "a.test", Kind::A).unwrap();
        let alias = record(5, 9, &[1, b'b', 0xc0, 14]);
        let mut address = vec![1, b'b', 0xc0, 14];
        address.extend(&record(1, 9, &[10, 0, 0, 2])[2..]);
        let found = answer(&response(&question, &[&alias, &address], 2), &question).unwrap();
        assert_eq!(found.addresses_of("A.test"), [IpAddr::from([10, 0, 0, 2])]);
    }

    #[test]
    fn answers_of_no_use_are_recognized() {
        let question = question(7, "a.test", Kind::A).unwrap();
        let good = response(&question, &[], 0);
        let change = |at: usize, value: u8| {
            let mut message = good.clone();
            message[at] = value;
            answer(&message, &question).unwrap_err()
        };
        assert_eq!(change(1, 8), Unusable::Foreign);
        assert_eq!(change(2, 0x01), Unusable::Foreign);
        assert_eq!(change(13, b'x'), Unusable::Foreign);
        assert_eq!(change(2, 0x83), Unusable::Truncated);
        assert_eq!(change(3, 3), Unusable::Failed(3));
        assert_eq!(change(7, 1), Unusable::Malformed);
        // A name that points to itself.
        let looped = response(&question, &[&[0xc0, u8::try_from(good.len()).unwrap()]], 1);
        assert_eq!(answer(&looped, &question), Err(Unusable::Malformed));
    }

    #[test]
    fn an_invalid_name_is_never_queried() {
        for name in ["", "a..b", &"a".repeat(64), &"a.".repeat(200)] {
            assert_eq!(question(1, name, Kind::A), None, "{name}");
        }
    }

    proptest! {
        #[test]
        fn fuzz_answers_never_panic(tail in proptest::collection::vec(any::<u8>(), 0..200), answers in 0_u16..4) {
            let question = question(7, "a.test", Kind::Srv).unwrap();
            let records: Vec<&[u8]> = vec![&tail; usize::from(answers)];
            let _any = answer(&response(&question, &records, answers), &question);
            let _any = answer(&tail, &question);
        }
    }
}
