//! Reads a command's syntax line into the argument tree that COMMAND DOCS shows.
//!
//! `key [capacity tokens period] [COST n] [ATMOST | FORCE | BLOCK ms]`: brackets are optional parts, parentheses required groups, `|` alternatives,
//! words in capitals keywords (one word after it is its value), a trailing `...` means one or more.

use redis_module::raw;

type Kind = raw::RedisModuleCommandArgType;
const STRING: Kind = raw::RedisModuleCommandArgType_REDISMODULE_ARG_TYPE_STRING;
const INTEGER: Kind = raw::RedisModuleCommandArgType_REDISMODULE_ARG_TYPE_INTEGER;
const KEY: Kind = raw::RedisModuleCommandArgType_REDISMODULE_ARG_TYPE_KEY;
const UNIX_TIME: Kind = raw::RedisModuleCommandArgType_REDISMODULE_ARG_TYPE_UNIX_TIME;
const TOKEN: Kind = raw::RedisModuleCommandArgType_REDISMODULE_ARG_TYPE_PURE_TOKEN;
const ONE_OF: Kind = raw::RedisModuleCommandArgType_REDISMODULE_ARG_TYPE_ONEOF;
const BLOCK: Kind = raw::RedisModuleCommandArgType_REDISMODULE_ARG_TYPE_BLOCK;

/// One argument, or a group of them.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Node {
    pub name: String,
    pub kind: Kind,
    pub token: Option<String>,
    pub optional: bool,
    pub multiple: bool,
    pub children: Vec<Node>,
}

impl Node {
    fn new(name: &str, kind: Kind) -> Self {
        Self { name: name.into(), kind, token: None, optional: false, multiple: false, children: Vec::new() }
    }

    /// The fewest words it takes.
    pub fn least(&self) -> usize {
        if self.optional {
            return 0;
        }
        let children = self.children.iter().map(Self::least);
        let inner = match self.kind {
            ONE_OF => children.min().unwrap_or(0),
            BLOCK => children.sum(),
            _ => 1,
        };
        inner + usize::from(self.token.is_some() && self.kind != TOKEN)
    }

    /// Whether it always takes the same number of words.
    pub fn fixed(&self) -> bool {
        !self.optional
            && !self.multiple
            && self.children.iter().all(Self::fixed)
            && (self.kind != ONE_OF || self.children.windows(2).all(|w| w[0].least() == w[1].least()))
    }
}

/// What a value in small letters is, by its name.
fn kind(name: &str) -> Kind {
    match name {
        "key" | "src" | "dst" => KEY,
        "unix-ms" => UNIX_TIME,
        "payload" | "id" | "receipt" | "name" | "group" | "text" | "subject" | "cursor" | "effect"
        | "blob" => STRING,
        _ => INTEGER,
    }
}

pub fn parse(syntax: &str) -> Result<Vec<Node>, String> {
    let spaced =
        ["[", "]", "(", ")", "|"].iter().fold(syntax.to_owned(), |s, c| s.replace(c, &format!(" {c} ")));
    let words: Vec<&str> = spaced.split_whitespace().collect();
    let mut rest = words.as_slice();
    let nodes = sequence(&mut rest)?;
    if rest.is_empty() { Ok(nodes) } else { Err(format!("syntax: unexpected {:?}", rest[0])) }
}

fn sequence(rest: &mut &[&str]) -> Result<Vec<Node>, String> {
    let mut nodes = Vec::new();
    while let Some((word, after)) = rest.split_first() {
        match *word {
            "]" | ")" | "|" => break,
            "[" | "(" => {
                *rest = after;
                let mut node = alternatives(rest)?;
                let closing = if *word == "[" { "]" } else { ")" };
                match rest.split_first() {
                    Some((w, after)) if *w == closing => *rest = after,
                    _ => return Err(format!("syntax: {closing} is missing")),
                }
                node.optional = *word == "[";
                if let Some((&"...", after)) = rest.split_first() {
                    *rest = after;
                    node.multiple = true;
                }
                nodes.push(node);
            }
            _ => {
                *rest = after;
                nodes.push(single(word, rest));
            }
        }
    }
    Ok(nodes)
}

/// What stands between brackets, as one node.
fn alternatives(rest: &mut &[&str]) -> Result<Node, String> {
    let mut choices = vec![group(sequence(rest)?)?];
    while rest.first() == Some(&"|") {
        *rest = &rest[1..];
        choices.push(group(sequence(rest)?)?);
    }
    if choices.len() == 1 {
        return choices.pop().ok_or_else(|| "syntax: empty".into());
    }
    let name = choices.iter().map(|c| c.name.as_str()).collect::<Vec<_>>().join("-or-");
    let mut node = Node::new(&name, ONE_OF);
    node.children = choices;
    Ok(node)
}

fn group(mut nodes: Vec<Node>) -> Result<Node, String> {
    match nodes.len() {
        0 => Err("syntax: empty group".into()),
        1 => nodes.pop().ok_or_else(|| "syntax: empty".into()),
        _ => {
            let mut node = Node::new(&nodes[0].name.clone(), BLOCK);
            node.children = nodes;
            Ok(node)
        }
    }
}

fn keyword(word: &str) -> bool {
    word.starts_with(|c: char| c.is_ascii_uppercase())
}

fn single(word: &str, rest: &mut &[&str]) -> Node {
    let (plain, multiple) = word.strip_suffix("...").map_or((word, false), |w| (w, true));
    if !keyword(plain) {
        let mut node = Node::new(plain, kind(plain));
        node.multiple = multiple;
        return node;
    }
    let name = plain.to_ascii_lowercase();
    let mut node = match rest.split_first() {
        Some((value, after))
            if value.starts_with(|c: char| c.is_ascii_lowercase()) && !value.ends_with("...") =>
        {
            *rest = after;
            Node::new(value, kind(value))
        }
        _ => Node::new(&name, TOKEN),
    };
    node.token = Some(plain.into());
    node.multiple = multiple;
    node
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::server::command::arity;

    #[test]
    fn arities_follow_from_the_syntax() {
        for (syntax, expected) in [
            ("", 1),
            ("key", 2),
            ("key n", 3),
            ("key [capacity tokens period] [COST n] [ATMOST | FORCE | BLOCK ms]", -2),
            ("key receipt...", -3),
            ("key COST n TTL ms", 6),
            ("key [DELAY ms] RECEIPTS n receipt...", -5),
            ("key (READY | DELAYED | DEAD | ALL)", 3),
            ("[SET ms | ADVANCE ms | REAL]", -1),
            ("key (STAGE name (TB capacity tokens period [WARMUP ms] | SEM limit [LEASE ms]))...", -6),
        ] {
            assert_eq!(arity(&parse(syntax).unwrap()), expected, "{syntax}");
        }
    }

    #[test]
    fn keywords_take_the_next_word_and_groups_nest() {
        let nodes = parse("key [BACKOFF (NONE | FIXED ms | EXP base max)] payload...").unwrap();
        assert_eq!(nodes.len(), 3);
        assert_eq!(nodes[0].kind, KEY);
        assert!(nodes[1].optional && nodes[1].kind == BLOCK);
        assert!(nodes[2].multiple && nodes[2].kind == STRING);
        let choice = &nodes[1].children[1];
        assert_eq!(choice.kind, ONE_OF);
        assert_eq!(choice.children[1].token.as_deref(), Some("FIXED"));
        assert_eq!(choice.children[2].children.len(), 2);
        let nodes = parse("key (STAGE name)...").unwrap();
        assert!(nodes.len() == 2 && nodes[1].multiple && nodes[1].token.as_deref() == Some("STAGE"));
        assert!(parse("key [").is_err() && parse("key ]").is_err() && parse("[]").is_err());
    }
}
