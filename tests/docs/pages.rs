//! The pages of the documentation: their fenced blocks, sections and links.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

/// What a block of the pages may be marked as: `redis` is replayed (see session.rs), `python` is
/// run, the others are only shown.
const MARKS: [&str; 5] = ["redis", "text", "sh", "python", "conf"];

pub struct Page {
    /// Relative to the root: `docs/commands/tb.md`.
    pub name: String,
    pub text: String,
}

/// What stands below a heading of level 2 or more, up to the next heading.
pub struct Section<'a> {
    pub title: String,
    lines: Vec<&'a str>,
}

fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

/// README.md and everything below docs/.
pub fn pages() -> Vec<Page> {
    let mut paths = vec![root().join("README.md")];
    collect(&root().join("docs"), &mut paths);
    paths.sort();
    let read = |path: PathBuf| Page {
        name: path.strip_prefix(root()).expect("a page of ours").display().to_string(),
        text: std::fs::read_to_string(&path).unwrap_or_else(|e| panic!("{}: {e}", path.display())),
    };
    paths.into_iter().map(read).collect()
}

fn collect(folder: &Path, into: &mut Vec<PathBuf>) {
    for path in std::fs::read_dir(folder).expect("the folder docs").flatten().map(|entry| entry.path()) {
        if path.is_dir() {
            collect(&path, into);
        } else if path.extension().is_some_and(|e| e == "md") {
            into.push(path);
        }
    }
}

impl Page {
    /// The blocks with that mark: the number of the first line inside (from 1), and the lines.
    #[track_caller]
    pub fn fenced(&self, mark: &str) -> Vec<(usize, Vec<String>)> {
        let mut found = Vec::new();
        let mut open: Option<(&str, usize, Vec<String>)> = None;
        for (number, line) in self.text.lines().enumerate() {
            match (&mut open, line.strip_prefix("```")) {
                (None, Some(mark)) => {
                    let known = MARKS.contains(&mark) || self.name == "docs/architecture.md";
                    assert!(known, "{}:{}: a block marked {mark:?}, not {MARKS:?}", self.name, number + 1);
                    open = Some((mark, number + 2, Vec::new()));
                }
                (Some((_, _, lines)), None) => lines.push(line.to_owned()),
                (Some(_), Some(_)) => {
                    let (m, first, lines) = open.take().expect("it is open");
                    if m == mark {
                        found.push((first, lines));
                    }
                }
                (None, None) => {}
            }
        }
        assert!(open.is_none(), "{}: a block is not closed", self.name);
        found
    }

    pub fn sections(&self) -> Vec<Section<'_>> {
        let mut sections: Vec<Section<'_>> = Vec::new();
        let mut in_block = false;
        for line in self.text.lines() {
            in_block ^= line.starts_with("```");
            if !in_block && (line.starts_with("## ") || line.starts_with("### ")) {
                let title = line.trim_start_matches('#').trim().to_owned();
                sections.push(Section { title, lines: Vec::new() });
            } else if let Some(section) = sections.last_mut() {
                section.lines.push(line);
            }
        }
        sections
    }

    /// Replaces runs of lines, each given by its first line (from 1), length and new text, and
    /// writes the file.
    pub fn edit(&self, edits: Vec<(usize, usize, Vec<String>)>) {
        if edits.is_empty() {
            return;
        }
        let mut lines: Vec<String> = self.text.lines().map(str::to_owned).collect();
        for (first, count, new) in edits.into_iter().rev() {
            lines.splice(first - 1..first - 1 + count, new);
        }
        std::fs::write(root().join(&self.name), lines.join("\n") + "\n").expect("the page can be written");
    }

    /// Links to files or headings that are not there.
    pub fn broken_links(&self, pages: &[Page]) -> Vec<String> {
        let mut broken = Vec::new();
        for link in self.text.split("](").skip(1).filter_map(|rest| rest.split_once(')')).map(|(l, _)| l) {
            if link.contains("://") {
                continue;
            }
            let (file, heading) = link.split_once('#').map_or((link, None), |(f, h)| (f, Some(h)));
            let path = match file {
                "" => PathBuf::from(&self.name),
                _ => normal(&Path::new(&self.name).parent().expect("a page has a folder").join(file)),
            };
            let name = path.display().to_string();
            let missing = match heading {
                None => !root().join(&path).exists(),
                Some(heading) => {
                    !pages.iter().any(|p| p.name == name && headings(&p.text).iter().any(|h| h == heading))
                }
            };
            if missing {
                broken.push(format!("{}: the link {link} leads nowhere", self.name));
            }
        }
        broken
    }
}

/// Without `..`.
fn normal(path: &Path) -> PathBuf {
    let mut out = PathBuf::new();
    for part in path.components() {
        match part {
            std::path::Component::ParentDir => {
                out.pop();
            }
            part => out.push(part),
        }
    }
    out
}

impl Section<'_> {
    /// The blocks with that mark.
    pub fn fenced(&self, mark: &str) -> Vec<Vec<String>> {
        let page = Page { name: self.title.clone(), text: self.lines.join("\n") };
        page.fenced(mark).into_iter().map(|(_, lines)| lines).filter(|lines| !lines.is_empty()).collect()
    }
}

/// What links call the headings of a page: in small letters, blanks as hyphens, other signs left
/// out.
pub fn headings(text: &str) -> Vec<String> {
    let mut found = Vec::new();
    let mut in_block = false;
    for line in text.lines() {
        in_block ^= line.starts_with("```");
        if !in_block && line.starts_with('#') {
            let title = line.trim_start_matches('#').trim().to_lowercase();
            let kept = title.chars().filter(|c| c.is_alphanumeric() || matches!(c, ' ' | '-' | '_'));
            found.push(kept.map(|c| if c == ' ' { '-' } else { c }).collect());
        }
    }
    found
}

/// The words of two or more capitals.
pub fn upper_case_words(text: &str) -> BTreeSet<String> {
    text.split(|c: char| !c.is_ascii_alphanumeric())
        .filter(|w| w.len() > 1 && w.bytes().all(|b| b.is_ascii_uppercase()))
        .map(str::to_owned)
        .collect()
}
