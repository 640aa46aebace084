//! Reads a command's syntax line into the argument tree that COMMAND DOCS shows.
//!
//! `key [capacity tokens period] [COST n] [ATMOST | FORCE | BLOCK ms]`: brackets are optional
//! parts, parentheses required groups, `|` alternatives, words in capitals keywords (one word after
//! it is its value), a trailing `...` means one or more.

use crate::server::ffi::command::{Arg, ArgKind};

fn arg(name: &str, kind: ArgKind) -> Arg {
    Arg { name: name.into(), kind, token: None, optional: false, multiple: false, children: Vec::new() }
}

/// The fewest words an argument takes.
pub fn fewest(arg: &Arg) -> usize {
    if arg.optional {
        return 0;
    }
    let children = arg.children.iter().map(fewest);
    let inner = match arg.kind {
        ArgKind::OneOf => children.min().unwrap_or(0),
        ArgKind::Block => children.sum(),
        _ => 1,
    };
    inner + usize::from(arg.token.is_some() && arg.kind != ArgKind::Token)
}

/// Whether an argument always takes the same number of words.
pub fn is_fixed(arg: &Arg) -> bool {
    !arg.optional
        && !arg.multiple
        && arg.children.iter().all(is_fixed)
        && (arg.kind != ArgKind::OneOf || arg.children.windows(2).all(|w| fewest(&w[0]) == fewest(&w[1])))
}

/// What a value in small letters is, by its name.
fn kind(name: &str) -> ArgKind {
    match name {
        "key" | "src" | "dst" => ArgKind::Key,
        "unix-ms" => ArgKind::UnixTime,
        "payload" | "id" | "receipt" | "name" | "group" | "text" | "subject" | "cursor" | "effect"
        | "blob" => ArgKind::String,
        _ => ArgKind::Integer,
    }
}

pub fn parse(syntax: &str) -> Result<Vec<Arg>, String> {
    let spaced =
        ["[", "]", "(", ")", "|"].iter().fold(syntax.to_owned(), |s, c| s.replace(c, &format!(" {c} ")));
    let words: Vec<&str> = spaced.split_whitespace().collect();
    let mut rest = words.as_slice();
    let nodes = sequence(&mut rest)?;
    if rest.is_empty() { Ok(nodes) } else { Err(format!("syntax: unexpected {:?}", rest[0])) }
}

fn sequence(rest: &mut &[&str]) -> Result<Vec<Arg>, String> {
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
fn alternatives(rest: &mut &[&str]) -> Result<Arg, String> {
    let mut choices = vec![group(sequence(rest)?)?];
    while rest.first() == Some(&"|") {
        *rest = &rest[1..];
        choices.push(group(sequence(rest)?)?);
    }
    if choices.len() == 1 {
        return choices.pop().ok_or_else(|| "syntax: empty".into());
    }
    let name = choices.iter().map(|c| c.name.as_str()).collect::<Vec<_>>().join("-or-");
    let mut node = arg(&name, ArgKind::OneOf);
    node.children = choices;
    Ok(node)
}

fn group(mut nodes: Vec<Arg>) -> Result<Arg, String> {
    match nodes.len() {
        0 => Err("syntax: empty group".into()),
        1 => nodes.pop().ok_or_else(|| "syntax: empty".into()),
        _ => {
            let mut node = arg(&nodes[0].name.clone(), ArgKind::Block);
            node.children = nodes;
            Ok(node)
        }
    }
}

fn keyword(word: &str) -> bool {
    word.starts_with(|c: char| c.is_ascii_uppercase())
}

fn single(word: &str, rest: &mut &[&str]) -> Arg {
    let (plain, multiple) = word.strip_suffix("...").map_or((word, false), |w| (w, true));
    if !keyword(plain) {
        let mut node = arg(plain, kind(plain));
        node.multiple = multiple;
        return node;
    }
    let name = plain.to_ascii_lowercase();
    let mut node = match rest.split_first() {
        Some((value, after))
            if value.starts_with(|c: char| c.is_ascii_lowercase()) && !value.ends_with("...") =>
        {
            *rest = after;
            arg(value, kind(value))
        }
        _ => arg(&name, ArgKind::Token),
    };
    node.token = Some(plain.into());
    node.multiple = multiple;
    node
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::server::command::register::arity;

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
        assert_eq!(nodes[0].kind, ArgKind::Key);
        assert!(nodes[1].optional && nodes[1].kind == ArgKind::Block);
        assert!(nodes[2].multiple && nodes[2].kind == ArgKind::String);
        let choice = &nodes[1].children[1];
        assert_eq!(choice.kind, ArgKind::OneOf);
        assert_eq!(choice.children[1].token.as_deref(), Some("FIXED"));
        assert_eq!(choice.children[2].children.len(), 2);
        let nodes = parse("key (STAGE name)...").unwrap();
        assert!(nodes.len() == 2 && nodes[1].multiple && nodes[1].token.as_deref() == Some("STAGE"));
        assert!(parse("key [").is_err() && parse("key ]").is_err() && parse("[]").is_err());
    }
}
