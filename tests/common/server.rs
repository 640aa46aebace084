//! One running server of a test.
//!
//! It has a folder and a port of its own and writes its configuration into a file there, so that a
//! test may restart it and have the same server again. It ends with its guard, or with the thread
//! that started it if the guard cannot run: keep a server in the test that started it. If the test
//! fails, the end of the server's log is printed. A server that ended by itself fails its test.

use super::engine::{Engine, module_path};
use super::form::Form;
use super::reply::{Talk, call, digest, info, registered_commands};
use super::resp::{RawConnection, Reply};
use super::{PATIENCE, warm, within};
use std::fs::OpenOptions;
use std::net::TcpListener;
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::Once;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

/// A folder that is removed with its guard.
pub struct TempDir(PathBuf);

impl TempDir {
    pub fn new() -> Self {
        static NUMBER: AtomicU32 = AtomicU32::new(0);
        static SWEPT: Once = Once::new();
        SWEPT.call_once(sweep);
        let number = NUMBER.fetch_add(1, Ordering::Relaxed);
        let path = std::env::temp_dir().join(format!("sluice-test-{}-{number}", std::process::id()));
        std::fs::create_dir_all(&path).expect("a folder for a test");
        Self(path)
    }

    pub fn path(&self) -> &Path {
        &self.0
    }
}

/// Removes what earlier runs have left behind, because they were ended or their servers ended with
/// them.
fn sweep() {
    for entry in std::fs::read_dir(std::env::temp_dir()).into_iter().flatten().flatten() {
        let name = entry.file_name().to_string_lossy().into_owned();
        let process =
            name.strip_prefix("sluice-test-").and_then(|rest| rest.split('-').next()?.parse::<u32>().ok());
        if process.is_some_and(|process| !Path::new(&format!("/proc/{process}")).exists()) {
            // Somebody else's stays.
            let _ = std::fs::remove_dir_all(entry.path());
        }
    }
}

impl Drop for TempDir {
    fn drop(&mut self) {
        // What cannot be removed stays in the system's folder for such things.
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

/// A port nobody listens on, as of now: another process may take it before it is used.
pub fn free_port() -> u16 {
    let listener = TcpListener::bind(("127.0.0.1", 0)).expect("a free port");
    listener.local_addr().expect("the address of a listener").port()
}

/// Has the kernel end the command's process when the thread that starts it ends.
pub fn kill_with_parent(command: &mut Command) {
    // SAFETY: between fork and exec only one system call is made: no allocation, no lock.
    unsafe {
        command.pre_exec(|| match libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL) {
            0 => Ok(()),
            _ => Err(std::io::Error::last_os_error()),
        });
    }
}

/// What a server is started with. Unless told otherwise: the module with `debug-clock yes
/// cl-throttle yes`, nothing stored.
#[derive(Debug, Clone)]
pub struct Builder {
    engine: Engine,
    module: Option<Vec<(String, String)>>,
    options: Vec<(String, String)>,
}

impl Builder {
    /// A load option of the module, instead of the value it has so far.
    pub fn module_arg(mut self, name: &str, value: &str) -> Self {
        let args = self.module.get_or_insert_default();
        args.retain(|(n, _)| n != name);
        args.push((name.to_owned(), value.to_owned()));
        self
    }

    /// Loads the module with no argument at all.
    pub fn module_defaults(mut self) -> Self {
        self.module = Some(Vec::new());
        self
    }

    pub fn without_module(mut self) -> Self {
        self.module = None;
        self
    }

    /// A line of the server's configuration; the value as it stands there.
    pub fn option(mut self, name: &str, value: &str) -> Self {
        self.options.push((name.to_owned(), value.to_owned()));
        self
    }

    /// Starts the server and waits until it answers; fails the test if it does not.
    #[track_caller]
    pub fn start(self) -> Server {
        self.try_start().unwrap_or_else(|e| panic!("{e}"))
    }

    /// Starts the server, or says why it did not: the end of its log. For what has to be refused at
    /// load.
    pub fn try_start(self) -> Result<Server, String> {
        let warm = if self.engine.form.is_cluster() { warm::take(&self) } else { None };
        let server = warm.map_or_else(|| self.launched(), Ok)?;
        server.take_form();
        Ok(server)
    }

    /// The server, as soon as it answers.
    pub(super) fn launched(self) -> Result<Server, String> {
        let mut server = Server { builder: self, dir: TempDir::new(), port: free_port(), child: None };
        server.launch()?;
        Ok(server)
    }

    /// The same for another server: no port is used twice.
    pub(super) fn anew(mut self) -> Self {
        for (_, port) in self.options.iter_mut().filter(|(name, _)| name == "cluster-port") {
            *port = free_port().to_string();
        }
        self
    }

    /// Tells apart what is started in different ways.
    pub(super) fn kind(&self) -> String {
        let options: Vec<_> = self.options.iter().filter(|(name, _)| name != "cluster-port").collect();
        format!("{:?} {:?} {options:?}", self.engine, self.module)
    }

    fn configuration(&self, dir: &Path, port: u16) -> String {
        let mut lines = vec![
            format!("port {port}"),
            "bind 127.0.0.1".to_owned(),
            format!("dir \"{}\"", dir.display()),
            "daemonize no".to_owned(),
            "logfile \"\"".to_owned(),
            "save \"\"".to_owned(),
            "appendonly no".to_owned(),
            "enable-debug-command yes".to_owned(),
            "enable-module-command yes".to_owned(),
            "repl-diskless-sync-delay 0".to_owned(),
        ];
        if let Some(args) = &self.module {
            let args: String = args.iter().map(|(name, value)| format!(" {name} {value}")).collect();
            lines.push(format!("loadmodule \"{}\"{args}", module_path().display()));
        }
        lines.extend(self.options.iter().map(|(name, value)| format!("{name} {value}")));
        lines.join("\n") + "\n"
    }
}

pub struct Server {
    builder: Builder,
    dir: TempDir,
    port: u16,
    child: Option<Child>,
}

impl Server {
    #[track_caller]
    pub fn start(engine: &Engine) -> Self {
        Self::builder(engine).start()
    }

    pub fn builder(engine: &Engine) -> Builder {
        let options = engine.form.options(engine.is_valkey());
        Builder { engine: engine.clone(), module: None, options }
            .module_arg("debug-clock", "yes")
            .module_arg("cl-throttle", "yes")
    }

    pub fn engine(&self) -> &Engine {
        &self.builder.engine
    }

    pub fn port(&self) -> u16 {
        self.port
    }

    /// Where it stores its files.
    pub fn dir(&self) -> &Path {
        self.dir.path()
    }

    pub fn pid(&self) -> u32 {
        self.child.as_ref().expect("the server runs").id()
    }

    /// Everything the server has printed, over all its starts.
    pub fn log(&self) -> String {
        String::from_utf8_lossy(&std::fs::read(self.log_path()).unwrap_or_default()).into_owned()
    }

    fn log_path(&self) -> PathBuf {
        self.dir().join("server.log")
    }

    fn log_tail(&self) -> String {
        let log = self.log();
        let lines: Vec<&str> = log.lines().collect();
        let from = lines
            .iter()
            .position(|l| l.contains("BUG REPORT START"))
            .unwrap_or(lines.len())
            .min(lines.len().saturating_sub(40));
        let tail: Vec<&str> = lines.into_iter().skip(from).take(120).collect();
        format!("--- log of {} on port {}\n{}\n---", self.engine(), self.port, tail.join("\n"))
    }

    // ------------------------------------------------------------ connections

    #[track_caller]
    pub fn connect(&self) -> redis::Connection {
        self.connect_as("")
    }

    #[track_caller]
    pub fn connect_db(&self, db: u32) -> redis::Connection {
        self.connect_as(&format!("{db}"))
    }

    #[track_caller]
    pub fn connect_resp3(&self) -> redis::Connection {
        self.connect_as("?protocol=resp3")
    }

    #[track_caller]
    fn connect_as(&self, suffix: &str) -> redis::Connection {
        let client =
            redis::Client::open(format!("redis://127.0.0.1:{}/{suffix}", self.port)).expect("an address");
        let connection = client.get_connection_with_timeout(PATIENCE).expect("a connection");
        // No test hangs: what has not been answered by then never will be.
        connection.set_read_timeout(Some(PATIENCE)).expect("a timeout for a socket");
        connection
    }

    /// A client's connection, in the form of this server.
    #[track_caller]
    pub fn raw(&self) -> RawConnection {
        let mut connection = self.admin();
        for words in self.engine().form.greeting() {
            let reply = connection.call(&words).expect("the server answers");
            assert_eq!(reply, Reply::Bytes(b"OK".to_vec()), "{words:?}");
        }
        connection
    }

    /// The connection of somebody who may do everything, in the first database.
    #[track_caller]
    pub fn admin(&self) -> RawConnection {
        RawConnection::open(self.port).expect("a connection")
    }

    /// Makes of a server that answers what its form says.
    fn take_form(&self) {
        let form = self.engine().form;
        let commands = || registered_commands(&mut self.connect());
        let Some(words) = form.setup(&if form == Form::Rights { commands() } else { vec![] }) else { return };
        let mut admin = self.admin();
        let reply = admin.call(&words).expect("the server answers");
        // A node that starts again has its slots.
        assert!(
            matches!(&reply, Reply::Bytes(_)) || reply.to_string().contains("already busy"),
            "{words:?}: {reply}"
        );
        if form.is_cluster() {
            within(PATIENCE, "the cluster to be whole", || match admin.call(&["CLUSTER", "INFO"]) {
                Ok(Reply::Bytes(info)) if String::from_utf8_lossy(&info).contains("cluster_state:ok") => {
                    Some(())
                }
                _ => None,
            });
        }
    }

    // ------------------------------------------------------------ life and death

    /// Whether the process is still there.
    pub fn is_alive(&mut self) -> bool {
        self.child.as_mut().is_some_and(|c| matches!(c.try_wait(), Ok(None)))
    }

    /// Asks the server to end (it saves what its configuration says) and waits until it has.
    #[track_caller]
    pub fn stop(&mut self) {
        self.signal(libc::SIGTERM);
        let status = within(PATIENCE, "the server's end", || self.exit_status());
        assert!(status.success(), "the server ended with {status}\n{}", self.log_tail());
        self.child = None;
    }

    /// Ends the process with no chance to write anything.
    pub fn kill_9(&mut self) {
        if let Some(mut child) = self.child.take() {
            child.kill().expect("a kill");
            child.wait().expect("the end of a killed process");
        }
    }

    /// Starts a stopped or killed server again: the same folder, configuration and port.
    #[track_caller]
    pub fn start_again(&mut self) {
        assert!(self.child.is_none(), "the server still runs");
        self.launch().unwrap_or_else(|e| panic!("{e}"));
        self.take_form();
    }

    #[track_caller]
    pub fn restart(&mut self) {
        self.stop();
        self.start_again();
    }

    /// A line of configuration for the starts to come.
    pub fn set_option(&mut self, name: &str, value: &str) {
        self.builder.options.push((name.to_owned(), value.to_owned()));
    }

    fn signal(&self, signal: i32) {
        if let Some(child) = &self.child {
            let pid = i32::try_from(child.id()).expect("a process id");
            // SAFETY: a plain system call. The child has not been waited for, so the id is still
            // its own.
            unsafe { libc::kill(pid, signal) };
        }
    }

    fn exit_status(&mut self) -> Option<ExitStatus> {
        self.child.as_mut().and_then(|c| c.try_wait().ok().flatten())
    }

    fn launch(&mut self) -> Result<(), String> {
        for _ in 0..10 {
            let log_start = self.log().len();
            let file = self.dir().join("server.conf");
            std::fs::write(&file, self.builder.configuration(self.dir(), self.port))
                .expect("a configuration file");
            let log = OpenOptions::new().create(true).append(true).open(self.log_path()).expect("a log file");
            let mut command = Command::new(&self.engine().program);
            command.arg(&file).current_dir(self.dir()).stdin(Stdio::null());
            command.stdout(log.try_clone().expect("a second handle")).stderr(log);
            if let Some(library) = std::env::var_os("SLUICE_PRELOAD") {
                // A sanitizer's runtime (`make asan`).
                command.env("LD_PRELOAD", library);
            }
            kill_with_parent(&mut command);
            self.child =
                Some(command.spawn().map_err(|e| format!("{}: {e}", self.engine().program.display()))?);
            if self.wait_until_ready()? {
                return Ok(());
            }
            let clash = self.log().get(log_start..).is_some_and(|l| l.contains("Address already in use"));
            self.child = None;
            if !clash {
                return Err(format!("the server did not start\n{}", self.log_tail()));
            }
            self.port = free_port();
        }
        Err("no port to be had".to_owned())
    }

    /// True once this very process answers; false if it has ended.
    fn wait_until_ready(&mut self) -> Result<bool, String> {
        let end = Instant::now() + PATIENCE;
        let pid = format!("process_id:{}\r\n", self.pid());
        while Instant::now() < end {
            if self.exit_status().is_some() {
                return Ok(false);
            }
            // INFO answers while loading; PING tells when that is over. On a port clash the process
            // is another one.
            if let Ok(mut connection) = RawConnection::open(self.port)
                && let Ok(Reply::Bytes(info)) = connection.call(&["INFO", "server"])
                && String::from_utf8_lossy(&info).contains(&pid)
                && connection.call(&["PING"]).is_ok_and(|r| r == Reply::Bytes(b"PONG".to_vec()))
            {
                return Ok(true);
            }
            std::thread::sleep(Duration::from_millis(3));
        }
        Err(format!("the server does not answer\n{}", self.log_tail()))
    }

    // ------------------------------------------------------------ replication

    /// Makes this server a replica and waits until it has its first copy.
    #[track_caller]
    pub fn replica_of(&self, master: &Server) {
        let mut connection = self.connect();
        call!(connection, "REPLICAOF", "127.0.0.1", master.port);
        within(PATIENCE, "the replica's link", || {
            (info(&mut connection, "replication").get("master_link_status")? == "up").then_some(())
        });
    }

    /// Makes a replica a master.
    #[track_caller]
    pub fn promote(&self) {
        call!(self.connect(), "REPLICAOF", "NO", "ONE");
    }
}

/// Waits until the replica has applied all that the master has written, and holds the same data
/// set.
#[track_caller]
pub fn wait_until_equal(master: &Server, replica: &Server) {
    let (mut m, mut r) = (master.connect(), replica.connect());
    within(PATIENCE, "the replica to catch up", || {
        let written = info(&mut m, "replication").get("master_repl_offset").cloned()?;
        let applied = info(&mut r, "replication").get("slave_repl_offset").cloned()?;
        (written == applied).then_some(())
    });
    assert_eq!(digest(&mut m), digest(&mut r), "master and replica differ (DEBUG DIGEST)");
}

impl Drop for Server {
    fn drop(&mut self) {
        let failing = std::thread::panicking();
        let ended = self.exit_status();
        if ended.is_none() && self.child.is_some() {
            self.signal(libc::SIGTERM);
            let end = Instant::now() + Duration::from_secs(5);
            while self.exit_status().is_none() && Instant::now() < end {
                std::thread::sleep(Duration::from_millis(2));
            }
        }
        let crashed =
            ended.or_else(|| self.exit_status()).filter(|s| s.signal().is_some() || ended.is_some());
        let tail = if failing || crashed.is_some() { self.log_tail() } else { String::new() };
        if failing {
            eprintln!("{tail}");
        }
        if let Some(child) = &mut self.child {
            // Both fail only when the process is gone already.
            let _ = child.kill();
            let _ = child.wait();
        }
        if let Some(status) = crashed {
            eprintln!("the server ended by itself: {status}");
            assert!(failing, "the server ended by itself: {status}\n{tail}");
        }
    }
}
