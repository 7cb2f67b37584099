//! Text to tokens, one at a time, so that the first mistake in the text is the one that is reported.

use crate::{
    error::{Fault, Span},
    literal, suggest,
    tree::{Comparison, Literal, of_a_word},
};

#[derive(Debug, Clone, PartialEq)]
pub(crate) enum Token {
    Open,
    Close,
    ListOpen,
    ListClose,
    Comma,
    Compare(Comparison),
    Literal(Literal),
    Keyword(Keyword),
    /// The segments of a path, at least one.
    Path(Vec<String>),
    End,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Keyword {
    And,
    Or,
    Not,
    /// `is`, `has` and `was` are synonyms, so that a condition can be read aloud.
    Is,
    Has,
    Was,
    Defined,
    In,
    Passed,
    Since,
}

const KEYWORDS: [(&str, Keyword); 10] = [
    ("and", Keyword::And),
    ("or", Keyword::Or),
    ("not", Keyword::Not),
    ("is", Keyword::Is),
    ("has", Keyword::Has),
    ("was", Keyword::Was),
    ("defined", Keyword::Defined),
    ("in", Keyword::In),
    ("passed", Keyword::Passed),
    ("since", Keyword::Since),
];

impl Keyword {
    pub(crate) fn of(word: &str) -> Option<Self> {
        KEYWORDS.iter().find(|(known, _)| *known == word).map(|(_, keyword)| *keyword)
    }

    pub(crate) fn word(self) -> &'static str {
        KEYWORDS.iter().find(|(_, known)| *known == self).map_or("", |(word, _)| word)
    }
}

#[derive(Debug)]
pub(crate) struct Lexer<'a> {
    source: &'a str,
    at: usize,
}

impl<'a> Lexer<'a> {
    pub(crate) fn new(source: &'a str) -> Self {
        Self { source, at: 0 }
    }

    pub(crate) fn next(&mut self) -> Result<(Token, Span), Fault> {
        self.skip();
        let start = self.at;
        let token = self.token()?;
        Ok((token, Span { start, end: self.at }))
    }

    fn rest(&self) -> &'a str {
        &self.source[self.at..]
    }

    fn peek(&self) -> Option<char> {
        self.rest().chars().next()
    }

    /// Skips whitespace, and comments up to the end of their line.
    fn skip(&mut self) {
        loop {
            let rest = self.rest();
            let length = match rest.bytes().next() {
                Some(b' ' | b'\t' | b'\r' | b'\n') => 1,
                Some(b'#') => rest.find(['\n', '\r']).unwrap_or(rest.len()),
                _ => return,
            };
            self.at += length;
        }
    }

    fn take(&mut self, length: usize, token: Token) -> Token {
        self.at += length;
        token
    }

    fn token(&mut self) -> Result<Token, Fault> {
        let Some(c) = self.peek() else { return Ok(Token::End) };
        if let Some((mistake, hint)) = suggest::operator(self.rest()) {
            let fault = Fault::new(self.ahead(mistake.len()), format!("`{mistake}` is not a valid operator"));
            return Err(fault.hint(hint));
        }
        let rest = self.rest();
        Ok(match c {
            '(' => self.take(1, Token::Open),
            ')' => self.take(1, Token::Close),
            '[' => self.take(1, Token::ListOpen),
            ']' => self.take(1, Token::ListClose),
            ',' => self.take(1, Token::Comma),
            '=' => self.take(1, Token::Compare(Comparison::Equal)),
            '/' if rest.starts_with("/=") => self.take(2, Token::Compare(Comparison::Unequal)),
            '<' if rest.starts_with("<=") => self.take(2, Token::Compare(Comparison::AtMost)),
            '<' => self.take(1, Token::Compare(Comparison::Less)),
            '>' if rest.starts_with(">=") => self.take(2, Token::Compare(Comparison::AtLeast)),
            '>' => self.take(1, Token::Compare(Comparison::Greater)),
            '"' | '\'' => {
                let (text, end) = literal::from_quotes(self.source, self.at)?;
                self.at = end;
                Token::Literal(Literal::Text(text.into()))
            }
            '0'..='9' => self.digits()?,
            '-' if rest[1..].starts_with(|c: char| c.is_ascii_digit()) => self.digits()?,
            c if c.is_alphabetic() || c == '_' => self.word()?,
            c => {
                let message = format!("{} has no meaning here", suggest::shown(c));
                return Err(Fault::new(self.ahead(c.len_utf8()), message).maybe_hint(suggest::character(c)));
            }
        })
    }

    fn ahead(&self, length: usize) -> Span {
        Span { start: self.at, end: self.at + length }
    }

    /// Reads everything that could belong to a number, so that `5-3` or `12hours` is reported as one mistake.
    fn digits(&mut self) -> Result<Token, Fault> {
        let belongs = |c: char| of_a_word(c) || matches!(c, '.' | ':' | '+');
        let length = self.rest().find(|c| !belongs(c)).unwrap_or(self.rest().len());
        let literal = literal::from_digits(&self.rest()[..length], self.ahead(length))?;
        Ok(self.take(length, Token::Literal(literal)))
    }

    /// Reads a keyword, or a path: words and quoted keys, separated by dots.
    fn word(&mut self) -> Result<Token, Fault> {
        let mut segments = vec![self.letters().to_owned()];
        while self.rest().starts_with('.') {
            self.at += 1;
            let segment = match self.peek() {
                Some('"') => {
                    let (key, end) = literal::from_quotes(self.source, self.at)?;
                    self.at = end;
                    key
                }
                Some(c) if of_a_word(c) => self.letters().to_owned(),
                _ => {
                    let dot = Span { start: self.at - 1, end: self.at };
                    return Err(Fault::new(dot, "a key must follow this dot")
                        .hint("a key is letters, digits, _ and -, or anything in double quotes: metadata.\"any key\""));
                }
            };
            segments.push(segment);
        }
        let [word] = &*segments else { return Ok(Token::Path(segments)) };
        Ok(match &**word {
            "true" => Token::Literal(Literal::Bool(true)),
            "false" => Token::Literal(Literal::Bool(false)),
            "null" => Token::Literal(Literal::Null),
            word => match Keyword::of(word) {
                Some(keyword) => Token::Keyword(keyword),
                None => Token::Path(segments),
            },
        })
    }

    fn letters(&mut self) -> &'a str {
        let rest = self.rest();
        let length = rest.find(|c| !of_a_word(c)).unwrap_or(rest.len());
        self.at += length;
        &rest[..length]
    }
}
