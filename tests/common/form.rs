//! In which form the servers of a test are run: what holds for a server of its own has to hold for
//! a cluster's node.
//!
//! `SLUICE_FORMS`, a list of their names, chooses; without it `plain` and `threads` are run, and
//! all with `SLUICE_TORTURE=1`.

use super::server::free_port;
use std::fmt;
use std::sync::OnceLock;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Form {
    /// A server of its own, the first database, a user who may do everything.
    Plain,
    /// One node that has every slot.
    Cluster,
    /// The same with `io-threads 3`: the servers then read commands, and look for their keys,
    /// beside the main thread.
    Threads,
    /// Clients work in a database other than the first.
    Database,
    /// Clients are a user who may run the module's commands and little else.
    Rights,
}

/// The database of `Form::Database`.
pub const DATABASE: &str = "5";

/// The user of `Form::Rights`, and the password.
pub const USER: &str = "least";

/// What that user may run besides the module's commands: what cases and drivers need.
const NATIVE: &str = "+exists +type +pttl +get +ping +set +lpush +multi +exec +del +copy +rename +client|id +select +flushall \
                      +config|resetstat +info";

const ALL: [Form; 5] = [Form::Plain, Form::Cluster, Form::Threads, Form::Database, Form::Rights];

impl Form {
    fn name(self) -> &'static str {
        match self {
            Form::Plain => "plain",
            Form::Cluster => "cluster",
            Form::Threads => "threads",
            Form::Database => "database",
            Form::Rights => "rights",
        }
    }

    pub fn is_cluster(self) -> bool {
        matches!(self, Form::Cluster | Form::Threads)
    }

    /// The lines of configuration that make it so.
    pub fn options(self, is_valkey: bool) -> Vec<(String, String)> {
        let mut options = Vec::new();
        let mut option = |name: &str, value: &str| options.push((name.to_owned(), value.to_owned()));
        if self.is_cluster() {
            option("cluster-enabled", "yes");
            // By default 10,000 above the other one, which may be no port at all.
            option("cluster-port", &free_port().to_string());
        }
        if self == Form::Threads {
            option("io-threads", "3");
            if is_valkey {
                // Their threads otherwise rest while there is little to do, as in a test.
                option("events-per-io-thread", "0");
            } else {
                option("io-threads-do-reads", "yes");
            }
        }
        options
    }

    /// What a new connection says first.
    pub fn greeting(self) -> Vec<Vec<String>> {
        let command = |line: &str| line.split_whitespace().map(str::to_owned).collect();
        match self {
            Form::Database => vec![command(&format!("SELECT {DATABASE}"))],
            Form::Rights => vec![command(&format!("AUTH {USER} {USER}"))],
            _ => vec![],
        }
    }

    /// What is done once with a server that has started.
    pub fn setup(self, commands: &[String]) -> Option<Vec<String>> {
        match self {
            Form::Cluster | Form::Threads => {
                Some(["CLUSTER", "ADDSLOTSRANGE", "0", "16383"].map(str::to_owned).to_vec())
            }
            Form::Rights => {
                let mut words: Vec<String> = ["ACL", "SETUSER", USER, "reset", "on", ">least", "~*", "-@all"]
                    .map(str::to_owned)
                    .to_vec();
                words.extend(NATIVE.split_whitespace().map(str::to_owned));
                words.extend(commands.iter().map(|c| format!("+{c}")));
                Some(words)
            }
            Form::Plain | Form::Database => None,
        }
    }

    /// The arguments of the random drivers.
    pub fn of_drivers(self) -> String {
        match self {
            Form::Plain => String::new(),
            Form::Cluster | Form::Threads => " --cluster".to_owned(),
            Form::Database => format!(" --db {DATABASE}"),
            Form::Rights => format!(" --user {USER}"),
        }
    }
}

impl fmt::Display for Form {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Form::Plain => Ok(()),
            form => write!(f, " ({})", form.name()),
        }
    }
}

/// Whether tests shall take long and look at everything.
pub fn is_torture() -> bool {
    std::env::var_os("SLUICE_TORTURE").is_some_and(|v| !v.is_empty() && v != "0")
}

/// The forms that are asked for.
pub fn forms() -> &'static [Form] {
    static FORMS: OnceLock<Vec<Form>> = OnceLock::new();
    FORMS.get_or_init(|| match std::env::var("SLUICE_FORMS") {
        Ok(names) => names
            .split(',')
            .map(|name| {
                let found = ALL.into_iter().find(|form| form.name() == name.trim());
                found.unwrap_or_else(|| {
                    panic!("SLUICE_FORMS names {name}; there are {:?}", ALL.map(Form::name))
                })
            })
            .collect(),
        Err(_) if is_torture() => ALL.to_vec(),
        Err(_) => vec![Form::Plain, Form::Threads],
    })
}
