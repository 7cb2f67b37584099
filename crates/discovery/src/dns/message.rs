//! A question to a name server for one name, and the records of the answer. Pure.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use simple_dns::{CLASS, Name, Packet, PacketFlag, Question, TYPE, header_buffer, rdata::RData};

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

/// The records of an answer. Names are in lower case.
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
pub(super) fn question(id: u16, name: &str, kind: TYPE) -> Option<Vec<u8>> {
    let name = name.trim_end_matches('.');
    if name.split('.').any(str::is_empty) {
        return None;
    }
    let name = Name::new(name).ok()?;
    let mut packet = Packet::new_query(id);
    packet.set_flags(PacketFlag::RECURSION_DESIRED);
    packet.questions.push(Question::new(name, kind.into(), CLASS::IN.into(), false));
    packet.build_bytes_vec().ok()
}

/// Reads the answer to `question`.
pub(super) fn answer(message: &[u8], question: &[u8]) -> Result<Answer, Unusable> {
    let (Some((header, rest)), Some((asked, name))) =
        (message.split_at_checked(12), question.split_at_checked(12))
    else {
        return Err(Unusable::Malformed);
    };
    let has = |flag| header_buffer::has_flags_unchecked(header, flag);
    let repeated = rest.get(..name.len()).is_some_and(|rest| rest.eq_ignore_ascii_case(name));
    if !has(PacketFlag::RESPONSE)
        || header[..2] != asked[..2]
        || header_buffer::questions_unchecked(header) != 1
        || !repeated
    {
        return Err(Unusable::Foreign);
    }
    if has(PacketFlag::TRUNCATION) {
        return Err(Unusable::Truncated);
    }
    // The library has no number for unassigned codes.
    let code = header[3] & 0x0f;
    if code != 0 {
        return Err(Unusable::Failed(code));
    }
    let packet = Packet::parse(message).map_err(|_| Unusable::Malformed)?;
    let min_ttl = packet.answers.iter().map(|record| record.ttl).min().unwrap_or(u32::MAX);
    let mut found = Answer { min_ttl, ..Answer::default() };
    let all = packet.answers.iter().chain(&packet.name_servers).chain(&packet.additional_records);
    for record in all.filter(|record| record.class == CLASS::IN) {
        let text = |name: &Name<'_>| name.to_string().to_ascii_lowercase();
        let owner = text(&record.name);
        match &record.rdata {
            RData::A(data) => found.addresses.push((owner, Ipv4Addr::from(data.address).into())),
            RData::AAAA(data) => found.addresses.push((owner, Ipv6Addr::from(data.address).into())),
            RData::CNAME(target) => found.aliases.push((owner, text(&target.0))),
            RData::SRV(data) => {
                let (priority, weight, port) = (data.priority, data.weight, data.port);
                found.services.push(Srv { priority, weight, port, target: text(&data.target) });
            }
            _ => {}
        }
    }
    Ok(found)
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
        let question = question(7, "_http._tcp.Shop.test", TYPE::SRV).unwrap();
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
        let question = question(7, "a.test", TYPE::A).unwrap();
        let alias = record(5, 9, &[1, b'b', 0xc0, 14]);
        let mut address = vec![1, b'b', 0xc0, 14];
        address.extend(&record(1, 9, &[10, 0, 0, 2])[2..]);
        let found = answer(&response(&question, &[&alias, &address], 2), &question).unwrap();
        assert_eq!(found.addresses_of("A.test"), [IpAddr::from([10, 0, 0, 2])]);
    }

    #[test]
    fn answers_of_no_use_are_recognized() {
        let question = question(7, "a.test", TYPE::A).unwrap();
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
            assert_eq!(question(1, name, TYPE::A), None, "{name}");
        }
    }

    proptest! {
        #[test]
        fn fuzz_answers_never_panic(tail in proptest::collection::vec(any::<u8>(), 0..200), answers in 0_u16..4) {
            let question = question(7, "a.test", TYPE::SRV).unwrap();
            let records: Vec<&[u8]> = vec![&tail; usize::from(answers)];
            let _any = answer(&response(&question, &records, answers), &question);
            let _any = answer(&tail, &question);
        }
    }
}
