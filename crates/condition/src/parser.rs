//! Tokens to tree, by recursive descent; the grammar is in `docs/conditions.md`.

use crate::{
    MAX_BYTES, MAX_DEPTH,
    error::{Fault, Span},
    lexer::{Keyword, Lexer, Token},
    roots::{self, KnownFeeds},
    tree::{Check, Literal, Operand, Program, Property, Test},
};

/// Parses a complete condition.
pub(crate) fn parse(source: &str, feeds: KnownFeeds<'_>) -> Result<Program, Fault> {
    if source.len() > MAX_BYTES {
        let message = format!("the condition is {} bytes long, and may be {MAX_BYTES}", source.len());
        return Err(Fault::new(Span { start: 0, end: 0 }, message));
    }
    let mut lexer = Lexer::new(source);
    let (token, span) = lexer.next()?;
    let mut parser = Parser { source, lexer, token, span, behind: span, depth: 0, feeds, unknown_root: None };
    if parser.token == Token::End {
        return Err(Fault::new(span, "the condition is empty").hint("`true` lets every label pass"));
    }
    let program = parser.program()?;
    match parser.token {
        Token::End => {}
        Token::Close => return Err(Fault::new(parser.span, "this `)` closes nothing")),
        _ => return Err(parser.no_operator()),
    }
    // Reported last, because syntax errors take precedence.
    parser.unknown_root.map_or(Ok(program), Err)
}

struct Parser<'a> {
    source: &'a str,
    lexer: Lexer<'a>,
    token: Token,
    span: Span,
    /// The position of the previous token.
    behind: Span,
    depth: usize,
    feeds: KnownFeeds<'a>,
    /// The first path with an unknown root.
    unknown_root: Option<Fault>,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Joint {
    And,
    Or,
}

impl Parser<'_> {
    /// Returns the current token and reads the next one.
    fn take(&mut self) -> Result<Token, Fault> {
        let (token, span) = self.lexer.next()?;
        self.behind = std::mem::replace(&mut self.span, span);
        Ok(std::mem::replace(&mut self.token, token))
    }

    fn take_keyword(&mut self, keyword: Keyword) -> Result<bool, Fault> {
        let found = self.token == Token::Keyword(keyword);
        if found {
            self.take()?;
        }
        Ok(found)
    }

    fn joint(&self) -> Option<Joint> {
        match self.token {
            Token::Keyword(Keyword::And) => Some(Joint::And),
            Token::Keyword(Keyword::Or) => Some(Joint::Or),
            _ => None,
        }
    }

    fn program(&mut self) -> Result<Program, Fault> {
        let first = self.test()?;
        let Some(joint) = self.joint() else { return Ok(Program::One(Box::new(first))) };
        let mut tests = vec![first];
        while let Some(next) = self.joint() {
            if next != joint {
                return Err(self.mixed(tests, joint));
            }
            self.take()?;
            tests.push(self.test()?);
        }
        Ok(match joint {
            Joint::And => Program::All(tests.into()),
            Joint::Or => Program::Any(tests.into()),
        })
    }

    /// `a and b or c` is rejected as ambiguous; the error shows both ways to write it.
    fn mixed(&mut self, mut tests: Vec<Test>, joint: Joint) -> Fault {
        let fault = Fault::new(self.span, "`and` and `or` side by side need parentheses to set the order");
        let mut joints = vec![joint; tests.len() - 1];
        while let Some(joint) = self.joint() {
            joints.push(joint);
            // A later error is not reported here, but then the two ways cannot be shown.
            match self.take().and_then(|_| self.test()) {
                Ok(test) => tests.push(test),
                Err(_) => return fault.hint("write `(a and b) or c`, or `a and (b or c)`"),
            }
        }
        let ways = [Joint::And, Joint::Or].map(|first| grouped(&tests, &joints, first));
        fault.hint(format!("write `{}`, or `{}`", ways[0], ways[1]))
    }

    fn test(&mut self) -> Result<Test, Fault> {
        let start = self.span;
        let mut nots = 0_u16;
        while self.take_keyword(Keyword::Not)? {
            // Cannot overflow: a text of the maximum length contains a few thousand.
            nots += 1;
        }
        let value = self.value()?;
        let check = match (&self.token, self.verb()) {
            (Token::Compare(comparison), _) => {
                let comparison = *comparison;
                self.take()?;
                Check::Compare(comparison, self.value()?)
            }
            (_, Some(verb)) => self.property(verb)?,
            _ => Check::Bare,
        };
        if matches!(self.token, Token::Compare(_)) || self.verb().is_some() {
            let fault = Fault::new(self.span, "a test compares once, nothing chains");
            return Err(fault.hint(
                "join two tests by `and`: 1 < metadata.n and metadata.n < 5; or put one in parentheses",
            ));
        }
        Ok(Test { nots, value, check, span: start.to(self.behind) })
    }

    fn verb(&self) -> Option<Keyword> {
        match self.token {
            Token::Keyword(verb @ (Keyword::Is | Keyword::Has | Keyword::Was)) => Some(verb),
            _ => None,
        }
    }

    fn property(&mut self, verb: Keyword) -> Result<Check, Fault> {
        self.take()?;
        let not = self.take_keyword(Keyword::Not)?;
        let property = match self.token {
            Token::Keyword(Keyword::Defined) => {
                self.take()?;
                Property::Defined
            }
            Token::Keyword(Keyword::In) => {
                self.take()?;
                Property::In(self.value()?)
            }
            Token::Keyword(Keyword::Passed) => {
                self.take()?;
                if !self.take_keyword(Keyword::Since)? {
                    let fault =
                        Fault::new(self.span, format!("`since` must follow `passed`, not {}", self.found()));
                    return Err(fault.hint("12h has passed since system.entered_state"));
                }
                Property::PassedSince(self.value()?)
            }
            _ => {
                let message = format!(
                    "`{}{}` is followed by `defined`, `in` or `passed since`, not by {}",
                    verb.word(),
                    if not { " not" } else { "" },
                    self.found()
                );
                let hint = if not { "values are compared by `/=`" } else { "values are compared by `=`" };
                return Err(Fault::new(self.span, message).hint(hint));
            }
        };
        Ok(Check::Property { verb, not, property })
    }

    fn value(&mut self) -> Result<Operand, Fault> {
        match &self.token {
            Token::Open => self.group(),
            Token::ListOpen => self.list(),
            Token::Literal(_) | Token::Path(_) => match self.take()? {
                Token::Path(segments) => {
                    let (path, fault) = roots::resolve(&segments, self.behind, self.feeds);
                    self.unknown_root = self.unknown_root.take().or(fault);
                    Ok(Operand::Path(path))
                }
                Token::Literal(literal) => Ok(Operand::Literal(literal)),
                // `take` returns the token that the match above has seen.
                _ => Err(self.no_value()),
            },
            _ => Err(self.no_value()),
        }
    }

    fn group(&mut self) -> Result<Operand, Fault> {
        let open = self.span;
        if self.depth == MAX_DEPTH {
            return Err(Fault::new(open, format!("parentheses nest deeper than {MAX_DEPTH}")));
        }
        self.depth += 1;
        self.take()?;
        let program = self.program()?;
        self.depth -= 1;
        match self.token {
            Token::Close => self.take()?,
            Token::End => return Err(Fault::new(open, "this `(` is never closed")),
            _ => return Err(self.no_operator()),
        };
        Ok(Operand::Group(Box::new(program)))
    }

    fn list(&mut self) -> Result<Operand, Fault> {
        let open = self.span;
        self.take()?;
        let mut literals: Vec<Literal> = Vec::new();
        loop {
            match &self.token {
                Token::Literal(literal) => literals.push(literal.clone()),
                Token::ListClose if literals.is_empty() => {
                    self.take()?;
                    break;
                }
                Token::End => return Err(Fault::new(open, "this `[` is never closed")),
                _ => {
                    let fault = Fault::new(self.span, format!("expected a literal, not {}", self.found()));
                    let text = matches!(&self.token, Token::Path(segments) if segments.len() == 1);
                    let hint = if text {
                        "text needs quotes"
                    } else {
                        "a list holds literals only, no paths, lists or tests"
                    };
                    return Err(fault.hint(hint));
                }
            }
            self.take()?;
            match self.take()? {
                Token::Comma => {}
                Token::ListClose => break,
                Token::End => return Err(Fault::new(open, "this `[` is never closed")),
                _ => return Err(Fault::new(self.behind, "expected `,` or `]`")),
            }
        }
        Ok(Operand::List(literals.into()))
    }

    /// The current token, for a message.
    fn found(&self) -> String {
        match self.token {
            Token::End => "the end".into(),
            _ => format!("`{}`", &self.source[self.span.start..self.span.end]),
        }
    }

    fn no_value(&self) -> Fault {
        let fault = Fault::new(self.span, format!("expected a value, not {}", self.found()));
        match self.token {
            Token::Keyword(Keyword::Not) => fault.hint("put it in parentheses: (not …)"),
            Token::Keyword(_) => {
                fault.hint(format!("text needs quotes: \"{}\"", self.found().trim_matches('`')))
            }
            Token::Close => fault.hint("parentheses cannot be empty"),
            _ => fault,
        }
    }

    /// The error for a complete value that the current token cannot continue.
    fn no_operator(&self) -> Fault {
        let message = format!("expected an operator, `and` or `or`, not {}", self.found());
        let word = match &self.token {
            Token::Path(segments) => segments[0].to_lowercase(),
            _ => String::new(),
        };
        // `NOT x` is parsed as an unknown word before a value.
        let before = self.unknown_root.as_ref().filter(|fault| fault.span.end == self.behind.end);
        if let Some(hint) = before.and_then(|fault| fault.hint.clone()) {
            return Fault::new(self.span, message).hint(hint);
        }
        let hint = match &self.token {
            Token::Keyword(Keyword::Not) => "did you mean `is not in`, `is not defined` or `and not`?".into(),
            Token::Keyword(Keyword::In) => "did you mean `is in`?".into(),
            Token::Keyword(Keyword::Defined) => "did you mean `is defined`?".into(),
            Token::Keyword(Keyword::Passed | Keyword::Since) => "did you mean `has passed since`?".into(),
            Token::Path(_) => match &*word {
                "equals" | "eq" => "did you mean `=`?".into(),
                "contains" => "did you mean `is in`, with both sides swapped?".into(),
                "are" | "had" | "were" => "did you mean `is`, `has` or `was`?".into(),
                word if Keyword::of(word).is_some() => {
                    format!("did you mean `{word}`? Keywords are lower case")
                }
                _ => return Fault::new(self.span, message),
            },
            _ => return Fault::new(self.span, message),
        };
        Fault::new(self.span, message).hint(hint)
    }
}

/// The tests as they would be grouped if `first` had precedence over the other operator.
fn grouped(tests: &[Test], joints: &[Joint], first: Joint) -> String {
    let mut runs: Vec<Vec<String>> = Vec::new();
    for (n, test) in tests.iter().enumerate() {
        match runs.last_mut() {
            Some(run) if n > 0 && joints.get(n - 1) == Some(&first) => run.push(test.to_string()),
            _ => runs.push(vec![test.to_string()]),
        }
    }
    let [inner, outer] = if first == Joint::And { [" and ", " or "] } else { [" or ", " and "] };
    let runs = runs.iter().map(|run| match &**run {
        [test] => test.clone(),
        tests => format!("({})", tests.join(inner)),
    });
    runs.collect::<Vec<_>>().join(outer)
}
