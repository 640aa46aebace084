//! Registration of commands: one [`Command`] row says everything the server wants to know of a
//! command; its syntax line is the one source of the argument tree in COMMAND DOCS.
//!
//! What a server lacks is left out: ACL categories of our own before 7.4, categories at all before
//! 7.2.

use super::call::{self, Call};
use super::syntax::{fewest, is_fixed, parse};
use crate::server::error::Error;
use crate::server::ffi::command::{Description, KeySpec, register};
use crate::server::ffi::context::Ctx;
use crate::server::ffi::optional::add_acl_category;
use std::ffi::c_int;

pub use crate::server::ffi::command::{Arg, KeyUse};

/// Where a command's keys are.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Keys {
    None,
    /// The first argument.
    First(KeyUse),
    /// The first argument is taken from, the second added to.
    FirstAndSecond,
    /// The first argument says how many follow. Read by [`Call::counted_keys`], which looks at
    /// those the server does not (cluster/slots.rs).
    Counted(KeyUse),
}

/// One command as the server gets to know it.
pub struct Command {
    /// Lower case, with the family's prefix.
    pub name: &'static str,
    /// `write` or `readonly`, `deny-oom`, `fast`, `blocking`, `admin` …
    pub flags: &'static str,
    /// What may follow the name (see syntax.rs).
    pub syntax: &'static str,
    pub keys: Keys,
    pub summary: &'static str,
    pub complexity: &'static str,
}

/// The version in which all commands of this table appeared.
const SINCE: &str = "0.1.0";

/// Our ACL category, where the server knows categories of modules.
const CATEGORY: &str = "sluice";

/// Registers commands while the module is loaded.
pub struct Registrar<'a> {
    ctx: Ctx<'a>,
    own_category: bool,
}

impl<'a> Registrar<'a> {
    pub fn new(ctx: Ctx<'a>) -> Self {
        Self { ctx, own_category: add_acl_category(ctx, c"sluice") }
    }

    /// Registers one command with its handler; its arity follows from its syntax.
    pub fn add<F>(&self, command: &Command, handler: F) -> Result<(), String>
    where
        F: Fn(&Call<'_>) -> Result<(), Error> + Copy + 'static,
    {
        let tree = parse(command.syntax)?;
        self.add_with_arity(command, arity(&tree), handler)
    }

    /// The same where more is needed than the syntax can say, such as at least one of several
    /// options.
    pub fn add_with_arity<F>(&self, command: &Command, arity: c_int, handler: F) -> Result<(), String>
    where
        F: Fn(&Call<'_>) -> Result<(), Error> + Copy + 'static,
    {
        let args = parse(command.syntax).map_err(|e| format!("command {}: {e}", command.name))?;
        let first_last = match command.keys {
            Keys::None => (0, 0),
            Keys::First(_) => (1, 1),
            Keys::FirstAndSecond => (1, 2),
            Keys::Counted(_) => (2, 2),
        };
        let description = Description {
            name: command.name,
            flags: command.flags,
            summary: command.summary,
            complexity: command.complexity,
            since: SINCE,
            arity,
            first_last,
            keys: &key_specs(command.keys),
            args: &args,
            spec_each: command.keys == Keys::FirstAndSecond,
            categories: &self.categories(command),
        };
        register(self.ctx, &description, move |ctx, argv| call::run(ctx, argv, handler))
    }

    fn categories(&self, command: &Command) -> String {
        let mut categories: Vec<&str> = Vec::new();
        for (flag, category) in [
            ("write", "write"),
            ("readonly", "read"),
            ("fast", "fast"),
            ("admin", "admin"),
            ("admin", "dangerous"),
            ("blocking", "blocking"),
        ] {
            if command.flags.split(' ').any(|f| f == flag) {
                categories.push(category);
            }
        }
        if !categories.contains(&"fast") {
            categories.push("slow");
        }
        if self.own_category {
            categories.push(CATEGORY);
        }
        categories.join(" ")
    }
}

/// Registers the rows of a family's table: `handler => command, …`.
macro_rules! commands {
    ($registrar:expr; $($handler:path => $command:expr),* $(,)?) => {
        $( $registrar.add(&$command, $handler)?; )*
    };
}
pub(crate) use commands;

/// The arity as Redis counts it: the name included, negative when more may follow.
pub fn arity(args: &[Arg]) -> c_int {
    let least: usize = 1 + args.iter().map(fewest).sum::<usize>();
    let least = c_int::try_from(least).unwrap_or(c_int::MAX);
    if args.iter().all(is_fixed) { least } else { -least }
}

fn key_specs(keys: Keys) -> Vec<KeySpec> {
    let spec = |position, usage| KeySpec { position, usage, counted: false, not_key: false };
    match keys {
        Keys::None => Vec::new(),
        Keys::First(usage) => vec![spec(1, usage)],
        // The first spec tells ACL and `COMMAND GETKEYS` of all keys. A cluster heeds nothing but
        // ranges, so the second shows it the first key, and nobody else.
        Keys::Counted(usage) => {
            vec![KeySpec { counted: true, ..spec(1, usage) }, KeySpec { not_key: true, ..spec(2, usage) }]
        }
        Keys::FirstAndSecond => vec![spec(1, KeyUse::Take), spec(2, KeyUse::Insert)],
    }
}
