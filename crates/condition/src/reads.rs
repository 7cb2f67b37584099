//! The inputs of a condition, known without any fact.

use std::collections::BTreeSet;

use crate::{
    Condition,
    tree::{Check, Operand, Path, Program, Property, Root, System, Test},
};

#[derive(Debug, Clone, Default)]
pub(crate) struct Reads {
    variables: BTreeSet<Box<str>>,
    metadata: BTreeSet<Vec<Box<str>>>,
    feeds: BTreeSet<Box<str>>,
    clock: bool,
}

impl Reads {
    pub(crate) fn of(program: &Program) -> Self {
        let mut reads = Self::default();
        each_test(program, &mut |test| {
            let since = matches!(test.check, Check::Property { property: Property::PassedSince(_), .. });
            reads.clock |= since;
            test.operands().for_each(|operand| {
                if let Operand::Path(path) = operand {
                    reads.path(path);
                }
            });
        });
        reads
    }

    fn path(&mut self, path: &Path) {
        self.variables.insert(path.text.clone());
        match &path.root {
            Root::Metadata => {
                self.metadata.insert(path.keys.iter().map(|key| key.name.clone()).collect());
            }
            Root::Feed(name) => {
                self.feeds.insert(name.clone());
            }
            Root::System(System::Time | System::Date | System::Now | System::Weekday) => self.clock = true,
            Root::System(_) | Root::PreviousState => {}
        }
    }
}

/// Visits every test, including those in parentheses.
pub(crate) fn each_test<'a>(program: &'a Program, visit: &mut impl FnMut(&'a Test)) {
    for test in program.tests() {
        visit(test);
        for operand in test.operands() {
            if let Operand::Group(program) = operand {
                each_test(program, visit);
            }
        }
    }
}

/// Whether the test, or a test in its parentheses, reads a path that `is` accepts.
pub(crate) fn any_path(test: &Test, is: &mut impl FnMut(&Path) -> bool) -> bool {
    test.operands().any(|operand| match operand {
        Operand::Path(path) => is(path),
        Operand::Group(program) => program.tests().iter().any(|test| any_path(test, is)),
        Operand::Literal(_) | Operand::List(_) => false,
    })
}

impl Condition {
    /// Every path in the condition, sorted, without repeats.
    pub fn variables(&self) -> impl Iterator<Item = &str> {
        self.reads.variables.iter().map(|path| &**path)
    }

    /// The paths below `metadata`, as keys. A path without keys is `metadata` itself.
    pub fn metadata_paths(&self) -> impl Iterator<Item = &[Box<str>]> {
        self.reads.metadata.iter().map(|path| &**path)
    }

    /// The names of the feeds that the condition may read.
    pub fn feeds(&self) -> impl Iterator<Item = &str> {
        self.reads.feeds.iter().map(|name| &**name)
    }

    /// Whether the result can change merely because time passes: it reads the time, the date, the weekday or
    /// now, or it contains `passed since`.
    pub fn reads_clock(&self) -> bool {
        self.reads.clock
    }
}
