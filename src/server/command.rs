//! Registration of commands: one [`Command`] row says everything the server wants to know of a command; its syntax line is the
//! one source of the argument tree in COMMAND DOCS.
//!
//! What a server lacks is left out: ACL categories of our own before 7.4, categories at all before 7.2.

use super::api::{Ctx, OK, rm};
use super::call::{Call, entry};
use super::error::Error;
use super::syntax::{Node, parse};
use redis_module::raw;
use std::ffi::{CString, c_char, c_int};
use std::ptr::{null, null_mut};

/// Where a command's keys are.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Keys {
    None,
    /// The first argument.
    First(Access),
    /// The first argument is taken from, the second added to.
    FirstAndSecond,
    /// The first argument says how many follow. Read by [`Call::counted_keys`], which looks at those the server does not (slots.rs).
    Counted(Access),
}

/// What is done to the keys.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Access {
    Read,
    /// Looks at it and may change it.
    Update,
    /// Adds to it without telling anything of it.
    Insert,
    /// Changes it without telling anything of it, but what came of the command's own arguments.
    Write,
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
        let mut own_category = false;
        // SAFETY: reading a pointer; calling it within OnLoad with a static string.
        if let (Some(add), Ok(name)) = (unsafe { raw::RedisModule_AddACLCategory }, CString::new(CATEGORY)) {
            // SAFETY: as above.
            own_category = unsafe { add(ctx.raw(), name.as_ptr()) } == OK;
        }
        Self { ctx, own_category }
    }

    /// Registers one command with its handler; its arity follows from its syntax.
    pub fn add<F>(&self, command: &Command, handler: F) -> Result<(), String>
    where
        F: Fn(&Call<'_>) -> Result<(), Error> + Copy + 'static,
    {
        let tree = parse(command.syntax)?;
        self.add_with_arity(command, arity(&tree), handler)
    }

    /// The same where more is needed than the syntax can say, such as at least one of several options.
    pub fn add_with_arity<F>(&self, command: &Command, arity: c_int, _handler: F) -> Result<(), String>
    where
        F: Fn(&Call<'_>) -> Result<(), Error> + Copy + 'static,
    {
        let failed = |what: &str| format!("command {}: {what}", command.name);
        let tree = parse(command.syntax).map_err(|e| failed(&e))?;
        let name = CString::new(command.name).map_err(|e| failed(&e.to_string()))?;
        let (first, last, step) = match command.keys {
            Keys::None => (0, 0, 0),
            Keys::First(_) => (1, 1, 1),
            Keys::FirstAndSecond => (1, 2, 1),
            Keys::Counted(_) => (2, 2, 1),
        };
        let flags = CString::new(command.flags).map_err(|e| failed(&e.to_string()))?;
        // SAFETY: within OnLoad; the strings live through the calls; the entry function is static.
        unsafe {
            if rm!(RedisModule_CreateCommand(
                self.ctx.raw(),
                name.as_ptr(),
                Some(entry::<F>),
                flags.as_ptr(),
                first,
                last,
                step
            )) != OK
            {
                return Err(failed("the server refused it; is the name taken by another module?"));
            }
            let handle = rm!(RedisModule_GetCommand(self.ctx.raw(), name.as_ptr()));
            if handle.is_null() {
                return Err(failed("not found after it was created"));
            }
            describe(handle, command, &tree, arity).map_err(&failed)?;
            self.categorize(handle, command).map_err(failed)
        }
    }

    /// # Safety
    /// `handle` is a command of this module, within OnLoad.
    unsafe fn categorize(
        &self,
        handle: *mut raw::RedisModuleCommand,
        command: &Command,
    ) -> Result<(), &'static str> {
        // SAFETY: reading a pointer.
        let Some(set) = (unsafe { raw::RedisModule_SetCommandACLCategories }) else { return Ok(()) };
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
        let text = CString::new(categories.join(" ")).map_err(|_| "bad category")?;
        // SAFETY: by the contract; the string lives through the call.
        if unsafe { set(handle, text.as_ptr()) } == OK {
            Ok(())
        } else {
            Err("its ACL categories were refused")
        }
    }
}

/// Gives the server summary, arity, key specs and arguments.
///
/// # Safety
/// `handle` is a command of this module, within OnLoad.
unsafe fn describe(
    handle: *mut raw::RedisModuleCommand,
    command: &Command,
    tree: &[Node],
    arity: c_int,
) -> Result<(), &'static str> {
    let mut pool = Pool::default();
    let version = raw::RedisModuleCommandInfoVersion {
        version: 1,
        sizeof_historyentry: size_of::<raw::RedisModuleCommandHistoryEntry>(),
        sizeof_keyspec: size_of::<raw::RedisModuleCommandKeySpec>(),
        sizeof_arg: size_of::<raw::RedisModuleCommandArg>(),
    };
    let mut specs = key_specs(command);
    let args = pool.args(tree, command);
    let info = raw::RedisModuleCommandInfo {
        version: &raw const version,
        summary: pool.text(command.summary),
        complexity: pool.text(command.complexity),
        since: pool.text(SINCE),
        history: null_mut(),
        tips: null(),
        arity,
        key_specs: specs.as_mut_ptr(),
        args,
    };
    // SAFETY: `info` and all it points to (the pool, the specs) live through the call; the server copies them.
    if unsafe { rm!(RedisModule_SetCommandInfo(handle, &info)) } == OK {
        Ok(())
    } else {
        Err("its description was refused")
    }
}

/// The arity as Redis counts it: the name included, negative when more may follow.
pub fn arity(tree: &[Node]) -> c_int {
    let least: usize = 1 + tree.iter().map(Node::least).sum::<usize>();
    let least = c_int::try_from(least).unwrap_or(c_int::MAX);
    if tree.iter().all(Node::fixed) { least } else { -least }
}

/// The key specs, ended by a blank one.
fn key_specs(command: &Command) -> Vec<raw::RedisModuleCommandKeySpec> {
    let spec = |position: c_int, flags: u32, counted: bool| {
        // SAFETY: a plain C struct of numbers, pointers and unions of such: all zero is a valid value (and means "end of the list").
        let mut spec: raw::RedisModuleCommandKeySpec = unsafe { std::mem::zeroed() };
        spec.flags = u64::from(flags);
        spec.begin_search_type = raw::RedisModuleKeySpecBeginSearchType_REDISMODULE_KSPEC_BS_INDEX;
        spec.bs.index.pos = position;
        if counted {
            spec.find_keys_type = raw::RedisModuleKeySpecFindKeysType_REDISMODULE_KSPEC_FK_KEYNUM;
            spec.fk.keynum = raw::RedisModuleCommandKeySpec__bindgen_ty_2__bindgen_ty_2 {
                keynumidx: 0,
                firstkey: 1,
                keystep: 1,
            };
        } else {
            spec.find_keys_type = raw::RedisModuleKeySpecFindKeysType_REDISMODULE_KSPEC_FK_RANGE;
            spec.fk.range = raw::RedisModuleCommandKeySpec__bindgen_ty_2__bindgen_ty_1 {
                lastkey: 0,
                keystep: 1,
                limit: 0,
            };
        }
        spec
    };
    let flags = |access| match access {
        Access::Read => raw::REDISMODULE_CMD_KEY_RO | raw::REDISMODULE_CMD_KEY_ACCESS,
        Access::Update => {
            raw::REDISMODULE_CMD_KEY_RW | raw::REDISMODULE_CMD_KEY_ACCESS | raw::REDISMODULE_CMD_KEY_UPDATE
        }
        Access::Insert => raw::REDISMODULE_CMD_KEY_RW | raw::REDISMODULE_CMD_KEY_INSERT,
        Access::Write => raw::REDISMODULE_CMD_KEY_RW | raw::REDISMODULE_CMD_KEY_UPDATE,
    };
    // SAFETY: as above.
    let end: raw::RedisModuleCommandKeySpec = unsafe { std::mem::zeroed() };
    match command.keys {
        Keys::None => vec![end],
        Keys::First(access) => vec![spec(1, flags(access), false), end],
        // The first spec tells ACL and `COMMAND GETKEYS` of all keys. A cluster heeds nothing but ranges, so the second shows it the first key, and nobody else.
        Keys::Counted(access) => vec![
            spec(1, flags(access), true),
            spec(2, flags(access) | raw::REDISMODULE_CMD_KEY_NOT_KEY, false),
            end,
        ],
        Keys::FirstAndSecond => vec![
            spec(
                1,
                raw::REDISMODULE_CMD_KEY_RW
                    | raw::REDISMODULE_CMD_KEY_ACCESS
                    | raw::REDISMODULE_CMD_KEY_DELETE,
                false,
            ),
            spec(2, flags(Access::Insert), false),
            end,
        ],
    }
}

/// Keeps the C strings and arrays of one description alive.
#[derive(Default)]
struct Pool {
    texts: Vec<CString>,
    lists: Vec<Box<[raw::RedisModuleCommandArg]>>,
    keys: c_int,
}

impl Pool {
    fn text(&mut self, text: &str) -> *const c_char {
        let text = CString::new(text).unwrap_or_default();
        let ptr = text.as_ptr();
        self.texts.push(text);
        ptr
    }

    /// The argument list of a sequence, ended by a blank one.
    fn args(&mut self, nodes: &[Node], command: &Command) -> *mut raw::RedisModuleCommandArg {
        let mut list: Vec<_> = nodes.iter().map(|n| self.arg(n, command)).collect();
        list.push(blank());
        let mut list = list.into_boxed_slice();
        let ptr = list.as_mut_ptr();
        self.lists.push(list);
        ptr
    }

    fn arg(&mut self, node: &Node, command: &Command) -> raw::RedisModuleCommandArg {
        let mut arg = blank();
        let mut flags = 0;
        if node.optional {
            flags |= raw::REDISMODULE_CMD_ARG_OPTIONAL;
        }
        if node.multiple {
            flags |= raw::REDISMODULE_CMD_ARG_MULTIPLE;
        }
        arg.flags = flags.cast_signed();
        arg.name = self.text(&node.name);
        if let Some(token) = &node.token {
            arg.token = self.text(token);
        }
        arg.type_ = node.kind;
        if node.kind == raw::RedisModuleCommandArgType_REDISMODULE_ARG_TYPE_KEY {
            arg.key_spec_index = if command.keys == Keys::FirstAndSecond { self.keys } else { 0 };
            self.keys += 1;
        }
        if !node.children.is_empty() {
            arg.subargs = self.args(&node.children, command);
        }
        arg
    }
}

fn blank() -> raw::RedisModuleCommandArg {
    raw::RedisModuleCommandArg {
        name: null(),
        type_: raw::RedisModuleCommandArgType_REDISMODULE_ARG_TYPE_STRING,
        key_spec_index: -1,
        token: null(),
        summary: null(),
        since: null(),
        flags: 0,
        deprecated_since: null(),
        subargs: null_mut(),
        display_text: null(),
    }
}
