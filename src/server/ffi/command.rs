//! Commands as the server gets to know them: the function it calls for one, and the description
//! that `COMMAND DOCS`, ACLs and clusters go by.

use super::api::{ERR, OK, rm};
use super::context::{Ctx, function_of};
use super::guard::shield;
use super::strings::Str;
use redis_module::raw;
use std::ffi::{CString, c_char, c_int};
use std::ptr::{null, null_mut};

/// What an argument is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ArgKind {
    String,
    Integer,
    Key,
    UnixTime,
    /// A keyword without a value.
    Token,
    /// One of the children.
    OneOf,
    /// All children, in order.
    Block,
}

/// One argument, or a group of them.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Arg {
    pub name: String,
    pub kind: ArgKind,
    /// The keyword before it.
    pub token: Option<String>,
    pub optional: bool,
    pub multiple: bool,
    pub children: Vec<Arg>,
}

/// What is done to keys.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum KeyUse {
    Read,
    /// Looks at it and may change it.
    Update,
    /// Adds to it without telling anything of it.
    Insert,
    /// Changes it without telling anything of it, but what came of the command's own arguments.
    Write,
    /// Takes from it.
    Take,
}

/// Where keys are.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct KeySpec {
    /// The argument that is the key, or, if they are counted, the one that says how many follow.
    pub position: c_int,
    pub usage: KeyUse,
    pub counted: bool,
    /// For a cluster's eyes only: no ACL heeds it.
    pub not_key: bool,
}

/// All of a command but its function.
#[derive(Debug)]
pub struct Description<'d> {
    pub name: &'d str,
    pub flags: &'d str,
    pub summary: &'d str,
    pub complexity: &'d str,
    pub since: &'d str,
    /// The arity as Redis counts it: the name included, negative when more may follow.
    pub arity: c_int,
    /// The first and the last key by position; 0, 0: there are none that way.
    pub first_last: (c_int, c_int),
    pub keys: &'d [KeySpec],
    pub args: &'d [Arg],
    /// Whether each argument that is a key has a key spec of its own.
    pub spec_each: bool,
    /// Separated by spaces.
    pub categories: &'d str,
}

/// Registers a command: `handler(ctx, argv)` is called for it, and is false where the command
/// failed. Only within `RedisModule_OnLoad`.
pub fn register<F>(ctx: Ctx<'_>, command: &Description<'_>, _handler: F) -> Result<(), String>
where
    F: Fn(Ctx<'_>, &[Str<'_>]) -> bool + Copy + 'static,
{
    let failed = |what: &str| format!("command {}: {what}", command.name);
    let text = |text: &str| CString::new(text).map_err(|e| failed(&e.to_string()));
    let (name, flags, categories) = (text(command.name)?, text(command.flags)?, text(command.categories)?);
    let (first, last) = command.first_last;
    let step = c_int::from(first > 0);
    // SAFETY: within OnLoad; the strings live through the calls; the entry function is static.
    unsafe {
        let done = rm!(RedisModule_CreateCommand(
            ctx.raw(),
            name.as_ptr(),
            Some(entry::<F>),
            flags.as_ptr(),
            first,
            last,
            step
        ));
        if done != OK {
            return Err(failed("the server refused it; is the name taken by another module?"));
        }
        let handle = rm!(RedisModule_GetCommand(ctx.raw(), name.as_ptr()));
        if handle.is_null() {
            return Err(failed("not found after it was created"));
        }
        describe(handle, command).map_err(failed)?;
        // Categories are known from 7.2 on.
        match raw::RedisModule_SetCommandACLCategories {
            Some(set) if set(handle, categories.as_ptr()) != OK => {
                Err(failed("its ACL categories were refused"))
            }
            _ => Ok(()),
        }
    }
}

unsafe extern "C" fn entry<F>(
    ctx: *mut raw::RedisModuleCtx,
    argv: *mut *mut raw::RedisModuleString,
    argc: c_int,
) -> c_int
where
    F: Fn(Ctx<'_>, &[Str<'_>]) -> bool + Copy + 'static,
{
    shield(
        || {
            // SAFETY: the context of a running command; the server gives argc live arguments, which
            // it keeps unchanged while the command runs; `register` was given the handler.
            let done = unsafe { function_of::<F>()(Ctx::new(ctx), Str::slice(argv, argc)) };
            if done { OK } else { ERR }
        },
        || ERR,
    )
}

/// Gives the server summary, arity, key specs and arguments.
///
/// # Safety
/// `handle` is a command of this module, within OnLoad.
unsafe fn describe(
    handle: *mut raw::RedisModuleCommand,
    command: &Description<'_>,
) -> Result<(), &'static str> {
    let mut pool = Pool { spec_each: command.spec_each, ..Pool::default() };
    let version = raw::RedisModuleCommandInfoVersion {
        version: 1,
        sizeof_historyentry: size_of::<raw::RedisModuleCommandHistoryEntry>(),
        sizeof_keyspec: size_of::<raw::RedisModuleCommandKeySpec>(),
        sizeof_arg: size_of::<raw::RedisModuleCommandArg>(),
    };
    let mut specs: Vec<_> = command.keys.iter().copied().map(key_spec).collect();
    // SAFETY: a plain C struct of numbers, pointers and unions of such: all zero ends the list.
    specs.push(unsafe { std::mem::zeroed() });
    let args = pool.args(command.args);
    let info = raw::RedisModuleCommandInfo {
        version: &raw const version,
        summary: pool.text(command.summary),
        complexity: pool.text(command.complexity),
        since: pool.text(command.since),
        history: null_mut(),
        tips: null(),
        arity: command.arity,
        key_specs: specs.as_mut_ptr(),
        args,
    };
    // SAFETY: `info` and all it points to (the pool, the specs) live through the call; the server
    // copies them.
    if unsafe { rm!(RedisModule_SetCommandInfo(handle, &info)) } == OK {
        Ok(())
    } else {
        Err("its description was refused")
    }
}

fn key_spec(key: KeySpec) -> raw::RedisModuleCommandKeySpec {
    // SAFETY: as in `describe`: all zero is a valid value.
    let mut spec: raw::RedisModuleCommandKeySpec = unsafe { std::mem::zeroed() };
    let not_key = if key.not_key { raw::REDISMODULE_CMD_KEY_NOT_KEY } else { 0 };
    spec.flags = u64::from(usage(key.usage) | not_key);
    spec.begin_search_type = raw::RedisModuleKeySpecBeginSearchType_REDISMODULE_KSPEC_BS_INDEX;
    spec.bs.index.pos = key.position;
    if key.counted {
        spec.find_keys_type = raw::RedisModuleKeySpecFindKeysType_REDISMODULE_KSPEC_FK_KEYNUM;
        spec.fk.keynum = raw::RedisModuleCommandKeySpec__bindgen_ty_2__bindgen_ty_2 {
            keynumidx: 0,
            firstkey: 1,
            keystep: 1,
        };
    } else {
        spec.find_keys_type = raw::RedisModuleKeySpecFindKeysType_REDISMODULE_KSPEC_FK_RANGE;
        spec.fk.range =
            raw::RedisModuleCommandKeySpec__bindgen_ty_2__bindgen_ty_1 { lastkey: 0, keystep: 1, limit: 0 };
    }
    spec
}

fn usage(usage: KeyUse) -> u32 {
    match usage {
        KeyUse::Read => raw::REDISMODULE_CMD_KEY_RO | raw::REDISMODULE_CMD_KEY_ACCESS,
        KeyUse::Update => {
            raw::REDISMODULE_CMD_KEY_RW | raw::REDISMODULE_CMD_KEY_ACCESS | raw::REDISMODULE_CMD_KEY_UPDATE
        }
        KeyUse::Insert => raw::REDISMODULE_CMD_KEY_RW | raw::REDISMODULE_CMD_KEY_INSERT,
        KeyUse::Write => raw::REDISMODULE_CMD_KEY_RW | raw::REDISMODULE_CMD_KEY_UPDATE,
        KeyUse::Take => {
            raw::REDISMODULE_CMD_KEY_RW | raw::REDISMODULE_CMD_KEY_ACCESS | raw::REDISMODULE_CMD_KEY_DELETE
        }
    }
}

fn kind(kind: ArgKind) -> raw::RedisModuleCommandArgType {
    match kind {
        ArgKind::String => raw::RedisModuleCommandArgType_REDISMODULE_ARG_TYPE_STRING,
        ArgKind::Integer => raw::RedisModuleCommandArgType_REDISMODULE_ARG_TYPE_INTEGER,
        ArgKind::Key => raw::RedisModuleCommandArgType_REDISMODULE_ARG_TYPE_KEY,
        ArgKind::UnixTime => raw::RedisModuleCommandArgType_REDISMODULE_ARG_TYPE_UNIX_TIME,
        ArgKind::Token => raw::RedisModuleCommandArgType_REDISMODULE_ARG_TYPE_PURE_TOKEN,
        ArgKind::OneOf => raw::RedisModuleCommandArgType_REDISMODULE_ARG_TYPE_ONEOF,
        ArgKind::Block => raw::RedisModuleCommandArgType_REDISMODULE_ARG_TYPE_BLOCK,
    }
}

/// Keeps the C strings and arrays of one description alive.
#[derive(Default)]
struct Pool {
    texts: Vec<CString>,
    lists: Vec<Box<[raw::RedisModuleCommandArg]>>,
    keys: c_int,
    spec_each: bool,
}

impl Pool {
    fn text(&mut self, text: &str) -> *const c_char {
        let text = CString::new(text).unwrap_or_default();
        let ptr = text.as_ptr();
        self.texts.push(text);
        ptr
    }

    /// The argument list of a sequence, ended by a blank one.
    fn args(&mut self, args: &[Arg]) -> *mut raw::RedisModuleCommandArg {
        let mut list: Vec<_> = args.iter().map(|arg| self.arg(arg)).collect();
        list.push(blank());
        let mut list = list.into_boxed_slice();
        let ptr = list.as_mut_ptr();
        self.lists.push(list);
        ptr
    }

    fn arg(&mut self, from: &Arg) -> raw::RedisModuleCommandArg {
        let mut arg = blank();
        let mut flags = 0;
        if from.optional {
            flags |= raw::REDISMODULE_CMD_ARG_OPTIONAL;
        }
        if from.multiple {
            flags |= raw::REDISMODULE_CMD_ARG_MULTIPLE;
        }
        arg.flags = flags.cast_signed();
        arg.name = self.text(&from.name);
        if let Some(token) = &from.token {
            arg.token = self.text(token);
        }
        arg.type_ = kind(from.kind);
        if from.kind == ArgKind::Key {
            arg.key_spec_index = if self.spec_each { self.keys } else { 0 };
            self.keys += 1;
        }
        if !from.children.is_empty() {
            arg.subargs = self.args(&from.children);
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
